//! Sentences: findings, their meaning and the advice.

use garden_memory::Bytes;

use crate::experiment::{Experiment, How, RunError};
use crate::finding::{Cause, Finding, Growth, Kind};
use crate::holders::given_back;
use crate::judge::Judged;

/// Free memory kept by the C library above which it is worth a remark.
const WORTH_A_REMARK: i64 = 32 << 20;

/// An amount; negative ones count as zero.
pub(crate) fn bytes(amount: i64) -> String {
    Bytes(amount.max(0) as u64).to_string()
}

/// An error in one line.
pub(crate) fn error(error: &RunError) -> String {
    let place = error.traceback.as_ref().and_then(|lines| lines.last());
    let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
    format!("{}{place}", error.text)
}

/// The answer in a sentence or two.
pub(crate) fn summary(finding: &Finding, failed: Option<&str>) -> String {
    let mut sentences: Vec<String> = finding.growths.iter().take(1).map(|growth| growth.summary.clone()).collect();
    let others = finding.growths.iter().skip(1).filter(|growth| growth.kind.gravity() >= Kind::Copies.gravity());
    sentences.extend(others.map(|growth| format!("Also: {}", growth.summary)));
    if finding.verdict == Kind::Flat {
        let together = || finding.stages.iter().filter(|stage| !stage.is_alone && !stage.is_workers);
        let passes = together().map(|stage| stage.growth.len()).max().unwrap_or(0);
        let most = together().flat_map(|stage| &stage.growth).max().copied().unwrap_or(0);
        sentences.push(format!(
            "Nothing grows: {} examples, {passes} times over, add at most {} per pass.",
            finding.examples,
            bytes(most)
        ));
    }
    if let Some(error) = failed {
        sentences.push(format!("A run failed: {error}."));
    }
    sentences.join(" ")
}

/// A growth in a sentence or two.
pub(crate) fn growth(growth: &Growth, experiment: &Experiment, memory_limit: Option<u64>) -> String {
    let each = growth.bytes_per_example.map_or("memory".to_string(), bytes);
    let who = who(growth);
    let place = place(growth);
    let trigger = trigger(growth);
    match growth.kind {
        Kind::Leak if growth.cause == Some(Cause::NativeLeak) => format!(
            "{who} leaks {each} per example in every pass, in native code: Python objects hold {} of it. {}",
            share(growth.explained.unwrap_or(0.0)),
            every_epoch(growth, experiment)
        ),
        Kind::Leak => format!("{who} keeps {each} per example in every pass{place}: a leak.{trigger} {}", every_epoch(growth, experiment)),
        Kind::Cache if growth.cause == Some(Cause::DecodedImagesKept) => format!(
            "{who} keeps decoded images{place}: {each} per example in the first pass, nothing in the next.{trigger} {}",
            whole_dataset(growth, experiment, memory_limit)
        ),
        Kind::Cache => format!(
            "{who} keeps {each} for each new example{place}, nothing for repeats: a cache.{trigger} {}",
            whole_dataset(growth, experiment, memory_limit)
        ),
        Kind::FullCache => format!(
            "{who} keeps {each} per example until about {} have been seen, then no more{place}: a full cache.",
            growth.full_after.unwrap_or_default()
        ),
        Kind::Garbage => format!(
            "{who} leaves {each} per example in reference cycles{}. This is not a leak: it waits for the garbage collector.",
            collected(growth)
        ),
        Kind::Copies => format!(
            "The loader workers copy {each} per example of the parent's memory by touching it. This is not a leak: it ends once all of it has been touched{}.",
            at_most(growth, experiment)
        ),
        Kind::WarmUp => format!("{who} takes memory in a few jumps that do not recur: a warm-up, not growth per example."),
        Kind::FilePages => format!("{who} reads memory-mapped files, whose pages the kernel reclaims when it needs memory: no growth."),
        _ => format!("{who} grows in a way that {} passes cannot classify ({each} per example in the first): run it with more.", most_passes(experiment)),
    }
    .trim_end()
    .to_string()
}

/// A number of passes.
pub(crate) fn passes(number: u64) -> String {
    if number == 1 { "1 pass".into() } else { format!("{number} passes") }
}

