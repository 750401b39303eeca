//! The CUDA device: the operations of the CPU device on a GPU of NVIDIA's, with activations of bf16.
//!
//! Operations are queued on one stream, copies of the next batch on another. Matrix products are cuBLASLt's, everything else is a kernel of ours (`kernels/`), compiled when a card is
//! first used. All memory is taken at the start, as planned. What fails is latched: see [`Device`].

mod blas;
pub mod compiler;
mod driver;
pub mod kernels;
mod library;

pub use driver::Card;
pub use library::{FOLDER_VARIABLE, Unavailable};

use std::collections::{HashMap, HashSet};

use blas::{Blas, Operands, Product};
use driver::{Address, Argument, Driver, Event, Failure, Pinned, Recording, Stream};
use kernels::Kernels;

use crate::buffer::{Buffer, Dtype, Nf4Scales, Purpose, Weight};
use crate::device::{
    AdamW, Attention, Device, DeviceError, Heads, Moments, OutOfMemory, OwnMemory, Plus, Reserve, Write,
};
use crate::dynamic_8bit::Map;
use crate::plan::{Block, Plan};
use crate::profile::{Profile, Scratch};
use crate::scalars::{Part, Seed};
use crate::stages::{OperationTime, Stage, StageTimes};

/// Values that a block of an operation value by value is worth.
const VALUES: usize = 2048;
/// Memory that is taken at once where nothing was planned: tests.
const CHUNK: usize = 64 << 20;
/// Batches go to the GPU through pieces of pinned memory of this size, so many of them.
const STAGING: usize = 8 << 20;
const STAGES: usize = 5;
/// What is smaller and goes with the work has places of its own, so many of this size. Such a place is free again when the work before it is done,
/// and the next batch must not wait for that.
const NOTE: usize = 4 << 10;
const NOTES: usize = 16;
/// All of that.
pub const STAGING_BYTES: usize = STAGING * STAGES + NOTE * NOTES;
/// Pieces that sums over rows are cut into at most: the order of a sum must not depend on the card.
const NORM_PIECES: usize = 264;
const BIAS_PIECES: usize = 64;
const SQUARE_PIECES: usize = 512;
/// Blocks that fill any card several times.
const BLOCKS: usize = 1024;
/// Recordings that are kept: each takes host memory of the driver, which must not grow with the variety of what is asked for.
pub const MOST_RECORDINGS: usize = 8;
/// Keys of a piece of a cache, and query heads of a key head that its kernel does together.
pub(crate) const CACHE_PIECE: usize = 128;
const MOST_GROUPED: usize = 8;
/// Keys of a tile of attention's backward pass, and queries of the small tiles.
const TILE: usize = 64;

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
    /// What the constants of an update were made of, as long as nothing changed since that it is made of: scalars, and the sum of squares.
    step: Option<[Argument; 9]>,
    blas: Blas,
    kernels: Kernels,
    memory: Memory,
    workspace: Option<Workspace>,
    failure: Option<DeviceError>,
    /// Free bytes when it was opened.
    free: usize,
    driver: Driver,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cuda on {}", self.driver.card.name)
    }
}

/// What was taken of the GPU's memory.
#[derive(Default)]
struct Memory {
    chunks: Vec<Address>,
    /// Where the memory with each number begins.
    begins: HashMap<u32, Address>,
    /// What is left of the newest chunk.
    next: Address,
    left: usize,
}

/// Pinned memory that uploads go through, piece by piece.
struct Staging {
    pieces: Ring,
    notes: Ring,
}

/// Places that are used in turn, each again when its event has come. None where the system pins no memory.
#[derive(Default)]
struct Ring {
    places: Vec<(Pinned, Event)>,
    next: usize,
}

/// How copies of the next batch overtake the work on this one.
struct Ahead {
    /// Before the batch that is computed with.
    began: Event,
    /// After what was copied ahead.
    copied: Event,
    is_on: bool,
}

/// When each operation ended; they are done one after the other, so each took the time since the one before.
#[derive(Default)]
struct Operations {
    names: Vec<Operation>,
    events: Vec<Event>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Begin,
    Kernel(&'static str),
    Product { product: Product, rows: usize, n: usize, k: usize },
    Copy,
    Fill,
}

/// Work that comes again and again, by what it was asked for with.
#[derive(Default)]
struct Recordings {
    kept: HashMap<(Buffer, usize), Recording>,
    /// Asked for once: done directly, since libraries load kernels when they are first used, which cannot be recorded.
    seen: HashSet<(Buffer, usize)>,
    /// Something could not be recorded: everything is done directly.
    are_off: bool,
}

/// When each stage began: events of the stream, which are used again once they were read.
#[derive(Default)]
struct Timing {
    stages: Vec<Stage>,
    events: Vec<Event>,
}

/// Where operations keep what they forget.
#[derive(Clone, Copy, Debug)]
struct Workspace {
    blas: Buffer,
    widened: Buffer,
    partial: Buffer,
    along: Buffer,
    tiles: Buffer,
    splits: Buffer,
    /// The two maps of 8-bit codes, and what is the same for all values of an update.
    constants: Buffer,
    skipped: Buffer,
}

/// What operations need besides their buffers.
pub(crate) fn workspace(_: &Profile, reserve: Reserve) -> Vec<Scratch> {
    let scratch = |label, dtype, length| Scratch { label, dtype, length };
    let partial = (NORM_PIECES * reserve.longest_vector).max(2 * SQUARE_PIECES);
    vec![
        scratch("matrix library", Dtype::U8, blas::WORKSPACE),
        scratch("widened weight", Dtype::Bf16, reserve.largest_packed),
        scratch("partial sums", Dtype::F32, partial),
        scratch("attention row sums", Dtype::F32, reserve.query_heads),
        scratch("attention tiles", Dtype::I32, 2 * (reserve.attention_tokens / TILE + reserve.segments + 1)),
        scratch("attention partial sums", Dtype::F32, 2 * reserve.grouped_values),
        scratch("constants", Dtype::F32, 2 * 256 + 8),
        scratch("skipped tokens", Dtype::I32, 8),
    ]
}

impl Cuda {
    /// Opens a GPU by its number.
    pub fn open(number: usize) -> Result<Cuda, Unavailable> {
        Cuda::open_telling(number, &|_| ())
    }

