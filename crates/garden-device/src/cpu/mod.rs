//! The CPU device: the specification of every operation, with f32 sums, on all cores.
//!
//! Work is cut into pieces independent of the thread that runs them, so the same seed and number of threads give the same bits.

mod arena;
mod attention;
mod bf16;
mod elementwise;
mod exponential;
mod few;
mod gemm;
mod grid;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod rotary;
mod rows;
mod spin_pool;
mod sums;
mod threads;
mod widen;

use std::time::Instant;

use arena::Arena;
pub(crate) use arena::apart;
pub use bf16::CpuBf16;
pub use gemm::vector_instructions;
use threads::Threads;
pub(crate) use widen::{narrow_bytes, widen_bytes};

use crate::buffer::{Buffer, Dtype, Nf4Scales, Purpose, Rows, Weight};
use crate::device::{AdamW, Attention, Device, DeviceError, Heads, Moments, OutOfMemory, Reserve, Shadow, Write};
use crate::plan::{Block, Plan};
use crate::profile::{Profile, Scratch};
use crate::scalars::{Seed, StepScalars};
use crate::stages::{Stage, StageTimes};

/// Queries per block of attention.
const QUERY_BLOCK: usize = 64;

/// A device that computes on the host.
#[derive(Debug)]
pub struct Cpu {
    profile: Profile,
    plan: Plan,
    arena: Arena,
    threads: Threads,
    /// Workspace for packing matrices, per thread.
    packed: Option<Buffer>,
    /// Attention scores, per thread.
    scores: Option<Buffer>,
    /// The start of each stage, if they are timed.
    marks: Option<Vec<(Stage, Instant)>>,
}

impl Cpu {
    /// A device with `threads` threads; 0 for all cores.
    pub fn new(threads: usize) -> Cpu {
        let threads = Threads::new(threads);
        Cpu::with_profile(Profile::cpu(threads.number()), threads)
    }

    fn with_profile(profile: Profile, threads: Threads) -> Cpu {
        let plan = Plan::new(profile.alignment);
        Cpu { profile, plan, arena: Arena::default(), threads, packed: None, scores: None, marks: None }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.number()
    }

    fn allocate(&mut self, buffer: Buffer, label: &str) -> Result<(), OutOfMemory> {
        let bytes = self.plan.memory_bytes(buffer);
        let made = self.arena.allocate(buffer.id, bytes, self.profile.alignment);
        made.ok_or_else(|| OutOfMemory { label: label.to_string(), bytes })
    }

    /// Packing workspace of all threads.
    fn packed(&self) -> Buffer {
        self.packed.unwrap_or_else(|| panic!("no workspace was reserved for products"))
    }

    fn scalars(&mut self, scalars: Buffer) -> StepScalars {
        let ([words], []) = self.arena.views([scalars], []);
        StepScalars::of_words(words.i32())
    }
}

/// Workspace that operations need besides their buffers.
pub(crate) fn workspace(profile: &Profile, reserve: Reserve) -> Vec<Scratch> {
    let scratch = |label, length| Scratch { label, dtype: Dtype::F32, length };
    // Attention needs probabilities and their gradients for a block of queries.
    vec![
        scratch("packed matrices", profile.threads * gemm::workspace()),
        scratch("attention scores", profile.threads * 2 * QUERY_BLOCK * reserve.longest),
    ]
}

