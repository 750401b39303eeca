//! Cuts the floor into straight stretches.
//!
//! Optimal partitioning by dynamic programming (Jackson et al. 2005) with a least-squares line per stretch; the number of
//! stretches by the Bayesian information criterion of a model with first-order autoregressive noise, since memory
//! noise is correlated and a criterion for white noise would cut every wander into pieces (Chakar et al. 2017). For
//! few points the penalty grows as in the small-sample criterion of Hurvich & Tsai (1989), so 7 points are one line unless
//! they are two beyond doubt.

use crate::stats::{Line, Point, autocorrelation, quantile};

/// Most stretches of a run: start-up, fill, plateau, fall, a second fill, a leak, and some to spare.
const MOST_SEGMENTS: usize = 8;
/// Fewest points of a stretch: two make a line, the third tests it.
const FEWEST_POINTS: usize = 3;
/// Movements below this share of the whole range do not get their own stretch.
const IGNORED_RANGE: f64 = 0.002;
/// Nor do movements of a few pages.
const IGNORED_BYTES: f64 = 65536.0;
/// Parameters of one more stretch: slope, height and the place of the cut.
const PARAMETERS: f64 = 3.0;

/// A straight stretch of the floor, by indices into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub start: usize,
    /// One past the last point.
    pub end: usize,
    pub line: Line,
}

/// The stretches and the noise around them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segmentation {
    pub segments: Vec<Segment>,
    pub noise: Noise,
}

/// The residuals of the fitted lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noise {
    /// Standard deviation, with the fitted parameters taken into account.
    pub sigma: f64,
    /// The band that holds nine in ten residuals.
    pub amplitude: f64,
}

/// Cuts the floor into as many straight stretches as its noise allows.
pub(crate) fn segment(points: &[Point]) -> Segmentation {
    if points.is_empty() {
        return Segmentation::default();
    }
    let values: Vec<f64> = points.iter().map(|p| p.y).collect();
    let range = quantile(&values, 1.0) - quantile(&values, 0.0);
    let negligible = (IGNORED_RANGE * range).max(IGNORED_BYTES).powi(2) / 12.0;
    let costs = Costs::of(points);
    let cuts = best_cuts(&costs, points.len());
    let scored = cuts.into_iter().map(|cut| {
        let segments = lines(points, &cut);
        (criterion(points, &segments, negligible), segments)
    });
    let best = scored.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, segments)| segments).unwrap_or_default();
    let noise = noise_around(points, &best);
    Segmentation { segments: best, noise }
}

/// The residuals of the best two lines, without a penalty for the cut.
pub(crate) fn two_lines(points: &[Point]) -> Vec<f64> {
    let costs = Costs::of(points);
    let n = points.len();
    let total = |cut: &usize| costs.cost(0, *cut) + costs.cost(*cut, n);
    let cut = (FEWEST_POINTS..=n.saturating_sub(FEWEST_POINTS)).min_by(|a, b| total(a).total_cmp(&total(b)));
    let ends = cut.map_or(vec![n], |cut| vec![cut, n]);
    residuals(points, &lines(points, &ends))
}

/// Running sums from which the squared error of any stretch's line follows in constant time.
struct Costs {
    sums: Vec<[f64; 5]>,
}

impl Costs {
    fn of(points: &[Point]) -> Costs {
        // Centred and scaled, so that differences of large sums keep their digits.
        let whole = Line::fit(points);
        let n = points.len() as f64;
        let scale_x = (whole.spread / n).sqrt().max(1e-300);
        let scale_y = (points.iter().map(|p| (p.y - whole.mean_y).powi(2)).sum::<f64>() / n).sqrt().max(1e-300);
        let mut sums = Vec::with_capacity(points.len() + 1);
        let mut sum = [0.0; 5];
        sums.push(sum);
        for p in points {
            let (x, y) = ((p.x - whole.mean_x) / scale_x, (p.y - whole.mean_y) / scale_y);
            for (total, part) in sum.iter_mut().zip([x, y, x * x, x * y, y * y]) {
                *total += part;
            }
            sums.push(sum);
        }
        Costs { sums }
    }

    /// Squared error of the line through points `start..end`, in scaled units.
    fn cost(&self, start: usize, end: usize) -> f64 {
        let (a, b) = (&self.sums[start], &self.sums[end]);
        let n = (end - start) as f64;
        let [x, y, xx, xy, yy] = [b[0] - a[0], b[1] - a[1], b[2] - a[2], b[3] - a[3], b[4] - a[4]];
        let spread = xx - x * x / n;
        let error = yy - y * y / n;
        let explained = if spread > 1e-12 { (xy - x * y / n).powi(2) / spread } else { 0.0 };
        (error - explained).max(0.0)
    }
}

