//! The evidence for a verdict: one sentence and one number for each observation.

use crate::bytes::{MIB, format_change};
use crate::claims::{Claims, at_last_step};
use crate::context::{Context, Covariate};
use crate::diagnosis::{Claim, Clock, Evidence, Headroom, Likelihood, Mechanism, Verdict};
use crate::headroom::is_at_the_cap;
use crate::libraries::Library;
use crate::number::counted;
use crate::phrasing::{duration, place, rate, size};
use crate::series::JudgedMemory;
use crate::trace::{Quantity, Subject};
use crate::trend::Trend;
use crate::waves::Waves;

/// The evidence for the verdict.
pub(crate) fn evidence(
    context: &Context,
    claims: &Claims,
    likelihood: Option<&Likelihood>,
    headroom: Option<&Headroom>,
) -> Vec<Evidence> {
    let mut list = Vec::new();
    let finding = context.finding;
    if let Some((earlier, now)) = claims.earlier.zip(claims.pace) {
        let text = format!(
            "Two growths: one of {} ended at {}; another of {} continues underneath and decides.",
            rate(context, earlier.value),
            place(context, earlier.to),
            rate(context, now.value)
        );
        list.push(Evidence::number(text, earlier.value, "bytes per clock unit").over(earlier.from, earlier.to));
    }
    if let Some(start) = claims.start_up {
        let text = format!(
            "Start-up: memory rose by {} until {} and counts as part of the level.",
            start.bytes(),
            place(context, start.to)
        );
        list.push(Evidence::number(text, start.value, "bytes").over(start.from, start.to));
    }
    list.extend(growth_evidence(context, claims));
    list.extend(knee_evidence(context, claims));
    list.extend(example_evidence(context));
    list.extend(component_evidence(context));
    list.extend(count_evidence(context));
    list.extend(wave_evidence(context));
    list.extend(context.shape.staircase.map(|stairs| {
        let text = format!(
            "The floor steps up by about {} at each of {} evaluations or checkpoints, and hardly in between.",
            size(stairs.step),
            stairs.events
        );
        Evidence::number(text, stairs.step, "bytes")
    }));
    list.extend(end_of_run(context, claims));
    if finding.verdict == Verdict::Leak && finding.endless {
        list.push(Evidence::words(
            "No passes over data are known. Growth that has lasted so long (--leak-after), has added a tenth of the limit or doubled \
             memory, and shows no sign of slowing is called a leak; a cache that takes as long to fill would look the same.",
        ));
    } else if finding.verdict == Verdict::Leak {
        list.push(Evidence::words(
            "The rate held through another whole pass over examples already seen: no example cache does that.",
        ));
    }
    if let Some(odds) = likelihood.filter(|_| finding.mechanism != Mechanism::FilePages) {
        list.push(Evidence::number(
            format!(
                "Odds, from simulated runs that looked like this: {:.0} % a leak, {:.0} % bounded.",
                100.0 * odds.leak,
                100.0 * odds.bounded
            ),
            odds.leak,
            "probability of a leak",
        ));
    }
    list.extend(creep_evidence(context));
    list.extend(whose_memory(context).map(Evidence::words));
    list.extend(room_evidence(context, headroom));
    list.extend(blind_spot(context, claims));
    if context.shape.points.len() < 12 {
        list.push(Evidence::words(format!(
            "{} samples show a straight line or its end, but not slow curvature, waves shorter than {} or slow growth \
             under fast growth.",
            context.shape.points.len(),
            duration(context, 2.0 * context.shape.spacing)
        )));
    }
    list
}

fn growth_evidence(context: &Context, claims: &Claims) -> Option<Evidence> {
    let (rise, pace) = claims.rise.zip(claims.pace)?;
    let ended = if context.finding.verdict == Verdict::Settled { "rose" } else { "has risen" };
    let lately = match pace.from > rise.from {
        true => format!("since {} ", place(context, pace.from)),
        false => String::new(),
    };
    let how = match context.finding.growth.is_some_and(|growth| growth.is_jump) {
        true => "in one jump".into(),
        false => format!("{lately}at {}{}", rate(context, pace.value), interval(context, &pace)),
    };
    let (from, to) = (place(context, rise.from), place(context, rise.to));
    let text = format!("From {from} to {to} the floor {ended} by {}, {how}.", rise.bytes());
    let unit = if context.clock == Clock::Step { "bytes/step" } else { "bytes/unit" };
    Some(Evidence::number(text, pace.value, unit).over(rise.from, rise.to))
}

/// The interval of a rate, in the words' unit.
fn interval(context: &Context, pace: &Claim) -> String {
    let factor = if context.clock == Clock::Time { 60.0 } else { 1.0 };
    let (Some(low), Some(high)) = (pace.low, pace.high) else { return String::new() };
    format!(" (95 %: {} to {})", format_change(factor * low), format_change(factor * high))
}