    /// The same; what takes long is told.
    pub fn open_telling(number: usize, tell: &dyn Fn(&str)) -> Result<Cuda, Unavailable> {
        let driver = Driver::open(number)?;
        let blas = Blas::find(driver.card.driver_version / 1000)?;
        let kernels = Kernels::load(&driver, tell)?;
        let profile = Profile::cuda();
        let staging = Staging::new(&driver);
        // Without pinned memory a copy waits for its end anyway.
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
            step: None,
            blas,
            kernels,
            memory,
            workspace: None,
            failure: None,
            free,
            driver,
        })
    }

    /// What it is.
    pub fn card(&self) -> &Card {
        &self.driver.card
    }

    /// Where the matrix library is, and its version.
    pub fn matrix_library(&self) -> (&std::path::Path, usize) {
        (&self.blas.path, self.blas.version)
    }

    /// Free bytes of the GPU, and all.
    pub fn memory(&self) -> Result<(usize, usize), DeviceError> {
        self.driver.memory().map_err(|failure| DeviceError { problem: failure.text })
    }

    /// Whether batches go through pinned memory; some containers give none.
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

    /// Notes the end of an operation, where operations are timed.
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

    /// Where a buffer lies.
    fn address(&self, buffer: Buffer) -> Address {
        let begin = self.memory.begins.get(&buffer.id);
        let begin = begin.unwrap_or_else(|| panic!("{buffer:?} is used before its block is closed"));
        let end = (buffer.offset + buffer.length) * buffer.dtype.size();
        assert!(end <= self.plan.memory_bytes(buffer), "{buffer:?} ends beyond its memory");
        begin + (buffer.offset * buffer.dtype.size()) as Address
    }

    /// The address of a buffer of one dtype.
    fn of(&self, buffer: Buffer, dtype: Dtype) -> Argument {
        assert_eq!(buffer.dtype, dtype, "{dtype:?} is needed");
        Argument::Address(self.address(buffer))
    }

    fn activation(&self, buffer: Buffer) -> Argument {
        self.of(buffer, Dtype::Bf16)
    }

    fn heads(&self, heads: Heads) -> Argument {
        assert_eq!(heads.buffer.dtype, Dtype::Bf16, "activations are bf16 on this device");
        Argument::Address(self.address(heads.buffer) + 2 * heads.offset as Address)
    }

    fn room(&self) -> Workspace {
        self.workspace.unwrap_or_else(|| panic!("no workspace was reserved"))
    }

    /// Panics if anything that is written overlaps with something else.
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
        // SAFETY: every caller gives what the kernel declares; addresses come from `address`, which looks at bounds.
        let result = unsafe { self.kernels.launch(&self.driver, name, grid, block, shared, arguments) };
        self.latch(result.map_err(|failure| format!("{name}: {}", failure.text)));
        self.done(Operation::Kernel(name));
    }

    /// A kernel over n values.
    fn by_values(&mut self, name: &'static str, n: usize, arguments: &[Argument]) {
        self.launch(name, [n.div_ceil(VALUES).min(2048), 1, 1], [256, 1, 1], 0, arguments);
    }

    /// A kernel over rows of a width.
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

    /// Takes a chunk of memory, filled with zeros.
    fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        let chunk = self.driver.allocate(bytes)?;
        self.memory.chunks.push(chunk);
        (self.memory.next, self.memory.left) = (chunk, bytes);
        self.driver.zero(chunk, bytes)?;
        // Nothing that is copied ahead may come before the zeros.
        self.ahead.as_ref().map_or(Ok(()), |ahead| self.driver.record(&ahead.began, Stream::Work))
    }

    /// A product; a weight of 4 bits is widened first.
    fn product(
        &mut self,
        product: Product,
        first: Buffer,
        weight: &Weight,
        to: Buffer,
        rows: usize,
        scale: f32,
        write: Write,
    ) {
        let (n, k) = (weight.rows, weight.columns);
        let (inputs, outputs) = match product {
            Product::Forward => (first, to),
            _ => (to, first),
        };
        assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
        assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
        assert!(first.dtype == Dtype::Bf16 && to.dtype == Dtype::Bf16, "activations are bf16 on this device");
        self.apart(&[first, weight.buffer], &[to]);
        let second = self.widened(weight);
        let (first, to) = (self.address(first), self.address(to));
        let plus = (write == Write::Add).then_some(to);
        let (to_dtype, bias) = (Dtype::Bf16, None);
        self.multiply(&Operands { product, rows, n, k, first, second, to, to_dtype, scale, plus, bias });
    }

    fn multiply(&mut self, operands: &Operands) {
        if self.failure.is_some() || operands.rows == 0 {
            return;
        }
        let workspace = self.address(self.room().blas);
        // SAFETY: addresses and sizes were looked at; the result lies apart.
        let result = unsafe { self.blas.multiply(operands, workspace, self.driver.stream()) };
        self.latch(result);
        let Operands { product, rows, n, k, .. } = *operands;
        self.done(Operation::Product { product, rows, n, k });
    }

    /// Where a weight lies as bf16.
    fn widened(&mut self, weight: &Weight) -> Address {
        let Some(blocks) = weight.blocks else {
            assert_eq!(weight.buffer.length(), weight.rows * weight.columns, "a whole weight is needed");
            assert_eq!(weight.buffer.dtype, Dtype::Bf16, "a weight is bf16 on this device, or packed");
            return self.address(weight.buffer);
        };
        let (stored, columns) = (blocks.rows * blocks.columns, weight.columns);
        assert_eq!(weight.buffer.length(), crate::nf4::packed_length(stored), "a whole weight is needed");
        let to = self.room().widened.first(weight.rows * columns);
        let filled = to.first(blocks.rows * columns);
        if blocks.rows < weight.rows {
            self.zero(to.part(filled.length(), to.length() - filled.length()));
        }
        let shape = [blocks.rows, blocks.columns, columns].map(|size| Argument::I32(size as i32));
        let (packed, y) = (self.of(weight.buffer, Dtype::U8), self.activation(to));
        let grid = [stored.div_ceil(VALUES).min(4096), 1, 1];
        match blocks.scales {
            Nf4Scales::Plain(scales) => {
                let scales = self.of(scales, Dtype::F32);
                let arguments = [packed, scales, y, shape[0], shape[1], shape[2], Argument::I32(1)];
                self.launch("widen_nf4_bf16", grid, [256, 1, 1], 0, &arguments);
            }
            Nf4Scales::Double { codes, scales, offset } => {
                let map = self.of(self.room().constants.first(256), Dtype::F32);
                let (codes, scales) = (self.of(codes, Dtype::U8), self.of(scales, Dtype::F32));
                let offset = Argument::F32(offset);
                let arguments = [packed, codes, scales, offset, map, y, shape[0], shape[1], shape[2], Argument::I32(1)];
                self.launch("widen_nf4_double_bf16", grid, [256, 1, 1], 0, &arguments);
            }
        }
        self.address(to)
    }

    fn rotated(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize, sign: f32) {
        let half = head_size / 2;
        assert_eq!(
            (cosines.length(), sines.length()),
            (rows * half, rows * half),
            "tables [{rows}, {half}] are needed"
        );
        assert!(rows * x.stride <= x.buffer.length() && x.offset + x.heads * head_size <= x.stride);
        let arguments = [
            self.heads(x),
            Argument::I64(x.stride as i64),
            self.of(cosines, Dtype::F32),
            self.of(sines, Dtype::F32),
            Argument::I32(rows as i32),
            Argument::I32(x.heads as i32),
            Argument::I32(half as i32),
            Argument::F32(sign),
        ];
        self.by_rows("rotate_bf16", rows, x.heads * half, &arguments);
    }

    /// Lists the tiles of all segments, the most work first; returns where, and how many there may be.
    fn tiles(&mut self, attention: &Attention, tokens: usize, tile: usize, is_of_keys: bool) -> (Argument, usize) {
        let capacity = tokens / tile + attention.segments;
        let to = self.of(self.room().tiles.first(2 * capacity), Dtype::I32);
        let arguments = [
            self.of(attention.cu_seqlens, Dtype::I32),
            Argument::I32(attention.segments as i32),
            Argument::I32(tile as i32),
            Argument::I32(attention.is_causal.into()),
            Argument::I32(is_of_keys.into()),
            Argument::I32(capacity as i32),
            to,
        ];
        self.launch("attend_tiles", [capacity.div_ceil(128), 1, 1], [128, 1, 1], 0, &arguments);
        (to, capacity)
    }

    /// Attention of one query for each row over a cache, cut into pieces of keys; says no where that kernel does not serve.
    fn attend_pieces(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        room: Buffer,
        y: Buffer,
    ) -> bool {
        let Attention { query, key, value, head_size, segments: rows, .. } = *attention;
        let (heads, kv_heads) = (query.heads, key.heads);
        let strides = [query, key, value].map(|given| given.stride);
        let is_single = attention.longest == 1 && y.length() == rows * heads * head_size;
        let names = match head_size {
            64 => ["attend_pieces_64", "attend_add_pieces_64"],
            128 => ["attend_pieces_128", "attend_add_pieces_128"],
            _ => return false,
        };
        if !is_single || heads > MOST_GROUPED * kv_heads || !is_tiled(attention, &strides) {
            return false;
        }
        check_heads(query, rows, head_size);
        self.apart(&[query.buffer, key.buffer, value.buffer], &[y, room]);
        let pieces = room.length() / (rows * heads * (head_size + 2)).max(1);
        let [q, k, v] = [query, key, value].map(|given| self.heads(given));
        let [qs, ks, vs] = strides.map(|stride| Argument::I64(stride as i64));
        let [heads_argument, kv_argument, pieces_argument] =
            [heads, kv_heads, pieces].map(|number| Argument::I32(number as i32));
        let (firsts, lengths) = (self.of(firsts, Dtype::I32), self.of(lengths, Dtype::I32));
        let (room, scale) = (self.of(room, Dtype::F32), Argument::F32(1.0 / (head_size as f32).sqrt()));
        let arguments = [q, qs, k, ks, v, vs, heads_argument, kv_argument, firsts, lengths, scale, room];
        self.launch(names[0], [kv_heads, rows, pieces], [CACHE_PIECE, 1, 1], 0, &arguments);
        let arguments = [room, pieces_argument, heads_argument, lengths, self.activation(y)];
        self.launch(names[1], [rows * heads, 1, 1], [head_size, 1, 1], 0, &arguments);
        true
    }

    /// Attention forward, over segments or a cache.
    fn mix(&mut self, attention: &Attention, cache: Option<(Buffer, Buffer)>, y: Buffer, lse: Option<Buffer>) {
        let Attention { query, key, value, head_size, segments, .. } = *attention;
        let (heads, kv_heads) = (query.heads, key.heads);
        let tokens = y.length() / (heads * head_size).max(1);
        check_heads(query, tokens, head_size);
        if cache.is_none() {
            [key, value].into_iter().for_each(|given| check_heads(given, tokens, head_size));
        }
        self.apart(&[query.buffer, key.buffer, value.buffer], &[y]);
        assert!(attention.cu_seqlens.length() > segments);
        let null = Argument::Address(0);
        let starts = self.of(attention.cu_seqlens, Dtype::I32);
        let [firsts, lengths] = match cache {
            Some((firsts, lengths)) => [self.of(firsts, Dtype::I32), self.of(lengths, Dtype::I32)],
            None => [null, null],
        };
        let lse = lse.map_or(null, |lse| self.of(lse, Dtype::F32));
        let scale = Argument::F32(1.0 / (head_size as f32).sqrt());
        let causal = Argument::I32(attention.is_causal.into());
        let strides = [query, key, value].map(|given| given.stride);
        let [q, k, v] = [query, key, value].map(|given| self.heads(given));
        let y = self.activation(y);
        let [heads_argument, kv_argument] = [heads, kv_heads].map(|number| Argument::I32(number as i32));
        // One new token for each row: nothing for tensor cores to do.
        let is_single = cache.is_some() && attention.longest <= 1;
        if !is_single && let Some(name) = tiled_forward(attention, &strides) {
            let tile = if attention.longest > TILE { 2 * TILE } else { TILE };
            let (tiles, capacity) = self.tiles(attention, tokens, tile, false);
            let [qs, ks, vs] = strides.map(|stride| Argument::I32(stride as i32));
            let shared = (tile + 128) * (head_size + 8) * 2;
            let arguments = [
                q,
                qs,
                k,
                ks,
                v,
                vs,
                heads_argument,
                kv_argument,
                starts,
                firsts,
                lengths,
                tiles,
                causal,
                scale,
                y,
                lse,
            ];
            return self.launch(name, [heads, capacity, 1], [128, 1, 1], shared, &arguments);
        }
        let threads = if is_single { 512 } else { 128 };
        let [qs, ks, vs] = strides.map(|stride| Argument::I64(stride as i64));
        let (size, count) = (Argument::I32(head_size as i32), Argument::I32(segments as i32));
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            size,
            starts,
            count,
            firsts,
            lengths,
            causal,
            scale,
            y,
            lse,
        ];
        let shared = threads / 32 * (head_size + 2) * 4;
        self.launch("attend_bf16", [tokens * heads, 1, 1], [threads, 1, 1], shared, &arguments);
    }
}

