//! A histogram of values in constant memory.
//!
//! Values below 64 are counted exactly, larger ones in 32 equal steps between powers of two, so that a quantile is at most 3 % too
//! high (as in HdrHistogram). Maximum, minimum and mean are exact.

/// Values below this are counted exactly.
const EXACT: u64 = 64;
/// Steps between powers of two.
const STEPS: u64 = 32;

/// A histogram of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    least: u64,
    most: u64,
}

/// The count of values in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The smallest value.
    pub from: u64,
    /// The largest value.
    pub to: u64,
    /// Number of values.
    pub count: u64,
}

impl Distribution {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let step = step(value);
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.most = self.most.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value; 0 if there is none.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// The largest value; 0 if there is none.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The mean; 0 if there are no values.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// A value that this share of all values does not exceed, at most 3 % above the least such value.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= wanted
        });
        found.map_or(0, |step| (first(step + 1) - 1).clamp(self.least, self.most))
    }

    /// At most `most` ranges of equal width on a scale of powers of two, without gaps.
    pub fn bars(&self, most: usize) -> Vec<Bar> {
        let mut bars = Vec::new();
        for parts in [8, 4, 2, 1] {
            bars = self.bars_in(parts);
            if bars.len() <= most {
                return bars;
            }
        }
        while bars.len() > most.max(1) {
            let both = |two: &[Bar]| {
                two.iter().copied().reduce(|one, other| Bar { to: other.to, count: one.count + other.count, ..one })
            };
            bars = bars.chunks(2).filter_map(both).collect();
        }
        bars
    }

    /// Ranges that divide each power of two into parts. Their bounds coincide with bounds of steps.
    fn bars_in(&self, parts: u64) -> Vec<Bar> {
        let mut bars: Vec<Bar> = Vec::new();
        if self.count == 0 {
            return bars;
        }
        for (step, count) in self.counts.iter().enumerate().skip(step(self.least)) {
            let from = first(step);
            let to = (first(step + 1) - 1).min(self.most);
            let begins = match from {
                0 | 1 => true,
                _ => (from * parts).is_multiple_of(1 << from.ilog2()),
            };
            match bars.last_mut() {
                Some(bar) if !begins => (bar.to, bar.count) = (to, bar.count + count),
                _ => bars.push(Bar { from: from.max(self.least), to, count: *count }),
            }
        }
        bars
    }
}

/// The step of a value.
fn step(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let power = value.ilog2();
    let within = (value >> (power - STEPS.ilog2())) - STEPS;
    (EXACT + u64::from(power - EXACT.ilog2()) * STEPS + within) as usize
}

/// The smallest value of a step.
fn first(step: usize) -> u64 {
    let step = step as u64;
    if step < EXACT {
        return step;
    }
    let (power, within) = ((step - EXACT) / STEPS, (step - EXACT) % STEPS);
    (STEPS + within) << (power + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_no_gaps() {
        for value in (0..5000).chain([1 << 20, (1 << 20) + 1, 178_956_970]) {
            assert!(first(step(value)) <= value && value < first(step(value) + 1), "{value}");
        }
    }

    #[test]
    fn quantiles_are_close_and_never_too_low() {
        let mut tokens = Distribution::default();
        (1..=10_000).for_each(|value| tokens.add(value));
        assert_eq!((tokens.least(), tokens.most(), tokens.mean()), (1, 10_000, 5000.5));
        for (share, exact) in [(0.0, 1), (0.001, 10), (0.5, 5000), (0.9, 9000), (0.99, 9900), (1.0, 10_000)] {
            let found = tokens.quantile(share);
            assert!(found >= exact && found as f64 <= exact as f64 * 1.032, "{share}: {found}");
        }
    }

    #[test]
    fn bars_count_everything_once() {
        for values in [vec![54, 60, 61, 900], vec![0, 0, 7], vec![1_228_800; 5], (1..100_000).step_by(37).collect()] {
            let mut distribution = Distribution::default();
            values.iter().for_each(|value| distribution.add(*value));
            let bars = distribution.bars(10);
            assert!(bars.len() <= 10 && bars.windows(2).all(|two| two[0].to + 1 == two[1].from), "{bars:?}");
            for bar in &bars {
                let within = values.iter().filter(|value| (bar.from..=bar.to).contains(*value)).count();
                assert_eq!(bar.count, within as u64, "{bar:?}");
            }
            assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), values.len() as u64);
        }
        assert_eq!((Distribution::default().bars(10), Distribution::default().quantile(0.5)), (Vec::new(), 0));
    }
}
