//! Requests: which fields they have and what those may be.
//!
//! The names here are the only list of them: `Fields` and `Form` refuse what is not a field of these types, and bounds are the constants that they compare with.
//! Requests are not deserialised into them. `Fields` answers a wrong value with its full name and what it has to be, such as a range of numbers, and knows that `auto`
//! and `null` leave it to us; serde's errors know none of that.

#![expect(dead_code, reason = "only their schemas are used")]

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::{EVENT, Metadata, OrAuto, constant};
use crate::answer::MOST_PAIRS;
use crate::asked::{BATCH_SIZES, EPOCHS, LONGEST, MULTIPLIER, PRIORITIES, SEEDS};
use crate::files::{EXPIRES, LONGEST_NAME, PURPOSES};
use crate::jobs::LONGEST_KEY;

constant!(CreatedAt = "created_at");
constant!(SupervisedWord = "supervised");

/// A text without NUL: none of ours has one, and a C library behind it would stop there.
#[derive(JsonSchema)]
#[schemars(extend("pattern" = "^[^\\u0000]*$"))]
pub(crate) struct Text(String);

/// Only files for `fine-tune` can be rows of a job.
#[derive(JsonSchema)]
#[schemars(extend("enum" = PURPOSES))]
pub(crate) struct Purpose(String);

/// A body without any fields.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// A file.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("dependentRequired" = {
    "expires_after[anchor]": ["expires_after[seconds]"], "expires_after[seconds]": ["expires_after[anchor]"],
}))]
pub(crate) struct NewFile {
    file: Binary,
    purpose: Purpose,
    #[schemars(default, rename = "expires_after[anchor]", transform = without_default)]
    anchor: CreatedAt,
    #[schemars(
        default, rename = "expires_after[seconds]", range(min = EXPIRES.0, max = EXPIRES.1), transform = without_default
    )]
    seconds: i64,
}

/// A field of a form may be left out but not be null, and what it is then is not a value that could be sent.
fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

/// A part of an upload.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NewPart {
    /// 64 MiB at most.
    data: Binary,
}

/// Bytes of a file.
#[derive(JsonSchema)]
#[schemars(inline, extend("format" = "binary"))]
struct Binary(String);

/// A file that will come in parts.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NewUpload {
    #[schemars(length(min = 1, max = LONGEST_NAME))]
    filename: String,
    purpose: Purpose,
    /// The length of the whole file.
    #[schemars(range(min = 1))]
    bytes: i64,
    mime_type: Text,
    expires_after: Option<ExpiresAfter>,
}

/// The file is deleted so long after it was made.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ExpiresAfter {
    anchor: CreatedAt,
    #[schemars(range(min = EXPIRES.0, max = EXPIRES.1))]
    seconds: i64,
}

/// The end of an upload.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct UploadEnd {
    /// The parts, in their order in the file.
    part_ids: Vec<Text>,
    /// MD5 digest of the whole file, in hexadecimal digits.
    md5: Option<Text>,
}

/// A job.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// A base model, an alias, or a result to go on from.
    model: Text,
    /// The id of a file, or `dataset:NAME` for one in the operator's folders.
    training_file: Text,
    /// Rows for evaluations, named in the same way.
    validation_file: Option<Text>,
    /// A part of the result's name: letters, digits, `-`, `_`, `.` and spaces.
    #[schemars(length(max = LONGEST.0))]
    suffix: Option<String>,
    /// What the order of rows comes from; drawn unless given.
    #[schemars(range(min = SEEDS.0, max = SEEDS.1))]
    seed: Option<i64>,
    metadata: Option<Metadata>,
    /// None are supported.
    #[schemars(length(max = 0))]
    integrations: Option<Vec<String>>,
    method: Option<NewMethod>,
    /// The older place for those of `method.supervised`: send one of the two.
    hyperparameters: Option<NewHyperparameters>,
    model_garden: Option<NewJobExtension>,
}

/// How the model is to be trained.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NewMethod {
    r#type: SupervisedWord,
    supervised: Option<NewSupervised>,
}

/// Settings of the method.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NewSupervised {
    hyperparameters: Option<NewHyperparameters>,
}

/// What is left out or `auto` is left to us.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NewHyperparameters {
    /// Passes over the rows.
    n_epochs: Option<OrAuto<Epochs>>,
    /// Rows per optimizer step.
    batch_size: Option<OrAuto<BatchSize>>,
    /// Times our usual learning rate.
    learning_rate_multiplier: Option<OrAuto<Multiplier>>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
struct Epochs(#[schemars(range(min = EPOCHS.0, max = EPOCHS.1))] i64);

#[derive(JsonSchema)]
#[schemars(inline)]
struct BatchSize(#[schemars(range(min = BATCH_SIZES.0, max = BATCH_SIZES.1))] i64);

#[derive(JsonSchema)]
#[schemars(inline)]
struct Multiplier(#[schemars(range(max = MULTIPLIER), extend("exclusiveMinimum" = 0))] f64);

/// What OpenAI's job has no room for.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NewJobExtension {
    /// More comes first.
    #[schemars(range(min = PRIORITIES.0, max = PRIORITIES.1))]
    priority: Option<i64>,
    /// More settings of the run, by the names that a recipe has (`docs/train.md`).
    recipe: Option<BTreeMap<String, Value>>,
}

/// Any command as a job.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NewCommand {
    /// The program and its arguments.
    #[schemars(length(min = 1))]
    command: Vec<Text>,
    /// Memory that it may use, such as `16GiB`.
    memory_limit: Option<Text>,
    /// Where the program writes its checkpoints.
    checkpoint_dir: Option<Text>,
    /// More comes first.
    #[schemars(range(min = PRIORITIES.0, max = PRIORITIES.1))]
    priority: Option<i64>,
    metadata: Option<Metadata>,
}

/// Rows, and the model that they are for.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NewCheck {
    /// A base model, an alias, or a result.
    model: Text,
    /// The id of a file, or `dataset:NAME` for one in the operator's folders.
    training_file: Text,
}

/// By age; the newest first by default.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", inline)]
pub(crate) enum Order {
    Asc,
    Desc,
}

/// Pairs that a job has to have.
#[derive(JsonSchema)]
#[schemars(inline, extend("maxProperties" = MOST_PAIRS))]
pub(crate) struct MetadataQuery(BTreeMap<String, Text>);

/// The id of an event, or nothing.
#[derive(JsonSchema)]
#[schemars(inline, extend("pattern" = format!("^({EVENT}[0-9]{{1,18}})?$")))]
pub(crate) struct EventAfter(String);

/// What makes the same request, sent twice, one job.
#[derive(JsonSchema)]
#[schemars(inline, extend("minLength" = 1, "maxLength" = LONGEST_KEY, "pattern" = "^[!-~]+$"))]
pub(crate) struct IdempotencyKey(String);