/// Into how many parts the query heads of a key head are cut, so that there are enough blocks for any card; from the shape alone, as the order of a
/// sum follows from it.
fn splits(group: usize, blocks: usize) -> usize {
    (1..=group).find(|splits| group.is_multiple_of(*splits) && splits * blocks >= BLOCKS).unwrap_or(group)
}

/// The tensor-core kernel for this attention, if there is one.
fn tiled_forward(attention: &Attention, strides: &[usize]) -> Option<&'static str> {
    if !is_tiled(attention, strides) {
        return None;
    }
    let is_long = attention.longest > TILE;
    Some(match (attention.head_size, is_long) {
        (64, true) => "attend_64_128",
        (64, false) => "attend_64_64",
        (80, true) => "attend_80_128",
        (80, false) => "attend_80_64",
        (_, true) => "attend_128_128",
        (_, false) => "attend_128_64",
    })
}

/// Whether the tensor-core kernels serve: their head sizes, and places that are aligned to 16 bytes.
fn is_tiled(attention: &Attention, strides: &[usize]) -> bool {
    let offsets = [attention.query.offset, attention.key.offset, attention.value.offset];
    let begins = [attention.query.buffer.offset, attention.key.buffer.offset, attention.value.buffer.offset];
    matches!(attention.head_size, 64 | 80 | 128)
        && strides.iter().chain(&offsets).chain(&begins).all(|places| places.is_multiple_of(8))
}

