//! The result of an experiment: the JSON contract for scripts, field by field.

use serde::Serialize;

/// Growth of earlier pieces above which it is reported that a later piece adds nothing to it.
const FROM_BEFORE: i64 = 192 << 10;

/// How memory grows over the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In every pass, and never given back.
    Leak,
    /// With each first-seen example, and not again.
    Cache,
    /// With the first examples, until it is full.
    FullCache,
    /// In every pass, until the garbage collector runs.
    Garbage,
    /// In loader workers, which copy pages by touching them (copy-on-write).
    Copies,
    /// In a few jumps that do not recur: buffers, libraries, pools.
    WarmUp,
    /// File pages, which the kernel reclaims when it needs memory.
    FilePages,
    /// In later passes too, but not evenly: more passes are needed.
    Undecided,
    /// Not at all.
    Flat,
    /// No result: the run failed.
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

    /// Whether memory grew in a way that is reported as a finding.
    pub(crate) fn is_growth(self) -> bool {
        !matches!(self, Kind::Flat | Kind::Failed)
    }

    /// Whether more examples mean more memory.
    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Kind::Leak | Kind::Cache | Kind::Copies | Kind::Undecided)
    }

    /// Its severity; the most severe finding is the answer.
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

/// What keeps the memory, where known. Causes that `diagnose` knows too have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Pixels of images that were opened, used once, and are kept.
    DecodedImagesKept,
    /// Other data kept for each example.
    ExampleCache,
    /// A Python container that only grows.
    GrowingContainer,
    /// Tensors kept with their autograd graph, and so with every activation.
    GraphKept,
    /// Python objects or tensors kept by something other than a growing container of the pieces.
    ObjectsKept,
    /// Native memory unknown to Python, growing in every pass.
    NativeLeak,
    /// Native memory unknown to Python, growing once for each example.
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

/// The complete result.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The version of this contract.
    pub schema: u32,
    /// The answer in one word: the kind of the most severe growth, `flat` without any, `failed` without a result.
    pub verdict: Kind,
    /// The answer as a sentence.
    pub summary: String,
    /// Every growth found, most severe first.
    pub growths: Vec<Growth>,
    /// The advice, most important first.
    pub advice: Vec<String>,
    /// Examples per pass.
    pub examples: u64,
    /// Examples in the dataset.
    pub dataset_length: Option<u64>,
    /// The memory limit, in bytes.
    pub memory_limit: Option<u64>,
    /// All runs, in order.
    pub stages: Vec<StageFinding>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Finding {
    /// Whether the memory suffices for the whole dataset.
    pub fn fits(&self) -> bool {
        let needs = self.growths.first().and_then(|growth| growth.full_dataset_bytes).unwrap_or(0);
        self.memory_limit.is_none_or(|limit| needs.max(0) as u64 <= limit)
    }

    /// Whether a piece raised, or its process died: nothing after that was measured.
    pub fn has_failed(&self) -> bool {
        self.stages.iter().any(StageFinding::has_failed)
    }
}

/// A growth: the piece it begins with, its keeper, and what it leads to.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// The run that shows it.
    pub run: String,
    /// How it grows.
    pub kind: Kind,
    /// What keeps the memory.
    pub cause: Option<Cause>,
    /// The piece that keeps it (`dataset`), or the module whose variable keeps it (`module train`).
    pub keeper: Option<String>,
    /// The piece with which growth begins.
    pub begins_with: String,
    /// The path to the growing object, such as `collator.kept`.
    pub held_at: Option<String>,
    /// The object at that path, such as `list of bytes`.
    pub holds: Option<String>,
    /// Growth per example: in the first pass for caches, in later ones for leaks.
    pub bytes_per_example: Option<i64>,
    /// Bytes that one pass over the whole dataset adds.
    pub full_dataset_bytes: Option<i64>,
    /// The most examples it holds, if it has such a limit.
    pub holds_at_most: Option<u64>,
    /// The number of examples after which it was full.
    pub full_after: Option<u64>,
    /// The share of the growth accounted for by Python objects, images and tensors.
    pub explained: Option<f64>,
    /// Bytes given back by each attempt after the last pass.
    pub gives_back: Vec<GivenBack>,
    /// The growth as a sentence.
    pub summary: String,
}

/// Memory given back by one attempt.
#[derive(Clone, Debug, Serialize)]
pub struct GivenBack {
    /// The attempt, such as `gc.collect()`.
    pub what: String,
    /// Bytes given back; negative if memory grew.
    pub bytes: i64,
}

/// The finding on one run.
#[derive(Clone, Debug, Serialize)]
pub struct StageFinding {
    /// The pieces that took part.
    pub name: String,
    /// Whether it is one piece alone.
    pub is_alone: bool,
    /// Whether it ran loader workers, and the growth is theirs.
    pub is_workers: bool,
    /// How memory grew because of its last piece: the growth of the run before it is subtracted.
    pub kind: Kind,
    /// Growth of the whole run in each pass, in bytes.
    pub growth: Vec<i64>,
    /// Growth in each pass beyond the run without the last piece.
    pub added: Vec<i64>,
    /// Bytes given back by `gc.collect()` at the end.
    pub collected: Option<i64>,
    /// Most bytes freed by one automatic garbage collection.
    pub collected_at_once: Option<i64>,
    /// Most free memory that the C library kept at the end of a pass.
    pub retained: i64,
    /// Seconds of each pass.
    pub seconds: Vec<f64>,
    /// Why there is no result.
    pub error: Option<String>,
}

impl StageFinding {
    /// Whether a training run would fail here too. A piece that fails alone may just not be runnable alone.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some() && !self.is_alone
    }

    /// Whether it grows, but only by the growth of the runs before it.
    pub(crate) fn adds_nothing(&self) -> bool {
        let from_before = |(grown, added): (&i64, &i64)| grown - added > FROM_BEFORE;
        self.kind == Kind::Flat && self.growth.iter().zip(&self.added).any(from_before)
    }
}
