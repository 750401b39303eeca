//! Small robust statistics: medians, Student's t, autocorrelation, lines.
//!
//! Everything takes slices and returns numbers; empty input gives `None` or 0, never a panic or NaN.

/// A sample on the floor or on the raw series: place on the clock and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub x: f64,
    pub y: f64,
}

/// The quantile of the finite values, by linear interpolation; 0 if there are none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return 0.0;
    }
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = sorted[place as usize];
    let above = sorted[(place as usize + 1).min(sorted.len() - 1)];
    below + (above - below) * place.fract()
}

/// The median.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Standard deviation of white noise from first differences, by their median absolute deviation.
///
/// Slow movements hardly enter a first difference, so this measures noise without knowing the trend.
pub(crate) fn noise_of_differences(points: &[Point]) -> f64 {
    let differences: Vec<f64> = points.windows(2).map(|w| w[1].y - w[0].y).collect();
    let center = median(&differences);
    let deviations: Vec<f64> = differences.iter().map(|d| (d - center).abs()).collect();
    // 1.4826 makes the median absolute deviation a standard deviation for Gaussian noise; a difference has two parts.
    median(&deviations) * 1.4826 / std::f64::consts::SQRT_2
}

/// Lag-one autocorrelation of residuals, at least 0, with Kendall's (1954) correction for its downward bias.
pub(crate) fn autocorrelation(residuals: &[f64]) -> f64 {
    let n = residuals.len() as f64;
    let total: f64 = residuals.iter().map(|r| r * r).sum();
    if residuals.len() < 4 || total <= 0.0 {
        return 0.0;
    }
    let lagged: f64 = residuals.windows(2).map(|w| w[0] * w[1]).sum();
    let raw = lagged / total;
    (raw + (1.0 + 3.0 * raw) / n).clamp(0.0, 0.97)
}

/// The t value with the tail probability of the normal quantile `z`, at the given degrees of freedom.
///
/// Exact for 1 and 2 degrees, otherwise the Cornish-Fisher expansion (Abramowitz & Stegun 26.7.5), good to 1 % from 3
/// degrees on for |z| up to 3.5. Degrees may be fractional, as effective sample sizes are.
pub(crate) fn student_t(z: f64, degrees: f64) -> f64 {
    if degrees < 1.0 {
        return f64::INFINITY;
    }
    if degrees < 3.0 {
        let tail = normal_tail(z);
        let one = 1.0 / (std::f64::consts::PI * tail).tan();
        let two = (1.0 - 2.0 * tail) / (2.0 * tail * (1.0 - tail)).sqrt();
        return if degrees < 2.0 {
            one + (two - one) * (degrees - 1.0)
        } else {
            two + (expand(z, 3.0) - two) * (degrees - 2.0)
        };
    }
    expand(z, degrees)
}

fn expand(z: f64, v: f64) -> f64 {
    let (z3, z5, z7, z9) = (z.powi(3), z.powi(5), z.powi(7), z.powi(9));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * z) / (92160.0 * v.powi(4))
}

/// Probability that a standard normal variable exceeds `z` (Abramowitz & Stegun 26.2.17, error below 1e-7).
pub(crate) fn normal_tail(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - normal_tail(-z);
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly
}

/// Kendall's (1938) rank correlation of points with their order, as a normal variable; 0 below four points.
///
/// Correlated noise widens its distribution by about (1 + phi) / (1 - phi) (Hamed & Rao 1998, leading term).
pub(crate) fn rank_trend(points: &[Point]) -> f64 {
    let n = points.len() as f64;
    if points.len() < 4 {
        return 0.0;
    }
    let sign = |earlier: &Point, later: &Point| later.y.total_cmp(&earlier.y) as i8 as f64;
    let of_one = |at: usize| points[at + 1..].iter().map(|later| sign(&points[at], later)).sum::<f64>();
    let score: f64 = (0..points.len()).map(of_one).sum();
    let phi = autocorrelation(&Line::fit(points).residuals(points));
    score / (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0 * (1.0 + phi) / (1.0 - phi)).sqrt()
}

/// A straight line by least squares.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub slope: f64,
    pub mean_x: f64,
    pub mean_y: f64,
    /// Sum of squared distances from the mean of `x`.
    pub spread: f64,
}

impl Line {
    pub(crate) fn fit(points: &[Point]) -> Line {
        let n = points.len().max(1) as f64;
        let mean_x = points.iter().map(|p| p.x).sum::<f64>() / n;
        let mean_y = points.iter().map(|p| p.y).sum::<f64>() / n;
        let spread: f64 = points.iter().map(|p| (p.x - mean_x).powi(2)).sum();
        let cross: f64 = points.iter().map(|p| (p.x - mean_x) * (p.y - mean_y)).sum();
        let slope = if spread > 0.0 { cross / spread } else { 0.0 };
        Line { slope, mean_x, mean_y, spread }
    }

    pub(crate) fn at(&self, x: f64) -> f64 {
        self.mean_y + self.slope * (x - self.mean_x)
    }

