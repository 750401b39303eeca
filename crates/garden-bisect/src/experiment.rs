//! The measurements as written by the Python package. Unknown fields are ignored, so that records of newer packages can be read.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// The name that every document begins with.
const FORMAT: &str = "model-garden-bisect";
/// The newest known version.
const VERSION: u64 = 1;
/// No number in a record is larger: a pebibyte, so that thousands can be added without overflow.
const LARGEST: f64 = (1_u64 << 50) as f64;

/// One experiment: all its runs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Experiment {
    #[serde(default)]
    pub(crate) made: String,
    #[serde(default)]
    pub(crate) seconds: f64,
    pub(crate) target: Option<String>,
    #[serde(default)]
    pub(crate) start: String,
    pub(crate) pieces: Vec<Piece>,
    #[serde(default)]
    pub(crate) versions: BTreeMap<String, String>,
    /// The counted examples, each once per pass.
    pub(crate) examples: u64,
    /// The number of examples in the dataset, if known.
    pub(crate) dataset_length: Option<u64>,
    pub(crate) batch_size: u64,
    #[serde(default)]
    pub(crate) workers: u64,
    pub(crate) runs: Vec<Run>,
    /// Slow repeats of runs that find out what holds the memory.
    #[serde(default)]
    pub(crate) looks: Vec<Run>,
    #[serde(default)]
    pub(crate) notes: Vec<String>,
}

/// A piece of the pipeline and the name of its class.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Piece {
    pub name: String,
    pub kind: String,
}

/// One measured process.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Run {
    pub name: String,
    pub stages: Vec<String>,
    pub how: How,
    /// Examples in each of its passes.
    pub examples: Option<u64>,
    /// Memory after the warm-up.
    pub base: Option<Held>,
    #[serde(default)]
    pub visits: Vec<Visit>,
    #[serde(default)]
    pub passes: Vec<Pass>,
    /// Memory after each attempt to get it back.
    #[serde(default)]
    pub after: Vec<After>,
    /// Change of resident memory by the kind of mapping.
    #[serde(default)]
    pub mappings: BTreeMap<String, i64>,
    /// Automatic garbage collections during the passes.
    pub collections: Option<Collections>,
    pub error: Option<RunError>,
    pub stopped: Option<Stopped>,
    pub holders: Option<Holders>,
    /// `holders` over the passes after the first, where those grew too.
    pub later: Option<Holders>,
}

/// The task of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// All pieces up to one.
    #[default]
    Chain,
    /// One piece, fed with copies by another process.
    Alone,
    /// The dataset, processor and collator in loader workers.
    Workers,
    /// A chain, with every live object inspected.
    Look,
}

/// Memory at one moment, after free memory was given back.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Held {
    /// Unreclaimable memory: anonymous, swapped and shared.
    pub held: i64,
    #[serde(default)]
    pub file: i64,
    /// Bytes allocated by `malloc`, if the C library reports them.
    pub allocated: Option<i64>,
    pub workers: Option<WorkersHeld>,
}

/// Memory of loader workers, all together.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct WorkersHeld {
    /// Including the pages that they share with their parent.
    pub held: i64,
    /// Private pages.
    pub private: i64,
}

/// Memory at the end of a pass.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Pass {
    #[serde(flatten)]
    pub end: Held,
    /// Memory before free memory was given back.
    pub before_trim: i64,
    #[serde(default)]
    pub seconds: f64,
}

/// Memory after a batch, by counters.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Visit {
    #[serde(rename = "pass")]
    pub number: u64,
    /// Examples seen in this pass.
    pub examples: u64,
    pub held: i64,
    /// Bytes allocated by `malloc`, if the C library reports them.
    pub allocated: Option<i64>,
    pub workers: Option<WorkersHeld>,
}

/// Memory after an attempt to get it back.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct After {
    pub what: String,
    pub held: i64,
}

/// Garbage collections, measured by `malloc`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Collections {
    /// Bytes freed by all of them.
    #[serde(default)]
    pub bytes: i64,
    /// Most bytes freed by one of them.
    #[serde(default)]
    pub largest: i64,
}