/// For each number of stretches, the cuts with the least squared error, as ends of stretches.
fn best_cuts(costs: &Costs, n: usize) -> Vec<Vec<usize>> {
    let most = (n / FEWEST_POINTS).clamp(1, MOST_SEGMENTS);
    let mut best = vec![vec![f64::INFINITY; n + 1]; most + 1];
    let mut back = vec![vec![0; n + 1]; most + 1];
    for (end, cost) in best[1].iter_mut().enumerate().skip(1) {
        *cost = costs.cost(0, end);
    }
    for count in 2..=most {
        for end in count * FEWEST_POINTS..=n {
            for cut in (count - 1) * FEWEST_POINTS..=end - FEWEST_POINTS {
                let total = best[count - 1][cut] + costs.cost(cut, end);
                if total < best[count][end] {
                    (best[count][end], back[count][end]) = (total, cut);
                }
            }
        }
    }
    let trace_back = |count: usize| {
        let mut ends = vec![n];
        for k in (2..=count).rev() {
            ends.push(back[k][ends[ends.len() - 1]]);
        }
        ends.reverse();
        ends
    };
    (1..=most).map(trace_back).collect()
}

fn lines(points: &[Point], ends: &[usize]) -> Vec<Segment> {
    let mut start = 0;
    let mut segments = Vec::with_capacity(ends.len());
    for &end in ends {
        segments.push(Segment { start, end, line: Line::fit(&points[start..end]) });
        start = end;
    }
    segments
}

fn residuals(points: &[Point], segments: &[Segment]) -> Vec<f64> {
    segments.iter().flat_map(|s| s.line.residuals(&points[s.start..s.end])).collect()
}

/// The information criterion: the smaller, the better the cuts explain the points for what they cost.
fn criterion(points: &[Point], segments: &[Segment], negligible: f64) -> f64 {
    let n = points.len() as f64;
    let parameters = PARAMETERS * segments.len() as f64;
    if n <= parameters + 1.0 && segments.len() > 1 {
        return f64::INFINITY;
    }
    let residuals = residuals(points, segments);
    let phi = autocorrelation(&residuals);
    let first = residuals.first().map_or(0.0, |r| r * r * (1.0 - phi * phi));
    let innovations = first + residuals.windows(2).map(|w| (w[1] - phi * w[0]).powi(2)).sum::<f64>();
    let small_sample = n / (n - parameters - 1.0).max(1.0);
    n * (innovations / n + negligible).ln() + parameters * n.ln() * small_sample
}

fn noise_around(points: &[Point], segments: &[Segment]) -> Noise {
    let residuals = residuals(points, segments);
    let parameters = 2.0 * segments.len() as f64;
    Noise { sigma: deviation(&residuals, parameters), amplitude: band(&residuals, parameters) }
}

/// Standard deviation of residuals, given the number of fitted parameters.
fn deviation(residuals: &[f64], parameters: f64) -> f64 {
    let freedom = (residuals.len() as f64 - parameters).max(1.0);
    (residuals.iter().map(|r| r * r).sum::<f64>() / freedom).sqrt()
}

/// The band that holds nine in ten residuals, given the number of fitted parameters.
pub(crate) fn band(residuals: &[f64], parameters: f64) -> f64 {
    let observed = quantile(residuals, 0.95) - quantile(residuals, 0.05);
    // Few residuals do not show their tails; 3.29 standard deviations hold nine tenths of Gaussian noise.
    if residuals.len() < 20 { observed.max(3.29 * deviation(residuals, parameters)) } else { observed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::MIB;

    fn cuts(values: &[f64]) -> Vec<usize> {
        let points: Vec<Point> =
            values.iter().enumerate().map(|(i, v)| Point { x: i as f64, y: v * MIB as f64 }).collect();
        segment(&points).segments.iter().map(|s| s.end).collect()
    }

    #[test]
    fn a_ramp_and_a_plateau_are_two() {
        let values: Vec<f64> = (0..60).map(|i| 20.0 * (i.min(25) as f64) + (i * 37 % 11) as f64).collect();
        let found = cuts(&values);
        assert_eq!(found.len(), 2);
        assert!((24..=27).contains(&found[0]), "{found:?}");
    }

    #[test]
    fn noise_alone_is_one_also_when_it_wanders() {
        let mut state = 1_u64;
        let mut wander = 0.0;
        let values: Vec<f64> = (0..64)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                wander = 0.8 * wander + (state >> 40) as f64 / (1 << 24) as f64 - 0.5;
                100.0 + 10.0 * wander
            })
            .collect();
        assert_eq!(cuts(&values).len(), 1);
    }

    #[test]
    fn seven_points_on_a_line_are_one() {
        assert_eq!(cuts(&[5552.0, 7159.0, 8851.0, 10515.0, 12227.0, 13919.0, 15736.0]), [7]);
        assert_eq!(cuts(&[1.0]), [1]);
        assert_eq!(cuts(&[]), [0_usize; 0]);
    }
}