impl Device for Cpu {
    fn profile(&self) -> &Profile {
        &self.profile
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
        let mut make =
            |scratch: &Scratch| self.buffer(Purpose::Workspace, scratch.label, scratch.dtype, scratch.length);
        let (packed, scores) = (make(&scratch[0])?, make(&scratch[1])?);
        (self.packed, self.scores) = (Some(packed), Some(scores));
        Ok(())
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn computes(&self) -> bool {
        true
    }

    fn upload(&mut self, to: Buffer, bytes: &[u8]) {
        self.arena.upload(to, bytes);
    }

    fn upload_rows(&mut self, to: Rows, bytes: &[u8]) {
        let size = to.width * to.buffer.dtype.size();
        bytes.chunks(size.max(1)).enumerate().for_each(|(number, row)| self.arena.upload(to.row(number), row));
    }

    fn upload_f32(&mut self, to: Buffer, values: &[f32]) {
        let (_, [to]) = self.arena.views([], [to]);
        to.dtype.narrow(values, to.bytes);
    }

    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        let ([from], []) = self.arena.views([from], []);
        from.dtype.widen(from.bytes, to);
        Ok(())
    }

    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError> {
        let ([from], []) = self.arena.views([from], []);
        Ok(from.bytes.to_vec())
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn mark(&mut self, stage: Stage) {
        if let Some(marks) = &mut self.marks
            && stage.counts_after(marks.last().map(|mark| mark.0))
        {
            marks.push((stage, Instant::now()));
        }
    }

    fn time_stages(&mut self) {
        self.marks = Some(Vec::new());
    }

    fn stage_times(&mut self) -> Result<StageTimes, DeviceError> {
        let Some(marks) = &mut self.marks else { return Ok(StageTimes::default()) };
        let stages: Vec<Stage> = marks.iter().map(|mark| mark.0).collect();
        let times = StageTimes::of(&stages, |index| Ok((marks[index + 1].1 - marks[index].1).as_secs_f64()));
        // The last stage is still running.
        marks.drain(..marks.len().saturating_sub(1));
        times
    }

    fn zero(&mut self, x: Buffer) {
        let (_, [x]) = self.arena.views([], [x]);
        match x.dtype {
            Dtype::F32 => self.threads.by_rows(x.f32(), 1, |_, x| x.fill(0.0)),
            _ => x.bytes.fill(0),
        }
    }

    fn copy(&mut self, x: Buffer, y: Buffer) {
        let ([x], [y]) = self.arena.views([x], [y]);
        let x = x.f32();
        self.threads.by_rows(y.f32(), 1, |first, y| y.copy_from_slice(&x[first..first + y.len()]));
    }

    fn cast(&mut self, x: Buffer, y: Buffer) {
        assert_eq!(x.length(), y.length(), "as many values are needed");
        let ([x], [y]) = self.arena.views([x], [y]);
        if x.dtype == y.dtype {
            return y.bytes.copy_from_slice(x.bytes);
        }
        // In pieces of f32, to which every other dtype converts.
        let mut piece = [0.0; 256];
        for (from, to) in x.bytes.chunks(256 * x.dtype.size()).zip(y.bytes.chunks_mut(256 * y.dtype.size())) {
            let piece = &mut piece[..from.len() / x.dtype.size()];
            x.dtype.widen(from, piece);
            y.dtype.narrow(piece, to);
        }
    }

    fn cast_shadow(&mut self, value: Buffer, shadow: Shadow) {
        let Shadow { rows, scale } = shadow;
        for number in 0..value.length() / rows.width.max(1) {
            let first = number * rows.width;
            let ([value], [to]) = self.arena.views([value.part(first, rows.width)], [rows.row(number)]);
            widen::round_by_thresholds(value.f32(), scale, first, to);
        }
    }

    fn add(&mut self, x: Buffer, y: Buffer) {
        let ([x], [y]) = self.arena.views([x], [y]);
        elementwise::add(&self.threads, x.f32(), y.f32());
    }

    fn scale(&mut self, x: Buffer, scalars: Buffer) {
        let factor = self.scalars(scalars).gradient_scale;
        let (_, [x]) = self.arena.views([], [x]);
        self.threads.by_rows(x.f32(), 1, |_, x| x.iter_mut().for_each(|value| *value *= factor));
    }

    fn matmul(&mut self, x: Rows, weight: &Weight, y: Rows, rows: usize, scale: f32, write: Write) {
        self.product(x.joined(rows), weight, y.joined(rows), rows, scale, write);
    }

    fn matmul_backward(&mut self, dy: Rows, weight: &Weight, dx: Rows, rows: usize, scale: f32, write: Write) {
        self.product_backward(dy.joined(rows), weight, dx.joined(rows), rows, scale, write);
    }

    fn weight_gradient(&mut self, dy: Rows, x: Rows, gradient: &Weight, rows: usize, scale: f32) {
        self.outer_product(dy.joined(rows), x.joined(rows), gradient, rows, scale);
    }

    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        let ([bias], [y]) = self.arena.views([bias], [y]);
        elementwise::add_bias(&self.threads, y.f32(), bias.f32(), rows);
    }

