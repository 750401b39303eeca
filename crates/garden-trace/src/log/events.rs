//! Events that a log tells in words.

use garden_memory::EventKind;

/// The event that a line in lower case tells of.
pub(crate) fn event_in(line: &str) -> Option<EventKind> {
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| line.contains(phrase));
    if line.contains("restart") && says(RESTARTS) {
        return Some(EventKind::Restart);
    }
    if (line.contains("eval") || line.contains("validation") || line.contains("running prediction"))
        && let Some(kind) = evaluation_in(line)
    {
        return Some(kind);
    }
    if line.contains("checkpoint") && says(CHECKPOINTS) {
        return Some(EventKind::Checkpoint);
    }
    (line.contains("epoch") && ends_epoch(line)).then_some(EventKind::EpochEnd)
}

const RESTARTS: &[&str] = &[
    "process restarted",
    "process was restarted",
    "process has been restarted",
    "process restarting",
    "restarting process",
    "restarting the process",
    "restarting training",
    "training restarted",
    "run restarted",
    "[restarted]",
];

const CHECKPOINTS: &[&str] = &["saving model checkpoint", "saving checkpoint", "saved checkpoint", "checkpoint saved"];

fn evaluation_in(line: &str) -> Option<EventKind> {
    if line.contains("running evaluation") || line.contains("running prediction") {
        return Some(EventKind::EvalStart);
    }
    // HF trainers print the result as a dictionary.
    if line.contains("'eval_loss'") || line.contains("'eval_runtime'") || line.contains("\"eval_loss\"") {
        return Some(EventKind::EvalEnd);
    }
    let mut words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let is_evaluation = |word: &str| matches!(word, "evaluation" | "validation" | "eval" | "evaluating");
    words.find(|word| is_evaluation(word))?;
    // The verb follows soon, or the line is about something else.
    words.take(4).find_map(|word| match word {
        "started" | "starting" | "start" | "starts" | "begin" | "begins" | "began" => Some(EventKind::EvalStart),
        "finished" | "done" | "complete" | "completed" | "ended" | "ends" | "end" => Some(EventKind::EvalEnd),
        _ => None,
    })
}

fn ends_epoch(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    if line.contains("end of epoch") {
        return true;
    }
    words.find(|&word| word == "epoch").is_some()
        && words.take(4).any(|word| matches!(word, "finished" | "done" | "complete" | "completed" | "ended"))
}

/// Whether a line with a memory value was written during an evaluation, by its own words.
pub(crate) fn is_evaluation_line(line: &str) -> bool {
    if !line.contains("eval") && !line.contains("validation") {
        return false;
    }
    let mut before = "";
    for word in line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()) {
        if matches!(word, "eval" | "evaluation" | "evaluating" | "validation") {
            return !matches!(before, "after" | "before" | "since");
        }
        before = word;
    }
    false
}
