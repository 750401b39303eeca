//! The CUDA device: the operations of the CPU device on an NVIDIA GPU, with bf16 activations.
//!
//! Operations are queued on one stream, copies of the next batch on another. Matrix products use cuBLASLt, everything else is a kernel of ours (`kernels/`),
//! compiled on the first use of a card. All memory is allocated at the start, as planned. Failures are latched: see [`Device`].

mod attention;
mod blas;
pub mod compiler;
mod driver;
mod elementwise;
pub mod kernels;
mod library;
mod lookup;
mod loss;
mod norm;
mod optimizer;
mod products;
mod timing;
mod transfer;

pub(crate) use attention::CACHE_PIECE;
pub use driver::Card;
pub use library::{FOLDER_VARIABLE, Unavailable};
pub use transfer::STAGING_BYTES;

use std::collections::{HashMap, HashSet};

use attention::{TILE, TileLists};
use blas::{Blas, Product};
use driver::{Address, Argument, Driver, Failure, Recording, Stream};
use kernels::Kernels;
use loss::SQUARE_PIECES;
use norm::NORM_PIECES;
use timing::{Operation, Operations, Timing};
use transfer::{Ahead, Staging};

use crate::buffer::{Buffer, Dtype, Purpose, Rows, Weight};
use crate::device::{AdamW, Attention, Device, DeviceError, Heads, OutOfMemory, OwnMemory, Reserve, Shadow, Write};
use crate::dynamic_8bit::Map;
use crate::fused::FusedWeight;
use crate::plan::{Block, Plan};
use crate::profile::{Profile, Scratch};
use crate::scalars::Seed;
use crate::stages::{OperationTime, Stage, StageTimes};

/// Values per block of an elementwise kernel.
const VALUES: usize = 2048;
/// Allocation size without a plan, as in tests.
const CHUNK: usize = 64 << 20;
/// Enough blocks to fill any card several times.
const BLOCKS: usize = 1024;
/// Maximum number of recordings: each takes the driver's host memory, which must not grow with the variety of requests.
pub const MOST_RECORDINGS: usize = 8;

/// A GPU.
pub struct Cuda {
    profile: Profile,
    plan: Plan,
    // Fields are dropped in this order: whatever uses the context before it.
    staging: Staging,
    ahead: Option<Ahead>,
    timing: Option<Timing>,
    operations: Option<Operations>,
    recordings: Recordings,
    /// Work is recorded instead of done.
    is_recording: bool,
    tile_lists: TileLists,
    /// The parameters of the last update, as the table on the GPU has them.
    table: Vec<u8>,
    blas: Blas,
    kernels: Kernels,
    memory: Memory,
    workspace: Option<Workspace>,
    failure: Option<DeviceError>,
    /// Free bytes when the device was opened.
    free: usize,
    driver: Driver,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cuda on {}", self.driver.card.name)
    }
}

/// Allocated GPU memory.
#[derive(Default)]
struct Memory {
    chunks: Vec<Address>,
    /// Start address of each buffer id.
    begins: HashMap<u32, Address>,
    /// The rest of the newest chunk.
    next: Address,
    left: usize,
}

/// Recordings of repeated work, by their key.
#[derive(Default)]
struct Recordings {
    kept: HashMap<(Buffer, usize), Recording>,
    /// Requested once and run directly, since libraries load kernels on first use, which cannot be recorded.
    seen: HashSet<(Buffer, usize)>,
    /// Recording failed once: everything runs directly.
    are_off: bool,
}

/// Scratch buffers of operations.
#[derive(Clone, Copy, Debug)]
struct Workspace {
    blas: Buffer,
    widened: Buffer,
    partial: Buffer,
    along: Buffer,
    tiles: Buffer,
    splits: Buffer,
    /// The two maps of 8-bit codes, and the constants of updates.
    constants: Buffer,
    skipped: Buffer,
    /// Where the parameters of an update are.
    parameters: Buffer,
}

