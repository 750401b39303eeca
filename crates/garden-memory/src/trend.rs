//! Whether a stretch of the floor rises, and whether its rise slows down.
//!
//! Both tests are least-squares fits whose standard errors are widened for first-order autocorrelation: the noise is
//! estimated from the fit's own residuals; n correlated points locate a mean or a slope as well as `n (1 - phi) / (1 + phi)`
//! independent ones, and their spread as well as `n (1 - phi^2) / (1 + phi^2)` (Bayley & Hammersley 1946). Thresholds are
//! quantiles of Student's t at the latter, less the fitted parameters.

use crate::stats::{Line, Point, Rate, autocorrelation, student_t};

/// A straight trend with its uncertainty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trend {
    pub slope: f64,
    pub error: f64,
    pub degrees: f64,
    /// Length of the stretch on the clock.
    pub length: f64,
}

impl Trend {
    /// The trend of a stretch; `None` below three points or without extent.
    pub(crate) fn of(points: &[Point]) -> Option<Trend> {
        let line = Line::fit(points);
        if points.len() < 3 || line.spread <= 0.0 {
            return None;
        }
        let (variance, degrees) = noise_of(&line.residuals(points), 2.0);
        let length = points[points.len() - 1].x - points[0].x;
        Some(Trend { slope: line.slope, error: (variance / line.spread).sqrt(), degrees, length })
    }

    /// Whether the slope is above 0 at the one-sided normal quantile `z`.
    pub(crate) fn rises(&self, z: f64) -> bool {
        self.slope > 0.0 && self.slope >= student_t(z, self.degrees) * self.error
    }

    /// The highest slope that the data allow at the one-sided normal quantile `z`.
    pub(crate) fn at_most(&self, z: f64) -> f64 {
        self.slope + student_t(z, self.degrees) * self.error
    }

    /// The slope with its 95 % interval. Values are only known to a resolution, so that noise that cannot be seen is no certainty.
    pub(crate) fn rate(&self, resolution: f64) -> Rate {
        let half = student_t(1.96, self.degrees) * self.error + resolution / self.length.max(f64::MIN_POSITIVE);
        Rate { value: self.slope, low: self.slope - half, high: self.slope + half }
    }

    /// The rise over the stretch.
    pub(crate) fn rise(&self) -> f64 {
        self.slope * self.length
    }
}

/// How the rate changes along a stretch: a parabola's slopes at its two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bend {
    /// Coefficients of `a + b u + c u^2` with `u` from -1 to 1 over the stretch.
    b: f64,
    c: f64,
    covariance: [[f64; 2]; 2],
    degrees: f64,
}

impl Bend {
    /// The parabola through a stretch; `None` below four points or without extent.
    pub(crate) fn of(points: &[Point]) -> Option<Bend> {
        let (first, last) = (points.first()?.x, points.last()?.x);
        if points.len() < 4 || last <= first {
            return None;
        }
        let scaled = |p: &Point| 2.0 * (p.x - first) / (last - first) - 1.0;
        let n = points.len() as f64;
        let mean = |f: &dyn Fn(&Point) -> f64| points.iter().map(f).sum::<f64>() / n;
        let (mu, mq, my) = (mean(&scaled), mean(&|p| scaled(p).powi(2)), mean(&|p| p.y));
        let sum = |f: &dyn Fn(f64, f64, f64) -> f64| {
            points.iter().map(|p| f(scaled(p) - mu, scaled(p).powi(2) - mq, p.y - my)).sum::<f64>()
        };
        let (uu, uq, qq) = (sum(&|u, _, _| u * u), sum(&|u, q, _| u * q), sum(&|_, q, _| q * q));
        let (uy, qy) = (sum(&|u, _, y| u * y), sum(&|_, q, y| q * y));
        let determinant = uu * qq - uq * uq;
        if determinant <= 1e-9 * uu * qq {
            return None;
        }
        let b = (qq * uy - uq * qy) / determinant;
        let c = (uu * qy - uq * uy) / determinant;
        let residuals: Vec<f64> =
            points.iter().map(|p| p.y - my - b * (scaled(p) - mu) - c * (scaled(p).powi(2) - mq)).collect();
        let (variance, degrees) = noise_of(&residuals, 3.0);
        let covariance = [[qq, -uq], [-uq, uu]].map(|row| row.map(|v| v * variance / determinant));
        Some(Bend { b, c, covariance, degrees })
    }

