//! The answer of an experiment: what it says to scripts, field by field.

use serde::Serialize;

/// Growth of earlier pieces, from which on it is worth saying that a later one adds nothing to it.
const FROM_BEFORE: i64 = 192 << 10;

/// How memory grows over the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In every pass, and nothing gives it back.
    Leak,
    /// With each example that is seen for the first time, and not again.
    Cache,
    /// With the first examples, until it is full.
    FullCache,
    /// In every pass, until the garbage collector runs.
    Garbage,
    /// In loader workers, which make pages their own by touching them.
    Copies,
    /// In a few jumps that do not come again: buffers, libraries, pools.
    WarmUp,
    /// Pages of files, which the kernel takes back when it needs memory.
    FilePages,
    /// In later passes too, but not evenly: more passes are needed.
    Undecided,
    /// Not at all.
    Flat,
    /// There is no result: the run failed.
    Failed,
}

impl Kind {
    /// The kind's name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Leak => "leak",
            Kind::Cache => "cache",
            Kind::FullCache => "full_cache",
            Kind::Garbage => "garbage",
            Kind::Copies => "copies",
            Kind::WarmUp => "warm_up",
            Kind::FilePages => "file_pages",
            Kind::Undecided => "undecided",
            Kind::Flat => "flat",
            Kind::Failed => "failed",
        }
    }

    /// Whether memory was seen to grow in a way that is told as a finding.
    pub(crate) fn is_growth(self) -> bool {
        !matches!(self, Kind::Flat | Kind::Failed)
    }

    /// Whether more examples mean more memory.
    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Kind::Leak | Kind::Cache | Kind::Copies | Kind::Undecided)
    }

    /// How grave it is; the gravest finding is the answer.
    pub(crate) fn gravity(self) -> u8 {
        match self {
            Kind::Leak => 9,
            Kind::Cache => 8,
            Kind::Undecided => 7,
            Kind::Garbage => 6,
            Kind::Copies => 5,
            Kind::FullCache => 4,
            Kind::FilePages => 2,
            Kind::WarmUp => 1,
            Kind::Flat | Kind::Failed => 0,
        }
    }
}

/// What keeps the memory, where that could be found out. The names are those of the causes that `diagnose` knows, where it knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Pixels of images that were opened, used once, and are kept.
    DecodedImagesKept,
    /// Something else kept for each example.
    ExampleCache,
    /// A Python container that only grows.
    GrowingContainer,
    /// Tensors kept together with the graph that made them, and so with every activation.
    GraphKept,
    /// Python objects or tensors that something keeps which is no growing container of the pieces.
    ObjectsKept,
    /// Memory of native code that Python does not know of, in every pass.
    NativeLeak,
    /// Memory of native code that Python does not know of, once for each example.
    NativeCache,
    /// Reference cycles.
    GarbageCycles,
    /// Pages that forked workers copy by touching reference counts.
    WorkerCopyOnWrite,
    /// Pages of memory-mapped files.
    MappedFilePages,
}

impl Cause {
    /// The cause's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::DecodedImagesKept => "decoded_images_kept",
            Cause::ExampleCache => "example_cache",
            Cause::GrowingContainer => "growing_container",
            Cause::GraphKept => "graph_kept",
            Cause::ObjectsKept => "objects_kept",
            Cause::NativeLeak => "native_leak",
            Cause::NativeCache => "native_cache",
            Cause::GarbageCycles => "garbage_cycles",
            Cause::WorkerCopyOnWrite => "worker_copy_on_write",
            Cause::MappedFilePages => "mapped_file_pages",
        }
    }
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The version of this contract.
    pub schema: u32,
    /// The answer in one word: the kind of the gravest growth, `flat` without any, `failed` without a result.
    pub verdict: Kind,
    /// The answer as a sentence.
    pub summary: String,
    /// Every growth that was found, the gravest first.
    pub growths: Vec<Growth>,
    /// What to do, in order.
    pub advice: Vec<String>,
    /// Examples per pass.
    pub examples: u64,
    /// Examples in the dataset.
    pub dataset_length: Option<u64>,
    /// The memory that there is, in bytes.
    pub memory_limit: Option<u64>,
    /// Every run, in the order in which they were made.
    pub stages: Vec<StageFinding>,
    /// What else there is to say.
    pub notes: Vec<String>,
}

