//! Selective loss: what a structured answer has in common with all others is not trained.
//!
//! Braces, quotes and commas are most of the tokens of a short JSON answer, a model knows them after a few steps, and from then on they only
//! thin out the loss of what matters. A token is taken out when all its bytes are of the kinds that the level names; one that
//! mixes structure and content (`"1`) stays. What is taken out is still read by the model, it is only not asked for.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::example::json::{Kind, Stretch, stretches, unescaped};

/// Keys by which JSON Schema describes data, taken out by [`Level::Moderate`].
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
/// What JSON Schema calls the kinds of values, taken out by [`Level::Moderate`] where they are the value of `type`.
pub const SCHEMA_TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// How much of a structured answer is not trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Everything is trained.
    #[default]
    Off,
    /// Not: braces, brackets, colons, commas, quotes, and white space between them.
    Conservative,
    /// Nor: `null`, [`SCHEMA_KEYS`], and [`SCHEMA_TYPES`] as the value of `type`.
    Moderate,
    /// Nor: keys that answers of the dataset have in common.
    Aggressive,
}

/// Which tokens of structured answers are not trained.
#[derive(Clone, Debug, Default)]
pub struct SelectiveLoss {
    /// How much.
    pub level: Level,
    /// The keys of [`Level::Aggressive`], such as those of [`KeyCounter::common`](crate::KeyCounter::common).
    pub keys: Arc<HashSet<String>>,
    /// The first epoch, counted from 0, in which anything is taken out: before, structure has to be learnt itself.
    pub start_epoch: usize,
}

impl SelectiveLoss {
    /// What holds in an epoch.
    pub fn in_epoch(&self, epoch: usize) -> SelectiveLoss {
        let level = if epoch < self.start_epoch { Level::Off } else { self.level };
        SelectiveLoss { level, ..self.clone() }
    }

    /// Which tokens are taken out of an answer; `spans` are the bytes of the answer that each token stands for. Nothing where the answer is no
    /// JSON object or array, or where nothing is to be taken out.
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

    /// The answer with `_` for bytes that are taken out, as if each of these pieces were a token.
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