    pub(crate) fn residuals(&self, points: &[Point]) -> Vec<f64> {
        points.iter().map(|p| p.y - self.at(p.x)).collect()
    }
}

/// A rate with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Units in which programs write memory: pages, and decimal and binary multiples with up to three digits after the point.
const WRITTEN_IN: [f64; 12] = {
    const KIB: f64 = 1024.0;
    const MIB: f64 = KIB * KIB;
    const GIB: f64 = MIB * KIB;
    [1e3, KIB, 4096.0, MIB / 1000.0, MIB / 100.0, 1e5, MIB / 10.0, 1e6, MIB, GIB / 1000.0, 1e7, GIB / 100.0]
};
/// Few values are multiples of a large unit by chance.
const FEWEST_LEVELS: usize = 3;

/// The distance between neighbouring values that the points can tell apart: the largest unit of which all are multiples.
pub(crate) fn resolution(points: &[Point]) -> f64 {
    let mut levels: Vec<f64> = points.iter().map(|p| p.y).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let most = if levels.len() < FEWEST_LEVELS { 4096.0 } else { f64::INFINITY };
    // Amounts are whole bytes.
    let fits = |unit: f64| levels.iter().all(|level| (level / unit - (level / unit).round()).abs() * unit <= 1.0);
    WRITTEN_IN.into_iter().filter(|&unit| unit <= most && fits(unit)).fold(1.0, f64::max)
}

/// Beyond this many points Theil-Sen takes an even selection: pairs grow with the square.
const THEIL_SEN_POINTS: usize = 160;

/// The median slope over all pairs (Theil 1950, Sen 1968), with Sen's interval widened for autocorrelation.
///
/// Sen's interval counts concordant pairs under independent noise; correlated noise makes the count's variance larger by
/// about (1 + phi) / (1 - phi) (Hamed & Rao 1998, leading term), so the rank offset grows by that factor's root.
pub(crate) fn theil_sen(points: &[Point]) -> Option<Rate> {
    let stride = points.len().div_ceil(THEIL_SEN_POINTS).max(1);
    let chosen: Vec<Point> = points.iter().copied().step_by(stride).collect();
    let mut slopes = Vec::with_capacity(chosen.len() * chosen.len() / 2);
    for (i, a) in chosen.iter().enumerate() {
        slopes.extend(chosen[i + 1..].iter().filter(|b| b.x > a.x).map(|b| (b.y - a.y) / (b.x - a.x)));
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let value = median(&slopes);
    let residuals: Vec<f64> = chosen.iter().map(|p| p.y - value * p.x).collect();
    let center = median(&residuals);
    let residuals: Vec<f64> = residuals.iter().map(|r| r - center).collect();
    let phi = autocorrelation(&residuals);
    let n = chosen.len() as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0 * (1.0 + phi) / (1.0 - phi)).sqrt();
    let half = 1.96 * deviation / 2.0;
    let middle = slopes.len() as f64 / 2.0;
    let pick = |place: f64| slopes[(place.max(0.0) as usize).min(slopes.len() - 1)];
    Some(Rate { value, low: pick(middle - half), high: pick((middle + half).ceil()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: usize, slope: f64) -> Vec<Point> {
        (0..n).map(|i| Point { x: i as f64, y: 5.0 + slope * i as f64 }).collect()
    }

    #[test]
    fn student_t_matches_the_tables() {
        // Two-sided 95 % is z = 1.96; the table's values are 12.71, 4.303, 2.571, 2.042.
        for (degrees, expected) in [(1.0, 12.71), (2.0, 4.303), (5.0, 2.571), (30.0, 2.042)] {
            let t = student_t(1.959_964, degrees);
            assert!((t / expected - 1.0).abs() < 0.01, "{degrees}: {t}");
        }
        // One-sided 0.0005 is z = 3.29: 6.869 at 5 degrees, 4.073 at 15.
        for (degrees, expected) in [(5.0, 6.869), (15.0, 4.073)] {
            let t = student_t(3.290_527, degrees);
            assert!((t / expected - 1.0).abs() < 0.03, "{degrees}: {t}");
        }
        assert_eq!(student_t(2.0, 0.5), f64::INFINITY);
    }

    #[test]
    fn theil_sen_ignores_a_quarter_of_outliers() {
        let mut points = line(40, 3.0);
        for p in points.iter_mut().step_by(5) {
            p.y += 1e6;
        }
        let rate = theil_sen(&points).unwrap();
        assert!((rate.value - 3.0).abs() < 1e-6, "{rate:?}");
        assert_eq!(theil_sen(&[]), None);
        assert_eq!(theil_sen(&[Point { x: 1.0, y: 1.0 }, Point { x: 1.0, y: 9.0 }]), None);
    }

    #[test]
    fn a_line_is_found_exactly() {
        let fit = Line::fit(&line(9, -2.0));
        assert!((fit.slope + 2.0).abs() < 1e-12 && (fit.at(100.0) + 195.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
