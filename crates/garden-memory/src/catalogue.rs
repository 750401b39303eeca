//! The catalogue of causes: what each leaves behind, and what to do about it.
//!
//! Data only; `causes.rs` weighs it. Priors are relative to an occasional cause (1.0).

use crate::diagnosis::Mechanism::{self, *};
use crate::libraries::Library::{self, *};

/// Where a cause's memory sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Anon,
    File,
    Shmem,
    Elsewhere,
}

/// A sign that a cause leaves, apart from shape and component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trait {
    /// Something is kept for every example seen.
    PerExample,
    /// Bytes per example match decoded pixels.
    ImageSized,
    /// Few bytes per example.
    SmallPerExample,
    /// More bytes per example than text or metadata.
    LargePerExample,
    /// Live tensors rise with memory.
    TensorsRise,
    /// Live Python objects rise with memory.
    ObjectsRise,
    /// Never stops by itself.
    NeverEnds,
    /// Always stops by itself.
    Ends,
    /// Slows down on the way.
    Slows,
    /// Hundreds of megabytes rather than gigabytes.
    Small,
    /// Happens at the first steps and never again.
    AtFirstSteps,
    /// Happens during evaluations.
    AtEvaluations,
    /// Grows in a process other than the training one.
    OnlyInAChild,
    /// Pages of forked workers become private.
    Forked,
    /// Possible only with this library loaded.
    Needs(Library),
    /// Stands in for a cause that needs this library, in programs known not to load it.
    Without(Library),
}

/// A known cause.
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: &'static str,
    pub title: &'static str,
    pub fix: &'static str,
    pub prior: f64,
    pub home: Home,
    /// Its usual shapes.
    pub typical: &'static [Mechanism],
    /// Other shapes it may have.
    pub possible: &'static [Mechanism],
    pub traits: &'static [Trait],
}