fn check_heads(heads: Heads, tokens: usize, head_size: usize) {
    let last = heads.offset + tokens.saturating_sub(1) * heads.stride + heads.heads * head_size;
    assert!(
        tokens == 0 || last <= heads.buffer.length(),
        "heads of {tokens} tokens end at {last} of {}",
        heads.buffer.length()
    );
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // What is queued may still use the memory; what fails now fails nobody.
        self.driver.wait(Stream::Copies).unwrap_or(());
        self.driver.wait(Stream::Work).unwrap_or(());
        for chunk in self.memory.chunks.drain(..) {
            // SAFETY: allocated here, given back once, and nothing is queued any more.
            unsafe { self.driver.free(chunk) };
        }
    }
}

impl Staging {
    fn new(driver: &Driver) -> Staging {
        let ring = |count, size| {
            let place = |_| Some((driver.pinned(size)?, driver.event().ok()?));
            (0..count).map(place).collect::<Option<Vec<_>>>().map(|places| Ring { places, next: 0 })
        };
        let (pieces, notes) = ring(STAGES, STAGING).zip(ring(NOTES, NOTE)).unwrap_or_default();
        Staging { pieces, notes }
    }
}

impl Staging {
    fn is_there(&self) -> bool {
        !self.pieces.places.is_empty()
    }
}

impl Operations {
    fn note(&mut self, driver: &Driver, operation: Operation) -> Result<(), Failure> {
        if self.events.len() == self.names.len() {
            self.events.push(driver.event()?);
        }
        driver.record(&self.events[self.names.len()], Stream::Work)?;
        self.names.push(operation);
        Ok(())
    }

    fn take(&mut self) -> Result<Vec<OperationTime>, Failure> {
        let mut sums: HashMap<Operation, (usize, f64)> = HashMap::new();
        for (index, operation) in self.names.iter().enumerate().skip(1) {
            let sum = sums.entry(*operation).or_default();
            *sum = (sum.0 + 1, sum.1 + self.events[index].seconds_since(&self.events[index - 1])?);
        }
        self.names.clear();
        sums.remove(&Operation::Begin);
        let mut times: Vec<OperationTime> = sums
            .into_iter()
            .map(|(operation, (count, seconds))| OperationTime { name: operation.name(), count, seconds })
            .collect();
        times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        Ok(times)
    }
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Begin => String::new(),
            Operation::Kernel(name) => name.to_string(),
            Operation::Product { product: Product::Forward, rows, n, k } => {
                format!("y [{rows}, {n}] = x W [{n}, {k}]^T")
            }
            Operation::Product { product: Product::Backward, rows, n, k } => {
                format!("dx [{rows}, {k}] = dy W [{n}, {k}]")
            }
            Operation::Product { product: Product::Weight, rows, n, k } => {
                format!("dW [{n}, {k}] = dy^T x, {rows} rows")
            }
            Operation::Copy => "copy".to_string(),
            Operation::Fill => "fill".to_string(),
        }
    }
}

impl Timing {
    /// Marks the place in the stream where a stage begins.
    fn mark(&mut self, driver: &Driver, stage: Stage) -> Result<(), Failure> {
        if !stage.counts_after(self.stages.last().copied()) {
            return Ok(());
        }
        if self.events.len() == self.stages.len() {
            self.events.push(driver.event()?);
        }
        driver.record(&self.events[self.stages.len()], Stream::Work)?;
        self.stages.push(stage);
        Ok(())
    }

    /// What the stages took; they are done. The last one goes on.
    fn take(&mut self) -> Result<StageTimes, Failure> {
        let times = StageTimes::of(&self.stages, |index| self.events[index + 1].seconds_since(&self.events[index]))?;
        if let Some(last) = self.stages.len().checked_sub(1) {
            self.events.swap(0, last);
            self.stages.drain(..last);
        }
        Ok(times)
    }
}