fn most_passes(experiment: &Experiment) -> usize {
    experiment.runs.iter().map(|run| run.passes.len()).max().unwrap_or(0)
}

/// The keeper, as the beginning of a sentence.
fn who(growth: &Growth) -> String {
    match growth.keeper.as_deref() {
        Some(module) if module.starts_with("module ") => format!("A variable of {module}"),
        Some("callbacks") => "A callback".into(),
        Some(piece) => format!("The {piece}"),
        None if growth.begins_with == "workers" => "Something in the workers".into(),
        None => format!("Something that begins with the {}", growth.begins_with),
    }
}

fn place(growth: &Growth) -> String {
    let at = growth.held_at.as_deref().filter(|at| !at.is_empty());
    match (at, &growth.holds) {
        (Some(at), Some(holds)) => format!(" (`{}`, {holds})", at.trim_start_matches("module ")),
        (Some(at), None) => format!(" (`{at}`)"),
        _ => String::new(),
    }
}

/// The piece with which the growth begins, if another one keeps it.
fn trigger(growth: &Growth) -> String {
    let piece = &growth.begins_with;
    match growth.keeper.as_ref() {
        None => String::new(),
        Some(keeper) if keeper == piece => String::new(),
        Some(_) if growth.cause == Some(Cause::DecodedImagesKept) => {
            format!(" They are decoded when the {piece} first uses them.")
        }
        Some(_) => format!(" It begins with the {piece}."),
    }
}

fn every_epoch(growth: &Growth, experiment: &Experiment) -> String {
    match growth.full_dataset_bytes.zip(experiment.dataset_length) {
        Some((all, length)) => format!("Each epoch of {length} examples adds {}.", bytes(all)),
        None => String::new(),
    }
}

fn whole_dataset(growth: &Growth, experiment: &Experiment, memory_limit: Option<u64>) -> String {
    let Some((all, length)) = growth.full_dataset_bytes.zip(experiment.dataset_length) else {
        return "It grows until every example has been seen once.".into();
    };
    let limit = memory_limit
        .filter(|limit| all as u64 > *limit)
        .map(|limit| format!(", more than the limit of {}", Bytes(limit)));
    let limit = limit.unwrap_or_default();
    match growth.holds_at_most.filter(|most| *most < length) {
        Some(most) => format!("It holds at most {most} of the {length} examples, which need {}{limit}.", bytes(all)),
        None => format!("All {length} examples need {}{limit}.", bytes(all)),
    }
}

fn at_most(growth: &Growth, experiment: &Experiment) -> String {
    match growth.full_dataset_bytes.zip(experiment.dataset_length) {
        Some((all, _)) if is_all_that_is_shared(growth, experiment) => {
            format!(", at most the {} that each worker shares with its parent", bytes(all))
        }
        Some((all, length)) => {
            format!(", about {} for {length} examples in each worker that sees them all", bytes(all))
        }
        None => String::new(),
    }
}

/// Whether the whole dataset would need more than there is to copy: several examples lie on one page.
pub(crate) fn is_all_that_is_shared(growth: &Growth, experiment: &Experiment) -> bool {
    let all = growth.bytes_per_example.zip(experiment.dataset_length);
    let all = all.map(|(each, length)| each.saturating_mul(length as i64));
    growth.kind == Kind::Copies && growth.full_dataset_bytes < all
}

fn collected(growth: &Growth) -> String {
    let given =
        growth.gives_back.iter().find(|given| given.what.starts_with("gc.collect")).map_or(0, |given| given.bytes);
    if given < 64 << 10 {
        ", which the collector frees now and then".into()
    } else {
        format!("; `gc.collect()` frees {}", bytes(given))
    }
}

fn share(part: f64) -> String {
    if part < 0.005 { "nothing".into() } else { format!("{:.0} %", 100.0 * part) }
}

/// The advice, for the most severe growth first.
pub(crate) fn advice(growths: &[Growth], verdict: Kind) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    for growth in growths {
        advice.extend(advice_for(growth).into_iter().map(str::to_string));
    }
    if verdict == Kind::Flat {
        advice.push("Look elsewhere: add the missing pieces (model, optimizer, callbacks, workers), or watch the whole run with `model-garden monitor`.".into());
    }
    advice.dedup();
    advice
}

