//! What is to come: where a bounded growth will end, and when an unbounded one reaches the limit.

use crate::bytes::Bytes;
use crate::diagnosis::{Clock, Exhaustion, Forecast, Mechanism, Plateau, Verdict};
use crate::growth::Stretch;
use crate::signs::Signs;

/// The forecast that the finding allows; what is not knowable stays `None`.
pub(crate) fn forecast(signs: &Signs) -> Forecast {
    let limit_bytes = signs.facts.memory_limit.map(|limit| limit.0);
    let mut forecast = Forecast { limit_bytes, ..Forecast::default() };
    let Some(growth) = signs.finding.growth else { return forecast };
    match signs.finding.verdict {
        Verdict::Settled => forecast.if_bounded = settled(signs),
        Verdict::Growing if signs.finding.pausing => {
            forecast.if_bounded = settled(signs);
            forecast.decided_by_step = on_steps(signs, signs.plateau_needed());
        }
        Verdict::Growing => {
            forecast.if_bounded = end_of_pass(signs, &growth);
            forecast.if_unbounded = exhaustion(signs, &growth);
            forecast.decided_by_step = on_steps(signs, signs.decided_at());
        }
        Verdict::Leak => forecast.if_unbounded = exhaustion(signs, &growth),
        _ => {}
    }
    // The kernel takes clean file pages back before anything is killed.
    if signs.finding.mechanism == Mechanism::FilePages {
        forecast.if_unbounded = None;
        forecast.decided_by_step = None;
    }
    forecast
}

fn on_steps(signs: &Signs, place: Option<f64>) -> Option<f64> {
    place.filter(|_| signs.clock == Clock::Step).map(f64::ceil)
}

/// The plateau that is already there.
fn settled(signs: &Signs) -> Option<Plateau> {
    let (knee, _, _) = signs.finding.knee?;
    let level = signs.level();
    Some(Plateau { step: on_steps(signs, Some(knee)), bytes: level.bytes, low: level.low, high: level.high })
}

/// The plateau at the end of the pass over the data that is under way; unknown without an epoch, or beyond the pass.
fn end_of_pass(signs: &Signs, growth: &Stretch) -> Option<Plateau> {
    let end = signs.pass_end()?;
    let left = end - signs.shape.last();
    if left < 0.0 {
        return None;
    }
    let now = signs.present();
    let at = |rate: f64| Bytes::from_f64(now + rate * left).0;
    let noise = (2.0 * signs.shape.noise.sigma) as u64;
    Some(Plateau {
        step: on_steps(signs, Some(end)),
        bytes: at(growth.rate.value),
        low: at(growth.rate.low).saturating_sub(noise),
        high: at(growth.rate.high).saturating_add(noise),
    })
}

/// When the limit is reached at the present rate.
fn exhaustion(signs: &Signs, growth: &Stretch) -> Option<Exhaustion> {
    let limit = signs.facts.memory_limit?.as_f64();
    let left = limit - signs.present();
    if growth.rate.value <= 0.0 || left <= 0.0 {
        return None;
    }
    let now = signs.shape.last();
    let place = |rate: f64| now + left / rate;
    let high = (growth.rate.low > 0.0).then(|| place(growth.rate.low).ceil());
    Some(Exhaustion {
        step: (signs.clock == Clock::Step).then(|| place(growth.rate.value).floor()),
        low: place(growth.rate.high.max(growth.rate.value)).floor(),
        high,
        time_s: signs.seconds_per_unit.map(|seconds| left / growth.rate.value * seconds),
    })
}
