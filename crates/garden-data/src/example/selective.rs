//! Selective loss: tokens that all structured answers share do not count in the loss.
//!
//! Braces, quotes and commas are most of the tokens of a short JSON answer. A model learns them in a few steps, and from then on they only
//! dilute the loss. A token is masked if all its bytes are of the classes that the level names; one that
//! mixes structure and content (`"1`) is not. Masked tokens are still input; they only do not count in the loss.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::example::json::{Kind, Stretch, stretches, unescaped};

/// JSON Schema keywords, masked by [`Level::Moderate`].
pub const SCHEMA_KEYS: [&str; 18] = [
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "definitions",
    "enum",
    "format",
    "items",
    "not",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
];
/// JSON Schema type names, masked by [`Level::Moderate`] where they are the value of `type`.
pub const SCHEMA_TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// How much of a structured answer is masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing is masked.
    #[default]
    Off,
    /// Masks braces, brackets, colons, commas, quotes, and whitespace between them.
    Conservative,
    /// Also masks `null`, [`SCHEMA_KEYS`], and [`SCHEMA_TYPES`] as the value of `type`.
    Moderate,
    /// Also masks keys that are common in the dataset's answers.
    Aggressive,
}

/// Which tokens of structured answers are masked.
#[derive(Clone, Debug, Default)]
pub struct SelectiveLoss {
    /// The level.
    pub level: Level,
    /// The keys for [`Level::Aggressive`], such as [`KeyCounter::common`](crate::KeyCounter::common).
    pub keys: Arc<HashSet<String>>,
    /// The first epoch, from 0, in which tokens are masked: before, the structure itself must be learnt.
    pub start_epoch: usize,
}

impl SelectiveLoss {
    /// The settings in an epoch.
    pub fn in_epoch(&self, epoch: usize) -> SelectiveLoss {
        let level = if epoch < self.start_epoch { Level::Off } else { self.level };
        SelectiveLoss { level, ..self.clone() }
    }

    /// Which tokens of an answer are masked; `spans` are each token's bytes in the answer. `None` if the answer is not a
    /// JSON object or array, or the level is off.
    pub fn masked(&self, answer: &str, spans: &[Range<usize>]) -> Option<Vec<bool>> {
        if self.level == Level::Off {
            return None;
        }
        let stretches = stretches(answer)?;
        let mut bytes = vec![false; answer.len()];
        for stretch in stretches.iter().filter(|stretch| self.is_masked(answer, stretch)) {
            bytes[stretch.bytes.clone()].fill(true);
        }
        let is_masked = |span: &Range<usize>| {
            let own = bytes.get(span.clone()).unwrap_or_default();
            !own.is_empty() && own.iter().all(|byte| *byte)
        };
        Some(spans.iter().map(is_masked).collect())
    }

    fn is_masked(&self, answer: &str, stretch: &Stretch) -> bool {
        let inside = || unescaped(&answer[stretch.bytes.clone()]);
        let (is_moderate, is_aggressive) = (self.level >= Level::Moderate, self.level >= Level::Aggressive);
        match stretch.kind {
            Kind::Structure => true,
            Kind::Null => is_moderate,
            Kind::TypeName => is_moderate && SCHEMA_TYPES.contains(&inside().as_str()),
            Kind::Key => {
                is_moderate && SCHEMA_KEYS.contains(&inside().as_str())
                    || is_aggressive && self.keys.contains(&inside())
            }
            Kind::Content => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer with `_` for masked bytes, as if each of these pieces were a token.
    fn left(level: Level, pieces: &[&str]) -> String {
        let keys = Arc::new(HashSet::from(["vendor".to_string(), "total".to_string()]));
        let mut end = 0;
        let spans: Vec<Range<usize>> = pieces
            .iter()
            .map(|piece| {
                end += piece.len();
                end - piece.len()..end
            })
            .collect();
        let masked = SelectiveLoss { level, keys, start_epoch: 0 }.masked(&pieces.concat(), &spans);
        let masked = masked.unwrap_or_else(|| vec![false; pieces.len()]);
        pieces
            .iter()
            .zip(masked)
            .map(|(piece, masked)| if masked { "_".repeat(piece.len()) } else { piece.to_string() })
            .collect()
    }

    #[test]
    fn levels_take_out_more_and_more() {
        let pieces = [
            "{\"", "vendor", "\":", " \"", "Mey", "er\"", ",", " \"", "type", "\":", " \"", "string", "\",", " \"",
            "x", "\":", " null", ", \"", "total", "\":", " ", "1", "2", "}",
        ];
        let check = |level, expected: &str| assert_eq!(left(level, &pieces), expected, "{level:?}");
        check(Level::Off, r#"{"vendor": "Meyer", "type": "string", "x": null, "total": 12}"#);
        check(Level::Conservative, r#"__vendor____Meyer"___type____string____x__ null___total___12_"#);
        check(Level::Moderate, r#"__vendor____Meyer"_____________________x__________total___12_"#);
        check(Level::Aggressive, r#"____________Meyer"_____________________x__________________12_"#);
    }

    #[test]
    fn the_first_epochs_may_train_everything() {
        let selective = SelectiveLoss { level: Level::Moderate, start_epoch: 1, ..SelectiveLoss::default() };
        assert_eq!(
            [0, 1, 2].map(|epoch| selective.in_epoch(epoch).level),
            [Level::Off, Level::Moderate, Level::Moderate]
        );
    }

    #[test]
    fn a_token_of_structure_and_content_is_trained() {
        assert_eq!(left(Level::Aggressive, &["{\"a", "\":", "\"1", "\"}"]), "{\"a__\"1__");
        assert_eq!(left(Level::Conservative, &["{\"", "a", "\":\"", "\\\"", ",", "\"}"]), "__a___\\\",__");
    }

    #[test]
    fn other_answers_are_left_alone() {
        for answer in ["A boat, at 12:30.", "null", "\"a\"", "{\"a\": }"] {
            assert_eq!(left(Level::Aggressive, &[answer]), answer);
        }
    }
}