fn advice_for(growth: &Growth) -> Vec<&'static str> {
    match (growth.kind, growth.cause) {
        (Kind::Cache, Some(Cause::DecodedImagesKept)) => vec![
            "Keep the compressed bytes or the path and decode on access: `model_garden.LazyImages`, or open the image inside `__getitem__` and drop it.",
            "`gc.collect()` and `empty_cache()` do not help: the images are in use. A restart frees them, but they pile up again.",
        ],
        (Kind::Cache, Some(Cause::NativeCache)) => vec![
            "Look for a cache inside the library (tokenizers, oneDNN, decoders) and bound it; Python objects do not hold this.",
        ],
        (Kind::Cache, _) => vec![
            "Bound the cache or compute on access; if the whole dataset fits, leave it: it ends with the first epoch.",
        ],
        (Kind::FullCache, _) => vec!["Nothing: it does not grow with the dataset."],
        (Kind::Leak, Some(Cause::NativeLeak)) => vec![
            "Update or replace the library that this piece calls, or run it in loader workers that are restarted; memray with `--native` names the function.",
            "`gc.collect()` cannot help: Python does not track this memory.",
        ],
        (Kind::Leak, Some(Cause::GrowingContainer)) => {
            vec!["Bound or clear what grows there, or store numbers instead of tensors and batches (`loss.item()`)."]
        }
        (Kind::Leak, Some(Cause::GraphKept)) => {
            vec![
                "Store its `.item()` or `.detach()`: a tensor keeps its graph, which keeps the step's activations until `backward()` has run.",
            ]
        }
        (Kind::Leak, _) => vec!["\"What holds it\" lists the types and lines that remain, and what refers to them."],
        (Kind::Garbage, _) => vec![
            "Break the cycle (no reference back to the parent, or a `weakref`). Until then the collector bounds it; collecting every step costs more than it saves.",
        ],
        (Kind::Copies, _) => vec![
            "Keep examples in numpy or Arrow arrays instead of Python objects, or use fewer workers; `persistent_workers` only moves it.",
        ],
        (Kind::Undecided, _) => vec!["Run it again with more passes (`--passes 6`)."],
        (Kind::WarmUp | Kind::FilePages | Kind::Flat | Kind::Failed, _) => Vec::new(),
    }
}

/// Further notes.
pub(crate) fn notes(experiment: &Experiment, runs: &[Judged]) -> Vec<String> {
    let mut notes = experiment.notes.clone();
    for judged in runs {
        if let Some(error) = &judged.finding.error {
            notes.push(format!("{}: {error}", judged.finding.name));
        }
        if let Some(stopped) = judged.run.stopped {
            notes.push(format!(
                "{}: stopped in pass {} after {} examples: only {} of memory was left",
                judged.finding.name,
                stopped.number,
                stopped.examples,
                Bytes(stopped.available)
            ));
        }
    }
    let retained = runs
        .iter()
        .filter(|judged| judged.run.how == How::Chain)
        .map(|judged| judged.finding.retained)
        .max()
        .unwrap_or(0);
    if retained > WORTH_A_REMARK {
        notes.push(format!(
            "the C library keeps up to {} of free memory for the next batch (`malloc_trim(0)` returns it): resident memory is that much higher, but does not grow",
            bytes(retained)
        ));
    }
    notes.extend(runs.iter().rev().find(|judged| judged.run.how == How::Chain).and_then(held_from_the_start));
    if experiment.start == "spawn" {
        notes.push("the pieces were copied by pickle, which decodes lazily opened images: pass 'module:function' to see them grow".into());
    }
    notes
}

/// Memory that a piece held before the first pass, inferred from what dropping it gave back beyond the growth. The warm-up holds a part of what
/// grows.
fn held_from_the_start(judged: &Judged) -> Option<String> {
    let grown = judged.finding.growth.iter().sum::<i64>().max(0);
    let given = given_back(judged.run);
    let most = given.iter().filter(|given| given.what.starts_with("dropping the ")).max_by_key(|given| given.bytes)?;
    let before = most.bytes - grown;
    let piece = most.what.trim_start_matches("dropping the ");
    (before > WORTH_A_REMARK && before > 10 * grown)
        .then(|| format!("the {piece} already held {} before the first pass; this does not grow", bytes(before)))
}
