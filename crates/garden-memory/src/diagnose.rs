//! The whole way from a trace to a diagnosis, top to bottom.

use std::ops::Range;

use crate::advice::{advice, advice_for_too_few, next_command, suspect};
use crate::bytes::Bytes;
use crate::causes::weigh_causes;
use crate::claims::Claims;
use crate::context::{Asked, Context, covariate, evaluation_height};
use crate::diagnosis::*;
use crate::evidence::evidence;
use crate::forecast::forecast;
use crate::headroom::headroom;
use crate::judge::{FEWEST_SAMPLES, Finding, judge};
use crate::passes::{Endless, Passes};
use crate::phrasing::{about_bounds, about_the_clock, out_of_order};
use crate::processes::{changes, process_evidence};
use crate::sensitivity::sensitivity;
use crate::series::{JudgedMemory, Series, Timeline, seconds_per_unit, split_at_restarts};
use crate::shape::Shape;
use crate::stability::{Stability, check_stability};
use crate::summary::{summary, too_few, whole_run};
use crate::trace::{EventKind, Quantity, RunFacts, Trace};

/// What to find out besides the verdict.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Facts about the run; the trace's header fills the gaps.
    pub facts: RunFacts,
    /// Judge this quantity alone; otherwise unreclaimable memory, or all resident memory.
    pub only: Option<Quantity>,
    /// Assert that the level stays where it is.
    pub stability: Option<Stability>,
    /// The data has no passes, though it has steps: a stream.
    pub no_epochs: bool,
    /// Seconds after which straight growth without passes is a leak; infinite for never.
    pub leak_after: Option<f64>,
    /// The limit among the facts is this machine's: nobody has said what the program may use.
    pub limit_is_assumed: bool,
}

/// Seconds after which straight growth without passes is a leak, unless the question says otherwise: few caches take a working day
/// to fill at a steady pace.
pub const LEAK_AFTER: f64 = 6.0 * 3600.0;

/// One process's stretch of a trace, judged.
pub(crate) struct Judged {
    pub series: Series,
    pub memory: JudgedMemory,
    /// `None` if there are too few samples.
    pub shape: Option<Shape>,
    pub finding: Finding,
}

/// The verdict alone, without the words and what only they need. What a reassuring one could not have seen costs as much as the verdict several times over.
pub fn verdict(trace: &Trace, question: &Question) -> Verdict {
    let facts = question.facts.clone().or(trace.facts.clone());
    let timeline = Timeline::of(trace);
    let parts = split_at_restarts(trace, &timeline);
    let passes = passes(trace, &timeline, question, &facts);
    let (_, judged) = judged_part(trace, &parts, &timeline, question.only, passes);
    judged.shape.map_or(Verdict::Insufficient, |_| judged.finding.verdict)
}

/// Judges a trace: the pure core of every command.
pub fn diagnose(trace: &Trace, question: &Question) -> Diagnosis {
    let facts = question.facts.clone().or(trace.facts.clone());
    let timeline = Timeline::of(trace);
    let clock = timeline.clock;
    let parts = split_at_restarts(trace, &timeline);
    let passes = passes(trace, &timeline, question, &facts);
    let (part, judged) = judged_part(trace, &parts, &timeline, question.only, passes);
    let samples_judged = part.len();
    let seconds = seconds_per_unit(trace, part.clone(), &timeline);
    let mut diagnosis = match &judged.shape {
        Some(shape) => {
            let context = Context::gather(trace, part.clone(), &timeline, &judged, shape, &facts, seconds);
            tell(&Context { asked: Asked::of(question), ..context })
        }
        None => insufficient(clock, judged.series.points.len(), &facts),
    };
    let growth = judged.finding.growth.as_ref();
    let judged_until = judged.series.last_sample.map_or(part.end, |sample| sample + 1);
    diagnosis.processes = changes(trace, part.start..judged_until, &timeline, growth);
    diagnosis.evidence.extend(growth.and_then(|growth| process_evidence(&diagnosis.processes, growth)));
    if parts.len() > 1 {
        diagnosis.parts =
            parts.iter().map(|part| judge_as_part(trace, part.clone(), &timeline, question, passes, &facts)).collect();
        let number = parts.iter().position(|one| *one == part).unwrap_or(parts.len() - 1);
        diagnosis.parts[number].decides = true;
        diagnosis.summary.insert_str(0, &whole_run(&diagnosis.parts, number, clock));
    }
    // The assertion is about the end of the trace, however short the last start was.
    diagnosis.stability = question.stability.map(|asked| {
        let last = parts.last().cloned().unwrap_or(0..0);
        check_stability(&Series::of(trace, last, &timeline, judged.memory), asked, clock)
    });
    if let Some(check) = diagnosis.stability.as_ref().filter(|check| !check.passed) {
        diagnosis.summary += &format!(" The stability check failed: {}.", check.text);
    }
    if facts.epoch_steps().is_some() && clock != Clock::Step && !trace.is_empty() {
        diagnosis.input.notes.push("the trace has no steps, so the epoch length was ignored".into());
    }
    diagnosis.input.samples = trace.len();
    diagnosis.input.judged = (!trace.is_empty()).then_some(judged.memory);
    diagnosis.input.column = diagnosis.input.judged.map(|memory| memory.column_names(trace));
    diagnosis.input.notes.extend(about_bounds(judged.series.bounds, samples_judged));
    diagnosis.input.notes.extend(about_the_clock(timeline.set_back, timeline.is_shuffled, clock));
    if judged.series.out_of_order > 0 {
        diagnosis.input.skipped += judged.series.out_of_order;
        diagnosis.input.notes.push(out_of_order(judged.series.out_of_order, clock));
    }
    diagnosis
}

