//! Fields that say with yes or no whether a row or a message is to be trained.

use super::names::words;
use crate::dataset::value::Value;

/// Words that leave out with yes.
const LEFT_OUT: &[&str] = &[
    "bad",
    "broken",
    "corrupt",
    "corrupted",
    "delete",
    "deleted",
    "discard",
    "discarded",
    "drop",
    "dropped",
    "exclude",
    "excluded",
    "filtered",
    "flagged",
    "hidden",
    "ignore",
    "ignored",
    "incorrect",
    "invalid",
    "masked",
    "remove",
    "removed",
    "skip",
    "skipped",
    "wrong",
];
/// Words that leave out with no.
const TAKEN: &[&str] = &[
    "accepted",
    "approved",
    "correct",
    "good",
    "include",
    "included",
    "keep",
    "kept",
    "learn",
    "loss",
    "supervise",
    "supervised",
    "train",
    "trainable",
    "trained",
    "training",
    "use",
    "used",
    "valid",
];
/// Words that turn the others round.
const NOT: &[&str] = &["dont", "never", "no", "non", "not"];
/// Words around them that change nothing.
const AROUND: &[&str] = &[
    "be", "do", "example", "for", "from", "in", "is", "message", "on", "out", "row", "sample", "should", "to", "turn",
    "was",
];

/// Whether a field says of its row or message that it is not trained.
pub(super) fn leaves_out(name: &str, value: &Value) -> bool {
    matches!((value_that_leaves_out(name), yes_or_no(value)), (Some(leaving), Some(given)) if leaving == given)
}

/// Whether a name says with yes or no that something is left out.
pub(super) fn may_leave_out(name: &str) -> bool {
    value_that_leaves_out(name).is_some()
}

/// The answer that leaves out, for a name of such words alone: others tell what the yes or no is about.
fn value_that_leaves_out(name: &str) -> Option<bool> {
    let words = words(name);
    let has = |some: &[&str]| words.iter().any(|word| some.contains(&word.as_str()));
    let is_known = |word: &String| [LEFT_OUT, TAKEN, NOT, AROUND].iter().any(|some| some.contains(&word.as_str()));
    let is_telling = has(LEFT_OUT) || has(TAKEN);
    (is_telling && words.iter().all(is_known)).then(|| has(LEFT_OUT) != has(NOT))
}

/// A yes or no, also as a number or as a word, as tables without types have it.
pub(super) fn yes_or_no(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(given) => Some(*given),
        Value::Integer(0) => Some(false),
        Value::Integer(1) => Some(true),
        Value::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "y" | "1" => Some(true),
            "false" | "no" | "n" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_answers_that_leave_out() {
        let text = |text: &'static str| Value::Text(text.into());
        for (name, value, leaves) in [
            ("skip", Value::Bool(true), true),
            ("skip", text("true"), true),
            ("skip", Value::Bool(false), false),
            ("valid", text("no"), true),
            ("no_loss", Value::Bool(true), true),
            ("no_loss", Value::Bool(false), false),
            ("Train", Value::Bool(false), true),
            ("isTrainable", Value::Integer(0), true),
            ("exclude_from_training", Value::Bool(true), true),
            ("for_training", Value::Bool(false), true),
            ("is_correct", Value::Bool(true), false),
            ("is_not_valid", Value::Bool(true), true),
            ("deleted", Value::Bool(true), true),
            // What is used or skipped is something else.
            ("used_tools", Value::Bool(false), false),
            ("skip_prompt_formatting", Value::Bool(true), false),
            ("correct_answers", Value::Integer(0), false),
            ("is_balanced", Value::Bool(false), false),
            ("valid", Value::Integer(7), false),
        ] {
            assert_eq!(leaves_out(name, &value), leaves, "{name}: {value}");
        }
    }
}