impl Device for Cuda {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn prepare(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        // Every piece of memory begins aligned, and a plan counts that.
        let taken = self.take(bytes.max(self.profile.alignment));
        taken.map_err(|failure| {
            let free = self.driver.memory().map_or(0, |memory| memory.0) >> 20;
            let why = match failure.is_out_of_memory {
                true => format!("{} has {free} MiB free", self.driver.card.name),
                false => failure.text,
            };
            OutOfMemory { label: format!("everything that was planned; {why}"), bytes }
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
        let [blas, widened, partial, along, tiles, splits, constants, skipped] = buffers[..] else {
            panic!("as many buffers as were asked for");
        };
        self.workspace = Some(Workspace { blas, widened, partial, along, tiles, splits, constants, skipped });
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
        // Rounded where it is copied from, so that no second copy of a batch is ever in host memory.
        self.bring(to, &|first, piece| {
            let first = first / size;
            to.dtype.narrow(&values[first..first + piece.len() / size], piece);
        });
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
        self.step = None;
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
        assert_eq!(x.length(), y.length(), "as many values are needed");
        self.apart(&[x], &[y]);
        let name = match (x.dtype, y.dtype) {
            (Dtype::F32, Dtype::Bf16) => "convert_f32_bf16",
            (Dtype::F32, Dtype::F16) => "convert_f32_f16",
            (Dtype::F32, Dtype::F32) => "convert_f32_f32",
            (Dtype::Bf16, Dtype::F32) => "convert_bf16_f32",
            (Dtype::Bf16, Dtype::Bf16) => "convert_bf16_bf16",
            (Dtype::Bf16, Dtype::F16) => "convert_bf16_f16",
            (Dtype::F16, Dtype::F32) => "convert_f16_f32",
            (Dtype::F16, Dtype::Bf16) => "convert_f16_bf16",
            (Dtype::F16, Dtype::F16) => "convert_f16_f16",
            pair => panic!("{pair:?} are not floating point"),
        };
        // As rows of a length that whole numbers of the kernel can hold.
        const ROW: usize = 1 << 20;
        let (from, to) = (self.address(x), self.address(y));
        let rows = x.length() / ROW;
        for (first, rows, width) in [(0, rows, ROW), (rows * ROW, 1, x.length() % ROW)] {
            if rows * width == 0 {
                continue;
            }
            let arguments = [
                Argument::Address(from + (first * x.dtype.size()) as Address),
                Argument::I64(width as i64),
                Argument::Address(to + (first * y.dtype.size()) as Address),
                Argument::I64(width as i64),
                Argument::I32(rows as i32),
                Argument::I32(width as i32),
                Argument::I32(width as i32),
            ];
            self.by_rows(name, rows, width, &arguments);
        }
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

    fn matmul(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        self.product(Product::Forward, x, weight, y, rows, scale, write);
    }

    fn linear(&mut self, x: Buffer, weight: &Weight, bias: Option<Buffer>, y: Buffer, rows: usize, plus: Plus) {
        let (n, k) = (weight.rows, weight.columns);
        assert_eq!((x.length(), y.length()), (rows * k, rows * n), "[{rows}, {k}] and [{rows}, {n}] are needed");
        assert!(x.dtype == Dtype::Bf16 && y.dtype == Dtype::Bf16, "activations are bf16 on this device");
        let other = match plus {
            Plus::Nothing => None,
            Plus::Itself => Some(y),
            Plus::Other(other) => {
                assert_eq!((other.dtype, other.length()), (y.dtype, y.length()), "as many values are needed");
                self.apart(&[other], &[y]);
                Some(other)
            }
        };
        self.apart(&[x, weight.buffer], &[y]);
        // The library adds what it can before it rounds.
        let (fused, apart) = match bias {
            Some(bias) if bias.dtype == Dtype::Bf16 => (Some(bias), None),
            bias => (None, bias),
        };
        assert!(fused.is_none_or(|bias| bias.length() == n), "a bias of {n} values is needed");
        let second = self.widened(weight);
        let operands = Operands {
            product: Product::Forward,
            rows,
            n,
            k,
            first: self.address(x),
            second,
            to: self.address(y),
            to_dtype: Dtype::Bf16,
            scale: 1.0,
            plus: other.map(|other| self.address(other)),
            bias: fused.map(|bias| self.address(bias)),
        };
        self.multiply(&operands);
        if let Some(bias) = apart {
            self.add_bias(y, bias, rows);
        }
    }

    fn matmul_backward(&mut self, dy: Buffer, weight: &Weight, dx: Buffer, rows: usize, scale: f32, write: Write) {
        self.product(Product::Backward, dy, weight, dx, rows, scale, write);
    }

    fn weight_gradient(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        let (n, k) = (gradient.rows, gradient.columns);
        assert_eq!((dy.length(), x.length(), gradient.buffer.length()), (rows * n, rows * k, n * k));
        assert_eq!((dy.dtype, x.dtype, gradient.buffer.dtype), (Dtype::Bf16, Dtype::Bf16, Dtype::F32));
        self.apart(&[dy, x], &[gradient.buffer]);
        let (first, second, to) = (self.address(dy), self.address(x), self.address(gradient.buffer));
        let (product, to_dtype, plus, bias) = (Product::Weight, Dtype::F32, Some(to), None);
        self.multiply(&Operands { product, rows, n, k, first, second, to, to_dtype, scale, plus, bias });
    }

    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        let width = bias.length();
        assert_eq!(y.length(), rows * width, "y [{rows}, {width}] is needed");
        let arguments = [
            self.activation(y),
            Argument::I64(width as i64),
            self.of(bias, Dtype::F32),
            Argument::I32(rows as i32),
            Argument::I32(width as i32),
        ];
        self.by_rows("add_bias_bf16_f32", rows, width, &arguments);
    }

    fn bias_gradient(&mut self, dy: Buffer, gradient: Buffer, rows: usize) {
        let width = gradient.length();
        assert_eq!(dy.length(), rows * width, "dy [{rows}, {width}] is needed");
        let pieces = rows.div_ceil(64).clamp(1, BIAS_PIECES);
        let partial = self.of(self.room().partial.first(pieces * width), Dtype::F32);
        let [rows_argument, width_argument, pieces_argument] =
            [rows, width, pieces].map(|size| Argument::I32(size as i32));
        let arguments = [self.activation(dy), Argument::I64(width as i64), partial, rows_argument, width_argument];
        self.launch("bias_gradient_bf16", [width.div_ceil(256), pieces, 1], [32, 8, 1], 0, &arguments);
        let arguments = [partial, self.of(gradient, Dtype::F32), pieces_argument, width_argument];
        self.launch("add_pieces", [width.div_ceil(256), 1, 1], [256, 1, 1], 0, &arguments);
    }

    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Buffer, rows: usize, epsilon: f32) {
        let width = weight.length();
        assert_eq!((x.length(), y.length()), (rows * width, rows * width), "x and y [{rows}, {width}] are needed");
        self.apart(&[x, weight], &[y]);
        let arguments = [
            self.activation(x),
            self.of(weight, Dtype::F32),
            self.activation(y),
            Argument::I32(width as i32),
            Argument::F32(epsilon),
        ];
        self.launch("rms_norm_bf16_f32", [rows, 1, 1], [norm_threads(width), 1, 1], 0, &arguments);
    }

    fn rms_norm_backward(
        &mut self,
        dy: Buffer,
        x: Buffer,
        weight: Buffer,
        dx: Buffer,
        gradient: Option<Buffer>,
        rows: usize,
        epsilon: f32,
        write: Write,
    ) {
        let width = weight.length();
        assert_eq!((x.length(), dy.length(), dx.length()), (rows * width, rows * width, rows * width));
        self.apart(&[dy, x, weight], &[dx]);
        let width_argument = Argument::I32(width as i32);
        if let Some(gradient) = gradient {
            let pieces = rows.div_ceil(8).clamp(1, NORM_PIECES);
            let partial = self.of(self.room().partial.first(pieces * width), Dtype::F32);
            let arguments = [
                self.activation(dy),
                self.activation(x),
                partial,
                Argument::I32(rows as i32),
                width_argument,
                Argument::F32(epsilon),
            ];
            self.launch("rms_norm_weight_gradient_bf16", [pieces, 1, 1], [256, 1, 1], 4 * width, &arguments);
            let arguments = [partial, self.of(gradient, Dtype::F32), Argument::I32(pieces as i32), width_argument];
            self.launch("add_pieces", [width.div_ceil(256), 1, 1], [256, 1, 1], 0, &arguments);
        }
        let arguments = [
            self.activation(dy),
            self.activation(x),
            self.of(weight, Dtype::F32),
            self.activation(dx),
            width_argument,
            Argument::F32(epsilon),
            Argument::I32((write == Write::Add).into()),
        ];
        self.launch("rms_norm_backward_bf16_f32", [rows, 1, 1], [norm_threads(width), 1, 1], 0, &arguments);
    }

    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.rotated(x, head_size, cosines, sines, rows, 1.0);
    }

    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.rotated(dx, head_size, cosines, sines, rows, -1.0);
    }

    fn attend(&mut self, attention: &Attention, y: Buffer, lse: Buffer) {
        // A device that only answers keeps none.
        self.mix(attention, None, y, (lse.length() > 0).then_some(lse));
    }

    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        room: Option<Buffer>,
        y: Buffer,
    ) {
        assert!(attention.is_causal, "a cache has nothing of what comes later");
        if let Some(room) = room
            && self.attend_pieces(attention, firsts, lengths, room, y)
        {
            return;
        }
        self.mix(attention, Some((firsts, lengths)), y, None);
    }

    fn attend_backward(
        &mut self,
        attention: &Attention,
        y: Buffer,
        lse: Buffer,
        dy: Buffer,
        dq: Heads,
        dk: Heads,
        dv: Heads,
    ) {
        let Attention { query, key, value, head_size, segments, is_causal, .. } = *attention;
        let (heads, kv_heads) = (query.heads, key.heads);
        let tokens = y.length() / (heads * head_size).max(1);
        for given in [query, key, value, dq, dk, dv] {
            check_heads(given, tokens, head_size);
        }
        for gradient in [dq, dk, dv] {
            self.apart(&[query.buffer, key.buffer, value.buffer, y, lse, dy], &[gradient.buffer]);
        }
        assert_eq!((dy.length(), lse.length()), (y.length(), tokens * heads));
        let along = self.of(self.room().along.first(tokens * heads), Dtype::F32);
        let arguments = [
            self.activation(y),
            self.activation(dy),
            along,
            Argument::I64((tokens * heads) as i64),
            Argument::I32(head_size as i32),
        ];
        self.launch("attend_along_bf16", [(tokens * heads).div_ceil(16), 1, 1], [128, 1, 1], 0, &arguments);
        let starts = self.of(attention.cu_seqlens, Dtype::I32);
        let scale = Argument::F32(1.0 / (head_size as f32).sqrt());
        let causal = Argument::I32(is_causal.into());
        let [q, k, v, to_q, to_k, to_v] = [query, key, value, dq, dk, dv].map(|given| self.heads(given));
        let strides = [query, key, value, dq, dk, dv].map(|given| given.stride);
        let (dy, sums) = (self.activation(dy), self.of(lse, Dtype::F32));
        let [heads_argument, kv_argument] = [heads, kv_heads].map(|number| Argument::I32(number as i32));
        let gradients_are_aligned =
            [dq, dk, dv].iter().all(|given| given.offset.is_multiple_of(8) && given.buffer.offset.is_multiple_of(8));
        if is_tiled(attention, &strides) && gradients_are_aligned {
            let [qs, ks, vs, dqs, dks, dvs] = strides.map(|stride| Argument::I32(stride as i32));
            let is_long = attention.longest > TILE;
            let tile = if is_long { 2 * TILE } else { TILE };
            let queries_name = match (head_size, is_long) {
                (64, true) => "attend_backward_queries_64_128",
                (64, false) => "attend_backward_queries_64_64",
                (80, true) => "attend_backward_queries_80_128",
                (80, false) => "attend_backward_queries_80_64",
                (_, true) => "attend_backward_queries_128_128",
                (_, false) => "attend_backward_queries_128_64",
            };
            // Stages of 64 queries of large heads are faster where two such blocks fit into a multiprocessor.
            let is_roomy = self.driver.card.shared_bytes >= 200 << 10;
            let (keys_name, queries) = match (head_size, is_roomy) {
                (64, _) => ("attend_backward_keys_64_64", 64),
                (80, _) => ("attend_backward_keys_80_64", 64),
                (_, true) => ("attend_backward_keys_128_64", 64),
                (_, false) => ("attend_backward_keys_128_32", 32),
            };
            let (tiles, capacity) = self.tiles(attention, tokens, tile, false);
            let shared = 256 * (head_size + 8) * 2;
            let arguments = [
                q,
                qs,
                k,
                ks,
                v,
                vs,
                heads_argument,
                kv_argument,
                starts,
                tiles,
                causal,
                scale,
                dy,
                sums,
                along,
                to_q,
                dqs,
            ];
            self.launch(queries_name, [heads, capacity, 1], [2 * tile, 1, 1], shared, &arguments);
            let (tiles, capacity) = self.tiles(attention, tokens, TILE, true);
            let splits = splits(heads / kv_heads, kv_heads * capacity);
            let partial = match splits {
                1 => Argument::Address(0),
                _ => self.of(self.room().splits.first(2 * tokens * heads * head_size), Dtype::F32),
            };
            let (splits_argument, tokens_argument) = (Argument::I32(splits as i32), Argument::I32(tokens as i32));
            let arguments = [
                q,
                qs,
                k,
                ks,
                v,
                vs,
                heads_argument,
                kv_argument,
                starts,
                tiles,
                causal,
                scale,
                dy,
                sums,
                along,
                to_k,
                dks,
                to_v,
                dvs,
                partial,
                splits_argument,
                tokens_argument,
            ];
            let shared = (128 + 4 * queries) * (head_size + 8) * 2 + 4 * queries * 4;
            self.launch(keys_name, [kv_heads * splits, capacity, 1], [128, 1, 1], shared, &arguments);
            if splits > 1 {
                let width = kv_heads * head_size;
                let arguments = [
                    partial,
                    splits_argument,
                    tokens_argument,
                    Argument::I32(width as i32),
                    to_k,
                    Argument::I64(dk.stride as i64),
                    to_v,
                    Argument::I64(dv.stride as i64),
                ];
                let grid = [width.div_ceil(VALUES), tokens.min(65535), 2];
                self.launch("attend_add_splits", grid, [256, 1, 1], 0, &arguments);
            }
            return;
        }
        let [qs, ks, vs, dqs, dks, dvs] = strides.map(|stride| Argument::I64(stride as i64));
        let (size, count) = (Argument::I32(head_size as i32), Argument::I32(segments as i32));
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            size,
            starts,
            count,
            causal,
            scale,
            dy,
            sums,
            along,
            to_q,
            dqs,
        ];
        let shared = 4 * head_size * 4;
        self.launch("attend_backward_queries_bf16", [tokens * heads, 1, 1], [128, 1, 1], shared, &arguments);
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            size,
            starts,
            count,
            causal,
            scale,
            dy,
            sums,
            along,
            to_k,
            dks,
            to_v,
            dvs,
        ];
        self.launch("attend_backward_keys_bf16", [tokens * kv_heads, 1, 1], [128, 1, 1], 2 * shared, &arguments);
    }

    fn swiglu(&mut self, gate: Buffer, up: Buffer, y: Buffer) {
        let (rows, width) = as_rows(y.length());
        assert_eq!((gate.length(), up.length()), (y.length(), y.length()));
        self.apart(&[gate, up], &[y]);
        let stride = Argument::I64(width as i64);
        let arguments = [
            self.activation(gate),
            stride,
            self.activation(up),
            stride,
            self.activation(y),
            stride,
            Argument::I32(rows as i32),
            Argument::I32(width as i32),
        ];
        self.by_rows("swiglu_bf16", rows, width, &arguments);
    }

    fn swiglu_backward(&mut self, dy: Buffer, gate: Buffer, up: Buffer, dgate: Buffer, y: Option<Buffer>) {
        let length = dy.length();
        assert!([gate, up, dgate].iter().chain(&y).all(|given| given.length() == length));
        self.apart(&[gate, up], &[dy, dgate, y.unwrap_or(dgate.first(0))]);
        let arguments = [
            self.activation(dy),
            self.activation(gate),
            self.activation(up),
            self.activation(dgate),
            y.map_or(Argument::Address(0), |y| self.activation(y)),
            Argument::I64(length as i64),
        ];
        self.by_values("swiglu_backward_bf16", length, &arguments);
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
        let width = weight.columns;
        assert_eq!((tokens.length(), y.length()), (rows, rows * width));
        let arguments = [
            self.of(weight.buffer, Dtype::Bf16),
            self.of(tokens, Dtype::I32),
            self.activation(y),
            Argument::I32(rows as i32),
            Argument::I32(width as i32),
        ];
        self.by_rows("embed_bf16_bf16", rows, width, &arguments);
    }

    fn embed_backward(&mut self, dy: Buffer, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        let width = gradient.columns;
        assert_eq!((tokens.length(), dy.length()), (rows, rows * width));
        let list = self.room().skipped.first(skipped.len());
        let bytes: Vec<u8> = skipped.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.upload(list, &bytes);
        let arguments = [
            self.activation(dy),
            self.of(tokens, Dtype::I32),
            self.of(gradient.buffer, Dtype::F32),
            Argument::I32(rows as i32),
            Argument::I32(width as i32),
            self.of(list, Dtype::I32),
            Argument::I32(skipped.len() as i32),
        ];
        self.launch("embed_backward_bf16", [rows, 1, 1], [256, 1, 1], 0, &arguments);
    }

    fn gather(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        assert_eq!((places.length(), y.length()), (rows, rows * width));
        self.apart(&[x], &[y]);
        let shape = [rows, width].map(|size| Argument::I32(size as i32));
        let arguments = [self.activation(x), self.of(places, Dtype::I32), self.activation(y), shape[0], shape[1]];
        self.by_rows("gather_bf16", rows, width, &arguments);
    }

    fn scatter(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        assert_eq!((places.length(), x.length()), (rows, rows * width));
        self.apart(&[x], &[y]);
        let shape = [rows, width].map(|size| Argument::I32(size as i32));
        let arguments = [self.activation(x), self.of(places, Dtype::I32), self.activation(y), shape[0], shape[1]];
        self.by_rows("scatter_bf16", rows, width, &arguments);
    }

    fn dropout(&mut self, x: Buffer, y: Buffer, rate: f32, seed: Seed, write: Write) {
        assert_eq!(x.length(), y.length());
        self.apart(&[x], &[y]);
        let arguments = [
            self.activation(x),
            self.activation(y),
            Argument::U64((f64::from(rate) * (1_u64 << 32) as f64) as u64),
            Argument::F32(1.0 / (1.0 - rate)),
            self.of(seed.scalars, Dtype::I32),
            Argument::U64(seed.choice()),
            Argument::I32((write == Write::Add).into()),
            Argument::I64(x.length() as i64),
        ];
        self.by_values("dropout_bf16", x.length(), &arguments);
    }

    fn cross_entropy(&mut self, logits: Buffer, targets: Buffer, losses: Buffer, rows: usize, scalars: Buffer) {
        let width = logits.length() / rows.max(1);
        assert_eq!((targets.length(), losses.length(), logits.length()), (rows, rows, rows * width));
        let arguments = [
            self.activation(logits),
            self.of(targets, Dtype::I32),
            self.of(losses, Dtype::F32),
            Argument::I32(width as i32),
            self.of(scalars, Dtype::I32),
        ];
        self.launch("cross_entropy_bf16", [rows, 1, 1], [1024, 1, 1], 0, &arguments);
    }

    fn add_losses(&mut self, losses: Buffer, sum: Buffer, scalars: Buffer) {
        let arguments = [
            self.of(losses, Dtype::F32),
            self.of(sum, Dtype::F32),
            self.of(scalars, Dtype::I32),
            Argument::I64(losses.length() as i64),
        ];
        self.launch("add_losses", [1, 1, 1], [1024, 1, 1], 0, &arguments);
    }

    fn add_squares(&mut self, x: Buffer, sum: Buffer) {
        self.step = None;
        let pieces = x.length().div_ceil(VALUES).clamp(1, SQUARE_PIECES);
        let partial = self.of(self.room().partial.first(2 * pieces), Dtype::F32);
        let arguments = [self.of(x, Dtype::F32), partial, Argument::I64(x.length() as i64)];
        self.launch("squares", [pieces, 1, 1], [256, 1, 1], 0, &arguments);
        let arguments = [partial, self.of(sum, Dtype::F32), Argument::I32(pieces as i32)];
        self.launch("add_squares", [1, 1, 1], [512, 1, 1], 0, &arguments);
    }

    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize) {
        assert_eq!(best.length(), rows, "a place for each row is needed");
        self.apart(&[logits], &[best]);
        let width = logits.length() / rows.max(1);
        let arguments = [self.activation(logits), self.of(best, Dtype::I32), Argument::I32(width as i32)];
        self.launch("best_of_rows_bf16", [rows, 1, 1], [1024, 1, 1], 0, &arguments);
    }

    fn repeat(&mut self, buffer: Buffer, number: usize, work: &mut dyn FnMut(&mut dyn Device)) {
        let key = (buffer, number);
        // Operations that are timed one by one are given one by one.
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
        let result = self.driver.queue(&self.recordings.kept[&key]);
        self.latch(result.map_err(|failure| failure.text));
    }

    fn adamw(&mut self, update: &AdamW, clip: Option<(Buffer, f32)>) {
        let AdamW { value, shadow, gradient, moments, beta1, beta2, epsilon, decay, scalars, part } = *update;
        let length = value.length();
        assert_eq!(gradient.length(), length);
        let step = self.of(self.room().constants.part(512, 8), Dtype::F32);
        let null = Argument::Address(0);
        let (squares, largest) = clip.map_or((null, 0.0), |(squares, largest)| (self.of(squares, Dtype::F32), largest));
        let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(Argument::F32);
        let arguments = [
            self.of(scalars, Dtype::I32),
            Argument::I32((part == Part::Vision).into()),
            squares,
            Argument::F32(largest),
            beta1,
            beta2,
            epsilon,
            Argument::F32(decay),
            step,
        ];
        // The same for all parameters of an update but for its part and its decay.
        let is_made = self.step.as_ref().is_some_and(|made| made[..] == arguments[..]);
        if !is_made {
            self.launch("adamw_step", [1, 1, 1], [1, 1, 1], 0, &arguments);
            self.step = Some(arguments);
        }
        let shadow = shadow.map_or(null, |shadow| self.activation(shadow));
        let (value, gradient) = (self.of(value, Dtype::F32), self.of(gradient, Dtype::F32));
        let count = Argument::I64(length as i64);
        match moments {
            Moments::F32 { first, second } => {
                let [first, second] = [first, second].map(|moment| self.of(moment, Dtype::F32));
                let arguments = [value, shadow, gradient, first, second, step, beta1, beta2, epsilon, count];
                self.by_values("adamw", length, &arguments);
            }
            Moments::Int8 { codes, scales } => {
                let [codes1, codes2] = codes.map(|codes| self.of(codes, Dtype::U8));
                let [scales1, scales2] = scales.map(|scales| self.of(scales, Dtype::F32));
                let constants = self.room().constants;
                let [signed, unsigned] = [0, 256].map(|first| self.of(constants.part(first, 256), Dtype::F32));
                let arguments = [
                    value, shadow, gradient, codes1, codes2, scales1, scales2, signed, unsigned, step, beta1, beta2,
                    count,
                ];
                self.launch("adamw_narrow", [length.div_ceil(2048).min(1056), 1, 1], [256, 1, 1], 0, &arguments);
            }
        }
    }
}