/// What is known about passes over the data: their length, that there are none, or nothing.
fn passes(trace: &Trace, timeline: &Timeline, question: &Question, facts: &RunFacts) -> Passes {
    let is_on_steps = timeline.clock == Clock::Step;
    if let Some(steps) = facts.epoch_steps().filter(|_| is_on_steps && !question.no_epochs) {
        return Passes::Every(steps as f64);
    }
    // With steps, somebody trains on data that comes again; without them nothing does, as far as anybody knows.
    let may_have_passes = is_on_steps && !question.no_epochs;
    let seconds = if may_have_passes { None } else { seconds_per_unit(trace, 0..trace.len(), timeline) };
    match (seconds, question.leak_after.unwrap_or(LEAK_AFTER)) {
        (Some(seconds), after) if after.is_finite() && seconds > 0.0 => {
            Passes::None(Endless { lasts: after / seconds, limit: facts.memory_limit.map(Bytes::as_f64) })
        }
        _ => Passes::Unknown,
    }
}

/// Memory over the clock as a diagnosis of this trace judges it, for charts; evaluations included.
pub fn judged_series(trace: &Trace) -> Vec<(f64, f64)> {
    let timeline = Timeline::of(trace);
    let parts = split_at_restarts(trace, &timeline);
    let memory =
        if trace.has(Quantity::Rss) || trace.has(Quantity::Pss) { JudgedMemory::Total } else { main_memory(trace) };
    let mut points = Vec::with_capacity(trace.len());
    for part in parts {
        let series = Series::of(trace, part, &timeline, memory);
        let start = points.len();
        points.extend(series.points.iter().chain(&series.aside).map(|p| (p.x, p.y)));
        // Within a process only: a restarted one may count its steps from the beginning.
        points[start..].sort_by(|a: &(f64, f64), b| a.0.total_cmp(&b.0));
    }
    points
}

/// One quantity over the same clock, for charts of tensor and object counts.
pub fn quantity_series(trace: &Trace, quantity: Quantity) -> Vec<(f64, f64)> {
    let timeline = Timeline::of(trace);
    let parts = split_at_restarts(trace, &timeline);
    let points =
        parts.into_iter().flat_map(|part| Series::of(trace, part, &timeline, JudgedMemory::Only(quantity)).points);
    points.map(|p| (p.x, p.y)).collect()
}

/// The samples of each process with their places on the clock, in clock order, for charts.
pub fn judged_places(trace: &Trace) -> Vec<Vec<(usize, f64)>> {
    let timeline = Timeline::of(trace);
    let parts = split_at_restarts(trace, &timeline);
    let placed = |part: Range<usize>| {
        let mut places: Vec<(usize, f64)> = part.filter_map(|index| Some((index, timeline.place(index)?))).collect();
        places.sort_by(|a, b| a.1.total_cmp(&b.1));
        places
    };
    parts.into_iter().map(placed).filter(|places| !places.is_empty()).collect()
}

