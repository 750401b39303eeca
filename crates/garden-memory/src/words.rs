//! What the diagnosis says in sentences: the summary, the evidence and the advice.
//!
//! Sentences are made here once; text, Markdown and JSON show the same ones.

use crate::bytes::{Bytes, format_change};
use crate::diagnosis::*;
use crate::series::Memory;
use crate::signs::Signs;
use crate::trace::Quantity;
use crate::waves::Waves;

fn size(bytes: f64) -> Bytes {
    Bytes::from_f64(bytes)
}

/// A rate such as `171 MiB per step`.
fn rate(signs: &Signs, per_unit: f64) -> String {
    match signs.clock {
        // People think in minutes when there are no steps.
        Clock::Time => format!("{} per minute", size(60.0 * per_unit)),
        clock => format!("{} per {}", size(per_unit), clock.unit()),
    }
}

/// A place such as `step 83` or `12 min`.
pub(crate) fn place(signs: &Signs, x: f64) -> String {
    match signs.clock {
        Clock::Time => duration(x - signs.origin),
        clock => format!("{} {:.0}", clock.unit(), x.round()),
    }
}

/// A length of time in its natural unit.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// The answer in one plain sentence.
pub(crate) fn summary(signs: &Signs, forecast: Option<&Forecast>) -> String {
    let level = Bytes(signs.level().bytes);
    match signs.finding.verdict {
        Verdict::Flat => flat(signs, level),
        Verdict::Sawtooth => sawtooth(signs),
        Verdict::Settled => settled(signs, level),
        Verdict::Growing => growing(signs, forecast),
        Verdict::Leak => leak(signs, forecast),
        Verdict::Insufficient => too_few(signs.series.points.len()),
    }
}

fn flat(signs: &Signs, level: Bytes) -> String {
    match signs.shape.waves {
        Waves::Spikes { count, height, .. } => format!(
            "Memory is flat at {level}; {} of about {} went up and came back.",
            counted(count, "spike"),
            size(height)
        ),
        _ if signs.finding.mechanism == Mechanism::Spikes => format!(
            "Memory is flat at {level} during training; evaluations stand up to {} above it and come back.",
            size(signs.evaluation_height.unwrap_or(0.0))
        ),
        _ => unmoved(signs, level),
    }
}

/// Flat, or fallen, or risen and come back: none of them is growth.
fn unmoved(signs: &Signs, level: Bytes) -> String {
    let shape = signs.shape;
    let levels: Vec<f64> = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]).collect();
    let top = levels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (first, now) = (levels.first().copied().unwrap_or(0.0), signs.present());
    let notable = 2.0 * shape.material();
    if top - now <= notable {
        format!("Memory is flat at {level}: no growth beyond noise after start-up.")
    } else if top - first > notable {
        format!(
            "Memory rose from {} to {} and came back to {}: no growth that stays.",
            size(first),
            size(top),
            size(now)
        )
    } else {
        format!("Memory fell from {} to {}: no growth.", size(first), size(now))
    }
}

fn sawtooth(signs: &Signs) -> String {
    let Waves::Teeth(teeth) = signs.shape.waves else { return String::new() };
    format!(
        "Memory climbs by {} and drops back every {:.0} {}s, on a floor that stays at {}: no leak.",
        size(teeth.height),
        teeth.period,
        signs.clock.unit(),
        size(signs.present())
    )
}

fn settled(signs: &Signs, level: Bytes) -> String {
    let Some((growth, (knee, _, _))) = signs.finding.growth.zip(signs.finding.knee) else { return String::new() };
    let why = match signs.finding.mechanism {
        Mechanism::EpochFill if signs.finding.late => {
            "one pass over the data after it began, and not since: bounded by the dataset, not a leak"
        }
        Mechanism::EpochFill => {
            "where every example had been seen once, and not since: bounded by the dataset, not a leak"
        }
        Mechanism::FilePages => "all of it pages of mapped files, which the kernel takes back: harmless",
        Mechanism::RecordHigh => "in ever rarer jumps to a new record: bounded by the largest batch, not a leak",
        Mechanism::WarmUp => "a warm-up that is over: bounded, not a leak",
        _ => "and not since: bounded, not a leak",
    };
    if growth.is_jump {
        return format!(
            "Memory jumped by {} at {} and has not grown since: bounded, not a leak; the level since then is {level}.",
            size(growth.rise),
            place(signs, knee)
        );
    }
    format!(
        "Memory grew {} until {}, {why}; the level since then is {level}.",
        rate(signs, growth.rate.value),
        place(signs, knee)
    )
}