/// Workspace that operations need besides their buffers.
pub(crate) fn workspace(_: &Profile, reserve: Reserve) -> Vec<Scratch> {
    let scratch = |label, dtype, length| Scratch { label, dtype, length };
    let partial = (NORM_PIECES * reserve.longest_vector).max(2 * SQUARE_PIECES);
    vec![
        scratch("matrix library", Dtype::U8, blas::WORKSPACE),
        scratch("widened weight", Dtype::Bf16, reserve.largest_packed),
        scratch("partial sums", Dtype::F32, partial),
        scratch("attention row sums", Dtype::F32, reserve.query_heads),
        scratch("attention tiles", Dtype::I32, 4 * (reserve.attention_tokens / TILE + reserve.segments + 1)),
        scratch("attention partial sums", Dtype::F32, 2 * reserve.grouped_values),
        scratch("constants", Dtype::F32, 2 * 256 + 8 * optimizer::STEPS),
        scratch("skipped tokens", Dtype::I32, 8),
        scratch("table of parameters", Dtype::U8, reserve.parameters.saturating_mul(optimizer::ENTRY)),
    ]
}

impl Cuda {
    /// Opens a GPU by its index.
    pub fn open(number: usize) -> Result<Cuda, Unavailable> {
        Cuda::open_telling(number, &|_| ())
    }

    /// Opens a GPU; `tell` receives messages about slow work.
    pub fn open_telling(number: usize, tell: &dyn Fn(&str)) -> Result<Cuda, Unavailable> {
        let driver = Driver::open(number)?;
        let blas = Blas::find(driver.card.driver_version / 1000)?;
        let kernels = Kernels::load(&driver, tell)?;
        let profile = Profile::cuda();
        let staging = Staging::new(&driver);
        // Without pinned memory a copy blocks anyway.
        let event = || driver.event().ok().filter(|_| staging.is_there());
        let ahead = event().zip(event()).map(|(began, copied)| Ahead { began, copied, is_on: false });
        let plan = Plan::new(profile.alignment);
        let memory = Memory::default();
        let free = driver.memory().map_or(0, |memory| memory.0);
        Ok(Cuda {
            profile,
            plan,
            staging,
            ahead,
            timing: None,
            operations: None,
            recordings: Recordings::default(),
            is_recording: false,
            tile_lists: TileLists::default(),
            table: Vec::new(),
            blas,
            kernels,
            memory,
            workspace: None,
            failure: None,
            free,
            driver,
        })
    }

    /// Properties of the GPU.
    pub fn card(&self) -> &Card {
        &self.driver.card
    }

    /// Path and version of cuBLASLt.
    pub fn matrix_library(&self) -> (&std::path::Path, usize) {
        (&self.blas.path, self.blas.version)
    }

    /// Free and total bytes of the GPU.
    pub fn memory(&self) -> Result<(usize, usize), DeviceError> {
        self.driver.memory().map_err(|failure| DeviceError { problem: failure.text })
    }

    /// Whether batches go through pinned memory; some containers provide none.
    pub fn is_pinned(&self) -> bool {
        self.staging.is_there()
    }

    fn latch(&mut self, result: Result<(), String>) {
        if let Err(problem) = result
            && self.failure.is_none()
        {
            self.failure =
                Some(DeviceError { problem: format!("the GPU {} failed: {problem}", self.driver.card.name) });
        }
    }

    /// Records the end of an operation, if operations are timed.
    fn done(&mut self, operation: Operation) {
        if self.failure.is_none()
            && let Some(operations) = &mut self.operations
        {
            let result = operations.note(&self.driver, operation);
            self.latch(result.map_err(|failure| failure.text));
        }
    }

    fn status(&self) -> Result<(), DeviceError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// The address of a buffer.
    fn address(&self, buffer: Buffer) -> Address {
        let begin = self.memory.begins.get(&buffer.id);
        let begin = begin.unwrap_or_else(|| panic!("{buffer:?} is used before its block is closed"));
        let end = (buffer.offset + buffer.length) * buffer.dtype.size();
        assert!(end <= self.plan.memory_bytes(buffer), "{buffer:?} ends beyond its memory");
        begin + (buffer.offset * buffer.dtype.size()) as Address
    }

    /// The address of a buffer, which must have this dtype.
    fn of(&self, buffer: Buffer, dtype: Dtype) -> Argument {
        assert_eq!(buffer.dtype, dtype, "{dtype:?} is needed");
        Argument::Address(self.address(buffer))
    }

    fn activation(&self, buffer: Buffer) -> Argument {
        self.of(buffer, Dtype::Bf16)
    }

    /// The address and the stride of rows of activations.
    fn with_stride(&self, rows: Rows, count: usize) -> [Argument; 2] {
        [Argument::Address(self.rows(rows, count)), Argument::I64(rows.stride as i64)]
    }

    fn heads(&self, heads: Heads) -> Argument {
        assert_eq!(heads.buffer.dtype, Dtype::Bf16, "activations are bf16 on this device");
        Argument::Address(self.address(heads.buffer) + 2 * heads.offset as Address)
    }

