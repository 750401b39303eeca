//! The advice of a diagnosis, most important first.

use crate::bytes::{Bytes, GIB};
use crate::causes::Weighed;
use crate::claims::Claims;
use crate::context::{Context, Program};
use crate::diagnosis::{Cause, Clock, Forecast, Headroom, Mechanism, Verdict};
use crate::elapsed::elapsed;
use crate::evidence::{creep, ten_times};
use crate::passes::Lacks;
use crate::phrasing::{duration, rate, size};
use crate::summary::allowed;
use crate::trace::{Quantity, Subject};

/// The advice for a judged part, most important first.
pub(crate) fn advice(
    context: &Context,
    forecast: &Forecast,
    headroom: Option<&Headroom>,
    claims: &Claims,
    weighed: &Weighed,
) -> Vec<String> {
    let mut list = Vec::new();
    let too_close = headroom.filter(|room| room.in_reach);
    match context.finding.verdict {
        Verdict::Leak => list.extend(advice_on_leak(context, forecast)),
        Verdict::Growing if context.finding.mechanism != Mechanism::FilePages => {
            list.extend(advice_on_growth(context, forecast));
        }
        Verdict::Settled | Verdict::Flat | Verdict::Sawtooth if above_limit(context).is_some() => {
            list.extend(above_limit(context));
        }
        Verdict::Settled | Verdict::Flat | Verdict::Sawtooth if too_close.is_some() => {
            list.push(
                "Make room before the run goes on: a smaller batch or fewer workers, evaluations that keep less, a larger limit."
                    .into(),
            );
        }
        Verdict::Settled if context.finding.mechanism == Mechanism::EpochFill => {
            let need = ten_times(context)
                .map_or(String::new(), |ten| format!("; ten times the examples would need {}", size(ten)));
            list.push(format!(
                "This run is safe: memory stays at this level. A larger dataset needs proportionally more{need}."
            ));
        }
        Verdict::Settled | Verdict::Flat | Verdict::Sawtooth | Verdict::Growing => {
            list.push(nothing_to_do(context, claims));
        }
        Verdict::Insufficient => {}
    }
    list.extend(suspect(context, weighed).map(suspected));
    list.extend(missing_facts(context));
    list
}

/// The advice when there is too little data.
pub(crate) fn advice_for_too_few() -> Vec<String> {
    vec![
        "Record more samples: one per step, or one every 10 steps over at least 50 steps.".into(),
        "Two passes over the same data best separate a cache from a leak.".into(),
    ]
}

/// The advice if memory already exceeds the limit.
fn above_limit(context: &Context) -> Option<String> {
    let limit = context.facts.memory_limit?;
    let level = size(context.present());
    let is_above = level > limit && context.finding.mechanism != Mechanism::FilePages;
    is_above
        .then(|| format!("Memory is already at {level}, above the limit of {limit}: free some, or raise the limit."))
}

/// A reassuring verdict asks for nothing, as far as it goes.
fn nothing_to_do(context: &Context, claims: &Claims) -> String {
    match (creep(context), allowed(context, claims)) {
        _ if context.finding.mechanism == Mechanism::FilePages => "Nothing to do for this run.".into(),
        (Some(trend), _) => format!(
            "Nothing to do now. If the creep goes on, it adds 1 GiB in {}.",
            duration(context, GIB as f64 / trend.slope)
        ),
        (None, Some(most)) => {
            format!(
                "Nothing to do now. Slow growth may still come to light: look again later ({} at most).",
                rate(context, most)
            )
        }
        (None, None) => "Nothing to do for this run.".into(),
    }
}

/// The first cause, if a measurement has earned it: a wrong name sends people the wrong way.
pub(crate) fn suspect<'a>(context: &Context, weighed: &'a Weighed) -> Option<&'a Cause> {
    weighed.causes.first().filter(|_| context.finding.growth.is_some() && weighed.is_earned)
}

fn suspected(first: &Cause) -> String {
    let sure = if first.score >= 0.7 { "The likely cause, inferred from the numbers," } else { "The first suspect" };
    format!("{sure} is {}. {}.", first.title, capitalised(first.fix))
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn advice_on_leak(context: &Context, forecast: &Forecast) -> Vec<String> {
    let mut list = Vec::new();
    if let (Some(at), Some(limit)) = (forecast.if_unbounded, forecast.limit_bytes) {
        let when = match (at.step, at.time_s) {
            (Some(step), _) => format!(" before step {step:.0}"),
            (None, Some(time)) => format!(" within {}", elapsed(time)),
            (None, None) => String::new(),
        };
        list.push(match context.program() {
            Program::Training => format!("Save a checkpoint and restart{when}, or the run dies at {}.", Bytes(limit)),
            _ => format!("Restart it{when}, or it dies at {}.", Bytes(limit)),
        });
    }
    list.push(match context.subject {
        Subject::Device => ON_DEVICE.into(),
        Subject::Machine | Subject::Container => WHICH_PROCESS.into(),
        Subject::Process => match context.program() {
            Program::Training => {
                format!("Find the leaking stage: {}. The stage that grows in every pass leaks.", bisect(context))
            }
            program => format!("Find what is kept: {}", profiles(program)),
        },
    });
    list
}

const ON_DEVICE: &str = "Find out what the allocator holds: torch.cuda.memory_allocated() against memory_reserved() at each step. If the \
     first grows, tensors are kept: torch.cuda.memory._record_memory_history() and _dump_snapshot() show where they were made.";
const WHICH_PROCESS: &str =
    "Find out which process grows: `model-garden monitor --pid PID` records a process and its children.";

/// How to find what a program keeps that does not train.
fn profiles(program: Program) -> &'static str {
    match program {
        Program::Python => {
            "compare two snapshots of tracemalloc an hour apart; if Python's own memory does not grow, record native allocations with \
             `memray attach --native PID`."
        }
        _ => {
            "compare two heap profiles an hour apart (Go: pprof; C, C++ and Rust: heaptrack or jemalloc's profiler; Java: jcmd PID \
             GC.class_histogram; Node: heap snapshots; Python: tracemalloc)."
        }
    }
}

