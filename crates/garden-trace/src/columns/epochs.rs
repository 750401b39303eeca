//! Steps per epoch, learned from lines that show a step together with a fractional epoch, as HF trainers print them.
//!
//! Each pair bounds the number: an epoch printed as 1.23 lies between 1.22 and 1.24, cut or rounded, so the steps per
//! epoch lie between step / 1.24 and step / 1.22. The pairs agree if one number fits all of them; otherwise nothing is
//! claimed.

/// The bounds on the steps per epoch from the pairs so far.
#[derive(Clone)]
pub(crate) struct EpochLength {
    low: f64,
    high: f64,
    pairs: usize,
    last_step: f64,
}

/// Two pairs could agree by chance; three at different steps hardly can.
const FEWEST_PAIRS: usize = 3;
/// The bounds are tight long before this.
const MOST_PAIRS: usize = 10_000;

impl EpochLength {
    pub(crate) fn new() -> Self {
        EpochLength { low: 0.0, high: f64::INFINITY, pairs: 0, last_step: f64::NAN }
    }

    /// Takes in a step and the epoch printed with it.
    pub(crate) fn observe(&mut self, step: f64, epoch: f64) {
        // A whole number may be the epoch's index, which says nothing about its length.
        let usable = step > 0.0 && epoch > 0.0 && epoch.fract() != 0.0 && step.is_finite() && epoch < 1e6;
        if !usable || step == self.last_step || self.pairs >= MOST_PAIRS {
            return;
        }
        // One unit of the last digit, since some trainers truncate where others round.
        let digits = epoch.to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len().min(15));
        let blur = 0.1f64.powi(digits as i32);
        self.low = self.low.max(step / (epoch + blur));
        self.high = self.high.min(if epoch > blur { step / (epoch - blur) } else { f64::INFINITY });
        self.pairs += 1;
        self.last_step = step;
    }

    /// The steps per epoch, if one number fits all pairs.
    pub(crate) fn steps(&self) -> Option<u64> {
        if self.pairs < FEWEST_PAIRS || self.low > self.high || !self.high.is_finite() {
            return None;
        }
        // A smaller last step makes the exact ratio a fraction; the trainer counts that step as a whole one.
        let steps = self.low.ceil();
        let unique = steps + 1.0 > self.high;
        (unique && steps >= 1.0).then_some(steps as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<u64> {
        let mut length = EpochLength::new();
        pairs.into_iter().for_each(|(step, epoch)| length.observe(step, epoch));
        length.steps()
    }

    #[test]
    fn rounded_epochs_give_the_length_once_they_bound_it() {
        let printed = |steps: f64| (1..25).map(move |i| (10.0 * i as f64, (1000.0 * i as f64 / steps).round() / 100.0));
        assert_eq!(learned(printed(83.0)), Some(83));
        assert_eq!(learned(printed(82.75)), Some(83));
        assert_eq!(learned(printed(83.0).take(2)), None);
    }

    #[test]
    fn pairs_that_do_not_agree_teach_nothing() {
        assert_eq!(learned([(10.0, 0.12), (20.0, 0.5), (30.0, 0.36)]), None);
        assert_eq!(learned((1..50).map(|i| (i as f64, (i / 10) as f64))), None);
    }
}
