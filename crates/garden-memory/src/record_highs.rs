//! Tells a record process from steady growth: jumps at new records thin out like 1/n.
//!
//! A buffer that grows to the largest batch seen so far jumps at the records of a random sequence. The chance that sample
//! n is a record is 1/n (Rényi 1962), so records are even on a logarithmic clock, while a leak's jumps are even on a
//! linear one. The likelihoods of the two decide.

use crate::shape::Shape;

/// The largest jumps that make up this share of the rise are considered.
const SHARE: f64 = 0.8;
/// Growth is jumpy if those jumps fall on at most this share of the samples.
const JUMPY: f64 = 0.04;

/// Fewer jumps than this have no rhythm to speak of.
const FEWEST_JUMPS: usize = 4;

/// Required log-likelihood ratio: seven to one.
const EVIDENCE: f64 = 2.0;

/// Whether the retained growth since `from` came in jumps that get rarer like records.
pub(crate) fn thins_out(shape: &Shape, from: f64) -> bool {
    let points = shape.points_between(from, shape.last());
    let cap = shape.present_level();
    // Memory never given back: the lowest of all later samples, capped at the present floor.
    let mut retained: Vec<f64> = points.iter().map(|p| p.y.min(cap)).collect();
    for i in (1..retained.len()).rev() {
        retained[i - 1] = retained[i - 1].min(retained[i]);
    }
    let mut jumps: Vec<(usize, f64)> =
        retained.windows(2).enumerate().map(|(i, w)| (i + 1, w[1] - w[0])).filter(|jump| jump.1 > 0.0).collect();
    let total: f64 = jumps.iter().map(|jump| jump.1).sum();
    jumps.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut covered = 0.0;
    let mut needed = 0;
    while needed < jumps.len() && covered < SHARE * total {
        covered += jumps[needed].1;
        needed += 1;
    }
    let n = points.len() as f64;
    if needed < FEWEST_JUMPS || needed as f64 > (JUMPY * n).max(FEWEST_JUMPS as f64) {
        return false;
    }
    let mut places: Vec<usize> = jumps[..needed].iter().map(|jump| jump.0).collect();
    places.sort_unstable();
    let apart = places.windows(2).filter(|w| w[1] - w[0] >= 3).count() * 2 >= places.len() - 1;
    // Log-likelihood of "even on a logarithmic clock" over "even on a linear one".
    let evidence: f64 = places.iter().map(|&place| -((place as f64 / n) * n.ln()).ln()).sum();
    apart && evidence > EVIDENCE
}
