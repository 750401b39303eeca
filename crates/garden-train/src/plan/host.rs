//! What a run holds in host memory besides the model's buffers.
//!
//! `examples/host_memory.rs` measures what the estimates rest on; docs/plan.md has the figures.

use garden_device::{Dtype, Plan, Purpose, cuda};
use garden_memory::Bytes;

use super::{Exactness, Place, PlanInput, PlanItem, PlanLine};
use crate::recipe::DeviceKind;

/// Pages of the program's own file and of libraries that a run touches, in a release build: the kernel brings 64 KB with each that is touched, more where
/// its cache holds larger pieces. 14.0 to 15.0 MiB in twenty runs.
const CODE: u64 = 15 << 20;
/// Data of the program and of libraries that is written at the start, with addresses, the first stack, and what the allocator keeps.
const DATA: u64 = 704 << 10;
/// What NVIDIA's driver and libraries hold in host memory, as an H200 with CUDA 13.0 had it: pages of their files, and their own. Both are smaller
/// until the first products are computed.
const CUDA_FILES: u64 = 150 << 20;
const CUDA_ANONYMOUS: u64 = 270 << 20;
const CUDA_AT_FIRST: u64 = 260 << 20;
/// A token in memory: where its bytes are, these as the allocator rounds them up, and whether it is special.
const TOKEN: u64 = 16 + 32 + 1;
/// A merge in a table whose places are a power of two, of which seven in eight may be taken.
const MERGE: u64 = 16 + 1;
/// While tokenizer.json is read, besides the file: its texts by name in such a table, and merges by their texts.
const READ_TOKEN: u64 = 32 + 1;
const READ_MERGE: u64 = 56;
/// The chat template, compiled.
const TEMPLATE: u64 = 1 << 19;
/// tokenizer.json with the released vocabulary of 151,643 tokens.
const RELEASED_TOKENIZER: u64 = 7_031_645;
/// What the stack and the allocator keep for a thread: 55 KiB, as seven more had it.
const COMPUTING_THREAD: u64 = 1 << 16;
/// The same for a thread that reads and decodes, with the rows that it has in hand. Short rows of text take 12 KiB.
const LOADING_THREAD: u64 = 1 << 19;
/// What a thread that decodes has besides, for tables, rows before and after resizing, and what the allocator keeps of them.
const DECODER: u64 = 1 << 19;
/// Larger buffers have pages of their own, the last of which is not full; the allocator needs some bytes before the first.
const OWN_PAGES: usize = 128 << 10;
const PAGE: u64 = 4096;
/// Micro-batches as the device takes them: the one that it computes, and the next.
const BATCHES: usize = 2;
/// A tensor that is written is there twice.
const SAVED_COPIES: u64 = 2;
/// An evaluation has a loader of its own, with one micro-batch that waits and one in hand.
const EVALUATION_BUFFERS: u64 = 2;

/// Cores of this machine that may be used.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What the program itself holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Pages of files, in steps.
    pub files: u64,
    /// Everything, while weights are loaded.
    pub at_first: u64,
}

pub(super) fn program(device: DeviceKind) -> Program {
    match device {
        DeviceKind::Cpu | DeviceKind::CpuBf16 => Program { files: CODE, at_first: CODE + DATA },
        DeviceKind::Cuda => {
            Program { files: CODE + CUDA_FILES, at_first: CODE + CUDA_AT_FIRST + cuda::STAGING_BYTES as u64 }
        }
    }
}

/// What loading the weights takes of host memory: the most that buffers, the pages of a tensor's file and a widened copy take together.
pub(super) fn loading(input: &PlanInput, plan: &Plan) -> u64 {
    let (mut peak, mut held) = (0, 0);
    for buffer in &plan.buffers {
        if input.device.is_host() {
            held += buffer.bytes as u64;
        }
        if buffer.purpose != Purpose::Weights {
            continue;
        }
        let stored = input.checkpoint.stored_bytes(&buffer.label) as u64;
        // A tensor that is stored in another kind is widened as a whole, unless it is packed, which goes piece by piece.
        let is_widened = stored > 0 && (buffer.bytes as u64) > stored.next_multiple_of(256);
        let copy = if is_widened { buffer.bytes as u64 } else { 0 };
        let packing = if buffer.dtype == Dtype::U8 { garden_model::packing_bytes() as u64 } else { 0 };
        peak = peak.max(held + stored + copy.max(packing));
    }
    peak
}

/// What loading needs beyond what steps need.
pub(super) fn loading_line(beyond: u64) -> Option<PlanLine> {
    let what = "the tokenizer's file or the largest tensor's, while it is read, beyond what steps need".to_string();
    (beyond > 0).then_some(line(PlanItem::Loading, beyond, what, Exactness::Exact))
}