/// Why a run has no full result.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RunError {
    pub text: String,
    #[serde(default)]
    pub traceback: Option<Vec<String>>,
}

/// A run that was stopped before it took the machine's last memory.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Stopped {
    #[serde(rename = "pass")]
    pub number: u64,
    pub examples: u64,
    pub available: u64,
}

/// The holders of memory among all live objects, as changes over the passes.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Holders {
    pub passes: u64,
    /// Examples in each pass.
    pub examples: Option<u64>,
    #[serde(default)]
    pub python_bytes: i64,
    #[serde(default)]
    pub containers: Vec<Container>,
    #[serde(default)]
    pub images: Vec<Images>,
    #[serde(default)]
    pub tensors_bytes: i64,
    #[serde(default)]
    pub pinned_bytes: i64,
    #[serde(default)]
    pub tensors: Vec<Tensors>,
    #[serde(default)]
    pub types: Vec<Type>,
    #[serde(default)]
    pub lines: Vec<Line>,
    #[serde(default)]
    pub caches: Vec<Cache>,
    #[serde(default)]
    pub garbage_objects: i64,
}

impl Holders {
    /// Pixels of images decoded meanwhile.
    pub fn images_bytes(&self) -> i64 {
        self.images.iter().map(|images| images.bytes).sum()
    }

    /// Everything whose owner is known.
    pub fn known_bytes(&self) -> i64 {
        self.python_bytes.max(0) + self.tensors_bytes.max(0) + self.images_bytes()
    }
}

/// A list, dict or set that has grown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Container {
    pub path: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub before: u64,
    pub after: u64,
    pub bytes: i64,
    pub of: Option<String>,
    /// How many of the newest entries are tensors with their autograd graph.
    #[serde(default)]
    pub graphs: u64,
}

/// Images with decoded pixels that are new or newly decoded.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Images {
    pub path: String,
    pub count: i64,
    pub bytes: i64,
}

/// Tensors of one shape.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Tensors {
    pub bytes: i64,
    pub count: i64,
    pub shape: Vec<u64>,
    pub dtype: String,
    pub device: String,
}

/// Objects of one type.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Type {
    #[serde(rename = "type")]
    pub name: String,
    pub count: i64,
}

/// A line of code whose allocations are still held.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Line {
    pub file: String,
    pub line: u64,
    pub bytes: i64,
    pub blocks: i64,
    pub text: Option<String>,
}

/// A `functools.lru_cache` that has grown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Cache {
    pub name: String,
    pub before: u64,
    pub after: u64,
    /// The most entries it may hold; `None` for no limit.
    pub limit: Option<u64>,
}

/// Why a document is not an experiment.
#[derive(Debug)]
pub struct ReadError(String);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl Experiment {
    /// Reads a record of the Python package.
    pub fn read(text: &str) -> Result<Experiment, ReadError> {
        let no_record = |error: serde_json::Error| ReadError(format!("not an experiment record: {error}"));
        let value: Value = serde_json::from_str(text).map_err(no_record)?;
        if let Some(number) = beyond(&value) {
            return Err(ReadError(format!("not an experiment record: {number} is larger than any memory")));
        }
        let format = value["format"].as_str().unwrap_or_default();
        if format != FORMAT {
            return Err(ReadError(format!("its format is `{format}`, not `{FORMAT}`")));
        }
        let version = value["version"].as_u64().unwrap_or_default();
        if version > VERSION {
            return Err(ReadError(format!("it has version {version}; this program reads {VERSION}")));
        }
        serde_json::from_value(value).map_err(no_record)
    }

    /// The command line that repeats the experiment, if there is one.
    pub fn command(&self) -> Option<String> {
        self.target.as_ref().map(|target| format!("model-garden bisect {target}"))
    }
}

/// A number that is too large for the arithmetic, if there is one.
fn beyond(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64().filter(|number| number.abs() > LARGEST),
        Value::Array(values) => values.iter().find_map(beyond),
        Value::Object(fields) => fields.values().find_map(beyond),
        _ => None,
    }
}
