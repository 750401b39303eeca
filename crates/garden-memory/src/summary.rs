//! The answer in one plain sentence.

use crate::bytes::Bytes;
use crate::claims::Claims;
use crate::context::Context;
use crate::diagnosis::{Clock, Forecast, Headroom, Mechanism, Part, Verdict};
use crate::elapsed::elapsed;
use crate::evidence::{CREEP, creep};
use crate::judge::{FEWEST_SAMPLES, JumpCount};
use crate::number::counted;
use crate::passes::Lacks;
use crate::phrasing::{duration, place, rate, size};
use crate::waves::Waves;

/// The answer in one plain sentence.
pub(crate) fn summary(context: &Context, claims: &Claims, forecast: &Forecast, headroom: Option<&Headroom>) -> String {
    let answer = match context.finding.verdict {
        Verdict::Flat => flat(context, claims),
        Verdict::Sawtooth => sawtooth(context, claims),
        Verdict::Settled => settled(context, claims),
        Verdict::Growing => growing(context, claims, forecast),
        Verdict::Leak => leak(context, claims, forecast),
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

fn flat(context: &Context, claims: &Claims) -> String {
    let level = claims.level.bytes();
    let creeping =
        creep(context).map_or(String::new(), |trend| format!(" The floor has crept up by {}.", size(trend.rise())));
    match context.shape.waves {
        Waves::Spikes { count, height, .. } => format!(
            "Memory is flat at {level}; {} of about {} rose and fell back.{creeping}",
            counted(count, "spike"),
            size(height)
        ),
        _ if context.finding.mechanism == Mechanism::Spikes => format!(
            "Memory is flat at {level} during training; evaluations peak up to {} above it and fall back.{creeping}",
            size(context.evaluation_height.unwrap_or(0.0))
        ),
        _ => unmoved(context, claims),
    }
}

/// Flat, or fallen, or risen and come back: none of them is growth.
fn unmoved(context: &Context, claims: &Claims) -> String {
    let level = claims.level.bytes();
    let shape = context.shape;
    let levels: Vec<f64> = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]).collect();
    let top = levels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (first, now) = (levels.first().copied().unwrap_or(0.0), shape.present_level());
    let notable = 2.0 * shape.material();
    if let Some(swing) = shape.swing {
        let allowed = allowed(context, claims).map_or("no lasting growth".into(), |most| {
            format!("no lasting growth so far; up to {} would not show yet", rate(context, most))
        });
        return format!(
            "Memory rises and falls by {} every {}, around {level}: {allowed}.",
            size(swing.height),
            duration(context, swing.period)
        );
    }
    if let Some(trend) = creep(context) {
        format!(
            "Memory has crept up by {} and stands at {level}: too little to count as growth (from {} on).",
            size(trend.rise()),
            size(shape.material())
        )
    } else if top - now <= notable {
        format!("Memory is flat at {level}: no growth beyond noise after start-up.")
    } else if top - first > notable {
        format!("Memory rose from {} to {} and fell back to {}: no lasting growth.", size(first), size(top), size(now))
    } else {
        format!("Memory fell from {} to {}: no growth.", size(first), size(now))
    }
}

fn sawtooth(context: &Context, claims: &Claims) -> String {
    let Waves::Teeth(teeth) = context.shape.waves else { return String::new() };
    let level = claims.level.bytes();
    let floor = match (creep(context), allowed(context, claims)) {
        (Some(trend), _) => format!("has crept up by {} to {level}", size(trend.rise())),
        (None, Some(most)) => {
            format!(
                "hardly moves ({level}): no leak so far; growth of up to {} would not show yet",
                rate(context, most)
            )
        }
        (None, None) => format!("stays at {level}: no leak"),
    };
    format!(
        "Memory climbs by {} and drops back every {}, on a floor that {floor}.",
        size(teeth.height),
        duration(context, teeth.period)
    )
}

/// The fastest growth that the samples allow, if it may have added a material amount over the stretch that shows none.
pub(crate) fn allowed(context: &Context, claims: &Claims) -> Option<f64> {
    let most = claims.at_most?;
    (most.value * (most.to - most.from) >= context.shape.material_without_noise()).then_some(most.value)
}

