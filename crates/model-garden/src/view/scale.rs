//! Axes with round numbers: bytes upwards, steps or times to the right.

use garden_memory::{GIB, KIB, MIB, TIB};

/// Round distances between labels, within a power of ten.
const ROUND: [f64; 7] = [1.0, 2.0, 2.5, 5.0, 3.0, 4.0, 8.0];
/// How many of them read well as decimals, too: 0.5 does, 0.3 does not.
const ROUND_DECIMALS: usize = 4;
/// Seconds between labels that read well on a clock.
const ROUND_SECONDS: [f64; 18] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0,
    43_200.0, 86_400.0,
];
/// Columns that a label beneath the chart needs, with the room around it.
const LABEL_COLUMNS: f64 = 11.0;

/// The vertical scale: row 0 is the axis and stands for nothing, the rows above it for as many times `per_row`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    /// Bytes per row.
    pub per_row: f64,
    /// Labels, by row from the axis.
    pub labels: Vec<(usize, String)>,
}

impl Scale {
    /// The scale of `rows` rows above the axis that shows everything up to `high` with the least room to spare.
    pub fn fit(high: f64, rows: usize) -> Scale {
        let high = if high.is_finite() { high.max(1.0) } else { 1.0 };
        let (unit, name) = unit_of(high);
        let rows = rows.max(1);
        let magnitude = (high / unit / rows as f64).log10().floor() as i32;
        let distances = if rows < 10 { 2..=3 } else { (rows / 9).max(3)..=(rows / 6).max(5) };
        let mut best: (f64, f64, usize) = (f64::INFINITY, high / unit, rows);
        for distance in distances.filter(|&distance| distance <= rows) {
            let steps = (0..4).flat_map(|up| ROUND.iter().enumerate().map(move |round| (up, round)));
            for (up, (index, round)) in steps {
                let step = round * 10f64.powi(magnitude + up);
                let span = rows as f64 / distance as f64 * step;
                // Labels with decimals have to earn their place, and bytes have none.
                let is_whole = (step - step.round()).abs() < 1e-9 && step >= 1.0;
                let cost = if is_whole { span } else { 1.15 * span };
                let reads_well = is_whole || (index < ROUND_DECIMALS && unit > 1.0);
                if span >= high / unit * 0.9999 && cost < best.0 * 0.999 && reads_well {
                    best = (cost, step, distance);
                }
            }
        }
        let (_, step, distance) = best;
        let is_exact = |digits: &i32| (step * 10f64.powi(*digits) - (step * 10f64.powi(*digits)).round()).abs() < 1e-6;
        let digits = (0..3).find(is_exact).unwrap_or(3) as usize;
        let label = |n: usize| match n {
            0 => (0, "0".to_string()),
            _ => (n * distance, format!("{:.digits$} {name}", n as f64 * step)),
        };
        Scale { per_row: step / distance as f64 * unit, labels: (0..=rows / distance).map(label).collect() }
    }
}

fn unit_of(high: f64) -> (f64, &'static str) {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    let fitting = units.into_iter().find(|unit| high >= unit.0 as f64);
    fitting.map_or((1.0, "B"), |(factor, name)| (factor as f64, name))
}

/// What the horizontal axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Training steps.
    Steps,
    /// Seconds since watching began.
    Time,
}

impl Axis {
    /// The labels of a stretch that is `columns` wide, and the unit they are in.
    pub fn labels(self, from: f64, to: f64, columns: usize) -> (Vec<(f64, String)>, &'static str) {
        let least = (to - from) / (columns as f64 / LABEL_COLUMNS).max(1.0);
        let step = match self {
            Axis::Steps => round_above(least).max(1.0),
            Axis::Time => {
                let listed = ROUND_SECONDS.into_iter().find(|&seconds| seconds >= least);
                listed.unwrap_or_else(|| round_above(least / 86_400.0) * 86_400.0)
            }
        };
        let first = (from / step - 1e-9).ceil();
        let places = (0..columns).map(|n| (first + n as f64) * step).take_while(|&place| place <= to);
        (places.map(|place| (place, self.write(place, to))).collect(), self.unit(to))
    }

    /// One place, in the unit in which an axis up to `longest` is written.
    pub fn write(self, place: f64, longest: f64) -> String {
        match self.unit(longest) {
            "min" => sexagesimal(place),
            "h" => sexagesimal(place / 60.0),
            "d" => format!("{:.1}", place / 86_400.0),
            _ => format!("{place:.0}"),
        }
    }

    /// The unit in which places up to `longest` read well.
    pub fn unit(self, longest: f64) -> &'static str {
        match (self, longest) {
            (Axis::Steps, _) => "steps",
            (_, s) if s < 120.0 => "s",
            (_, s) if s < 7200.0 => "min",
            (_, s) if s < 345_600.0 => "h",
            _ => "d",
        }
    }
}

/// Sixtieths as `whole:sixtieths`, such as `2:05`.
fn sexagesimal(sixtieths: f64) -> String {
    // As a clock shows them, and as the verdict's sentence does: what has passed in full.
    let whole = (sixtieths.max(0.0) + 1e-6).floor();
    format!("{:.0}:{:02.0}", (whole / 60.0).floor(), whole % 60.0)
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_above(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|round| round * power).into_iter().find(|&step| step >= least * 0.999).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(high: f64, rows: usize) -> String {
        let scale = Scale::fit(high, rows);
        scale.labels.iter().map(|(row, label)| format!("{row}={label}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn bytes_are_round_and_on_rows() {
        let gib = GIB as f64;
        assert_eq!(labels(15.0 * gib, 8), "0=0, 2=4 GiB, 4=8 GiB, 6=12 GiB, 8=16 GiB");
        assert_eq!(labels(32.0 * gib, 16), "0=0, 4=8 GiB, 8=16 GiB, 12=24 GiB, 16=32 GiB");
        assert_eq!(labels(900.0 * MIB as f64, 8), "0=0, 2=250 MiB, 4=500 MiB, 6=750 MiB, 8=1000 MiB");
        assert_eq!(labels(1.3 * gib, 9), "0=0, 3=0.5 GiB, 6=1.0 GiB, 9=1.5 GiB");
        assert_eq!(labels(0.0, 8), "0=0, 3=1 B, 6=2 B");
    }

    #[test]
    fn every_value_is_within_its_scale() {
        for rows in 1..60 {
            for exponent in 0..45 {
                let high = 1.37f64.powi(exponent * 2) * 1000.0;
                assert!(Scale::fit(high, rows).per_row * rows as f64 >= high * 0.999, "{high} in {rows} rows");
            }
        }
    }

    #[test]
    fn places_are_labelled_in_steps_or_on_a_clock() {
        let written = |axis: Axis, from: f64, to: f64| {
            let (labels, unit) = axis.labels(from, to, 66);
            format!("{} {unit}", labels.into_iter().map(|label| label.1).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(written(Axis::Steps, 1.0, 110.0), "20 40 60 80 100 steps");
        assert_eq!(written(Axis::Time, 0.0, 480.0), "0:00 2:00 4:00 6:00 8:00 min");
        assert_eq!(written(Axis::Time, 0.0, 9000.0), "0:00 0:30 1:00 1:30 2:00 2:30 h");
        assert_eq!(written(Axis::Time, 5.0, 5.0), "5 s");
    }
}
