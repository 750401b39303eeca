//! Keys that are common in structured answers, counted in one pass over a dataset.
//!
//! Lossy counting (Manku and Motwani, 2002): every [`BLOCK`] answers, keys seen less than once per block on average are forgotten. So
//! memory depends on the number of common keys, not of answers, even if every answer has unique keys; a
//! share is overestimated by less than one in [`BLOCK`], and never underestimated.

use std::collections::{HashMap, HashSet};

use crate::example::boxes::BOX_PLACEHOLDER;
use crate::example::json::{Kind, stretches, unescaped};
use crate::example::turns::ASSISTANT;
use crate::template::Message;

/// Answers between two prunings; with fewer answers the count is exact.
const BLOCK: usize = 1000;
/// The default minimum share of answers for a common key: more often present than not.
pub const COMMON_SHARE: f64 = 0.5;

/// Counts the answers that contain each key.
#[derive(Clone, Debug, Default)]
pub struct KeyCounter {
    answers: usize,
    counts: HashMap<String, Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    seen: usize,
    /// Upper bound on earlier occurrences that were forgotten.
    missed: usize,
}

impl KeyCounter {
    /// Adds an answer; returns whether it is a JSON object or array. Others do not count.
    pub fn add(&mut self, answer: &str) -> bool {
        let Some(stretches) = stretches(answer) else { return false };
        let keys = stretches.iter().filter(|stretch| stretch.kind == Kind::Key);
        let keys: HashSet<String> = keys.map(|key| unescaped(&answer[key.bytes.clone()])).collect();
        let missed = self.answers / BLOCK;
        for key in keys {
            self.counts.entry(key).or_insert(Count { seen: 0, missed }).seen += 1;
        }
        self.answers += 1;
        if self.answers.is_multiple_of(BLOCK) {
            let blocks = self.answers / BLOCK;
            self.counts.retain(|_, count| count.seen + count.missed > blocks);
        }
        true
    }

    /// Adds the answers of a conversation.
    pub fn add_answers(&mut self, messages: &[Message]) {
        for message in messages.iter().filter(|message| message.role == ASSISTANT) {
            // A placeholder of a box is not valid JSON.
            self.add(&message.words().replace(BOX_PLACEHOLDER, "[0]"));
        }
    }

    /// Number of structured answers.
    pub fn answers(&self) -> usize {
        self.answers
    }

    /// Keys present in at least this share of the structured answers.
    pub fn common(&self, share: f64) -> HashSet<String> {
        let least = share * self.answers as f64;
        let is_common = |count: &Count| (count.seen + count.missed) as f64 >= least;
        self.counts.iter().filter(|(_, count)| is_common(count)).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(keys: HashSet<String>) -> Vec<String> {
        let mut keys: Vec<String> = keys.into_iter().collect();
        keys.sort();
        keys
    }

    #[test]
    fn a_key_counts_once_for_each_answer() {
        let mut counter = KeyCounter::default();
        assert!(counter.add(r#"{"a": 1, "b": {"a": 2}}"#));
        assert!(counter.add(r#"[{"\u0061": 1}, {"a": 1}, {"a": "c"}]"#));
        assert!(counter.add("{}"));
        assert!(!counter.add("b"));
        counter.add_answers(&[Message::text("user", "{\"b\": 1}"), Message::text("assistant", "b")]);
        assert_eq!(counter.answers(), 3);
        assert_eq!(sorted(counter.common(0.6)), ["a"]);
        assert_eq!(sorted(counter.common(0.3)), ["a", "b"]);
        assert!(counter.common(0.7).is_empty());
    }

    #[test]
    fn rare_keys_are_forgotten_and_common_ones_are_not() {
        let mut counter = KeyCounter::default();
        for number in 0..20_000 {
            let common = if number % 4 == 0 { "quarter" } else { "rest" };
            counter.add(&format!(r#"{{"only {number}": 1, "{common}": 2, "all": 3}}"#));
        }
        assert!(counter.counts.len() < 1100, "{} keys are kept", counter.counts.len());
        assert_eq!(sorted(counter.common(0.25)), ["all", "quarter", "rest"]);
        assert_eq!(sorted(counter.common(0.5)), ["all", "rest"]);
    }
}