fn growing(signs: &Signs, forecast: Option<&Forecast>) -> String {
    let Some(growth) = signs.finding.growth else { return String::new() };
    let pace = rate(signs, growth.rate.value);
    if signs.finding.pausing {
        let at = signs.finding.knee.map_or(growth.to, |knee| knee.0);
        return format!(
            "Memory grew {pace} and may have stopped at {}; too few samples since then to be sure.",
            place(signs, at)
        );
    }
    if signs.finding.mechanism == Mechanism::FilePages {
        return format!(
            "Memory grows {pace}, but only by pages of mapped files, which the kernel takes back: harmless."
        );
    }
    let when = match forecast.and_then(|f| f.decided_by_step) {
        Some(step) => format!("step {step:.0} will tell"),
        None if signs.epoch().is_none() && signs.clock == Clock::Step => {
            "the number of steps in an epoch would tell when it is known".into()
        }
        None => "nothing in these numbers can tell".into(),
    };
    let slowing = if signs.finding.slowing { ", ever more slowly," } else { "" };
    format!(
        "Memory grows {pace}{slowing} and stands at {}; leak or bounded fill cannot be told apart yet: {when}.",
        size(signs.present())
    )
}

fn leak(signs: &Signs, forecast: Option<&Forecast>) -> String {
    let Some(growth) = signs.finding.growth else { return String::new() };
    let how = match signs.finding.mechanism {
        Mechanism::Staircase => {
            let step = signs.shape.staircase.map_or(0.0, |s| s.step);
            format!("each evaluation or checkpoint leaves {} behind ({})", size(step), rate(signs, growth.rate.value))
        }
        Mechanism::LateOnset => {
            format!(
                "since {} the floor rises {} and does not slow down",
                place(signs, growth.from),
                rate(signs, growth.rate.value)
            )
        }
        _ => {
            format!("the floor rises {} and does not slow down on examples seen before", rate(signs, growth.rate.value))
        }
    };
    let end = match forecast.and_then(|f| f.if_unbounded.zip(f.limit_bytes)) {
        Some((at, limit)) => {
            let step = at.step.map_or(String::new(), |step| format!(" at step {step:.0}"));
            let time = at.time_s.map_or(String::new(), |s| format!(", in {}", duration(s)));
            format!("; {} is reached{step}{time}", Bytes(limit))
        }
        None => String::new(),
    };
    format!("Memory leaks: {how}{end}.")
}

/// The sentence for too little data.
pub(crate) fn too_few(samples: usize) -> String {
    format!(
        "Too little data: {} of memory, at least {} are needed.",
        counted(samples, "usable sample"),
        crate::judge::FEWEST_SAMPLES
    )
}

/// What to do about too little data.
pub(crate) fn advice_for_too_few() -> Vec<String> {
    vec![
        "Record more samples: one per step, or one every 10 steps over at least 50 steps.".into(),
        "Two passes over the same data show the difference between a cache and a leak best.".into(),
    ]
}

/// What a trace with restarts says about its parts.
pub(crate) fn restarts(parts: &[Part]) -> Evidence {
    let words: Vec<&str> = parts.iter().map(|part| part.verdict.name()).collect();
    Evidence::number(
        format!("The process was restarted: {} parts, judged {}; the last one decides.", parts.len(), words.join(", ")),
        parts.len() as f64,
        "parts",
    )
}