    fn bias_gradient(&mut self, dy: Rows, gradient: Buffer, rows: usize) {
        let dy = dy.joined(rows);
        let ([dy], [gradient]) = self.arena.views([dy], [gradient]);
        elementwise::bias_gradient(&self.threads, dy.f32(), gradient.f32(), rows);
    }

    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Rows, rows: usize, epsilon: f32) {
        let ([x, weight], [y]) = self.arena.views([x, weight], [y.joined(rows)]);
        norm::forward(&self.threads, x.f32(), weight.f32(), y.f32(), rows, epsilon);
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
        let dx = dx.joined(rows);
        let none = dx.first(0);
        let ([dy, x, weight], [dx, dw]) = self.arena.views([dy, x, weight], [dx, gradient.unwrap_or(none)]);
        let dw = gradient.map(|_| dw.f32());
        norm::backward(&self.threads, dy.f32(), x.f32(), weight.f32(), dx.f32(), dw, rows, epsilon, write);
    }

    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        let ([cosines, sines], [values]) = self.arena.views([cosines, sines], [x.buffer]);
        rotary::rotate(&self.threads, values.f32(), x, head_size, cosines.f32(), sines.f32(), rows, 1.0);
    }

    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        let ([cosines, sines], [values]) = self.arena.views([cosines, sines], [dx.buffer]);
        rotary::rotate(&self.threads, values.f32(), dx, head_size, cosines.f32(), sines.f32(), rows, -1.0);
    }

    fn attend(&mut self, attention: &Attention, y: Rows, lse: Buffer) {
        attention::forward(self, attention, whole(y), lse);
    }

    fn attend_kv_cache(&mut self, attention: &Attention, firsts: Buffer, lengths: Buffer, _: Option<Buffer>, y: Rows) {
        attention::forward_kv_cache(self, attention, firsts, lengths, whole(y));
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
        attention::backward(self, attention, whole(y), lse, dy, dq, dk, dv);
    }

    fn swiglu(&mut self, gate: Rows, up: Rows, y: Rows, rows: usize) {
        let [gate, up, y] = [gate, up, y].map(|given| given.joined(rows));
        let ([gate, up], [y]) = self.arena.views([gate, up], [y]);
        elementwise::swiglu(&self.threads, gate.f32(), up.f32(), y.f32());
    }

    fn swiglu_backward(&mut self, dy: Rows, gate: Rows, up: Rows, dgate: Rows, y: Option<Rows>, rows: usize) {
        if let Some(y) = y {
            self.swiglu(gate, up, y, rows);
        }
        let [dy, gate, up, dgate] = [dy, gate, up, dgate].map(|given| given.joined(rows));
        let ([gate, up], [dy, dgate]) = self.arena.views([gate, up], [dy, dgate]);
        elementwise::swiglu_backward(&self.threads, gate.f32(), up.f32(), dgate.f32(), dy.f32());
    }

    fn repeat(&mut self, _: Buffer, _: usize, work: &mut dyn FnMut(&mut dyn Device)) {
        work(self);
    }

    fn gelu(&mut self, x: Buffer, y: Buffer) {
        let ([x], [y]) = self.arena.views([x], [y]);
        elementwise::gelu(&self.threads, x.f32(), y.f32());
    }

    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer) {
        if dx != dy {
            self.copy(dy, dx);
        }
        let ([x], [dx]) = self.arena.views([x], [dx]);
        elementwise::gelu_backward(&self.threads, x.f32(), dx.f32());
    }

    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize) {
        let ([values, tokens], [y]) = self.arena.views([weight.buffer, tokens], [y]);
        rows::embed(&self.threads, values, weight.columns, tokens.i32(), y.f32(), rows);
    }

    fn embed_backward(&mut self, dy: Rows, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        let dy = dy.joined(rows);
        let ([dy, tokens], [dw]) = self.arena.views([dy, tokens], [gradient.buffer]);
        rows::embed_backward(dy.f32(), tokens.i32(), dw.f32(), rows, gradient.columns, skipped);
    }

    fn gather(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        let width = y.width;
        let ([x, places], [y]) = self.arena.views([whole(x), places], [y.joined(rows)]);
        rows::gather(&self.threads, x.f32(), places.i32(), y.f32(), rows, width);
    }

    fn scatter(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        let width = y.width;
        let ([x, places], [y]) = self.arena.views([x.joined(rows), places], [whole(y)]);
        rows::scatter(x.f32(), places.i32(), y.f32(), rows, width);
    }

    fn keep_own(&mut self, x: Rows, owners: Buffer, each: usize, of: usize, rows: usize) {
        let ([owners], [values]) = self.arena.views([owners], [x.joined(rows)]);
        rows::keep_own(values.f32(), x.width, owners.i32(), each, of);
    }

    fn dropout(&mut self, x: Rows, y: Rows, rows: usize, rate: f32, seed: Seed, write: Write) {
        let seed = seed.mixed(&self.scalars(seed.scalars));
        let ([x], [y]) = self.arena.views([x.joined(rows)], [y.joined(rows)]);
        elementwise::dropout(&self.threads, x.f32(), y.f32(), rate, seed, write);
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
        let scale = self.scalars(scalars).loss_scale;
        let ([targets], [logits, losses, hits]) = self.arena.views([targets], [logits, losses, hits]);
        loss::cross_entropy(&self.threads, logits.f32(), targets.i32(), losses.f32(), hits.f32(), rows, scale);
    }

    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize) {
        let ([logits], [best]) = self.arena.views([logits], [best]);
        assert_eq!((best.dtype, best.bytes.len()), (Dtype::I32, 4 * rows), "a place for each row is needed");
        let (logits, places) = (logits.f32(), best.bytes.chunks_exact_mut(4));
        for (place, logits) in places.zip(logits.chunks_exact(logits.len() / rows.max(1))) {
            place.copy_from_slice(&loss::best_of(logits).to_le_bytes());
        }
    }

    fn add_losses(&mut self, losses: Buffer, hits: Buffer, sums: Buffer, scalars: Buffer) {
        let scale = f64::from(self.scalars(scalars).loss_scale);
        let ([losses, hits], [sums]) = self.arena.views([losses, hits], [sums]);
        let (losses, hits, sums) = (losses.f32(), hits.f32(), sums.f32());
        assert_eq!((losses.len(), sums.len()), (hits.len(), 2));
        let total = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
        for (sum, added) in sums.iter_mut().zip([scale * total(losses), total(hits)]) {
            *sum = (f64::from(*sum) + added) as f32;
        }
    }

    fn add_squares(&mut self, x: Buffer, sum: Buffer) {
        let ([x], [sum]) = self.arena.views([x], [sum]);
        optimizer::add_squares(&self.threads, x.f32(), sum.f32());
    }

    fn adamw(&mut self, updates: &[AdamW], clip: Option<(Buffer, f32)>) {
        updates.iter().for_each(|update| self.update(update, clip));
    }
}

