//! The numbers that a report states, as values: each with its 95 % interval and the stretch of the clock that it is about.
//!
//! Sentences are rendered from these (`summary.rs`, `evidence.rs`), so what holds for them holds for every sentence, and
//! `tests/it/claims.rs` holds them to what drawn runs are known to do.

use crate::bytes::Bytes;
use crate::context::Context;
use crate::diagnosis::{Claim, Forecast, Level, Quantified, Verdict};
use crate::drift::{change, most_since, paced};
use crate::growth::Stretch;
use crate::stats::Rate;

/// What is claimed of one judged part.
pub(crate) struct Claims {
    /// Where memory stands.
    pub level: Claim,
    /// The deciding growth: its pace and its size.
    pub pace: Option<Claim>,
    pub rise: Option<Claim>,
    /// The pace of a larger growth that ended before it.
    pub earlier: Option<Claim>,
    /// The rise at the very beginning.
    pub start_up: Option<Claim>,
    /// Where the growth ended, and what was added since then.
    pub end: Option<Claim>,
    pub since: Option<Claim>,
    /// The fastest growth that may have gone on since then, or all the time.
    pub at_most: Option<Claim>,
}

impl Claims {
    /// What can be claimed of a judged part.
    pub(crate) fn of(context: &Context) -> Claims {
        let finding = context.finding;
        let growth = finding.growth;
        let end = finding.knee.map(|(at, low, high)| {
            claim(Quantified::End, Rate { value: at, low, high }, context.shape.first(), context.shape.last())
        });
        Claims {
            level: level(context.level(), context),
            pace: growth.map(|growth| pace(context, &growth)),
            rise: growth.map(|growth| rise(context, &growth)),
            earlier: finding.earlier.map(|growth| pace(context, &growth)),
            start_up: finding.start_up.map(|growth| rise(context, &growth)),
            // Of two growths, the end of the faster is reported with the slower.
            end: end.filter(|_| finding.earlier.is_none()),
            since: finding.knee.filter(|_| finding.earlier.is_none()).and_then(|knee| since(context, knee.2)),
            at_most: at_most(context),
        }
    }

    /// All of them, with those of the forecast.
    pub(crate) fn list(&self, context: &Context, forecast: &Forecast) -> Vec<Claim> {
        let ahead = forecast.if_bounded.and_then(|plateau| {
            let place = plateau.step.filter(|&step| step > context.shape.last())?;
            let level = Level { bytes: plateau.bytes, low: plateau.low, high: plateau.high };
            let [value, low, high] = [level.bytes, level.low, level.high].map(|bytes| bytes as f64);
            Some(claim(Quantified::LevelIfBounded, Rate { value, low, high }, context.shape.last(), place))
        });
        let optional = [self.pace, self.rise, self.earlier, self.start_up, self.end, self.since, self.at_most, ahead];
        let last = at_last_step(context, self);
        std::iter::once(self.level).chain(optional.into_iter().chain([last]).flatten()).collect()
    }
}

fn claim(quantity: Quantified, Rate { value, low, high }: Rate, from: f64, to: f64) -> Claim {
    let known = |value: f64| value.is_finite().then_some(value);
    Claim { quantity, value, low: known(low), high: known(high), from, to }
}

/// Where memory stands: while it does not move, over the stretch in which it does not, else at the end.
fn level(level: Level, context: &Context) -> Claim {
    let [value, low, high] = [level.bytes, level.low, level.high].map(|bytes| bytes as f64);
    let is_leak = context.finding.verdict == Verdict::Leak;
    let swinging = context.swings_since().filter(|_| !is_leak);
    let (now, resting) = (context.shape.last(), swinging.or_else(|| context.rests_since()));
    claim(Quantified::Level, Rate { value, low, high }, resting.unwrap_or(now), now)
}

fn pace(context: &Context, growth: &Stretch) -> Claim {
    let rate = paced(context.shape, growth.paced_from, growth.to, growth.rate.value);
    claim(Quantified::Rate, rate, growth.paced_from, growth.to)
}

fn rise(context: &Context, growth: &Stretch) -> Claim {
    let shape = context.shape;
    // Two ends of fitted lines, each as uncertain as a sample where they are short.
    let half = 1.96 * std::f64::consts::SQRT_2 * shape.noise.sigma + shape.resolution;
    let least = Rate { value: growth.rise, low: growth.rise - half, high: growth.rise + half };
    let found = change(shape, growth.from, growth.to).unwrap_or(least);
    let rise = Rate { low: least.low.min(found.low), high: least.high.max(found.high), ..least };
    claim(Quantified::Change, rise, growth.from, growth.to)
}

fn since(context: &Context, from: f64) -> Option<Claim> {
    let now = context.shape.last();
    Some(claim(Quantified::Change, change(context.shape, from, now)?, from, now))
}

/// The fastest growth that the samples allow where a verdict says that there is none, or that it has ended.
fn at_most(context: &Context) -> Option<Claim> {
    let finding = context.finding;
    let from = match finding.verdict {
        Verdict::Flat | Verdict::Sawtooth => finding.start_up.map_or(context.shape.first(), |growth| growth.to),
        // From where the growth was over at the latest.
        Verdict::Settled => finding.knee?.2,
        Verdict::Growing if finding.pausing => finding.knee?.2,
        _ => return None,
    };
    let value = most_since(context.shape, from)?;
    let bound = Rate { value, low: f64::NEG_INFINITY, high: value };
    Some(claim(Quantified::RateAtMost, bound, from, context.shape.last()))
}

/// The level at the run's last step if the growth never ends.
pub(crate) fn at_last_step(context: &Context, claims: &Claims) -> Option<Claim> {
    let is_open = matches!(context.finding.verdict, Verdict::Growing | Verdict::Leak) && !context.finding.pausing;
    let last = context.last_step().filter(|_| is_open)?;
    let pace = claims.pace?;
    let left = last - context.shape.last();
    let [low, high] = [pace.low, pace.high].map(|rate| context.present() + rate.unwrap_or(pace.value) * left);
    let slack = context.present() - claims.level.low.unwrap_or(context.present());
    let value = context.present() + pace.value * left;
    let level = Rate { value, low: low - slack, high: high + slack };
    (left > 0.0).then(|| claim(Quantified::LevelIfEndless, level, context.shape.last(), last))
}

impl Claim {
    /// The estimate as an amount of memory.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_f64(self.value)
    }
}