impl Cuda {
    /// Records work without doing it; says no where a library or the driver cannot be recorded.
    fn record(&mut self, key: (Buffer, usize), work: &mut dyn FnMut(&mut dyn Device)) -> bool {
        if self.driver.begin_recording().is_err() {
            return false;
        }
        work(self);
        let recorded = self.driver.end_recording();
        // Nothing was computed, so nothing that failed on the way is lost.
        match (recorded, self.failure.take()) {
            (Ok(recording), None) => {
                self.recordings.kept.insert(key, recording);
                true
            }
            _ => false,
        }
    }

    /// Fills a buffer piece by piece: `fill` is told where in the buffer a piece begins, in bytes.
    fn bring(&mut self, to: Buffer, fill: &dyn Fn(usize, &mut [u8])) {
        self.step = None;
        let length = to.length() * to.dtype.size();
        if self.failure.is_some() || length == 0 {
            return;
        }
        let address = self.address(to);
        let result = match self.staging.is_there() {
            true => self.bring_pinned(address, length, fill),
            false => self.bring_unpinned(address, length, fill),
        };
        self.latch(result.map_err(|failure| failure.text));
    }

    fn bring_pinned(
        &mut self,
        address: Address,
        length: usize,
        fill: &dyn Fn(usize, &mut [u8]),
    ) -> Result<(), Failure> {
        let stream = if self.ahead.as_ref().is_some_and(|ahead| ahead.is_on) { Stream::Copies } else { Stream::Work };
        let is_note = stream == Stream::Work && length <= NOTE;
        let ring = if is_note { &mut self.staging.notes } else { &mut self.staging.pieces };
        for first in (0..length).step_by(STAGING) {
            let number = ring.next % ring.places.len();
            ring.next += 1;
            let (pinned, event) = &ring.places[number];
            event.wait()?;
            let size = STAGING.min(length - first).min(pinned.length);
            // SAFETY: the place has this much room, and the copy before from it is done; it is used again after this one's event.
            unsafe {
                fill(first, std::slice::from_raw_parts_mut(pinned.start, size));
                self.driver.copy_to(address + first as Address, pinned.start, size, stream)?;
            }
            self.driver.record(event, stream)?;
        }
        Ok(())
    }

