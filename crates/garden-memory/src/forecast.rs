//! The forecast: where a bounded growth will end, and when an unbounded one reaches the limit.

use crate::bytes::Bytes;
use crate::claims::Claims;
use crate::context::Context;
use crate::diagnosis::{Claim, Clock, Exhaustion, Forecast, Mechanism, Plateau, Verdict};

/// The forecast that the finding allows; the unknowable stays `None`.
pub(crate) fn forecast(context: &Context, claims: &Claims) -> Forecast {
    let limit_bytes = context.facts.memory_limit.map(|limit| limit.0);
    let mut forecast = Forecast { limit_bytes, ..Forecast::default() };
    let Some(pace) = claims.pace else { return forecast };
    match context.finding.verdict {
        Verdict::Settled => forecast.if_bounded = settled(context),
        Verdict::Growing if context.finding.pausing => {
            forecast.if_bounded = settled(context);
            forecast.decided_by_step = on_steps(context, context.plateau_needed());
        }
        Verdict::Growing => {
            forecast.if_bounded = end_of_pass(context, &pace);
            forecast.if_unbounded = exhaustion(context, &pace);
            forecast.decided_by_step = on_steps(context, context.decided_at());
        }
        Verdict::Leak => forecast.if_unbounded = exhaustion(context, &pace),
        _ => {}
    }
    // The kernel reclaims clean file pages before it kills anything.
    if context.finding.mechanism == Mechanism::FilePages {
        forecast.if_unbounded = None;
        forecast.decided_by_step = None;
    }
    forecast
}

fn on_steps(context: &Context, place: Option<f64>) -> Option<f64> {
    place.filter(|_| context.clock == Clock::Step).map(f64::ceil)
}

/// The plateau already reached.
fn settled(context: &Context) -> Option<Plateau> {
    let (knee, _, _) = context.finding.knee?;
    let level = context.level();
    Some(Plateau { step: on_steps(context, Some(knee)), bytes: level.bytes, low: level.low, high: level.high })
}

/// The plateau at the end of the present pass over the data; unknown without an epoch, or beyond the pass.
fn end_of_pass(context: &Context, pace: &Claim) -> Option<Plateau> {
    let end = context.pass_end()?;
    let left = end - context.shape.last();
    if left < 0.0 {
        return None;
    }
    let now = context.level();
    let at = |level: u64, rate: f64| Bytes::from_f64(level as f64 + rate * left).0;
    Some(Plateau {
        step: on_steps(context, Some(end)),
        bytes: at(now.bytes, pace.value),
        low: at(now.low, pace.low.unwrap_or(pace.value)),
        high: at(now.high, pace.high.unwrap_or(pace.value)),
    })
}

/// When the limit is reached at the present rate.
fn exhaustion(context: &Context, pace: &Claim) -> Option<Exhaustion> {
    let limit = context.facts.memory_limit?.as_f64();
    let left = limit - context.present();
    if pace.value <= 0.0 || left <= 0.0 {
        return None;
    }
    // Steps count from the beginning of the run, times from now on.
    let now = if context.clock == Clock::Step { context.shape.last() } else { 0.0 };
    let place = |rate: f64| now + left / rate;
    let high = pace.low.filter(|&low| low > 0.0).map(|low| place(low).ceil());
    Some(Exhaustion {
        step: (context.clock == Clock::Step).then(|| place(pace.value).floor()),
        low: place(pace.high.unwrap_or(pace.value).max(pace.value)).floor(),
        high,
        time_s: context.seconds_per_unit.map(|seconds| left / pace.value * seconds),
    })
}