fn knee_evidence(context: &Context, claims: &Claims) -> Option<Evidence> {
    let end = claims.end?;
    let from = claims.since.map_or(end.value, |since| since.from);
    let after = context.shape.points_between(from, context.shape.last()).len();
    let aligned = match context.pass_end() {
        Some(end) if context.finding.aligned => {
            format!(" The first pass over the data ends at step {end:.0}: the two coincide.")
        }
        Some(end) => format!(" The first pass over the data ends at step {end:.0}: the two do not coincide."),
        None => String::new(),
    };
    let moved = claims.since.map_or(String::new(), |since| {
        let between = since
            .low
            .zip(since.high)
            .map_or(String::new(), |(low, high)| format!(" (95 %: {} to {})", format_change(low), format_change(high)));
        format!(
            "; over the {} since, memory moved by {}{between}",
            counted(after, "sample"),
            format_change(since.value)
        )
    });
    let (low, high) = (end.low.unwrap_or(end.value), end.high.unwrap_or(end.value));
    // Only a settled growth has ended.
    let ended = if context.finding.verdict == Verdict::Settled { "ended" } else { "may have ended" };
    let text = format!(
        "Growth {ended} at {} (between {} and {}){moved}.{aligned}",
        place(context, end.value),
        place(context, low),
        place(context, high),
    );
    Some(Evidence::number(text, end.value, "place on the clock").over(end.value, context.shape.last()))
}

fn example_evidence(context: &Context) -> Option<Evidence> {
    let bytes = context.bytes_per_example()?;
    let mut text = format!("That is {} per example", size(bytes));
    let may_decode = context.libraries.find(Library::ImageDecoder) != Some(None);
    if context.finding.verdict != Verdict::Leak && may_decode {
        text += &format!(
            ", the size of a decoded image of {:.1} megapixels at 4 bytes a pixel (PIL) or {:.1} at 3 (arrays)",
            bytes / 4e6,
            bytes / 3e6
        );
    }
    if let Some(ten) = ten_times(context) {
        text += &format!("; ten times the examples would need about {}", size(ten));
    }
    Some(Evidence::number(text + ".", bytes, "bytes/example"))
}

/// Memory needed for ten times the examples if each is kept.
pub(crate) fn ten_times(context: &Context) -> Option<f64> {
    let examples = context.facts.example_count()?;
    let held = context.bytes_per_example()? * examples;
    let full = match context.finding.verdict {
        Verdict::Settled if context.finding.aligned => context.finding.knee.map(|_| context.level().bytes as f64)?,
        Verdict::Growing => {
            let left = context.pass_end()? - context.shape.last();
            (left >= 0.0).then(|| context.present() + context.finding.growth.map_or(0.0, |g| g.rate.value) * left)?
        }
        _ => return None,
    };
    Some(full + 9.0 * held)
}

/// The components are reported only if their changes sum to between this share of the rise and its inverse.
const ACCOUNTED_FOR: f64 = 0.5;

/// The components of the growth. Its size is the floor's, reported before; the other columns say how it is divided.
fn component_evidence(context: &Context) -> Option<Evidence> {
    let rise = context.finding.growth?.rise;
    let (judged, parts) = match context.memory {
        JudgedMemory::Unreclaimable => (
            "Judged: memory the kernel cannot reclaim (anonymous + shared)",
            [Quantity::Anon, Quantity::Shmem, Quantity::Swap],
        ),
        _ => ("Judged: all resident memory", [Quantity::Anon, Quantity::File, Quantity::Shmem]),
    };
    let shown: Vec<&Covariate> =
        [Quantity::Anon, Quantity::File, Quantity::Shmem].iter().filter_map(|&part| context.covariate(part)).collect();
    if shown.is_empty() {
        return None;
    }
    let sum: f64 = parts.iter().filter_map(|&part| context.covariate(part)).map(|part| part.change).sum();
    // Measured between typical samples at the beginning and at the end, so a little less than the whole rise.
    let whole = rise / sum;
    if !(ACCOUNTED_FOR..=1.0 / ACCOUNTED_FOR).contains(&whole) {
        return Some(Evidence::words(format!("{judged}.")));
    }
    let told = |part: &&Covariate| format!("{} {}", part.quantity.name(), format_change(whole * part.change));
    let told: Vec<String> = shown.iter().map(told).collect();
    Some(Evidence::words(format!("{judged}. During the growth: {}.", told.join(", "))))
}

fn count_evidence(context: &Context) -> Vec<Evidence> {
    let counts = context.covariates.iter().filter(|c| c.quantity.is_count());
    counts
        .filter(|c| matches!(c.quantity, Quantity::Tensors | Quantity::Objects))
        .map(|c| {
            let noun = if c.quantity == Quantity::Tensors { "Live tensors" } else { "Python objects" };
            let moved = if c.change.abs() < 0.05 * c.start.max(1.0) { "did not follow" } else { "moved with it" };
            Evidence::number(
                format!("{noun} {moved}: {:.0} at the start of the growth, change {:+.0}.", c.start, c.change),
                c.change,
                "count",
            )
        })
        .collect()
}