    fn scratch(&self) -> Workspace {
        self.workspace.unwrap_or_else(|| panic!("no workspace was reserved"))
    }

    /// Panics if anything written overlaps with something else.
    fn apart(&self, read: &[Buffer], written: &[Buffer]) {
        crate::cpu::apart(read, written);
    }

    fn launch(
        &mut self,
        name: &'static str,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
        arguments: &[Argument],
    ) {
        if self.failure.is_some() || grid.contains(&0) {
            return;
        }
        // SAFETY: every caller passes what the kernel declares; addresses come from `address`, which checks bounds.
        let result = unsafe { self.kernels.launch(&self.driver, name, grid, block, shared, arguments) };
        self.latch(result.map_err(|failure| format!("{name}: {}", failure.text)));
        self.done(Operation::Kernel(name));
    }

    /// Launches a kernel over n values.
    fn by_values(&mut self, name: &'static str, n: usize, arguments: &[Argument]) {
        self.launch(name, [n.div_ceil(VALUES).min(2048), 1, 1], [256, 1, 1], 0, arguments);
    }

    /// Launches a kernel over rows of a width.
    fn by_rows(&mut self, name: &'static str, rows: usize, width: usize, arguments: &[Argument]) {
        self.launch(name, [width.div_ceil(VALUES), rows.min(65535), 1], [256, 1, 1], 0, arguments);
    }

    fn allocate(&mut self, buffer: Buffer, label: &str) -> Result<(), OutOfMemory> {
        let bytes = self.plan.memory_bytes(buffer);
        let alignment = self.profile.alignment;
        if self.memory.left < bytes {
            let size = bytes.max(CHUNK);
            self.take(size).map_err(|_| OutOfMemory { label: label.to_string(), bytes })?;
        }
        self.memory.begins.insert(buffer.id, self.memory.next);
        let taken = bytes.next_multiple_of(alignment);
        self.memory.next += taken as Address;
        self.memory.left -= taken.min(self.memory.left);
        Ok(())
    }

    /// Allocates a chunk of memory, filled with zeros.
    fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        let chunk = self.driver.allocate(bytes)?;
        self.memory.chunks.push(chunk);
        (self.memory.next, self.memory.left) = (chunk, bytes);
        self.driver.zero(chunk, bytes)?;
        // Uploads ahead must not overtake the zeros.
        self.ahead.as_ref().map_or(Ok(()), |ahead| self.driver.record(&ahead.began, Stream::Work))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Queued work may still use the memory; a failure now concerns nobody.
        self.driver.wait(Stream::Copies).unwrap_or(());
        self.driver.wait(Stream::Work).unwrap_or(());
        for chunk in self.memory.chunks.drain(..) {
            // SAFETY: allocated here, freed once, and nothing is queued any more.
            unsafe { self.driver.free(chunk) };
        }
    }
}

impl Device for Cuda {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn prepare(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        // Every allocation is aligned, and a plan counts that.
        let taken = self.take(bytes.max(self.profile.alignment));
        taken.map_err(|failure| {
            let free = self.driver.memory().map_or(0, |memory| memory.0) >> 20;
            let why = match failure.is_out_of_memory {
                true => format!("{} has {free} MiB free", self.driver.card.name),
                false => failure.text,
            };
            OutOfMemory { label: format!("the whole plan; {why}"), bytes }
        })
    }

    fn own_memory(&self) -> Option<OwnMemory> {
        let (free, total) = self.driver.memory().ok()?;
        Some(OwnMemory { total, free, taken: self.free.saturating_sub(free) })
    }

    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory> {
        let buffer = self.plan.add(purpose, label, dtype, length)?;
        if self.plan.is_outside() {
            self.allocate(buffer, label)?;
        }
        Ok(buffer)
    }

    fn open_block(&mut self) -> Block {
        self.plan.open()
    }

    fn enter_block(&mut self, block: Option<Block>) {
        self.plan.enter(block);
    }

    fn branch_block(&mut self, block: Block) {
        self.plan.branch(block);
    }

