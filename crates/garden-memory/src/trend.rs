//! Whether a stretch of the floor rises, and whether its rise slows down.
//!
//! Both tests are least-squares fits whose standard errors are widened for first-order autocorrelation: the noise is
//! estimated from the fit's own residuals, and so many correlated points count as `n (1 - phi) / (1 + phi)` independent
//! ones. Their thresholds are quantiles of Student's t at that many degrees of freedom.

use crate::stats::{Line, Point, autocorrelation, student_t};

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

    /// What the trend adds over its own stretch.
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
    /// The parabola through a stretch; `None` below five points or without extent.
    pub(crate) fn of(points: &[Point]) -> Option<Bend> {
        let (first, last) = (points.first()?.x, points.last()?.x);
        if points.len() < 5 || last <= first {
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

/// Long-run variance of residuals after fitting so many parameters, and the effective degrees of freedom.
fn noise_of(residuals: &[f64], parameters: f64) -> (f64, f64) {
    let n = residuals.len() as f64;
    let phi = autocorrelation(residuals);
    let variance = residuals.iter().map(|r| r * r).sum::<f64>() / (n - parameters).max(1.0);
    let inflation = (1.0 + phi) / (1.0 - phi);
    (variance * inflation, n / inflation - parameters)
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
    fn a_flat_stretch_does_not_rise() {
        let trend = Trend::of(&curve(60, |_| 5.0)).unwrap();
        assert!(!trend.rises(3.0) && trend.at_most(2.0) < 0.01);
        assert!(Trend::of(&curve(2, |x| x)).is_none());
    }
}