/// The note about samples whose clock went back.
pub(crate) fn out_of_order(count: usize, clock: Clock) -> String {
    format!("{} skipped: the {} goes back behind an earlier one", counted(count, "sample"), clock.unit())
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// What the verdict rests on.
pub(crate) fn evidence(signs: &Signs, likelihood: Option<&Likelihood>) -> Vec<Evidence> {
    let mut list = Vec::new();
    let finding = signs.finding;
    if let Some(earlier) = finding.earlier {
        list.push(
            Evidence::number(
                format!(
                    "Two growths: one of {} ended at {}; another of {} goes on underneath and decides.",
                    rate(signs, earlier.rate.value),
                    place(signs, earlier.to),
                    rate(signs, finding.growth.map_or(0.0, |g| g.rate.value))
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
            place(signs, start.to)
        );
        list.push(Evidence::number(text, start.rise, "bytes").over(start.from, start.to));
    }
    if let Some(growth) = finding.growth {
        list.push(growth_evidence(signs, &growth));
    }
    list.extend(knee_evidence(signs));
    list.extend(example_evidence(signs));
    list.extend(component_evidence(signs));
    list.extend(count_evidence(signs));
    list.extend(wave_evidence(signs));
    list.extend(signs.shape.staircase.map(|stairs| {
        let text = format!(
            "The floor steps up by about {} at each of {} evaluations or checkpoints, hardly in between.",
            size(stairs.step),
            stairs.events
        );
        Evidence::number(text, stairs.step, "bytes")
    }));
    list.extend(end_of_run(signs));
    if finding.verdict == Verdict::Leak {
        list.push(Evidence::words(
            "The rate held through a further whole pass over examples already seen: no cache of examples does that.",
        ));
    }
    if let Some(odds) = likelihood.filter(|_| finding.mechanism != Mechanism::FilePages) {
        list.push(Evidence::number(
            format!(
                "Odds as far as the length of the growth tells: {:.0} % a leak, {:.0} % bounded.",
                100.0 * odds.leak,
                100.0 * odds.bounded
            ),
            odds.leak,
            "probability of a leak",
        ));
    }
    list.extend(creep_evidence(signs));
    if signs.shape.points.len() < 12 {
        list.push(Evidence::words(format!(
            "{} samples show a straight line or its end; they cannot show slow curvature, waves shorter than {:.0} {}s or a slow \
             growth under a fast one.",
            signs.shape.points.len(),
            2.0 * signs.shape.spacing,
            signs.clock.unit()
        )));
    }
    list
}

fn growth_evidence(signs: &Signs, growth: &crate::growth::Stretch) -> Evidence {
    let ended = if signs.finding.verdict == Verdict::Settled { "rose" } else { "has risen" };
    let factor = if signs.clock == Clock::Time { 60.0 } else { 1.0 };
    let pace = match growth.is_jump {
        true => "in one jump".into(),
        false => format!(
            "at {} (95 %: {} to {})",
            rate(signs, growth.rate.value),
            format_change(factor * growth.rate.low),
            format_change(factor * growth.rate.high)
        ),
    };
    let text = format!(
        "From {} to {} the floor {ended} by {}, {pace}.",
        place(signs, growth.from),
        place(signs, growth.to),
        size(growth.rise),
    );
    let unit = if signs.clock == Clock::Step { "bytes/step" } else { "bytes/unit" };
    Evidence::number(text, growth.rate.value, unit).over(growth.from, growth.to)
}

fn knee_evidence(signs: &Signs) -> Option<Evidence> {
    // Of two growths the faster one's end is told with the slower one.
    let (at, low, high) = signs.finding.knee.filter(|_| signs.finding.earlier.is_none())?;
    let after = signs.shape.points_between(at, signs.shape.last());
    let change = after.last()?.y - after.first()?.y;
    let aligned = match signs.pass_end() {
        Some(end) if signs.finding.aligned => {
            format!(" The first pass over the data ends at step {end:.0}: they coincide.")
        }
        Some(end) => format!(" The first pass over the data ends at step {end:.0}: they do not coincide."),
        None => String::new(),
    };
    Some(
        Evidence::number(
            format!(
                "Growth ended at {} (between {} and {}); the {} since then moved by {}.{aligned}",
                place(signs, at),
                place(signs, low),
                place(signs, high),
                counted(after.len(), "sample"),
                format_change(change)
            ),
            at,
            "place on the clock",
        )
        .over(at, signs.shape.last()),
    )
}

fn example_evidence(signs: &Signs) -> Option<Evidence> {
    let bytes = signs.bytes_per_example()?;
    let mut text = format!("That is {} per example", size(bytes));
    if signs.finding.verdict != Verdict::Leak {
        text += &format!(
            ", the size of a decoded image of {:.1} megapixels at 4 bytes a pixel (PIL) or {:.1} at 3 (arrays)",
            bytes / 4e6,
            bytes / 3e6
        );
    }
    if let Some(ten) = ten_times(signs) {
        text += &format!("; ten times the examples would need about {}", size(ten));
    }
    Some(Evidence::number(text + ".", bytes, "bytes/example"))
}

/// Memory that ten times the examples would need if each is kept.
pub(crate) fn ten_times(signs: &Signs) -> Option<f64> {
    let examples = signs.facts.example_count()?;
    let held = signs.bytes_per_example()? * examples;
    let full = match signs.finding.verdict {
        Verdict::Settled if signs.finding.aligned => signs.finding.knee.map(|_| signs.level().bytes as f64)?,
        Verdict::Growing => {
            let left = signs.pass_end()? - signs.shape.last();
            (left >= 0.0).then(|| signs.present() + signs.finding.growth.map_or(0.0, |g| g.rate.value) * left)?
        }
        _ => return None,
    };
    Some(full + 9.0 * held)
}

fn component_evidence(signs: &Signs) -> Option<Evidence> {
    let shares: Vec<String> = [Quantity::Anon, Quantity::File, Quantity::Shmem]
        .into_iter()
        .filter_map(|quantity| signs.company_of(quantity))
        .map(|c| format!("{} {}", c.quantity.name(), format_change(c.change)))
        .collect();
    let judged = match signs.memory {
        Memory::Unreclaimable => "Judged is what the kernel cannot take back (anonymous + shared memory)",
        _ => "Judged is all resident memory",
    };
    (!shares.is_empty()).then(|| Evidence::words(format!("{judged}. Over the growth: {}.", shares.join(", "))))
}

fn count_evidence(signs: &Signs) -> Vec<Evidence> {
    let counts = signs.company.iter().filter(|c| c.quantity.is_count());
    counts
        .filter(|c| matches!(c.quantity, Quantity::Tensors | Quantity::Objects))
        .map(|c| {
            let noun = if c.quantity == Quantity::Tensors { "Live tensors" } else { "Python objects" };
            let moved = if c.change.abs() < 0.05 * c.start.max(1.0) { "did not follow" } else { "moved along" };
            Evidence::number(
                format!("{noun} {moved}: {:.0} at the start of the growth, change {:+.0}.", c.start, c.change),
                c.change,
                "count",
            )
        })
        .collect()
}

fn wave_evidence(signs: &Signs) -> Option<Evidence> {
    let unit = signs.clock.unit();
    match signs.shape.waves {
        Waves::Teeth(teeth) => Some(Evidence::number(
            format!(
                "{} complete climbs and drops of {} every {:.0} {unit}s; judged is the floor between them, not the peaks.",
                teeth.count,
                size(teeth.height),
                teeth.period
            ),
            teeth.height,
            "bytes",
        )),
        Waves::Spikes { count, height, .. } => Some(Evidence::number(
            format!("{} of about {}, all of which came back.", counted(count, "spike"), size(height)),
            height,
            "bytes",
        )),
        Waves::None => {
            let height = signs.evaluation_height.filter(|&height| height > signs.shape.material())?;
            Some(Evidence::number(
                format!("Evaluations stand up to {} above training and were judged apart from it.", size(height)),
                height,
                "bytes",
            ))
        }
    }
}

/// What an unending growth would come to at the run's last step.
fn end_of_run(signs: &Signs) -> Option<Evidence> {
    let growth = signs.finding.growth.filter(|_| matches!(signs.finding.verdict, Verdict::Growing | Verdict::Leak))?;
    let last = signs.facts.total_steps.filter(|_| signs.clock == Clock::Step)? as f64;
    let left = last - signs.shape.last();
    if left <= 0.0 || signs.finding.pausing {
        return None;
    }
    let then = signs.present() + growth.rate.value * left;
    let fits = match signs.facts.memory_limit {
        Some(limit) if then > limit.as_f64() => format!(", above the limit of {limit}"),
        Some(limit) => format!(", below the limit of {limit}"),
        None => String::new(),
    };
    Some(Evidence::number(
        format!("At this rate the run's last step ({last:.0}) would be reached with {}{fits}.", size(then)),
        then,
        "bytes",
    ))
}

/// A floor that creeps upwards by less than what is worth a call.
fn creep_evidence(signs: &Signs) -> Option<Evidence> {
    if !matches!(signs.finding.verdict, Verdict::Flat | Verdict::Sawtooth) {
        return None;
    }
    let trend = crate::trend::Trend::of(&signs.shape.floor).filter(|trend| trend.rises(3.0))?;
    Some(Evidence::number(
        format!(
            "The floor creeps up by {} over the whole trace; below {} that is not called growth.",
            size(trend.rise()),
            size(signs.shape.material())
        ),
        trend.rise(),
        "bytes",
    ))
}

/// What to do, first things first.
pub(crate) fn advice(signs: &Signs, forecast: &Forecast, causes: &[Cause]) -> Vec<String> {
    let mut list = Vec::new();
    match signs.finding.verdict {
        Verdict::Leak => list.extend(advice_on_leak(forecast)),
        Verdict::Growing if signs.finding.mechanism != Mechanism::FilePages => {
            list.extend(advice_on_growth(signs, forecast));
        }
        Verdict::Settled | Verdict::Flat | Verdict::Sawtooth if above_limit(signs).is_some() => {
            list.extend(above_limit(signs));
        }
        Verdict::Settled if signs.finding.mechanism == Mechanism::EpochFill => {
            let need = ten_times(signs)
                .map_or(String::new(), |ten| format!("; ten times the examples would need {}", size(ten)));
            list.push(format!(
                "This run is safe: memory stays where it is. A larger dataset will need more in proportion{need}."
            ));
        }
        Verdict::Settled | Verdict::Flat | Verdict::Sawtooth | Verdict::Growing => {
            list.push("Nothing has to be done for this run.".into());
        }
        Verdict::Insufficient => {}
    }
    list.extend(suspect(signs, causes));
    list.extend(missing_facts(signs));
    list
}

/// What to say if memory is above the limit already.
fn above_limit(signs: &Signs) -> Option<String> {
    let limit = signs.facts.memory_limit?;
    let level = size(signs.present());
    let is_above = level > limit && signs.finding.mechanism != Mechanism::FilePages;
    is_above
        .then(|| format!("Memory is at {level}, above the limit of {limit} already: free some, or raise the limit."))
}

/// The first cause, if it stands out from the second.
fn suspect(signs: &Signs, causes: &[Cause]) -> Option<String> {
    let first = causes.first().filter(|_| signs.finding.growth.is_some())?;
    let second = causes.get(1).map_or(0.0, |cause| cause.score);
    if first.score < 0.25 || first.score < 1.5 * second {
        return None;
    }
    let sure = if first.score >= 0.7 { "The likely cause, inferred from the numbers," } else { "The first suspect" };
    Some(format!("{sure} is {}. {}.", first.title, capitalised(first.fix)))
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn advice_on_leak(forecast: &Forecast) -> Vec<String> {
    let mut list = Vec::new();
    if let (Some(at), Some(limit)) = (forecast.if_unbounded, forecast.limit_bytes) {
        let when = at.step.map_or(String::new(), |step| format!(" before step {step:.0}"));
        list.push(format!("Save a checkpoint and restart{when}, or the run dies at {}.", Bytes(limit)));
    }
    list.push(
        "Find the stage that leaks: run dataset, processor and collator alone over the same 50 examples twice; the stage that \
         grows in both passes leaks."
            .into(),
    );
    list
}

fn advice_on_growth(signs: &Signs, forecast: &Forecast) -> Vec<String> {
    let mut list = Vec::new();
    if signs.finding.pausing {
        let until = forecast.decided_by_step.map_or(String::new(), |step| format!(" until step {step:.0}"));
        return vec![format!("Let it run{until}: a plateau of that length would settle it.")];
    }
    if let Some(line) = above_limit(signs) {
        return vec![line];
    }
    let run_ends = signs.facts.total_steps.map_or(f64::INFINITY, |total| total as f64);
    let limit_step = forecast.if_unbounded.and_then(|at| at.step).unwrap_or(f64::INFINITY);
    if let Some(step) = forecast.decided_by_step {
        let fits = match (forecast.if_bounded, forecast.limit_bytes) {
            (Some(plateau), Some(limit)) if plateau.bytes > limit => {
                format!(
                    ", but even a bounded fill needs {}, more than the limit of {}",
                    Bytes(plateau.bytes),
                    Bytes(limit)
                )
            }
            (Some(plateau), _) => {
                let end = plateau.step.map_or(String::new(), |step| format!(" at step {step:.0}"));
                format!(": a fill of first-seen examples ends{end} with {}", Bytes(plateau.bytes))
            }
            _ => String::new(),
        };
        let further = match (signs.pass_end(), signs.finding.leak_known_at) {
            (Some(end), Some(known)) if known > end && signs.shape.last() < end => {
                format!(" Growth that goes on undiminished until step {known:.0} is a leak.")
            }
            _ => String::new(),
        };
        list.push(match () {
            () if limit_step < step && limit_step <= run_ends => format!(
                "At this rate the limit is reached at step {limit_step:.0}, before step {step:.0} can tell: save a \
                 checkpoint now{fits}."
            ),
            () if run_ends < step => {
                format!("The run ends at step {run_ends:.0}, before step {step:.0} could tell{fits}.")
            }
            () => format!("Wait for step {step:.0}{fits}.{further}"),
        });
    }
    list.push(
        "To know now: process 50 different examples twice in a fresh process. Growth in the first pass only is a cache, in both \
         passes a leak. (The same example 50 times shows nothing.)"
            .into(),
    );
    let is_reached = limit_step <= run_ends;
    if let (Some(at), Some(limit), true) = (forecast.if_unbounded, forecast.limit_bytes, is_reached) {
        let when = at.step.map_or(String::new(), |step| format!(" at step {step:.0}"));
        let time = at.time_s.map_or(String::new(), |s| format!(" in {}", duration(s)));
        list.push(format!("If it never ends, {} is reached{when}{time}: save a checkpoint before that.", Bytes(limit)));
    }
    list
}

/// The facts and columns that would say more, one line each.
fn missing_facts(signs: &Signs) -> Vec<String> {
    let mut list = Vec::new();
    let moving = signs.finding.growth.is_some() && signs.finding.mechanism != Mechanism::FilePages;
    if moving && signs.facts.epoch_steps().is_none() && signs.clock == Clock::Step {
        list.push(
            "Give --examples, --batch-size and --gradient-accumulation (or --steps-per-epoch): whether the growth ends with the \
             first pass over the data names the cause."
                .into(),
        );
    }
    if moving && signs.clock != Clock::Step {
        list.push(
            "Record the training step with each sample: growth per step and per epoch says more than growth over time."
                .into(),
        );
    }
    if moving && signs.company_of(Quantity::Anon).is_none() {
        list.push(
            "Record anonymous, file and shared memory apart (RssAnon, RssFile, RssShmem in /proc/PID/status): they tell heap, \
             file pages and pinned buffers from each other."
                .into(),
        );
    }
    list
}