fn main_memory(trace: &Trace) -> JudgedMemory {
    if trace.has(Quantity::Anon) { JudgedMemory::Unreclaimable } else { JudgedMemory::Total }
}

/// Judges the last start; of a run that has ended, the last start with enough samples.
///
/// Otherwise a run that was resumed for its last few steps would have no verdict. While a run goes on, an earlier start
/// says nothing about the present one.
fn judged_part(
    trace: &Trace,
    parts: &[Range<usize>],
    timeline: &Timeline,
    only: Option<Quantity>,
    passes: Passes,
) -> (Range<usize>, Judged) {
    let last = parts.last().cloned().unwrap_or(0..0);
    let judge = |part: &Range<usize>| (part.clone(), judge_part(trace, part.clone(), timeline, only, passes));
    let end = trace.events.last().filter(|event| event.before_sample == trace.len());
    let candidates = if end.is_some_and(|event| event.kind == EventKind::Exit) { parts } else { &[] };
    let mut tried = candidates.iter().rev().map(judge);
    tried.find(|(_, judged)| judged.shape.is_some()).unwrap_or_else(|| judge(&last))
}

/// Judges unreclaimable memory first; file pages only matter if nothing else moved.
pub(crate) fn judge_part(
    trace: &Trace,
    part: Range<usize>,
    timeline: &Timeline,
    only: Option<Quantity>,
    passes: Passes,
) -> Judged {
    let memory = only.map_or_else(|| main_memory(trace), JudgedMemory::Only);
    let mut held = judge_memory(trace, part.clone(), timeline, memory, passes);
    if turns_private(trace, part.clone(), timeline, &held.finding) {
        held.finding.mechanism = Mechanism::CopyOnWrite;
        // Workers can copy no more than the parent has.
        if held.finding.verdict == Verdict::Leak {
            held.finding.verdict = Verdict::Growing;
        }
    }
    let has_file = held.memory == JudgedMemory::Unreclaimable && (trace.has(Quantity::Rss) || trace.has(Quantity::Pss));
    let matters = |verdict| matches!(verdict, Verdict::Growing | Verdict::Leak | Verdict::Insufficient);
    mark_evaluations(&mut held);
    if !has_file || matters(held.finding.verdict) {
        return held;
    }
    let mut total = judge_memory(trace, part, timeline, JudgedMemory::Total, passes);
    if !is_of_file_pages_alone(&held, &total) {
        return held;
    }
    // What is neither anonymous nor known to be file pages may be shared memory, which nobody can reclaim.
    if !trace.has(Quantity::File) && !trace.has(Quantity::Shmem) {
        return total;
    }
    total.finding.mechanism = Mechanism::FilePages;
    if total.finding.verdict == Verdict::Leak {
        total.finding.verdict = Verdict::Growing;
    }
    total
}

/// Whether the total grew while unreclaimable memory stood still, so that all of the growth is file pages.
fn is_of_file_pages_alone(held: &Judged, total: &Judged) -> bool {
    let grew = matches!(total.finding.verdict, Verdict::Settled | Verdict::Growing | Verdict::Leak);
    let (Some(growth), Some(shape)) = (total.finding.growth.filter(|_| grew), &held.shape) else { return false };
    let moved = covariate(&held.series.points, Quantity::Anon, growth.from, growth.to, growth.rise);
    held.finding.growth.is_none() && moved.is_none_or(|one| one.change < shape.material())
}

/// Marks evaluations that stand out from a flat run as its spikes, labelled or not.
fn mark_evaluations(judged: &mut Judged) {
    let Some(shape) = &judged.shape else { return };
    let stand_out = evaluation_height(&judged.series).is_some_and(|height| height > shape.material());
    if judged.finding.mechanism == Mechanism::None && judged.finding.verdict == Verdict::Flat && stand_out {
        judged.finding.mechanism = Mechanism::Spikes;
    }
}