/// The command that finds the piece of a growing training that keeps memory.
pub(crate) fn next_command(context: &Context) -> Option<String> {
    let grows = matches!(context.finding.verdict, Verdict::Growing | Verdict::Leak);
    let is_asked = grows && context.finding.mechanism != Mechanism::FilePages;
    let is_pipeline = context.subject == Subject::Process && context.program() == Program::Training;
    (is_asked && is_pipeline).then(|| bisect_command(context))
}

fn bisect_command(context: &Context) -> String {
    let pieces = context.module.as_ref().map_or("MODULE:FUNCTION".into(), |module| format!("{module}:pieces"));
    format!("model-garden bisect {pieces}")
}

/// How to bisect the pipeline.
fn bisect(context: &Context) -> String {
    let function = match &context.module {
        Some(module) => format!("a function `pieces` in `{module}`"),
        None => "FUNCTION".into(),
    };
    format!(
        "run `{}`, where {function} returns dataset, processor and collator; it runs 50 \
         different examples through them at least twice",
        bisect_command(context)
    )
}

fn advice_on_growth(context: &Context, forecast: &Forecast) -> Vec<String> {
    let mut list = Vec::new();
    let to_know_now = match context.subject {
        Subject::Device => ON_DEVICE.into(),
        Subject::Machine | Subject::Container => WHICH_PROCESS.into(),
        Subject::Process => match context.program() {
            Program::Training => format!(
                "To find out now: {}. Growth in the first pass only is a cache, in every pass a leak. (Repeating one \
                 example shows nothing.)",
                bisect(context)
            ),
            program => format!("To find out now: {}", profiles(program)),
        },
    };
    if context.finding.pausing {
        let until = forecast.decided_by_step.map_or(String::new(), |step| format!(" until step {step:.0}"));
        return vec![format!("Let it run{until}: a plateau of that length would settle it."), to_know_now];
    }
    if let Some(line) = above_limit(context) {
        return vec![line, to_know_now];
    }
    let run_ends = context.facts.total_steps.map_or(f64::INFINITY, |total| total as f64);
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
        let further = match (context.pass_end(), context.finding.leak_known_at) {
            (Some(end), Some(known)) if known > end && context.shape.last() < end => {
                format!(" Growth still undiminished at step {known:.0} is a leak.")
            }
            _ => String::new(),
        };
        list.push(match () {
            () if limit_step < step && limit_step <= run_ends => format!(
                "At this rate memory reaches the limit at step {limit_step:.0}, before step {step:.0} can decide: \
                 save a checkpoint now{fits}."
            ),
            () if run_ends < step => {
                format!("The run ends at step {run_ends:.0}, before step {step:.0} can decide{fits}.")
            }
            () => format!("Wait for step {step:.0}{fits}.{further}"),
        });
    }
    list.push(to_know_now);
    let is_reached = limit_step <= run_ends;
    if let (Some(at), Some(limit), true) = (forecast.if_unbounded, forecast.limit_bytes, is_reached) {
        let when = at.step.map_or(String::new(), |step| format!(" at step {step:.0}"));
        let time = at.time_s.map_or(String::new(), |s| format!(" in {}", elapsed(s)));
        let before = match context.program() {
            Program::Training => "save a checkpoint before then",
            _ => "restart it before then",
        };
        list.push(format!("If it never ends, memory reaches {}{when}{time}: {before}.", Bytes(limit)));
    }
    list
}

/// Facts and columns that would make the diagnosis surer, one line each.
fn missing_facts(context: &Context) -> Vec<String> {
    let mut list = Vec::new();
    let moving = context.finding.growth.is_some() && context.finding.mechanism != Mechanism::FilePages;
    let may_repeat = context.facts.epoch_steps().is_none() && !context.asked.no_epochs;
    if moving && may_repeat && context.clock == Clock::Step {
        list.push(
            "Pass --examples, --batch-size and --gradient-accumulation (or --steps-per-epoch): whether growth ends \
             with the first pass over the data identifies the cause. Pass --no-epochs if its data never comes again."
                .into(),
        );
    }
    if moving && context.clock != Clock::Step {
        let if_it_trains = match context.program() {
            Program::Training => "Record the training step with each sample",
            _ => "If it trains, record the training step with each sample",
        };
        list.push(format!("{if_it_trains}: growth per step and per epoch says more than growth over time."));
    }
    let by_time = matches!(context.finding.lacks, Some(Lacks::Rise(_) | Lacks::Time(_)));
    if moving && by_time && !context.asked.limit && context.finding.verdict == Verdict::Growing {
        list.push(
            "Pass --memory-limit with what this program may use: growth that matters beside it is called a leak. --leak-after says how \
             long growth must have lasted for that."
                .into(),
        );
    }
    if moving && context.subject == Subject::Process && context.covariate(Quantity::Anon).is_none() {
        list.push(
            "Record anonymous, file and shared memory separately (RssAnon, RssFile, RssShmem in /proc/PID/status) to \
             tell heap, file pages and pinned buffers apart."
                .into(),
        );
    }
    list
}
