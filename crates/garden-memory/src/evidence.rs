//! The evidence for a verdict: one sentence and one number for each observation.

use crate::bytes::{MIB, format_change};
use crate::context::{Context, Covariate};
use crate::diagnosis::{Clock, Evidence, Headroom, Likelihood, Mechanism, Sensitivity, Verdict};
use crate::growth::Stretch;
use crate::headroom::is_at_the_cap;
use crate::libraries::Library;
use crate::number::counted;
use crate::phrasing::{place, rate, size};
use crate::series::JudgedMemory;
use crate::trace::{Quantity, Subject};
use crate::trend::Trend;
use crate::waves::Waves;

/// The evidence for the verdict.
pub(crate) fn evidence(
    context: &Context,
    likelihood: Option<&Likelihood>,
    headroom: Option<&Headroom>,
    sensitivity: Option<&Sensitivity>,
) -> Vec<Evidence> {
    let mut list = Vec::new();
    let finding = context.finding;
    if let Some(earlier) = finding.earlier {
        list.push(
            Evidence::number(
                format!(
                    "Two growths: one of {} ended at {}; another of {} continues underneath and decides.",
                    rate(context, earlier.rate.value),
                    place(context, earlier.to),
                    rate(context, finding.growth.map_or(0.0, |g| g.rate.value))
                ),
                earlier.rate.value,
                "bytes per clock unit",
            )
            .over(earlier.from, earlier.to),
        );
    }
    if let Some(start) = finding.start_up {
        let text = format!(
            "Start-up: memory rose by {} until {} and counts as part of the level.",
            size(start.rise),
            place(context, start.to)
        );
        list.push(Evidence::number(text, start.rise, "bytes").over(start.from, start.to));
    }
    if let Some(growth) = finding.growth {
        list.push(growth_evidence(context, &growth));
    }
    list.extend(knee_evidence(context));
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
    list.extend(end_of_run(context));
    if finding.verdict == Verdict::Leak && finding.endless {
        list.push(Evidence::words(
            "No passes over data are known. Growth that has lasted so long (--leak-after), has added a tenth of the limit (or a \
             quarter of the level) and shows no sign of slowing is called a leak; a cache that takes as long to fill would look the \
             same.",
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
    list.extend(sensitivity.and_then(|least| blind_spot(context, least)));
    if context.shape.points.len() < 12 {
        list.push(Evidence::words(format!(
            "{} samples show a straight line or its end, but not slow curvature, waves shorter than {:.0} {}s or \
             slow growth under fast growth.",
            context.shape.points.len(),
            2.0 * context.shape.spacing,
            context.clock.unit()
        )));
    }
    list
}

fn growth_evidence(context: &Context, growth: &Stretch) -> Evidence {
    let ended = if context.finding.verdict == Verdict::Settled { "rose" } else { "has risen" };
    let factor = if context.clock == Clock::Time { 60.0 } else { 1.0 };
    let pace = match growth.is_jump {
        true => "in one jump".into(),
        false => format!(
            "at {} (95 %: {} to {})",
            rate(context, growth.rate.value),
            format_change(factor * growth.rate.low),
            format_change(factor * growth.rate.high)
        ),
    };
    let text = format!(
        "From {} to {} the floor {ended} by {}, {pace}.",
        place(context, growth.from),
        place(context, growth.to),
        size(growth.rise),
    );
    let unit = if context.clock == Clock::Step { "bytes/step" } else { "bytes/unit" };
    Evidence::number(text, growth.rate.value, unit).over(growth.from, growth.to)
}

fn knee_evidence(context: &Context) -> Option<Evidence> {
    // Of two growths, the end of the faster is reported with the slower.
    let (at, low, high) = context.finding.knee.filter(|_| context.finding.earlier.is_none())?;
    let after = context.shape.points_between(at, context.shape.last());
    let change = after.last()?.y - after.first()?.y;
    let aligned = match context.pass_end() {
        Some(end) if context.finding.aligned => {
            format!(" The first pass over the data ends at step {end:.0}: the two coincide.")
        }
        Some(end) => format!(" The first pass over the data ends at step {end:.0}: the two do not coincide."),
        None => String::new(),
    };
    Some(
        Evidence::number(
            format!(
                "Growth ended at {} (between {} and {}); over the {} since, memory moved by {}.{aligned}",
                place(context, at),
                place(context, low),
                place(context, high),
                counted(after.len(), "sample"),
                format_change(change)
            ),
            at,
            "place on the clock",
        )
        .over(at, context.shape.last()),
    )
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
    let unit = context.clock.unit();
    match context.shape.waves {
        Waves::Teeth(teeth) => Some(Evidence::number(
            format!(
                "{} complete climbs and drops of {} every {:.0} {unit}s; the floor between them is judged, not the peaks.",
                teeth.count,
                size(teeth.height),
                teeth.period
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
fn end_of_run(context: &Context) -> Option<Evidence> {
    let growth =
        context.finding.growth.filter(|_| matches!(context.finding.verdict, Verdict::Growing | Verdict::Leak))?;
    let last = context.facts.total_steps.filter(|_| context.clock == Clock::Step)? as f64;
    let left = last - context.shape.last();
    if left <= 0.0 || context.finding.pausing {
        return None;
    }
    let then = context.present() + growth.rate.value * left;
    let fits = match context.facts.memory_limit {
        Some(limit) if then > limit.as_f64() => format!(", above the limit of {limit}"),
        Some(limit) => format!(", below the limit of {limit}"),
        None => String::new(),
    };
    Some(Evidence::number(
        format!("At this rate memory would reach {} by the run's last step ({last:.0}){fits}.", size(then)),
        then,
        "bytes",
    ))
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

/// What the verdict cannot exclude.
fn blind_spot(context: &Context, least: &Sensitivity) -> Option<Evidence> {
    let per_unit = match context.clock {
        Clock::Time => least.bytes_per_second?,
        Clock::Step => least.bytes_per_step?,
        Clock::Sample => return None,
    };
    let left = context.facts.total_steps.filter(|_| context.clock == Clock::Step).map(|total| total as f64);
    let by_the_end =
        left.map(|total| total - context.shape.last()).filter(|&left| left > 0.0).map_or_else(String::new, |left| {
            format!(" By the run's last step it would add up to {}.", size(per_unit * left))
        });
    Some(Evidence::number(
        format!("A leak below {} would not show here.{by_the_end}", rate(context, per_unit)),
        per_unit,
        if context.clock == Clock::Step { "bytes/step" } else { "bytes/unit" },
    ))
}

/// The smallest creep worth mentioning: a few arenas of Python's allocator.
const CREEP: f64 = 4.0 * MIB as f64;

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
