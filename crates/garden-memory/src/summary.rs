//! The answer in one plain sentence.

use crate::bytes::Bytes;
use crate::context::Context;
use crate::diagnosis::{Clock, Forecast, Headroom, Mechanism, Part, Verdict};
use crate::elapsed::elapsed;
use crate::evidence::creep;
use crate::judge::{FEWEST_SAMPLES, JumpCount};
use crate::number::counted;
use crate::phrasing::{place, rate, size};
use crate::waves::Waves;

/// The answer in one plain sentence.
pub(crate) fn summary(context: &Context, forecast: &Forecast, headroom: Option<&Headroom>) -> String {
    let level = Bytes(context.level().bytes);
    let answer = match context.finding.verdict {
        Verdict::Flat => flat(context, level),
        Verdict::Sawtooth => sawtooth(context),
        Verdict::Settled => settled(context, level),
        Verdict::Growing => growing(context, forecast),
        Verdict::Leak => leak(context, forecast),
        Verdict::Insufficient => too_few(context.series.points.len()),
    };
    match headroom.filter(|room| room.in_reach && context.finding.verdict != Verdict::Leak) {
        Some(room) => format!("{answer} {}", too_little_room(context, room)),
        None => answer,
    }
}

/// The limit is in reach: how far it is, and what would reach it.
pub(crate) fn too_little_room(context: &Context, room: &Headroom) -> String {
    let limit = context.facts.memory_limit.unwrap_or_default();
    let left = room.left_bytes;
    match () {
        () if left < 0 => format!("It is above the limit of {limit} by {}.", Bytes(left.unsigned_abs())),
        () if room.spike_bytes >= left.unsigned_abs() => format!(
            "The limit is in reach: {} of {limit} are left, and memory has risen above its level by up to {}.",
            Bytes(left.unsigned_abs()),
            Bytes(room.spike_bytes)
        ),
        () => format!("The limit is in reach: {} of {limit} are left.", Bytes(left.unsigned_abs())),
    }
}

fn flat(context: &Context, level: Bytes) -> String {
    match context.shape.waves {
        Waves::Spikes { count, height, .. } => format!(
            "Memory is flat at {level}; {} of about {} rose and fell back.",
            counted(count, "spike"),
            size(height)
        ),
        _ if context.finding.mechanism == Mechanism::Spikes => format!(
            "Memory is flat at {level} during training; evaluations peak up to {} above it and fall back.",
            size(context.evaluation_height.unwrap_or(0.0))
        ),
        _ => unmoved(context, level),
    }
}

/// Flat, or fallen, or risen and come back: none of them is growth.
fn unmoved(context: &Context, level: Bytes) -> String {
    let shape = context.shape;
    let levels: Vec<f64> = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]).collect();
    let top = levels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (first, now) = (levels.first().copied().unwrap_or(0.0), context.present());
    let notable = 2.0 * shape.material();
    if top - now <= notable {
        format!("Memory is flat at {level}: no growth beyond noise after start-up.")
    } else if top - first > notable {
        format!("Memory rose from {} to {} and fell back to {}: no lasting growth.", size(first), size(top), size(now))
    } else {
        format!("Memory fell from {} to {}: no growth.", size(first), size(now))
    }
}

fn sawtooth(context: &Context) -> String {
    let Waves::Teeth(teeth) = context.shape.waves else { return String::new() };
    format!(
        "Memory climbs by {} and drops back every {:.0} {}s, on a floor that stays at {}: no leak.",
        size(teeth.height),
        teeth.period,
        context.clock.unit(),
        size(context.present())
    )
}

fn settled(context: &Context, level: Bytes) -> String {
    let Some((growth, (knee, _, _))) = context.finding.growth.zip(context.finding.knee) else { return String::new() };
    let why = match context.finding.mechanism {
        Mechanism::EpochFill if context.finding.late => {
            "one pass over the data after it began, and not since: bounded by the dataset, not a leak"
        }
        Mechanism::EpochFill => {
            "where every example had been seen once, and not since: bounded by the dataset, not a leak"
        }
        Mechanism::FilePages => "all of it pages of mapped files, which the kernel can reclaim: harmless",
        Mechanism::RecordHigh => {
            "in ever rarer jumps, like a buffer that fits the largest batch so far: bounded, not a leak"
        }
        Mechanism::WarmUp => "a warm-up, now over: bounded, not a leak",
        _ => "and not since: bounded, not a leak",
    };
    if growth.is_jump {
        return format!(
            "Memory jumped by {} at {} and has not grown since: bounded, not a leak; the level since then is {level}.",
            size(growth.rise),
            place(context, knee)
        );
    }
    let answer = format!(
        "Memory grew {} until {}, {why}; the level since then is {level}.",
        rate(context, growth.rate.value),
        place(context, knee)
    );
    match creep(context) {
        Some(trend) => format!("{answer} It still creeps up, by {}: too little to judge.", rate(context, trend.slope)),
        None => answer,
    }
}

