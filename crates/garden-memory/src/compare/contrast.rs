//! Estimates with their uncertainty, their difference (Welch 1947) and their ratio (Fieller 1954).

use crate::comparison::Interval;
use crate::stats::student_t;

/// The normal quantile of a two-sided 95 % interval.
const NINETY_FIVE: f64 = 1.959_964;

/// An estimate, its standard error, and the error's degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub value: f64,
    pub error: f64,
    pub degrees: f64,
}

impl Estimate {
    /// The mean of several runs, with the standard error from their spread; `None` for fewer than two.
    pub(super) fn of_replicates(values: &[f64]) -> Option<Estimate> {
        let n = values.len() as f64;
        if values.len() < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Some(Estimate { value: mean, error: (variance / n).sqrt(), degrees: n - 1.0 })
    }

    /// The estimate with an error of at least `error`.
    pub(super) fn at_least(self, error: f64) -> Estimate {
        Estimate { error: self.error.max(error), ..self }
    }

    /// This estimate minus an independent one.
    pub(super) fn minus(self, other: Estimate) -> Estimate {
        let (degrees, error) = combined(self.error, self.degrees, other.error, other.degrees);
        Estimate { value: self.value - other.value, error, degrees }
    }

    pub(super) fn interval(self) -> Interval {
        let half = self.half();
        Interval { value: self.value, low: self.value - half, high: self.value + half }
    }

    fn half(self) -> f64 {
        if self.error == 0.0 { 0.0 } else { student_t(NINETY_FIVE, self.degrees) * self.error }
    }

    /// This estimate divided by an independent one; `None` unless the latter is surely above zero.
    ///
    /// All ratios r are plausible for which `this - r * other` is not surely different from 0: the roots of a quadratic.
    pub(super) fn over(self, other: Estimate) -> Option<Interval> {
        let value = self.value / other.value;
        let (degrees, _) = combined(self.error, self.degrees, value * other.error, other.degrees);
        let t = if self.error == 0.0 && other.error == 0.0 { 0.0 } else { student_t(NINETY_FIVE, degrees) };
        let a = other.value.powi(2) - (t * other.error).powi(2);
        let b = self.value * other.value;
        let c = self.value.powi(2) - (t * self.error).powi(2);
        if !(other.value > 0.0 && a > 0.0) {
            return None;
        }
        let root = (b * b - a * c).max(0.0).sqrt();
        Some(Interval { value, low: (b - root) / a, high: (b + root) / a })
    }
}

/// Degrees of freedom (Satterthwaite 1946) and error of a sum of two independent estimates.
fn combined(error: f64, degrees: f64, other_error: f64, other_degrees: f64) -> (f64, f64) {
    let (one, two) = (error.powi(2), other_error.powi(2));
    let total = one + two;
    let effective = total.powi(2) / (one.powi(2) / degrees + two.powi(2) / other_degrees);
    (if total > 0.0 { effective } else { degrees + other_degrees }, total.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welch_matches_a_worked_example() {
        // Means 20.82 and 23.70, variances 7.8125 and 3.7943 of 12 and 8: -2.88 with an error of 1.0608 and 17.9 degrees.
        let one = Estimate { value: 20.82, error: (7.8125_f64 / 12.0).sqrt(), degrees: 11.0 };
        let two = Estimate { value: 23.70, error: (3.7943_f64 / 8.0).sqrt(), degrees: 7.0 };
        let difference = one.minus(two);
        assert!((difference.error - 1.0608).abs() < 1e-3, "{difference:?}");
        assert!((difference.degrees - 17.9).abs() < 0.3, "{difference:?}");
    }

    #[test]
    fn a_ratio_is_bounded_only_where_its_base_is_surely_there() {
        let base = Estimate { value: 10.0, error: 0.5, degrees: 60.0 };
        let half = Estimate { value: 5.0, error: 0.5, degrees: 60.0 };
        let ratio = half.over(base).unwrap();
        assert!(
            ratio.value == 0.5 && (0.38..0.42).contains(&ratio.low) && (0.59..0.63).contains(&ratio.high),
            "{ratio:?}"
        );
        assert_eq!(half.over(Estimate { value: 0.9, ..base }), None);
        assert_eq!(half.over(Estimate { value: -10.0, ..base }), None);
    }

    #[test]
    fn runs_that_agree_leave_no_doubt_and_one_leaves_all() {
        let same = Estimate::of_replicates(&[4.0, 4.0, 4.0]).unwrap().interval();
        assert_eq!((same.low, same.high), (4.0, 4.0));
        assert_eq!(Estimate::of_replicates(&[4.0]), None);
        let two = Estimate::of_replicates(&[3.0, 5.0]).unwrap().interval();
        assert!(two.low < -8.0 && two.high > 16.0, "two runs with one degree of freedom tell little: {two:?}");
    }
}