    /// Whether the mean rate is above 0 at the one-sided normal quantile `z`.
    pub(crate) fn rises(&self, z: f64) -> bool {
        self.b > 0.0 && self.b >= student_t(z, self.degrees) * self.covariance[0][0].sqrt()
    }

    /// The difference `rate at the end - share * rate at the start`, and its standard error.
    fn difference(&self, share: f64) -> (f64, f64) {
        let (wb, wc) = (1.0 - share, 2.0 * (1.0 + share));
        let [[bb, bc], [_, cc]] = self.covariance;
        let variance = wb * wb * bb + 2.0 * wb * wc * bc + wc * wc * cc;
        (wb * self.b + wc * self.c, variance.max(0.0).sqrt())
    }

    /// Whether the end's rate is surely (at normal quantile `z`) above that share of the start's rate.
    pub(crate) fn surely_keeps(&self, share: f64, z: f64) -> bool {
        let (difference, error) = self.difference(share);
        difference > 0.0 && difference >= student_t(z, self.degrees) * error
    }

    /// Whether the end's rate may (at normal quantile `z`) be at least that share of the start's rate.
    pub(crate) fn may_keep(&self, share: f64, z: f64) -> bool {
        let (difference, error) = self.difference(share);
        difference + student_t(z, self.degrees) * error >= 0.0
    }
}

/// Log-likelihood ratio of a straight line over a power of the time since `origin`; positive where the line fits better.
///
/// Both have two parameters, so the ratio of their squared errors says it all; correlated points count as fewer.
pub(crate) fn line_over_power(points: &[Point], origin: f64, power: f64) -> f64 {
    let bent: Vec<Point> = points.iter().map(|p| Point { x: (p.x - origin).max(0.0).powf(power), y: p.y }).collect();
    let line = Line::fit(points).residuals(points);
    let root = Line::fit(&bent).residuals(&bent);
    likelier(&line, &root, points.len())
}

/// Log-likelihood ratio of a straight line over growth that ends at a place; positive where the line fits better. Both have two parameters.
pub(crate) fn line_over_hinge(points: &[Point], end: f64) -> f64 {
    let bent: Vec<Point> = points.iter().map(|p| Point { x: p.x.min(end), y: p.y }).collect();
    let line = Line::fit(points).residuals(points);
    let hinge = Line::fit(&bent).residuals(&bent);
    likelier(&line, &hinge, points.len())
}

/// Log-likelihood ratio of one fit's residuals over another's, with correlated points counted as fewer.
fn likelier(line: &[f64], other: &[f64], count: usize) -> f64 {
    let squares = |residuals: &[f64]| residuals.iter().map(|r| r * r).sum::<f64>();
    let (line_error, other_error) = (squares(line), squares(other));
    if line_error <= 0.0 || other_error <= 0.0 {
        return other_error.total_cmp(&line_error) as i8 as f64 * f64::MAX;
    }
    // The better fit's residuals are nearer to the true noise.
    let phi = autocorrelation(if line_error < other_error { line } else { other });
    let effective = count as f64 * (1.0 - phi) / (1.0 + phi);
    0.5 * effective * (other_error / line_error).ln()
}

