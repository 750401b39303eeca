//! Leaves out samples that no eye could distinguish, and never an extreme.
//!
//! The samples are cut into stretches, and the lowest and the highest of each curve in each stretch are kept: real
//! samples, at their real places, so that a cursor still reads exact values.

use crate::chart::{Chart, Role};

/// Most places of a chart, apart from the ends of its pieces.
pub(crate) const MOST_PLACES: usize = 2000;

/// The chart with at most [`MOST_PLACES`] places, all extremes among them.
pub(crate) fn thin(mut chart: Chart) -> Chart {
    let len = chart.places.len();
    chart.curves.iter_mut().for_each(|curve| curve.values.resize(len, f64::NAN));
    chart.breaks.retain(|&at| at > 0 && at < len);
    if len <= MOST_PLACES {
        return chart;
    }
    let stack = envelope(&chart);
    // The eye follows the outline of a stack: it gets as many samples as all curves together.
    let shares = chart.curves.len().max(1) * if stack.is_some() { 2 } else { 1 };
    let mut kept = ends(&chart);
    for curve in &chart.curves {
        keep_extremes(&mut kept, &curve.values, MOST_PLACES / shares);
    }
    if let Some(outline) = &stack {
        keep_extremes(&mut kept, outline, MOST_PLACES / 2);
    }
    kept.sort_unstable();
    kept.dedup();
    if chart.samples == 0 {
        chart.samples = len;
    }
    chart.breaks = chart.breaks.iter().map(|&at| kept.partition_point(|&index| index < at)).collect();
    chart.places = pick(&chart.places, &kept);
    chart.curves.iter_mut().for_each(|curve| curve.values = pick(&curve.values, &kept));
    chart
}

fn pick(values: &[f64], kept: &[usize]) -> Vec<f64> {
    kept.iter().map(|&index| values[index]).collect()
}

/// The sum of the stacked curves, where there are several.
fn envelope(chart: &Chart) -> Option<Vec<f64>> {
    let stacked: Vec<_> = chart.curves.iter().filter(|curve| curve.role == Role::Stacked).collect();
    let known = |value: f64| if value.is_finite() { value } else { 0.0 };
    let sum = |index: usize| stacked.iter().map(|curve| known(curve.values[index])).sum();
    (stacked.len() > 1).then(|| (0..chart.places.len()).map(sum).collect())
}

/// The first and last sample of each piece.
fn ends(chart: &Chart) -> Vec<usize> {
    let last = chart.places.len() - 1;
    let breaks = chart.breaks.iter().flat_map(|&at| [at - 1, at]);
    [0, last].into_iter().chain(breaks).collect()
}

/// Adds the lowest and the highest of each stretch, as many as the budget allows.
pub(crate) fn keep_extremes(kept: &mut Vec<usize>, values: &[f64], budget: usize) {
    let stretches = (budget / 2).max(1);
    for stretch in 0..stretches {
        let range = stretch * values.len() / stretches..(stretch + 1) * values.len() / stretches;
        let mut known = range.filter(|&index| values[index].is_finite());
        let Some(first) = known.next() else { continue };
        let (low, high) = known.fold((first, first), |(low, high), index| {
            (
                if values[index] < values[low] { index } else { low },
                if values[index] > values[high] { index } else { high },
            )
        });
        kept.extend([low, high]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Curve;

    fn curve(role: Role, values: Vec<f64>) -> Curve {
        Curve { role, values, ..Curve::default() }
    }

    #[test]
    fn extremes_ends_and_breaks_survive() {
        let wave = |n: usize| ((n * 7919) % 1000) as f64;
        let mut one: Vec<f64> = (0..100_000).map(wave).collect();
        (one[31_415], one[27_182]) = (1e9, -1e9);
        let two: Vec<f64> = (0..100_000).map(|n| if n == 77_777 { 5e9 } else { f64::NAN }).collect();
        let chart = Chart {
            places: (0..100_000).map(f64::from).collect(),
            breaks: vec![60_000],
            curves: vec![curve(Role::Stacked, one.clone()), curve(Role::Stacked, two)],
            ..Chart::default()
        };
        let thinned = thin(chart);
        assert!(thinned.places.len() <= MOST_PLACES + 4, "{}", thinned.places.len());
        assert_eq!(thinned.samples, 100_000);
        for place in [0.0, 31_415.0, 27_182.0, 77_777.0, 59_999.0, 60_000.0, 99_999.0] {
            assert!(thinned.places.contains(&place), "{place}");
        }
        // The rest are measured values, at the places where they were measured.
        for (place, value) in thinned.places.iter().zip(&thinned.curves[0].values) {
            assert_eq!(*value, one[*place as usize]);
        }
        assert_eq!(thinned.places[thinned.breaks[0]], 60_000.0);
    }

    #[test]
    fn small_and_ragged_charts_are_left_alone() {
        let chart = Chart {
            places: vec![1.0, 2.0],
            breaks: vec![0, 9],
            curves: vec![curve(Role::Line, vec![3.0])],
            ..Chart::default()
        };
        let thinned = thin(chart);
        assert_eq!((thinned.places.len(), thinned.samples, thinned.breaks.len()), (2, 0, 0));
        assert_eq!(thinned.curves[0].values.len(), 2);
    }
}