/// Places of a table with so many entries.
fn places(entries: u64) -> u64 {
    (entries * 8 / 7).next_power_of_two()
}

/// A tokenizer in memory, with its template: what it takes does not depend on how its file is written.
pub(super) fn tokenizer(tokens: u64) -> u64 {
    tokens * TOKEN + places(tokens) * MERGE + TEMPLATE
}

/// What is held besides while its file is read.
pub(super) fn reading_tokenizer(input: &PlanInput) -> u64 {
    let (file, tokens) = (input.tokenizer_bytes.unwrap_or(RELEASED_TOKENIZER), input.config.text.vocabulary as u64);
    file + places(tokens) * READ_TOKEN + tokens * READ_MERGE
}

fn line(purpose: PlanItem, bytes: u64, what: String, exactness: Exactness) -> PlanLine {
    PlanLine { place: Place::Host, purpose, bytes, what, exactness }
}

/// All of it but loading.
pub(super) fn lines(input: &PlanInput, plan: &Plan) -> Vec<PlanLine> {
    let (loader, recipe, threads) = (input.loader, input.recipe, input.threads());
    let loader_threads = recipe.loader_threads.max(1) as u64;
    let tokens = input.config.text.vocabulary as u64;
    let pixels = garden_model::pixel_bytes(&input.profile(), &input.config.vision, input.limits.patches);
    let large = plan.buffers.iter().filter(|buffer| buffer.bytes >= OWN_PAGES).count() as u64;
    let estimated = Exactness::Estimated;
    let is_cpu = input.device.is_host();
    let own = match is_cpu {
        true => vec![
            line(PlanItem::PageEnds, large * PAGE, format!("{large} buffers rounded up to whole pages"), estimated),
            line(PlanItem::Program, CODE + DATA, "code, libraries and their data".to_string(), estimated),
        ],
        false => vec![
            line(
                PlanItem::Staging,
                cuda::STAGING_BYTES as u64,
                "buffers between host and GPU, mostly pinned".to_string(),
                Exactness::Exact,
            ),
            line(
                PlanItem::ProgramAndCuda,
                CODE + CUDA_FILES + CUDA_ANONYMOUS,
                "code, driver and libraries, as on an H200".to_string(),
                estimated,
            ),
        ],
    };
    let mut lines = vec![
        line(
            PlanItem::Loader,
            loader.bytes() as u64,
            format!("{} buffers of the largest micro-batch's pixels", loader.buffers),
            Exactness::Exact,
        ),
        line(
            PlanItem::Decoding,
            loader_threads * (input.reading_bytes + if input.limits.patches > 0 { DECODER } else { 0 }),
            format!(
                "{loader_threads} threads, each with a row and its pictures, at most {}",
                Bytes(input.reading_bytes)
            ),
            estimated,
        ),
        line(PlanItem::Index, input.index_bytes, "positions of rows in their files".to_string(), Exactness::Exact),
        line(
            PlanItem::HostBatch,
            (BATCHES * (plan.bytes(Purpose::Batch) - pixels) + loader.token_bytes(recipe.ahead())) as u64,
            format!("tokens of {} micro-batches, positions and angles of {BATCHES}", loader.waiting),
            estimated,
        ),
        line(
            PlanItem::Tokenizer,
            tokenizer(tokens),
            format!("{tokens} tokens and their merges, with chat template"),
            estimated,
        ),
        line(
            PlanItem::Saving,
            saving_bytes(plan).max(evaluating(input)),
            "copies while saving a checkpoint, or rows of an evaluation".to_string(),
            estimated,
        ),
        line(
            PlanItem::Threads,
            threads as u64 * COMPUTING_THREAD + loader_threads * LOADING_THREAD,
            format!("stacks of {threads} compute and {loader_threads} loader threads"),
            estimated,
        ),
    ];
    lines.extend(own);
    lines
}

/// What is held while a checkpoint is written: tensor by tensor, as values and as bytes.
pub fn saving_bytes(plan: &Plan) -> u64 {
    let is_saved = |purpose| matches!(purpose, Purpose::Adapters | Purpose::Gradients | Purpose::Optimizer);
    let saved = plan.buffers.iter().filter(|buffer| is_saved(buffer.purpose));
    SAVED_COPIES * saved.map(|buffer| buffer.bytes as u64).max().unwrap_or(0)
}

/// What an evaluation holds beside the loader of training: first a loader of its own, then prompts, of which each has the pixels of one row.
fn evaluating(input: &PlanInput) -> u64 {
    let buffer = input.loader.buffer_bytes as u64;
    let prompts = input.answers.map_or(0, |answers| answers.rows as u64 + 1);
    let row = buffer.div_ceil(input.limits.rows.max(1) as u64);
    if input.evaluates { (EVALUATION_BUFFERS * buffer).max(prompts * row) } else { 0 }
}