/// Whether shared pages turned into private ones while memory grew.
fn turns_private(trace: &Trace, part: Range<usize>, timeline: &Timeline, finding: &Finding) -> bool {
    let Some(growth) = finding.growth else { return false };
    let change = |quantity| {
        let series = Series::of(trace, part.clone(), timeline, JudgedMemory::Only(quantity));
        covariate(&series.points, quantity, growth.from, growth.to, growth.rise).map(|one| one.change)
    };
    if !trace.has(Quantity::Private) || !trace.has(Quantity::Shared) {
        return false;
    }
    match (change(Quantity::Private), change(Quantity::Shared)) {
        (Some(private), Some(shared)) => private >= 0.5 * growth.rise && -shared >= 0.5 * private,
        _ => false,
    }
}

fn judge_memory(
    trace: &Trace,
    part: Range<usize>,
    timeline: &Timeline,
    memory: JudgedMemory,
    passes: Passes,
) -> Judged {
    let series = Series::of(trace, part, timeline, memory);
    let shape = if series.points.len() < FEWEST_SAMPLES { None } else { Shape::of(&series) };
    let finding = shape.as_ref().map_or_else(Finding::nothing, |shape| judge(shape, passes));
    Judged { series, memory, shape, finding }
}

fn judge_as_part(
    trace: &Trace,
    part: Range<usize>,
    timeline: &Timeline,
    question: &Question,
    passes: Passes,
    facts: &RunFacts,
) -> Part {
    let judged = judge_part(trace, part.clone(), timeline, question.only, passes);
    let ends = judged.series.ends().unwrap_or((0.0, 0.0));
    let summary = match &judged.shape {
        Some(shape) => {
            let context = Context::gather(trace, part, timeline, &judged, shape, facts, None);
            let context = Context { asked: Asked::of(question), ..context };
            let claims = Claims::of(&context);
            let forecast = forecast(&context, &claims);
            let odds = weigh_causes(&context).likelihood;
            summary(&context, &claims, &forecast, headroom(&context, &forecast, odds.as_ref()).as_ref())
        }
        None => too_few(judged.series.points.len()),
    };
    Part {
        from: ends.0,
        to: ends.1,
        samples: judged.series.points.len(),
        verdict: judged.finding.verdict,
        mechanism: judged.finding.mechanism,
        summary,
        decides: false,
    }
}

/// Turns the findings into a diagnosis.
fn tell(context: &Context) -> Diagnosis {
    let finding = context.finding;
    let claims = Claims::of(context);
    let forecast = forecast(context, &claims);
    let weighed = weigh_causes(context);
    let likelihood = weighed.likelihood;
    let headroom = headroom(context, &forecast, likelihood.as_ref());
    let sensitivity = sensitivity(context, &claims);
    Diagnosis {
        verdict: finding.verdict,
        mechanism: finding.mechanism,
        confidence: Some(context.confidence()),
        summary: summary(context, &claims, &forecast, headroom.as_ref()),
        likelihood,
        growth: context.growth(&claims),
        knee: context.knee(),
        level: Some(context.level()),
        claims: claims.list(context, &forecast),
        evidence: evidence(context, &claims, likelihood.as_ref(), headroom.as_ref()),
        advice: advice(context, &forecast, headroom.as_ref(), &claims, &weighed),
        forecast,
        headroom,
        sensitivity,
        clock: context.clock,
        phases: context.phases(),
        suspect: suspect(context, &weighed).map(|cause| cause.id),
        next_command: next_command(context),
        causes: weighed.causes,
        ruled_out: weighed.ruled_out,
        processes: Vec::new(),
        parts: Vec::new(),
        series: Vec::new(),
        stability: None,
        input: Input::default(),
    }
}

fn insufficient(clock: Clock, samples: usize, facts: &RunFacts) -> Diagnosis {
    Diagnosis {
        verdict: Verdict::Insufficient,
        mechanism: Mechanism::None,
        confidence: None,
        summary: too_few(samples),
        likelihood: None,
        growth: Growth::default(),
        knee: None,
        level: None,
        forecast: Forecast { limit_bytes: facts.memory_limit.map(|limit| limit.0), ..Forecast::default() },
        headroom: None,
        sensitivity: None,
        clock,
        phases: Vec::new(),
        causes: Vec::new(),
        ruled_out: Vec::new(),
        suspect: None,
        next_command: None,
        claims: Vec::new(),
        evidence: Vec::new(),
        advice: advice_for_too_few(),
        processes: Vec::new(),
        parts: Vec::new(),
        series: Vec::new(),
        stability: None,
        input: Input::default(),
    }
}