fn settled(context: &Context, claims: &Claims) -> String {
    let Some((growth, (knee, _, _))) = context.finding.growth.zip(context.finding.knee) else { return String::new() };
    let (level, knee, since) = (claims.level.bytes(), place(context, knee), Since::of(context, claims));
    if growth.is_jump {
        return format!(
            "Memory jumped by {} at {knee}{}: {}; the level since then is {level}.",
            size(growth.rise),
            since.jumped(),
            since.outcome(context, claims, "bounded")
        );
    }
    let (how, bounded) = match context.finding.mechanism {
        Mechanism::EpochFill if context.finding.late => {
            (", one pass over the data after it began,", "bounded by the dataset")
        }
        Mechanism::EpochFill => (", where every example had been seen once,", "bounded by the dataset"),
        Mechanism::FilePages => {
            return format!(
                "Memory grew {} until {knee}, all of it pages of mapped files, which the kernel can reclaim: harmless; the level since \
                 then is {level}.",
                rate(context, growth.rate.value)
            );
        }
        Mechanism::RecordHigh => {
            (", in ever rarer jumps, like a buffer that fits the largest batch so far,", "bounded")
        }
        Mechanism::WarmUp => (", a warm-up,", "bounded"),
        _ => (",", "bounded"),
    };
    format!(
        "Memory grew {} until {knee}{how} {}: {}; the level since then is {level}.",
        rate(context, growth.rate.value),
        since.words(),
        since.outcome(context, claims, bounded)
    )
}

/// What memory has done since its growth ended, as far as the samples show.
enum Since {
    /// They exclude a material amount.
    Nothing,
    /// Nothing stands out from the noise, but growth up to this rate would not.
    Unknown { at_most: f64 },
    /// It has moved by this much more.
    Moved { bytes: f64, at_most: f64 },
}

impl Since {
    fn of(context: &Context, claims: &Claims) -> Since {
        let at_most = claims.at_most.map_or(f64::INFINITY, |bound| bound.value);
        let length = claims.at_most.map_or(0.0, |bound| bound.to - bound.from);
        let material = context.shape.material_without_noise();
        match claims.since {
            Some(since) if since.low.is_some_and(|low| low > 0.0) && since.value >= CREEP => {
                Since::Moved { bytes: since.value, at_most }
            }
            _ if at_most * length < material => Since::Nothing,
            _ => Since::Unknown { at_most },
        }
    }

    fn words(&self) -> String {
        match self {
            Since::Nothing => "and not since".into(),
            Since::Unknown { .. } => "and not measurably since".into(),
            Since::Moved { bytes, .. } => format!("and by {} more since", size(*bytes)),
        }
    }

    fn jumped(&self) -> String {
        match self {
            Since::Nothing => " and has not grown since".into(),
            Since::Unknown { .. } => " and has not measurably grown since".into(),
            Since::Moved { bytes, .. } => format!(", and has grown by {} more since", size(*bytes)),
        }
    }

    /// What follows: no leak, or what is still possible and when more will be known.
    fn outcome(&self, context: &Context, claims: &Claims, bounded: &str) -> String {
        let (so_far, at_most) = match self {
            Since::Nothing => return format!("{bounded}, not a leak"),
            Since::Unknown { at_most } => (format!("{bounded} so far"), at_most),
            Since::Moved { at_most, .. } => ("much slower than before".into(), at_most),
        };
        let when = known_at(context, claims).map_or(String::new(), |step| format!(" until step {step:.0} says more"));
        format!("{so_far}; growth of up to {} is still possible{when}", rate(context, *at_most))
    }
}

/// Plateaus that are not sure before they are so many times as long as they are now are not waited for.
const WORTH_WAITING: f64 = 4.0;

/// The step at which a plateau that stays as it is excludes material growth: what its slope may have added falls with the root of its
/// length.
fn known_at(context: &Context, claims: &Claims) -> Option<f64> {
    let bound = claims.at_most.filter(|_| context.clock == Clock::Step)?;
    let length = bound.to - bound.from;
    let share = bound.value * length / context.shape.material_without_noise();
    (share > 1.0 && share * share <= WORTH_WAITING).then(|| (bound.from + length * share * share).ceil())
}

