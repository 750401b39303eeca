//! What a request for a job asks for: its fields, checked as far as that needs no look at anything else.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::answer::MOST_PAIRS;
use crate::body::Fields;
use crate::error::ApiError;
use crate::id::new_seed;
use crate::job::Hyperparameters;

/// Letters of what a client may attach.
pub(crate) const LONGEST: (usize, usize) = (64, 512);
/// Priorities.
pub(crate) const PRIORITIES: (i64, i64) = (-100, 100);
/// Seeds, epochs, rows of a step, and the most that the learning rate may be multiplied with.
pub(crate) const SEEDS: (i64, i64) = (0, u32::MAX as i64);
pub(crate) const EPOCHS: (i64, i64) = (1, 1000);
pub(crate) const BATCH_SIZES: (i64, i64) = (1, 4096);
pub(crate) const MULTIPLIER: f64 = 1000.0;

/// What a request asks for, as far as it can be checked without looking at anything.
pub(crate) struct Asked {
    pub model: String,
    pub training_file: String,
    pub validation_file: Option<String>,
    pub suffix: Option<String>,
    pub seed: u64,
    pub metadata: Option<BTreeMap<String, String>>,
    pub hyperparameters: Hyperparameters,
    pub priority: i64,
    pub settings: Map<String, Value>,
}

impl Asked {
    pub fn read(mut fields: Fields) -> Result<Asked, ApiError> {
        let model = fields.needed_text("model")?;
        let training_file = fields.needed_text("training_file")?;
        let validation_file = fields.text("validation_file")?;
        let suffix = suffix_of(&mut fields)?;
        let seed = fields.whole("seed", SEEDS.0, SEEDS.1)?.map_or_else(|| u64::from(new_seed()), i64::unsigned_abs);
        let metadata = metadata_of(&mut fields)?;
        refuse_integrations(&mut fields)?;
        let hyperparameters = hyperparameters_of(&mut fields)?;
        let (priority, settings) = match fields.object("model_garden")? {
            None => (0, Map::new()),
            Some(mut ours) => {
                let priority = ours.whole("priority", PRIORITIES.0, PRIORITIES.1)?.unwrap_or(0);
                let settings = ours.object("recipe")?.map(|mut recipe| recipe.rest()).unwrap_or_default();
                ours.end()?;
                (priority, settings)
            }
        };
        fields.end()?;
        Ok(Asked { model, training_file, validation_file, suffix, seed, metadata, hyperparameters, priority, settings })
    }
}

fn suffix_of(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(suffix) = fields.text("suffix")?.filter(|suffix| !suffix.trim().is_empty()) else { return Ok(None) };
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_. ".contains(letter);
    match suffix.chars().count() <= LONGEST.0 && suffix.chars().all(is_plain) {
        true => Ok(Some(suffix.trim().replace(' ', "-"))),
        false => Err(fields.wrong("suffix", "has to have 1 to 64 letters, digits, `-`, `_`, `.` or spaces")),
    }
}

pub(crate) fn metadata_of(fields: &mut Fields) -> Result<Option<BTreeMap<String, String>>, ApiError> {
    let Some(mut object) = fields.object("metadata")? else { return Ok(None) };
    let (longest_key, longest_value) = LONGEST;
    let mut metadata = BTreeMap::new();
    for (key, value) in object.rest() {
        let Value::String(value) = value else { return Err(fields.wrong("metadata", "has to have texts as values")) };
        if key.chars().count() > longest_key || value.chars().count() > longest_value {
            let problem = format!("may have keys of {longest_key} and values of {longest_value} letters");
            return Err(fields.wrong("metadata", &problem));
        }
        metadata.insert(key, value);
    }
    match metadata.len() > MOST_PAIRS {
        true => Err(fields.wrong("metadata", &format!("may have {MOST_PAIRS} pairs at most"))),
        false => Ok(Some(metadata)),
    }
}

fn refuse_integrations(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.value("integrations") {
        None => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => Err(fields
            .wrong(
                "integrations",
                "are not supported: metrics are in the job's events, its result file and, for TensorBoard, its folder",
            )
            .with_code("unsupported")),
    }
}

/// The hyper-parameters of `method`, or the older ones at the top.
fn hyperparameters_of(fields: &mut Fields) -> Result<Hyperparameters, ApiError> {
    let older = fields.object("hyperparameters")?.map(hyperparameters).transpose()?;
    let Some(mut method) = fields.object("method")? else { return Ok(older.unwrap_or_default()) };
    let kind = method.needed_text("type")?;
    match kind.as_str() {
        "supervised" => {}
        "dpo" | "reinforcement" => {
            let problem = format!("`{kind}` is not supported here: only `supervised` is");
            return Err(ApiError::field("method.type", problem).with_code("unsupported_method"));
        }
        _ => return Err(method.wrong("type", "has to be `supervised`")),
    }
    let newer = match method.object("supervised")? {
        None => None,
        Some(mut supervised) => {
            let newer = supervised.object("hyperparameters")?.map(hyperparameters).transpose()?;
            supervised.end()?;
            newer
        }
    };
    method.end()?;
    match (older, newer) {
        (Some(_), Some(_)) => {
            let problem = "`hyperparameters` and `method.supervised.hyperparameters` are the same: send one of them";
            Err(ApiError::field("hyperparameters", problem))
        }
        (older, newer) => Ok(newer.or(older).unwrap_or_default()),
    }
}

fn hyperparameters(mut fields: Fields) -> Result<Hyperparameters, ApiError> {
    // What is left to us is as if it were not there.
    for name in ["n_epochs", "batch_size", "learning_rate_multiplier"] {
        fields.forget(name, &Value::String("auto".into()));
    }
    let n_epochs = fields.whole("n_epochs", EPOCHS.0, EPOCHS.1)?;
    let batch_size = fields.whole("batch_size", BATCH_SIZES.0, BATCH_SIZES.1)?;
    let learning_rate_multiplier = fields.real("learning_rate_multiplier")?;
    if learning_rate_multiplier.is_some_and(|times| !(times > 0.0 && times <= MULTIPLIER)) {
        return Err(fields.wrong("learning_rate_multiplier", "has to be above 0 and at most 1000"));
    }
    fields.end()?;
    Ok(Hyperparameters {
        n_epochs: n_epochs.and_then(|number| u32::try_from(number).ok()),
        batch_size: batch_size.and_then(|number| u32::try_from(number).ok()),
        learning_rate_multiplier,
    })
}