/// The known causes of growing host memory in training processes.
pub(crate) const CATALOGUE: &[Entry] = &[
    Entry {
        id: "decoded_images_kept",
        title: "decoded images kept per example (PIL images opened lazily and kept in a list, or a dataset cache)",
        fix: "keep the compressed bytes and decode on access: open the image inside __getitem__ or the collator and drop it, \
              use datasets' with_transform or Image(decode=False)",
        prior: 2.0,
        home: Home::Anon,
        typical: &[EpochFill],
        possible: &[Linear, CappedCache, WarmUp, LateOnset],
        traits: &[Trait::PerExample, Trait::ImageSized, Trait::Ends, Trait::Needs(ImageDecoder)],
    },
    Entry {
        id: "large_examples_kept",
        title: "something large kept per example (arrays, tensors, audio or files in a dataset cache)",
        fix: "load it on access: look for lists, dicts and caches on the dataset that keep what __getitem__ returns",
        prior: 1.0,
        home: Home::Anon,
        typical: &[EpochFill],
        possible: &[Linear, CappedCache, WarmUp, LateOnset],
        traits: &[Trait::Without(ImageDecoder), Trait::PerExample, Trait::LargePerExample, Trait::Ends],
    },
    Entry {
        id: "example_cache",
        title: "something small kept per example (tokenised text, metadata, a memoised transform)",
        fix: "bound the cache or compute on access; look for lru_cache(None), dicts keyed by index, and lists on the dataset",
        prior: 1.0,
        home: Home::Anon,
        typical: &[EpochFill],
        possible: &[Linear, CappedCache, WarmUp, LateOnset],
        traits: &[Trait::PerExample, Trait::SmallPerExample, Trait::Ends],
    },
    Entry {
        id: "pinned_offload_buffers",
        title: "pinned buffers that grow to the longest sequence so far (activation or gradient offload)",
        fix: "cap max_pixels or the sequence length, or train the longest batch first, so the peak comes at step 1",
        prior: 1.0,
        home: Home::Shmem,
        typical: &[RecordHigh],
        possible: &[WarmUp, CappedCache],
        traits: &[Trait::Ends, Trait::Needs(GpuDriver)],
    },
    Entry {
        id: "pinned_allocator_cache",
        title: "the pinned-memory allocator's cache (pin_memory with varying batch sizes)",
        fix: "set pin_memory=False or a smaller prefetch_factor; torch._C._host_emptyCache() frees it",
        prior: 0.7,
        home: Home::Shmem,
        typical: &[RecordHigh, WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::Ends, Trait::Needs(GpuDriver)],
    },
    Entry {
        id: "cudnn_plan_cache",
        title: "cuDNN's plan cache, one entry per convolution shape",
        fix: "set TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT, pad images to a few sizes, or express the patch embedding as a matmul",
        prior: 0.7,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[RecordHigh, CappedCache],
        traits: &[Trait::Slows, Trait::Small, Trait::Ends, Trait::Needs(GpuDriver)],
    },
    Entry {
        id: "onednn_primitive_cache",
        title: "oneDNN's primitive cache (CPU training with varying shapes)",
        fix: "set ONEDNN_PRIMITIVE_CACHE_CAPACITY, or pad to a few shapes",
        prior: 0.4,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache, RecordHigh],
        traits: &[Trait::Slows, Trait::Small, Trait::Ends, Trait::Needs(DeepLearning)],
    },
    Entry {
        id: "malloc_fragmentation",
        title: "freed memory kept by the C allocator (glibc arenas, fragmentation)",
        fix: "set MALLOC_ARENA_MAX=2 and a fixed MALLOC_MMAP_THRESHOLD_, or use jemalloc; malloc_trim(0) shows how much comes back",
        prior: 1.0,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache, RecordHigh, LateOnset, Linear],
        traits: &[Trait::Slows, Trait::Ends],
    },
    Entry {
        id: "worker_copy_on_write",
        title: "data-loader workers copying the parent's objects by touching their reference counts",
        fix: "keep metadata in numpy or Arrow arrays instead of Python objects, or use fewer workers",
        prior: 0.7,
        home: Home::Anon,
        typical: &[CopyOnWrite],
        possible: &[EpochFill, WarmUp, CappedCache],
        traits: &[Trait::Forked, Trait::Ends, Trait::Needs(Python)],
    },
    Entry {
        id: "mapped_file_pages",
        title: "pages of memory-mapped files (Arrow datasets, safetensors) counted as resident",
        fix: "nothing: the kernel reclaims these pages when it needs memory; judge anonymous and shared memory instead",
        prior: 1.0,
        home: Home::File,
        typical: &[FilePages],
        possible: &[EpochFill, CappedCache, WarmUp, Linear, LateOnset],
        traits: &[],
    },
    Entry {
        id: "garbage_cycles",
        title: "reference cycles waiting for the garbage collector",
        fix: "leave gc enabled and break the cycles that hold large buffers; do not collect every step (60 to 370 ms each)",
        prior: 1.0,
        home: Home::Anon,
        typical: &[Sawtooth],
        possible: &[Linear],
        traits: &[Trait::Needs(Python)],
    },
    Entry {
        id: "shared_memory_tensors",
        title: "tensors passed through /dev/shm (file_system sharing strategy)",
        fix: "use the file_descriptor sharing strategy, fewer workers or a smaller prefetch_factor",
        prior: 0.5,
        home: Home::Shmem,
        typical: &[Linear, CappedCache],
        possible: &[WarmUp, EpochFill, Staircase, LateOnset],
        traits: &[Trait::Needs(DeepLearning)],
    },
    Entry {
        id: "evaluation_logits",
        title: "logits or predictions collected during evaluation",
        fix: "use preprocess_logits_for_metrics to keep only what the metric needs; set eval_accumulation_steps",
        prior: 1.0,
        home: Home::Elsewhere,
        typical: &[Spikes],
        possible: &[Staircase],
        traits: &[Trait::AtEvaluations],
    },
    Entry {
        id: "event_leftovers",
        title: "memory left behind by evaluations or checkpoints",
        fix: "check what the evaluation and save callbacks keep: predictions, state dicts, dataloader iterators",
        prior: 1.0,
        home: Home::Elsewhere,
        typical: &[Staircase],
        possible: &[],
        traits: &[Trait::NeverEnds],
    },
    Entry {
        id: "compile_workers",
        title: "torch.compile's workers (child processes of about 400 MB each)",
        fix: "set TORCHINDUCTOR_COMPILE_THREADS",
        prior: 0.4,
        home: Home::Elsewhere,
        typical: &[WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::AtFirstSteps, Trait::OnlyInAChild, Trait::Needs(DeepLearning)],
    },
    Entry {
        id: "tokenizer_cache",
        title: "the tokenizer's word cache",
        fix: "set cache_capacity, or call clear_cache()",
        prior: 0.4,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::Small, Trait::Slows, Trait::Ends, Trait::Needs(Tokenizer)],
    },
    Entry {
        id: "arrow_memory_pool",
        title: "memory kept by Arrow's pool after reading",
        fix: "call pyarrow.default_memory_pool().release_unused(), or set ARROW_DEFAULT_MEMORY_POOL=system",
        prior: 0.5,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::Ends, Trait::Needs(Tables)],
    },
    Entry {
        id: "prefetch_or_shuffle_buffer",
        title: "a shuffle or prefetch buffer filling up",
        fix: "shrink the buffer: it holds its length times the size of an example",
        prior: 1.0,
        home: Home::Anon,
        typical: &[CappedCache],
        possible: &[WarmUp, LateOnset, Linear],
        traits: &[Trait::Ends],
    },
    Entry {
        id: "parquet_row_groups",
        title: "parquet row groups held by each worker",
        fix: "use fewer workers, or files with smaller row groups",
        prior: 0.4,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::Ends, Trait::Needs(Tables)],
    },
    Entry {
        id: "native_decoder_leak",
        title: "a leaking native library (usually a video or image decoder)",
        fix: "run the loader alone over the same examples twice; if both passes grow, restart workers or change the decoder",
        prior: 1.0,
        home: Home::Anon,
        typical: &[Linear],
        possible: &[LateOnset],
        traits: &[Trait::NeverEnds],
    },
    Entry {
        id: "optimizer_state",
        title: "optimizer state created at the first step (twice the trainable parameters)",
        fix: "nothing: expected, and it happens once",
        prior: 0.7,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache],
        traits: &[Trait::AtFirstSteps],
    },
    Entry {
        id: "cuda_lazy_loading",
        title: "CUDA modules loaded at first use",
        fix: "nothing: expected; CUDA_MODULE_LOADING=EAGER moves it before step 1",
        prior: 0.5,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache, RecordHigh],
        traits: &[Trait::AtFirstSteps, Trait::Small, Trait::Needs(GpuDriver)],
    },
    Entry {
        id: "page_cache",
        title: "checkpoints written through the page cache",
        fix: "nothing: reclaimable; count a cgroup's usage minus inactive_file",
        prior: 0.3,
        home: Home::File,
        typical: &[FilePages],
        possible: &[],
        traits: &[],
    },
    Entry {
        id: "graph_kept",
        title: "a loss or metric kept together with its autograd graph",
        fix: "store loss.item() or loss.detach(), not the loss",
        prior: 1.5,
        home: Home::Anon,
        typical: &[Linear],
        possible: &[LateOnset],
        traits: &[Trait::TensorsRise, Trait::NeverEnds],
    },
    Entry {
        id: "growing_container",
        title: "a Python list or dict that only grows (log history, metrics, callbacks)",
        fix: "bound it; tracemalloc or memray shows the allocating line",
        prior: 1.5,
        home: Home::Anon,
        typical: &[Linear],
        possible: &[LateOnset],
        traits: &[Trait::ObjectsRise, Trait::NeverEnds],
    },
    Entry {
        id: "logger_process",
        title: "an experiment logger's process",
        fix: "update the logger or restart it; watch the process tree to see which process grows",
        prior: 0.3,
        home: Home::Elsewhere,
        typical: &[Linear],
        possible: &[LateOnset],
        traits: &[Trait::OnlyInAChild, Trait::NeverEnds],
    },
    Entry {
        id: "huge_page_bloat",
        title: "transparent huge pages backing sparse memory",
        fix: "set transparent_hugepage to madvise, or khugepaged/max_ptes_none to 0",
        prior: 0.3,
        home: Home::Anon,
        typical: &[WarmUp],
        possible: &[CappedCache, LateOnset],
        traits: &[Trait::Ends],
    },
];