fn growing(context: &Context, claims: &Claims, forecast: &Forecast) -> String {
    let Some((growth, pace)) = context.finding.growth.zip(claims.pace) else { return String::new() };
    let pace = rate(context, pace.value);
    if let Some(jumps) = context.finding.jumps {
        return in_jumps(context, claims, &jumps, forecast);
    }
    if context.finding.pausing {
        let at = context.finding.knee.map_or(growth.to, |knee| knee.0);
        let possible = claims.at_most.map_or(String::new(), |bound| {
            format!("growth of up to {} since then is still possible; ", rate(context, bound.value))
        });
        let when = match forecast.decided_by_step {
            Some(step) => format!("a plateau until step {step:.0} would settle it"),
            None => "a longer plateau would settle it".into(),
        };
        return format!("Memory grew {pace} and may have stopped at {}: {possible}{when}.", place(context, at));
    }
    if context.finding.mechanism == Mechanism::FilePages {
        return format!(
            "Memory grows {pace}, but only in pages of mapped files, which the kernel can reclaim: harmless."
        );
    }
    let when = match forecast.decided_by_step {
        Some(step) => format!("step {step:.0} will decide"),
        None => without_a_date(context),
    };
    let slowing = match context.finding.power {
        Some(power) => format!(", ever more slowly (like the {power:.1}th power of the {}s),", context.clock.unit()),
        None if context.finding.levelled => ", more slowly than at first,".into(),
        None if context.finding.slowing => ", ever more slowly,".into(),
        None => String::new(),
    };
    format!(
        "Memory grows {pace}{slowing} and stands at {}; too early to tell a leak from a bounded fill: {when}.",
        claims.level.bytes()
    )
}

/// What would decide where no step is known that will.
fn without_a_date(context: &Context) -> String {
    match (context.finding.lacks, context.clock) {
        (Some(Lacks::Time(until)), _) => {
            format!("it counts as a leak if it goes on like this until {} (--leak-after)", place(context, until))
        }
        (Some(Lacks::Rise(least)), _) => {
            format!(
                "it counts as a leak once it has added {} (a tenth of --memory-limit, or as much as there was)",
                size(least)
            )
        }
        (Some(Lacks::Evenness), _) => "it is too uneven, or slows down too much, to be called one".into(),
        (None, Clock::Step) if context.asked.no_epochs && !context.asked.never_a_leak => {
            "without passes over data only time can tell: record the time of each sample".into()
        }
        (None, Clock::Time | Clock::Step) if context.asked.no_epochs || context.clock == Clock::Time => {
            match context.asked.never_a_leak {
                true => "without passes over data only time can tell, and --leak-after is off".into(),
                false => "without passes over data only time can tell".into(),
            }
        }
        (None, Clock::Step) if context.epoch().is_none() => {
            "pass --steps-per-epoch to find out when this can be decided".into()
        }
        (None, Clock::Step) => "each further pass over the data tells more".into(),
        (None, Clock::Time | Clock::Sample) => "record the time or the step of each sample".into(),
    }
}

/// Growth in jumps that pauses.
fn in_jumps(context: &Context, claims: &Claims, jumps: &JumpCount, forecast: &Forecast) -> String {
    let (count, last, level) = (jumps.count, place(context, jumps.last), claims.level.bytes());
    if jumps.doubles {
        return format!(
            "Memory grows in ever larger and rarer jumps, like a list whose capacity doubles: {count} so far, the last at {last}, \
             to {level}. Whatever fills it grows steadily, so the next will be the largest."
        );
    }
    let when =
        forecast.decided_by_step.map_or(String::new(), |step| format!(": silence until step {step:.0} would say so"));
    format!(
        "Memory grew in {count} jumps to {level}, the last at {last}; too early to say that no other will come{when}."
    )
}

fn leak(context: &Context, claims: &Claims, forecast: &Forecast) -> String {
    let Some((growth, pace)) = context.finding.growth.zip(claims.pace) else { return String::new() };
    let pace = rate(context, pace.value);
    let how = match context.finding.mechanism {
        _ if context.finding.jumps.is_some_and(|jumps| jumps.doubles) => format!(
            "the floor rises in ever larger and rarer jumps, like a list whose capacity doubles, {pace} on average"
        ),
        _ if context.finding.jumps.is_some() => {
            format!("the floor rises in jumps that keep coming, {pace} on average")
        }
        _ if context.finding.endless => format!(
            "the floor has risen {pace} for {} and does not slow down",
            elapsed((growth.to - growth.from) * context.seconds_per_unit.unwrap_or(1.0))
        ),
        Mechanism::Staircase => {
            let step = context.shape.staircase.map_or(0.0, |s| s.step);
            format!("each evaluation or checkpoint leaves {} behind ({pace})", size(step))
        }
        Mechanism::LateOnset => {
            format!("since {} the floor rises {pace} and does not slow down", place(context, growth.from),)
        }
        _ => {
            format!("the floor rises {pace} and does not slow down on examples seen before")
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