fn growing(context: &Context, forecast: &Forecast) -> String {
    let Some(growth) = context.finding.growth else { return String::new() };
    let pace = rate(context, growth.rate.value);
    if let Some(jumps) = context.finding.jumps {
        return in_jumps(context, &jumps);
    }
    if context.finding.pausing {
        let at = context.finding.knee.map_or(growth.to, |knee| knee.0);
        return format!(
            "Memory grew {pace} and may have stopped at {}; too few samples since then to be sure.",
            place(context, at)
        );
    }
    if context.finding.mechanism == Mechanism::FilePages {
        return format!(
            "Memory grows {pace}, but only in pages of mapped files, which the kernel can reclaim: harmless."
        );
    }
    let when = match forecast.decided_by_step {
        Some(step) => format!("step {step:.0} will decide"),
        None if context.epoch().is_none() && context.clock == Clock::Step => {
            "pass --steps-per-epoch to find out when this can be decided".into()
        }
        None => "these numbers cannot decide it".into(),
    };
    let slowing = match context.finding.power {
        Some(power) => format!(", ever more slowly (like the {power:.1}th power of the {}s),", context.clock.unit()),
        None if context.finding.slowing => ", ever more slowly,".into(),
        None => String::new(),
    };
    format!(
        "Memory grows {pace}{slowing} and stands at {}; too early to tell a leak from a bounded fill: {when}.",
        size(context.present())
    )
}

/// Growth in jumps that pauses.
fn in_jumps(context: &Context, jumps: &JumpCount) -> String {
    let (count, last, level) = (jumps.count, place(context, jumps.last), size(context.present()));
    if jumps.doubles {
        return format!(
            "Memory grows in ever larger and rarer jumps, like a list whose capacity doubles: {count} so far, the last at {last}, \
             to {level}. Whatever fills it grows steadily, so the next will be the largest."
        );
    }
    format!("Memory grew in {count} jumps to {level}, the last at {last}; too early to say that no other will come.")
}

fn leak(context: &Context, forecast: &Forecast) -> String {
    let Some(growth) = context.finding.growth else { return String::new() };
    let how = match context.finding.mechanism {
        _ if context.finding.jumps.is_some_and(|jumps| jumps.doubles) => format!(
            "the floor rises in ever larger and rarer jumps, like a list whose capacity doubles, {} on average",
            rate(context, growth.rate.value)
        ),
        _ if context.finding.jumps.is_some() => {
            format!("the floor rises in jumps that keep coming, {} on average", rate(context, growth.rate.value))
        }
        _ if context.finding.endless => format!(
            "the floor has risen {} for {} and does not slow down",
            rate(context, growth.rate.value),
            elapsed((growth.to - growth.from) * context.seconds_per_unit.unwrap_or(1.0))
        ),
        Mechanism::Staircase => {
            let step = context.shape.staircase.map_or(0.0, |s| s.step);
            format!("each evaluation or checkpoint leaves {} behind ({})", size(step), rate(context, growth.rate.value))
        }
        Mechanism::LateOnset => {
            format!(
                "since {} the floor rises {} and does not slow down",
                place(context, growth.from),
                rate(context, growth.rate.value)
            )
        }
        _ => {
            format!(
                "the floor rises {} and does not slow down on examples seen before",
                rate(context, growth.rate.value)
            )
        }
    };
    let end = match forecast.if_unbounded.zip(forecast.limit_bytes) {
        Some((at, limit)) => {
            let step = at.step.map_or(String::new(), |step| format!(" at step {step:.0}"));
            let time = at.time_s.map_or(String::new(), |s| format!(", in {}", elapsed(s)));
            format!("; it reaches {}{step}{time}", Bytes(limit))
        }
        None => String::new(),
    };
    format!("Memory leaks: {how}{end}.")
}

/// The opening of the summary of a restarted run: the verdicts on all starts, and which of them the rest of the summary is about.
pub(crate) fn whole_run(parts: &[Part], judged: usize, clock: Clock) -> String {
    let words: Vec<&str> = parts.iter().map(|part| part.verdict.name()).collect();
    let steps = |part: &Part| [part.from, part.to];
    let (first, last) = parts.iter().flat_map(steps).fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    let reach = if clock == Clock::Step { format!(" over steps {first:.0} to {last:.0}") } else { String::new() };
    let which = match parts.get(judged + 1..).unwrap_or_default() {
        [] => "The last one".to_string(),
        [last] => format!("The last one has only {}; the one before", counted(last.samples, "sample")),
        later => format!("The last {} have too few samples; the one before them", later.len()),
    };
    format!("{} starts{reach}, judged {}. {which}: ", parts.len(), words.join(", "))
}

/// The sentence for too little data.
pub(crate) fn too_few(samples: usize) -> String {
    format!("Too little data: {}, at least {} are needed.", counted(samples, "usable memory sample"), FEWEST_SAMPLES)
}