    /// Memory that is not pinned is copied by the driver; it may be used again when that is done.
    fn bring_unpinned(
        &mut self,
        address: Address,
        length: usize,
        fill: &dyn Fn(usize, &mut [u8]),
    ) -> Result<(), Failure> {
        let mut piece = vec![0; STAGING.min(length)];
        for first in (0..length).step_by(STAGING) {
            let piece = &mut piece[..STAGING.min(length - first)];
            fill(first, piece);
            // SAFETY: inside the buffer; the bytes stay until the wait is over.
            unsafe { self.driver.copy_to(address + first as Address, piece.as_ptr(), piece.len(), Stream::Work)? };
            self.driver.wait(Stream::Work)?;
        }
        Ok(())
    }

    fn fetch(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.status()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let result = self.driver.copy_from(bytes, self.address(from));
        self.latch(result.map_err(|failure| failure.text));
        self.status()
    }
}

/// Threads of a block that norms a row.
fn norm_threads(width: usize) -> usize {
    if width <= 2048 { 128 } else { 256 }
}

/// Values in a row, as rows of a width that 8 divides where that can be.
fn as_rows(length: usize) -> (usize, usize) {
    const WIDTH: usize = 8192;
    if length.is_multiple_of(WIDTH) { (length / WIDTH, WIDTH) } else { (1, length) }
}
