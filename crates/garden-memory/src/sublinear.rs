//! Laws of healthy growth that never quite stops: does one of them explain the whole growth better than a leak does?
//!
//! Caches keyed by shape grow like a logarithm, fragmentation like a root, copy-on-write and caches of random draws like a
//! saturating exponential. Seen late and through noise, the end of such a curve passes for a slow straight leak; seen
//! whole it does not. A leak is one straight line, or a fill and a line after it. The models are compared by the Bayesian
//! information criterion, with correlated points counted as fewer.

use crate::segments::two_lines;
use crate::stats::{Line, Point, autocorrelation};

/// Parameters of a law: height, size and time constant.
const LAW_PARAMETERS: f64 = 3.0;
/// Parameters of one line, and of two lines with the cut between them.
const LINE_PARAMETERS: [f64; 2] = [2.0, 5.0];

/// Fewer points cannot tell a power of the time near 1 from a line.
const FEWEST_FOR_POWERS: usize = 16;

/// Whether a slowing law that began at `origin` explains the points better than a line or two.
pub(crate) fn law_explains(points: &[Point], origin: f64) -> bool {
    let Some(last) = points.last() else { return false };
    let length = last.x - origin;
    if points.len() < 8 || length <= 0.0 {
        return false;
    }
    let candidates = laws(length, points.len()).into_iter().map(|law| residuals_of(points, origin, &law));
    let best_law = candidates.min_by(|a, b| squares(a).total_cmp(&squares(b)));
    let Some(law) = best_law else { return false };
    let lines = [Line::fit(points).residuals(points), two_lines(points)];
    let best_fit = if squares(&law) < squares(&lines[1]) { &law } else { &lines[1] };
    let phi = autocorrelation(best_fit);
    let effective = (points.len() as f64 * (1.0 - phi) / (1.0 + phi)).max(4.0);
    let criterion =
        |residuals: &[f64], parameters: f64| effective * squares(residuals).max(1.0).ln() + parameters * effective.ln();
    let leak = lines.iter().zip(LINE_PARAMETERS).map(|(r, p)| criterion(r, p)).fold(f64::INFINITY, f64::min);
    criterion(&law, LAW_PARAMETERS) < leak
}

/// Powers of the time to choose from; above the last it is a line, below the first a logarithm fits as well.
const POWERS: [f64; 6] = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// The power of the time since `origin` that the points follow, if a power explains them better than any other law.
pub(crate) fn power_of_time(points: &[Point], origin: f64) -> Option<f64> {
    let length = points.last()?.x - origin;
    if points.len() < FEWEST_FOR_POWERS || length <= 0.0 {
        return None;
    }
    let error = |law: &dyn Fn(f64) -> f64| squares(&residuals_of(points, origin, law));
    let (power, best) =
        POWERS.into_iter().map(|power| (power, error(&|t: f64| t.powf(power)))).min_by(|a, b| a.1.total_cmp(&b.1))?;
    let others = curved(length).into_iter().map(|law| error(&law)).fold(f64::INFINITY, f64::min);
    (best < others).then_some(power)
}

fn squares(residuals: &[f64]) -> f64 {
    residuals.iter().map(|r| r * r).sum()
}

/// The shapes that slow down to a third of their first rate or less within the length.
fn laws(length: f64, points: usize) -> Vec<Box<dyn Fn(f64) -> f64>> {
    let mut laws: Vec<Box<dyn Fn(f64) -> f64>> = vec![Box::new(f64::sqrt)];
    for power in [0.6, 0.7, 0.8] {
        if points >= FEWEST_FOR_POWERS {
            laws.push(Box::new(move |t: f64| t.powf(power)));
        }
    }
    laws.extend(curved(length));
    laws
}

/// Logarithms and saturating exponentials.
fn curved(length: f64) -> Vec<Box<dyn Fn(f64) -> f64>> {
    let mut laws: Vec<Box<dyn Fn(f64) -> f64>> = Vec::new();
    for share in [0.005, 0.015, 0.05, 0.1, 0.2, 0.35, 0.5] {
        let constant = share * length;
        laws.push(Box::new(move |t| (t / constant).ln_1p()));
    }
    for share in [0.1, 0.2, 0.35, 0.5, 0.7, 0.9] {
        let constant = share * length;
        laws.push(Box::new(move |t| -(-t / constant).exp_m1()));
    }
    laws
}

fn residuals_of(points: &[Point], origin: f64, law: &dyn Fn(f64) -> f64) -> Vec<f64> {
    let bent: Vec<Point> = points.iter().map(|p| Point { x: law((p.x - origin).max(0.0)), y: p.y }).collect();
    let fit = Line::fit(&bent);
    // A falling law is not growth; its best fit is the mean.
    let fit = if fit.slope > 0.0 { fit } else { Line { slope: 0.0, ..fit } };
    fit.residuals(&bent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: impl Fn(f64) -> f64) -> bool {
        let points: Vec<Point> =
            (0..64).map(|i| Point { x: i as f64, y: value(i as f64) + ((i * 7919) % 13) as f64 }).collect();
        law_explains(&points, 0.0)
    }

    #[test]
    fn a_logarithm_is_a_law_and_a_fill_with_a_leak_is_not() {
        assert!(check(|x| 300.0 * (x / 3.0).ln_1p()));
        assert!(check(|x| 300.0 * x.sqrt()));
        assert!(!check(|x| 50.0 * x.min(20.0) + 3.0 * x));
        assert!(!check(|x| 10.0 * x));
    }
}