impl Cpu {
    fn update(&mut self, update: &AdamW, clip: Option<(Buffer, f32)>) {
        let scalars = self.scalars(update.scalars);
        let shrink = clip.map_or(1.0, |(squares, largest)| {
            let ([squares], []) = self.arena.views([squares], []);
            optimizer::shrink(squares.f32()[0], largest)
        });
        let threads = &self.threads;
        match update.moments {
            Moments::F32 { first, second } => {
                let ([gradient], [value, first, second]) =
                    self.arena.views([update.gradient], [update.value, first, second]);
                let (value, first, second) = (value.f32(), first.f32(), second.f32());
                optimizer::adamw(threads, update, &scalars, shrink, value, gradient.f32(), first, second);
            }
            Moments::Int8 { codes, scales } => {
                let ([gradient], [value, codes1, codes2, scales1, scales2]) =
                    self.arena.views([update.gradient], [update.value, codes[0], codes[1], scales[0], scales[1]]);
                let (codes, scales) = ([codes1.u8(), codes2.u8()], [scales1.f32(), scales2.f32()]);
                optimizer::adamw_8bit(threads, update, &scalars, shrink, value.f32(), gradient.f32(), codes, scales);
            }
        }
        if let Some(shadow) = update.shadow {
            self.cast_shadow(update.value, shadow);
        }
    }
}

/// All rows of a buffer, which lie one behind the other.
fn whole(rows: Rows) -> Buffer {
    assert_eq!(rows.stride, rows.width, "rows one behind the other are needed");
    rows.buffer
}

/// The buffers of a weight: its values, and the scales if it is NF4; the rest are empty.
fn buffers_of(weight: &Weight) -> [Buffer; 3] {
    let none = weight.buffer.first(0);
    match weight.blocks.map(|blocks| blocks.scales) {
        None => [weight.buffer, none, none],
        Some(Nf4Scales::Plain(scales)) => [weight.buffer, scales, none],
        Some(Nf4Scales::Double { codes, scales, .. }) => [weight.buffer, codes, scales],
    }
}