    fn close_block(&mut self, block: Block, dtype: Dtype) -> Result<Buffer, OutOfMemory> {
        let buffer = self.plan.close(block, dtype);
        self.allocate(buffer, "a block of buffers")?;
        Ok(buffer)
    }

    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory> {
        let scratch = workspace(&self.profile, reserve);
        let mut buffers = Vec::new();
        for scratch in &scratch {
            buffers.push(self.buffer(Purpose::Workspace, scratch.label, scratch.dtype, scratch.length)?);
        }
        let [blas, widened, partial, along, tiles, splits, constants, skipped, parameters] = buffers[..] else {
            panic!("as many buffers as were asked for");
        };
        // A table that was uploaded lies elsewhere now, and so do lists.
        self.table.clear();
        self.tile_lists.clear();
        self.workspace =
            Some(Workspace { blas, widened, partial, along, tiles, splits, constants, skipped, parameters });
        let maps = Map::signed().values.iter().chain(&Map::unsigned().values);
        let bytes: Vec<u8> = maps.flat_map(|value| value.to_le_bytes()).collect();
        self.upload(constants.first(512), &bytes);
        Ok(())
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn computes(&self) -> bool {
        true
    }

    fn begin_batch(&mut self) {
        let Some(ahead) = self.ahead.as_ref().filter(|_| self.failure.is_none()) else { return };
        let result = self.driver.record(&ahead.began, Stream::Work);
        self.latch(result.map_err(|failure| failure.text));
    }

    fn upload_ahead(&mut self, is_ahead: bool) {
        let Some(ahead) = self.ahead.as_mut().filter(|_| self.failure.is_none()) else { return };
        ahead.is_on = is_ahead;
        let result = match is_ahead {
            true => self.driver.wait_in(Stream::Copies, &ahead.began),
            false => self
                .driver
                .record(&ahead.copied, Stream::Copies)
                .and_then(|()| self.driver.wait_in(Stream::Work, &ahead.copied)),
        };
        self.latch(result.map_err(|failure| failure.text));
    }

    fn fail(&mut self) {
        self.launch("trap", [1, 1, 1], [1, 1, 1], 0, &[]);
    }

    fn upload(&mut self, to: Buffer, bytes: &[u8]) {
        assert_eq!(bytes.len(), to.length() * to.dtype.size(), "as many bytes as the buffer has are needed");
        self.bring(to, &|first, piece| piece.copy_from_slice(&bytes[first..first + piece.len()]));
    }

    fn upload_f32(&mut self, to: Buffer, values: &[f32]) {
        assert_eq!(values.len(), to.length(), "as many values as the buffer has are needed");
        let size = to.dtype.size();
        // Rounded straight into the staging memory, so that a batch never has a second copy in host memory.
        self.bring(to, &|first, piece| {
            let first = first / size;
            to.dtype.narrow(&values[first..first + piece.len() / size], piece);
        });
    }

    fn upload_rows(&mut self, to: Rows, bytes: &[u8]) {
        self.bring_rows(to, bytes);
    }

    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        let mut bytes = vec![0; from.length() * from.dtype.size()];
        self.fetch(from, &mut bytes)?;
        from.dtype.widen(&bytes, to);
        Ok(())
    }

    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; from.length() * from.dtype.size()];
        self.fetch(from, &mut bytes)?;
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.status()?;
        let result = self.driver.wait(Stream::Work);
        self.latch(result.map_err(|failure| failure.text));
        self.status()
    }

    fn mark(&mut self, stage: Stage) {
        if self.failure.is_none()
            && let Some(timing) = &mut self.timing
        {
            let result = timing.mark(&self.driver, stage);
            self.latch(result.map_err(|failure| failure.text));
        }
    }

    fn time_operations(&mut self) {
        self.operations = Some(Operations::default());
        self.done(Operation::Begin);
    }

    fn operation_times(&mut self) -> Result<Vec<OperationTime>, DeviceError> {
        self.finish()?;
        let Some(operations) = &mut self.operations else { return Ok(Vec::new()) };
        let times = operations.take().map_err(|failure| DeviceError { problem: failure.text });
        self.done(Operation::Begin);
        times
    }

    fn time_stages(&mut self) {
        self.timing = Some(Timing::default());
    }

    fn stage_times(&mut self) -> Result<StageTimes, DeviceError> {
        self.finish()?;
        let Some(timing) = &mut self.timing else { return Ok(StageTimes::default()) };
        timing.take().map_err(|failure| DeviceError { problem: failure.text })
    }

    fn zero(&mut self, x: Buffer) {
        if self.failure.is_none() && x.length() > 0 {
            let result = self.driver.zero(self.address(x), x.length() * x.dtype.size());
            self.latch(result.map_err(|failure| failure.text));
            self.done(Operation::Fill);
        }
    }

    fn copy(&mut self, x: Buffer, y: Buffer) {
        assert_eq!((x.length(), x.dtype, y.dtype), (y.length(), Dtype::Bf16, Dtype::Bf16));
        self.apart(&[x], &[y]);
        if self.failure.is_none() && x.length() > 0 {
            let result = self.driver.copy_within(self.address(y), self.address(x), 2 * x.length());
            self.latch(result.map_err(|failure| failure.text));
            self.done(Operation::Copy);
        }
    }

    fn cast(&mut self, x: Buffer, y: Buffer) {
        elementwise::cast(self, x, y);
    }

    fn cast_shadow(&mut self, value: Buffer, shadow: Shadow) {
        optimizer::cast_shadow(self, value, shadow);
    }

    fn copy_rows(&mut self, x: Rows, y: Rows, rows: usize) {
        elementwise::copy_rows(self, x, y, rows);
    }

    fn keep_own(&mut self, x: Rows, owners: Buffer, each: usize, of: usize, rows: usize) {
        elementwise::keep_own(self, x, owners, each, of, rows);
    }

    fn add(&mut self, x: Buffer, y: Buffer) {
        assert_eq!(x.length(), y.length());
        self.apart(&[x], &[y]);
        let arguments = [self.activation(x), self.activation(y), Argument::I64(x.length() as i64)];
        self.by_values("add_bf16", x.length(), &arguments);
    }

    fn scale(&mut self, x: Buffer, scalars: Buffer) {
        let arguments = [self.of(x, Dtype::F32), self.of(scalars, Dtype::I32), Argument::I64(x.length() as i64)];
        self.by_values("scale_f32", x.length(), &arguments);
    }

    fn matmul(&mut self, x: Rows, weight: &Weight, y: Rows, rows: usize, scale: f32, write: Write) {
        self.product(Product::Forward, x, weight, y, rows, scale, write);
    }

    fn matmul_backward(&mut self, dy: Rows, weight: &Weight, dx: Rows, rows: usize, scale: f32, write: Write) {
        self.product(Product::Backward, dy, weight, dx, rows, scale, write);
    }

    fn weight_gradient(&mut self, dy: Rows, x: Rows, gradient: &Weight, rows: usize, scale: f32) {
        products::weight_gradient(self, dy, x, gradient, rows, scale);
    }

    fn fused_down(&mut self, x: Rows, weight: &FusedWeight, t: &[Rows], rows: usize) {
        products::fused_down(self, x, weight, t, rows);
    }

    fn fused_linear(
        &mut self,
        x: Rows,
        t: &[Rows],
        weight: &FusedWeight,
        y: &[Rows],
        rows: usize,
        plus: Option<Buffer>,
    ) {
        products::fused_linear(self, x, t, weight, y, rows, plus);
    }

    fn fused_up_backward(&mut self, dy: &[Rows], weight: &FusedWeight, dt: &[Rows], rows: usize) {
        products::fused_up_backward(self, dy, weight, dt, rows);
    }

    fn fused_linear_backward(&mut self, dy: &[Rows], dt: &[Rows], weight: &FusedWeight, dx: Rows, rows: usize) {
        products::fused_linear_backward(self, dy, dt, weight, dx, rows);
    }

    fn fused_down_gradient(&mut self, dt: &[Rows], x: Rows, gradients: &[Weight], rows: usize) {
        products::fused_down_gradient(self, dt, x, gradients, rows);
    }

    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        products::add_bias(self, y, bias, rows);
    }

    fn bias_gradient(&mut self, dy: Rows, gradient: Buffer, rows: usize) {
        products::bias_gradient(self, dy, gradient, rows);
    }

    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Rows, rows: usize, epsilon: f32) {
        norm::rms_norm(self, x, weight, y, rows, epsilon);
    }

    fn rms_norm_backward(
        &mut self,
        dy: Buffer,
        x: Buffer,
        weight: Buffer,
        dx: Rows,
        gradient: Option<Buffer>,
        rows: usize,
        epsilon: f32,
        write: Write,
    ) {
        norm::rms_norm_backward(self, dy, x, weight, dx, gradient, rows, epsilon, write);
    }

    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.rotated(x, head_size, cosines, sines, rows, 1.0);
    }

    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.rotated(dx, head_size, cosines, sines, rows, -1.0);
    }

    fn attend(&mut self, attention: &Attention, y: Rows, lse: Buffer) {
        // A generator keeps none.
        self.mix(attention, None, y, (lse.length() > 0).then_some(lse));
    }

    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        scratch: Option<Buffer>,
        y: Rows,
    ) {
        attention::attend_kv_cache(self, attention, firsts, lengths, scratch, y);
    }

    fn attend_backward(
        &mut self,
        attention: &Attention,
        y: Rows,
        lse: Buffer,
        dy: Buffer,
        dq: Heads,
        dk: Heads,
        dv: Heads,
    ) {
        attention::attend_backward(self, attention, y, lse, dy, dq, dk, dv);
    }

    fn swiglu(&mut self, gate: Rows, up: Rows, y: Rows, rows: usize) {
        elementwise::swiglu(self, gate, up, y, rows);
    }

    fn swiglu_backward(&mut self, dy: Rows, gate: Rows, up: Rows, dgate: Rows, y: Option<Rows>, rows: usize) {
        elementwise::swiglu_backward(self, dy, gate, up, dgate, y, rows);
    }

    fn gelu(&mut self, x: Buffer, y: Buffer) {
        assert_eq!(x.length(), y.length());
        self.apart(&[x], &[y]);
        let arguments = [self.activation(x), self.activation(y), Argument::I64(x.length() as i64)];
        self.by_values("gelu_bf16", x.length(), &arguments);
    }

    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer) {
        assert_eq!((dy.length(), dx.length()), (x.length(), x.length()));
        self.apart(&[x], &[dx]);
        let arguments =
            [self.activation(dy), self.activation(x), self.activation(dx), Argument::I64(x.length() as i64)];
        self.by_values("gelu_backward_bf16", x.length(), &arguments);
    }

    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize) {
        lookup::embed(self, weight, tokens, y, rows);
    }

    fn embed_backward(&mut self, dy: Rows, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        lookup::embed_backward(self, dy, tokens, gradient, rows, skipped);
    }

    fn gather(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        lookup::gather(self, x, places, y, rows);
    }

    fn scatter(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        lookup::scatter(self, x, places, y, rows);
    }

    fn dropout(&mut self, x: Rows, y: Rows, rows: usize, rate: f32, seed: Seed, write: Write) {
        elementwise::dropout(self, x, y, rows, rate, seed, write);
    }

    fn cross_entropy(
        &mut self,
        logits: Buffer,
        targets: Buffer,
        losses: Buffer,
        hits: Buffer,
        rows: usize,
        scalars: Buffer,
    ) {
        loss::cross_entropy(self, logits, targets, losses, hits, rows, scalars);
    }

    fn add_losses(&mut self, losses: Buffer, hits: Buffer, sums: Buffer, scalars: Buffer) {
        loss::add_losses(self, losses, hits, sums, scalars);
    }

    fn add_squares(&mut self, x: Buffer, sum: Buffer) {
        loss::add_squares(self, x, sum);
    }

    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize) {
        loss::best_of_rows(self, logits, best, rows);
    }

    fn repeat(&mut self, buffer: Buffer, number: usize, work: &mut dyn FnMut(&mut dyn Device)) {
        let key = (buffer, number);
        // Operations that are timed individually are launched individually.
        let is_direct = self.failure.is_some() || self.operations.is_some() || self.recordings.are_off;
        let is_kept = self.recordings.kept.contains_key(&key);
        let has_room = self.recordings.kept.len() < MOST_RECORDINGS;
        if is_direct || !is_kept && (!has_room || self.recordings.seen.insert(key)) {
            return work(self);
        }
        if !is_kept && !self.record(key, work) {
            self.recordings.are_off = true;
            return work(self);
        }
        self.tile_lists.clear();
        let result = self.driver.queue(&self.recordings.kept[&key]);
        self.latch(result.map_err(|failure| failure.text));
    }

    fn adamw(&mut self, updates: &[AdamW], clip: Option<(Buffer, f32)>) {
        optimizer::adamw(self, updates, clip);
    }
}

impl Cuda {
    /// Records work without running it; returns false if a library or the driver cannot be recorded.
    fn record(&mut self, key: (Buffer, usize), work: &mut dyn FnMut(&mut dyn Device)) -> bool {
        if self.driver.begin_recording().is_err() {
            return false;
        }
        self.is_recording = true;
        self.tile_lists.clear();
        work(self);
        self.is_recording = false;
        // Lists that were recorded are not made.
        self.tile_lists.clear();
        let recorded = self.driver.end_recording();
        // Nothing was computed, so failures on the way lose nothing.
        match (recorded, self.failure.take()) {
            (Ok(recording), None) => {
                self.recordings.kept.insert(key, recording);
                true
            }
            _ => false,
        }
    }
}
