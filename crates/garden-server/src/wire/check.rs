//! What is in rows, as `check --format json` of our own program prints it: its text goes out as it is.

#![expect(dead_code, reason = "only their schemas are used; a test compares those with real answers")]

use schemars::JsonSchema;

/// What is in rows, as `check --format json` prints it (`docs/check.md`). Rows are counted from 1.
#[derive(JsonSchema)]
pub(crate) struct Check {
    dataset: String,
    rows: u64,
    usable: u64,
    bad: u64,
    too_long: u64,
    left_out: Vec<u64>,
    batch_size: u64,
    gradient_accumulation: u64,
    steps_per_epoch: u64,
    tally: Tally,
    problems: Vec<CheckProblem>,
    ignored: Vec<IgnoredField>,
    more_ignored: u64,
    duplicate_count: u64,
    duplicates: Vec<Duplicate>,
    empty_answer_count: u64,
    empty_answers: Vec<EmptyAnswer>,
    largest: Option<LargestRow>,
    limits: BatchLimits,
    pictures: Pictures,
    decoded: bool,
    several_frames: PartlyUsed,
    clipped_gray: PartlyUsed,
    distributions: Distributions,
    memory: LoaderMemory,
}

/// Rows, tokens and boxes of a dataset.
#[derive(JsonSchema)]
pub(crate) struct Tally {
    kept: u64,
    shrunk: u64,
    dropped: u64,
    tokens: u64,
    image_tokens: u64,
    trained: u64,
    answer_tokens: u64,
    masked: u64,
    boxes: u64,
    boxes_in_texts: u64,
    boxes_converted: u64,
}

/// Pictures of which not everything is used.
#[derive(JsonSchema)]
pub(crate) struct PartlyUsed {
    pictures: u64,
    first: Option<String>,
}

/// A row that is not used, and why.
#[derive(JsonSchema)]
pub(crate) struct CheckProblem {
    row: u64,
    place: String,
    field: String,
    kind: ProblemKind,
    problem: String,
    hint: Option<String>,
}

/// Whether a row is broken or only too long.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum ProblemKind {
    Unusable,
    TooLong,
}

/// A field that training does not use.
#[derive(JsonSchema)]
pub(crate) struct IgnoredField {
    field: String,
    rows: u64,
    /// The first row that has it.
    first: String,
}

/// A row that is the same as an earlier one.
#[derive(JsonSchema)]
pub(crate) struct Duplicate {
    row: u64,
    place: String,
    first_row: u64,
    first_place: String,
}

/// A row with an empty answer.
#[derive(JsonSchema)]
pub(crate) struct EmptyAnswer {
    row: u64,
    place: String,
}

/// The row with the most tokens.
#[derive(JsonSchema)]
pub(crate) struct LargestRow {
    row: u64,
    place: String,
    tokens: u64,
    image_tokens: u64,
    patches: u64,
    /// Width and height of each.
    pictures: Vec<Vec<u64>>,
}

/// The most that a micro-batch holds.
#[derive(JsonSchema)]
pub(crate) struct BatchLimits {
    tokens: u64,
    rows: u64,
    targets: u64,
    patches: u64,
    images: u64,
    longest: u64,
}

/// The pictures of all rows.
#[derive(JsonSchema)]
pub(crate) struct Pictures {
    count: u64,
    pixels: u64,
    bytes: u64,
    largest_pixels: u64,
    largest_whole_pixels: u64,
}

/// How sizes of rows are spread.
#[derive(JsonSchema)]
pub(crate) struct Distributions {
    tokens: Distribution,
    image_tokens: Distribution,
    trained_tokens: Distribution,
    pixels: Distribution,
}

/// Host memory of the data path.
#[derive(JsonSchema)]
pub(crate) struct LoaderMemory {
    /// What a list of decoded pictures would take.
    decoded_list_bytes: u64,
    /// What ours takes, all parts together.
    ours_bytes: u64,
    index_bytes: u64,
    patches_bytes: u64,
    decoded_pictures_bytes: u64,
    compressed_rows_bytes: u64,
    threads: u64,
}

/// How a number is spread over rows; null without rows.
#[derive(JsonSchema)]
pub(crate) struct Distribution {
    count: u64,
    least: Option<u64>,
    median: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
    most: Option<u64>,
    mean: Option<f64>,
    bars: Vec<Bar>,
}

/// A bar of a histogram, from the first number to the last.
#[derive(JsonSchema)]
pub(crate) struct Bar {
    from: u64,
    to: u64,
    count: u64,
}