fn wave_evidence(context: &Context) -> Option<Evidence> {
    match context.shape.waves {
        Waves::Teeth(teeth) => Some(Evidence::number(
            format!(
                "{} complete climbs and drops of {} every {}; the floor between them is judged, not the peaks.",
                teeth.count,
                size(teeth.height),
                duration(context, teeth.period)
            ),
            teeth.height,
            "bytes",
        )),
        Waves::Spikes { count, height, .. } => Some(Evidence::number(
            format!("{} of about {}, all of which fell back.", counted(count, "spike"), size(height)),
            height,
            "bytes",
        )),
        Waves::None => {
            let height = context.evaluation_height.filter(|&height| height > context.shape.material())?;
            Some(Evidence::number(
                format!("Evaluations peak up to {} above training and were judged separately.", size(height)),
                height,
                "bytes",
            ))
        }
    }
}

/// The level at the run's last step if the growth never ends.
fn end_of_run(context: &Context, claims: &Claims) -> Option<Evidence> {
    let then = at_last_step(context, claims)?;
    let fits = match context.facts.memory_limit {
        Some(limit) if then.value > limit.as_f64() => format!(", above the limit of {limit}"),
        Some(limit) => format!(", below the limit of {limit}"),
        None => String::new(),
    };
    let text =
        format!("At this rate memory would reach {} by the run's last step ({:.0}){fits}.", then.bytes(), then.to);
    Some(Evidence::number(text, then.value, "bytes"))
}

/// Whose memory it is, where that is not a process's.
fn whose_memory(context: &Context) -> Option<&'static str> {
    match context.subject {
        Subject::Process => None,
        Subject::Container => {
            Some("This is a container's memory: of all its processes and, with most tools, of its page cache.")
        }
        Subject::Machine => Some("This is the memory of the whole machine: any program on it may have grown."),
        Subject::Device => Some("This is GPU memory: the host's memory and its limit do not matter here."),
    }
}

/// A limit in reach, and a plateau that may be the limit itself.
fn room_evidence(context: &Context, headroom: Option<&Headroom>) -> Option<Evidence> {
    let room = headroom.filter(|room| is_at_the_cap(context, room))?;
    let limit = context.facts.memory_limit?;
    Some(Evidence::number(
        format!(
            "The plateau lies {} below the limit of {limit}. It may be the limit that ended the growth: a cgroup's or an allocator's \
             limit, swapping, or page cache being dropped.",
            size(room.left_bytes as f64)
        ),
        room.left_bytes as f64,
        "bytes",
    ))
}

/// Growth that the samples allow.
fn still_possible(context: &Context, most: &Claim) -> String {
    let left = context.last_step().map(|total| total - context.shape.last()).filter(|&left| left > 0.0);
    let by_the_end = left.map_or_else(String::new, |left| {
        format!(" By the run's last step it would add up to {}.", size(most.value * left))
    });
    format!(
        "Growth of up to {} cannot be excluded: the samples from {} to {} allow no more (95 %).{by_the_end}",
        rate(context, most.value),
        place(context, most.from),
        place(context, most.to)
    )
}

/// What the verdict cannot exclude: the fastest growth that the samples allow.
fn blind_spot(context: &Context, claims: &Claims) -> Option<Evidence> {
    let most =
        claims.at_most.filter(|_| context.clock != Clock::Sample && context.finding.verdict != Verdict::Growing)?;
    let text = match most.value > 0.0 {
        true => still_possible(context, &most),
        // The whole interval lies below: memory fell.
        false => format!(
            "Growth is excluded by the samples from {} to {} (95 %).",
            place(context, most.from),
            place(context, most.to)
        ),
    };
    let unit = if context.clock == Clock::Step { "bytes/step" } else { "bytes/unit" };
    Some(Evidence::number(text, most.value, unit).over(most.from, most.to))
}

/// The smallest creep worth mentioning: a few arenas of Python's allocator.
pub(crate) const CREEP: f64 = 4.0 * MIB as f64;

/// The trend of a floor that creeps up by too little to be called growth: of the whole trace, or since the growth ended.
pub(crate) fn creep(context: &Context) -> Option<Trend> {
    let shape = context.shape;
    let from = match context.finding.verdict {
        Verdict::Flat | Verdict::Sawtooth => shape.first(),
        Verdict::Settled => context.finding.knee?.0,
        _ => return None,
    };
    let trend = Trend::of(shape.floor_between(from, shape.last()))?;
    (trend.rises(3.0) && (CREEP..shape.material()).contains(&trend.rise())).then_some(trend)
}

fn creep_evidence(context: &Context) -> Option<Evidence> {
    let trend = creep(context)?;
    let since = if context.finding.verdict == Verdict::Settled { "since then" } else { "over the whole trace" };
    Some(Evidence::number(
        format!(
            "The floor creeps up by {} {since}; below {} this does not count as growth.",
            size(trend.rise()),
            size(context.shape.material())
        ),
        trend.rise(),
        "bytes",
    ))
}