/// Log-likelihood ratio of a straight line over a single step between two levels, with the step's third parameter paid for.
///
/// One jump, or a short fill between two plateaus, has a significant trend too, but is not steady growth.
pub(crate) fn line_over_step(points: &[Point]) -> f64 {
    let n = points.len();
    let mut sums = vec![(0.0, 0.0)];
    let center = points.iter().map(|p| p.y).sum::<f64>() / n.max(1) as f64;
    for p in points {
        let (sum, squares) = sums[sums.len() - 1];
        sums.push((sum + (p.y - center), squares + (p.y - center).powi(2)));
    }
    let error = |from: usize, to: usize| {
        let (sum, squares) = (sums[to].0 - sums[from].0, sums[to].1 - sums[from].1);
        squares - sum * sum / (to - from) as f64
    };
    let step_error = (1..n).map(|cut| error(0, cut) + error(cut, n)).fold(f64::INFINITY, f64::min);
    let line = Line::fit(points).residuals(points);
    let line_error = line.iter().map(|r| r * r).sum::<f64>();
    if line_error <= 0.0 || !step_error.is_finite() || step_error <= 0.0 {
        return if line_error <= 0.0 { f64::MAX } else { -f64::MAX };
    }
    let phi = autocorrelation(&line);
    let effective = (n as f64 * (1.0 - phi) / (1.0 + phi)).max(4.0);
    0.5 * effective * (step_error / line_error).ln() + 0.5 * effective.ln()
}

/// Long-run variance of residuals, given the number of fitted parameters, and the effective degrees of freedom.
pub(crate) fn noise_of(residuals: &[f64], parameters: f64) -> (f64, f64) {
    let n = residuals.len() as f64;
    let phi = autocorrelation(residuals);
    let variance = residuals.iter().map(|r| r * r).sum::<f64>() / (n - parameters).max(1.0);
    let inflation = (1.0 + phi) / (1.0 - phi);
    // Strong correlation of tiny residuals would leave no degree of freedom at all, however clear the trend.
    let degrees = (n * (1.0 - phi * phi) / (1.0 + phi * phi) - parameters).max(2.0);
    (variance * inflation, degrees)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(n: usize, value: impl Fn(f64) -> f64) -> Vec<Point> {
        // A fixed ripple stands in for noise.
        (0..n).map(|i| Point { x: i as f64, y: value(i as f64) + ((i * 7919) % 13) as f64 * 0.05 }).collect()
    }

    #[test]
    fn a_line_rises_and_keeps_its_rate() {
        let points = curve(60, |x| 3.0 * x);
        let trend = Trend::of(&points).unwrap();
        assert!((trend.slope - 3.0).abs() < 0.01 && trend.rises(3.3));
        let bend = Bend::of(&points).unwrap();
        assert!(bend.surely_keeps(0.8, 3.3) && bend.may_keep(0.9, 1.64));
    }

    #[test]
    fn a_root_does_not_keep_its_rate() {
        let points = curve(60, |x| 100.0 * (20.0 + x).sqrt());
        let bend = Bend::of(&points).unwrap();
        assert!(!bend.surely_keeps(0.6, 3.3) && !bend.may_keep(0.9, 1.64));
    }

    #[test]
    fn one_step_is_no_line() {
        assert!(line_over_step(&curve(60, |x| if x < 25.0 { 0.0 } else { 40.0 })) < 0.0);
        assert!(line_over_step(&curve(60, |x| 40.0 * ((x - 20.0) / 15.0).clamp(0.0, 1.0))) < 0.0);
        assert!(line_over_step(&curve(60, |x| x)) > 5.0);
        assert!(line_over_step(&curve(60, |x| 10.0 * (x / 15.0).floor())) > 0.0);
    }

    #[test]
    fn a_flat_stretch_does_not_rise() {
        let trend = Trend::of(&curve(60, |_| 5.0)).unwrap();
        assert!(!trend.rises(3.0) && trend.at_most(2.0) < 0.01);
        assert!(Trend::of(&curve(2, |x| x)).is_none());
    }
}
