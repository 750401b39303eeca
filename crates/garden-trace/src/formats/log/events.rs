//! Events that a log states in words.

use garden_memory::EventKind;

/// Which event words a line may contain, found in one pass; nearly all lines have none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Keywords {
    restart: bool,
    running: bool,
    evaluation: bool,
    checkpoint: bool,
    epoch: bool,
    /// The word "rank", which marks lines of distributed runs.
    pub(super) rank: bool,
}

impl Keywords {
    /// Looks for the first letters of the words in a line in lower case.
    pub(super) fn of(line: &str) -> Self {
        let is = |word: &[u8; 3], letters: [u8; 3]| {
            (letters[0] == word[0]) & (letters[1] == word[1]) & (letters[2] == word[2])
        };
        let (first, second, third) = (line.bytes(), line.bytes().skip(1), line.bytes().skip(2));
        let mut found = Keywords::default();
        // Without branches, so that the compiler looks at 16 places at once.
        for ((first, second), third) in first.zip(second).zip(third) {
            let letters = [first, second, third];
            found.restart |= is(b"res", letters);
            found.running |= is(b"run", letters);
            found.evaluation |= is(b"eva", letters) | is(b"val", letters);
            found.checkpoint |= is(b"che", letters);
            found.epoch |= is(b"epo", letters);
            found.rank |= is(b"ran", letters);
        }
        found
    }
}

/// Whether a line in lower case is the first of a training's banner.
pub(super) fn begins_training(line: &str, keywords: Keywords) -> bool {
    keywords.running && line.contains("running training")
}

/// The event that a line in lower case states.
pub(super) fn event_in(line: &str, keywords: Keywords) -> Option<EventKind> {
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| line.contains(phrase));
    if keywords.restart && says(RESTARTS) {
        return Some(EventKind::Restart);
    }
    if (keywords.evaluation || keywords.running)
        && let Some(kind) = evaluation_in(line)
    {
        return Some(kind);
    }
    if keywords.checkpoint && says(CHECKPOINTS) {
        return Some(EventKind::Checkpoint);
    }
    (keywords.epoch && ends_epoch(line)).then_some(EventKind::EpochEnd)
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

/// Whether a line with a memory value says that it was written during an evaluation.
pub(super) fn is_evaluation_line(line: &str, keywords: Keywords) -> bool {
    if !keywords.evaluation {
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