impl Finding {
    /// Whether what the whole dataset needs is there.
    pub fn fits(&self) -> bool {
        let needs = self.growths.first().and_then(|growth| growth.full_dataset_bytes).unwrap_or(0);
        self.memory_limit.is_none_or(|limit| needs.max(0) as u64 <= limit)
    }

    /// Whether pieces raised, or a process of theirs died: what comes after that was not measured.
    pub fn has_failed(&self) -> bool {
        self.stages.iter().any(StageFinding::has_failed)
    }
}

/// A growth: with which piece it begins, who keeps it, and where that leads.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// The run that showed it.
    pub run: String,
    /// How it grows.
    pub kind: Kind,
    /// What keeps the memory.
    pub cause: Option<Cause>,
    /// The piece that keeps it (`dataset`), or the module whose variable it is (`module train`).
    pub keeper: Option<String>,
    /// The piece with which growth begins.
    pub begins_with: String,
    /// The way to what grows, such as `collator.kept`.
    pub held_at: Option<String>,
    /// What is there, such as `list of bytes`.
    pub holds: Option<String>,
    /// Growth per example: in the first pass for caches, in later ones for leaks.
    pub bytes_per_example: Option<i64>,
    /// What one pass over the whole dataset adds.
    pub full_dataset_bytes: Option<i64>,
    /// How many examples it holds at most, if it has such a limit.
    pub holds_at_most: Option<u64>,
    /// Examples after which it was full.
    pub full_after: Option<u64>,
    /// The share of the growth that Python objects, images and tensors account for.
    pub explained: Option<f64>,
    /// What each try gave back after the last pass, in bytes.
    pub gives_back: Vec<GivenBack>,
    /// The growth as a sentence.
    pub summary: String,
}

/// What one try gave back.
#[derive(Clone, Debug, Serialize)]
pub struct GivenBack {
    /// What was tried, such as `gc.collect()`.
    pub what: String,
    /// What is held no longer; below zero if more is.
    pub bytes: i64,
}

/// What one run showed.
#[derive(Clone, Debug, Serialize)]
pub struct StageFinding {
    /// The pieces that took part.
    pub name: String,
    /// Whether it is one piece alone.
    pub is_alone: bool,
    /// Whether it is loader workers, and the growth theirs.
    pub is_workers: bool,
    /// How memory grew because of the last piece of it: what the run before it grew by is taken off.
    pub kind: Kind,
    /// Growth in each pass, in bytes, of the whole run.
    pub growth: Vec<i64>,
    /// Growth in each pass beyond that of the run without the last piece.
    pub added: Vec<i64>,
    /// What `gc.collect()` gave back at the end.
    pub collected: Option<i64>,
    /// What the garbage collector freed by itself in one go, at most.
    pub collected_at_once: Option<i64>,
    /// Free memory that the C library kept at the end of a pass, at most.
    pub retained: i64,
    /// Seconds that a pass took, each.
    pub seconds: Vec<f64>,
    /// Why there is no result.
    pub error: Option<String>,
}

impl StageFinding {
    /// Whether a training run would fail here too. A piece alone may just be one that cannot be fed.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some() && !self.is_alone
    }

    /// Whether it grows, and all of that by what the runs before it have too.
    pub(crate) fn adds_nothing(&self) -> bool {
        let from_before = |(grown, added): (&i64, &i64)| grown - added > FROM_BEFORE;
        self.kind == Kind::Flat && self.growth.iter().zip(&self.added).any(from_before)
    }
}
