//! A CPU device with bf16 activations, as on a GPU: the reference for what bf16 costs in precision, and the test that model code
//! assumes no dtype. Frozen matrices are bf16, rows inside layers are padded, linears are joined with their adapters, two batches are held.
//!
//! An operation widens its activations, computes in f32 like [`Cpu`], and rounds its outputs: one rounding per value that
//! reaches memory; products that are added to something are rounded before, as cuBLASLt does it. That is slow, and as simple as possible. It can also be made to fail, as a GPU may.

use std::collections::HashMap;

use crate::buffer::{Buffer, Dtype, Purpose, Rows, Weight};
use crate::device::{AdamW, Attention, Device, DeviceError, Heads, OutOfMemory, Reserve, Shadow, Write};
use crate::fused::FusedWeight;
use crate::plan::{Block, Plan};
use crate::profile::Profile;
use crate::scalars::Seed;
use crate::stages::{Stage, StageTimes};

use super::Cpu;
use super::arena::apart;
use super::threads::Threads;

/// First id of the memory for widened activations: no plan reaches it.
const FIRST_WIDE: u32 = 1 << 31;

/// First numbers of the memory for a product that is added to others, for rows with others beside them, and for weights: no operation has as many operands.
const APART: u32 = 1 << 16;
const APART_ROWS: u32 = 2 << 16;
const WEIGHTS: u32 = 3 << 16;

/// A device that computes on the host, with bf16 activations.
#[derive(Debug)]
pub struct CpuBf16 {
    cpu: Cpu,
    /// Lengths of the memory for widened activations, allocated on first use: for tests that is early enough.
    wide: Vec<usize>,
    /// Bytes of other memory of this kind, by its number.
    scratch: HashMap<u32, usize>,
    /// Operations until a simulated failure, if any.
    operations_left: Option<usize>,
    failure: Option<DeviceError>,
}

impl CpuBf16 {
    /// A device with `threads` threads; 0 for all cores.
    pub fn new(threads: usize) -> CpuBf16 {
        let threads = Threads::new(threads);
        let cpu = Cpu::with_profile(Profile::cpu_bf16(threads.number()), threads);
        CpuBf16 { cpu, wide: Vec::new(), scratch: HashMap::new(), operations_left: None, failure: None }
    }

    /// Simulates a failure after this many more operations, such as a GPU lost in the middle of a step.
    pub fn fail_after(&mut self, operations: usize) {
        self.operations_left = Some(operations);
    }

    /// Whether the next operation runs: after a failure none do.
    fn works(&mut self) -> bool {
        if let Some(left) = &mut self.operations_left {
            if *left == 0 && self.failure.is_none() {
                self.failure = Some(DeviceError { problem: "the device was lost, as requested".into() });
            }
            *left = left.saturating_sub(1);
        }
        self.failure.is_none()
    }

    fn status(&self) -> Result<(), DeviceError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Runs an operation on widened activations, and rounds its outputs.
    fn run<const R: usize, const W: usize>(
        &mut self,
        read: [Buffer; R],
        written: [Buffer; W],
        operation: impl FnOnce(&mut Cpu, [Buffer; R], [Buffer; W]),
    ) {
        if !self.works() {
            return;
        }
        apart(&read, &written);
        let mut number = 0;
        let mut widened = |device: &mut CpuBf16, narrow: Buffer| {
            number += 1;
            device.widened(number - 1, narrow)
        };
        let wide_read = read.map(|buffer| widened(self, buffer));
        let wide_written = written.map(|buffer| widened(self, buffer));
        operation(&mut self.cpu, wide_read, wide_written);
        for (narrow, wide) in written.into_iter().zip(wide_written) {
            self.cpu.cast(wide, narrow);
        }
    }

    /// The same for any number of rows, which may have others beside them.
    fn run_all<const W: usize>(
        &mut self,
        read: &[Rows],
        written: [Rows; W],
        operation: impl FnOnce(&mut Cpu, &[Rows], [Rows; W]),
    ) {
        if !self.works() {
            return;
        }
        for written in &written {
            let overlaps = |read: &Rows| read.overlap(*written, read.count().min(written.count()));
            assert!(!read.iter().any(overlaps), "an operation would read what it writes: {written:?}");
        }
        let mut number = 0;
        let mut widened = |device: &mut CpuBf16, rows: Rows| {
            number += 1;
            device.widened_rows(number - 1, rows)
        };
        let wide = written.map(|rows| widened(self, rows));
        let wide_read: Vec<Rows> = read.iter().map(|rows| widened(self, *rows)).collect();
        operation(&mut self.cpu, &wide_read, wide);
        for (to, wide) in written.into_iter().zip(wide) {
            match to.width == to.stride {
                true => self.cpu.cast(wide.buffer, to.buffer),
                false => (0..to.count()).for_each(|row| self.cpu.cast(wide.row(row), to.row(row))),
            }
        }
    }

    /// Memory of this number, for whatever lasts as long as an operation.
    fn scratch(&mut self, number: u32, dtype: Dtype, length: usize) -> Buffer {
        let bytes = length * dtype.size();
        let held = self.scratch.entry(number).or_insert(0);
        if *held < bytes || bytes == 0 {
            *held = bytes;
            let made = self.cpu.arena.allocate(FIRST_WIDE + number, bytes, 64);
            made.unwrap_or_else(|| panic!("there is no memory for {length} values"));
        }
        Buffer { id: FIRST_WIDE + number, dtype, offset: 0, length }
    }

    /// Rows widened to f32, one behind the other.
    fn widened_rows(&mut self, number: usize, rows: Rows) -> Rows {
        if rows.width == rows.stride {
            return Rows { buffer: self.widened(number, rows.buffer), ..rows };
        }
        assert_eq!(rows.buffer.dtype, Dtype::Bf16, "activations are bf16 on this device");
        let wide = self.scratch(APART_ROWS + number as u32, Dtype::F32, rows.count() * rows.width);
        let wide = Rows::dense(wide, rows.width);
        (0..rows.count()).for_each(|row| self.cpu.cast(rows.row(row), wide.row(row)));
        wide
    }

    /// A weight whose rows lie one behind the other.
    fn dense_weight(&mut self, number: u32, weight: &Weight) -> Weight {
        check(weight);
        if weight.stride == weight.columns {
            return *weight;
        }
        let buffer = self.scratch(WEIGHTS + number, Dtype::Bf16, weight.rows * weight.columns);
        let (from, to) = (weight.as_rows(), Rows::dense(buffer, weight.columns));
        (0..weight.rows).for_each(|row| self.cpu.cast(from.row(row), to.row(row)));
        Weight::plain(buffer, weight.rows, weight.columns)
    }

    /// Linears with matrices of their own, and f32 biases.
    fn dense_weights(&mut self, weight: &FusedWeight) -> FusedWeight {
        let mut parts = weight.parts.clone();
        for (number, part) in parts.iter_mut().enumerate() {
            let number = 4 * number as u32;
            part.weight = self.dense_weight(number, &part.weight);
            if let Some(adapter) = &mut part.adapter {
                adapter.down = self.dense_weight(number + 1, &adapter.down);
                adapter.up = self.dense_weight(number + 2, &adapter.up);
            }
            if let Some(bias) = &mut part.bias {
                let wide = self.scratch(WEIGHTS + number + 3, Dtype::F32, bias.length);
                self.cpu.cast(*bias, wide);
                *bias = wide;
            }
        }
        FusedWeight { inputs: weight.inputs, parts, joined: None }
    }

    /// y += a product, which is rounded first.
    fn apart_product(&mut self, y: Rows, rows: usize, product: impl FnOnce(&mut CpuBf16, Rows)) {
        let apart = Rows::dense(self.scratch(APART, Dtype::Bf16, rows * y.width), y.width);
        product(self, apart);
        self.run_all(&[apart], [y.first(rows)], |cpu, apart, [y]| cpu.add(apart[0].joined(rows), y.joined(rows)));
    }

    /// An activation widened to f32, in the scratch memory of this number.
    fn widened(&mut self, number: usize, narrow: Buffer) -> Buffer {
        assert_eq!(narrow.dtype, Dtype::Bf16, "activations are bf16 on this device");
        if self.wide.len() <= number {
            self.wide.resize(number + 1, 0);
        }
        let id = FIRST_WIDE + number as u32;
        if self.wide[number] < narrow.length || narrow.length == 0 {
            self.wide[number] = narrow.length;
            let made = self.cpu.arena.allocate(id, narrow.length * 4, 64);
            made.unwrap_or_else(|| panic!("there is no memory for {} widened values", narrow.length));
        }
        let wide = Buffer { id, dtype: Dtype::F32, offset: 0, length: narrow.length };
        self.cpu.cast(narrow, wide);
        wide
    }
}

/// Checks that a weight is of the activations' dtype or NF4.
fn check(weight: &Weight) {
    assert!(
        weight.blocks.is_some() || weight.buffer.dtype == Dtype::Bf16,
        "a weight is bf16 on this device, or packed"
    );
}

/// All memory of the heads of an attention, whatever lies between them.
fn heads_of(attention: &Attention) -> [Rows; 3] {
    [attention.query, attention.key, attention.value].map(|heads| Rows::dense(heads.buffer, 1))
}

/// The same attention over other memory.
fn over(attention: &Attention, given: &[Rows]) -> Attention {
    let with = |heads: Heads, rows: Rows| Heads { buffer: rows.buffer, ..heads };
    Attention {
        query: with(attention.query, given[0]),
        key: with(attention.key, given[1]),
        value: with(attention.value, given[2]),
        ..*attention
    }
}

impl Device for CpuBf16 {
    fn profile(&self) -> &Profile {
        self.cpu.profile()
    }
    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory> {
        self.cpu.buffer(purpose, label, dtype, length)
    }
    fn open_block(&mut self) -> Block {
        self.cpu.open_block()
    }
    fn enter_block(&mut self, block: Option<Block>) {
        self.cpu.enter_block(block);
    }
    fn branch_block(&mut self, block: Block) {
        self.cpu.branch_block(block);
    }
    fn close_block(&mut self, block: Block, dtype: Dtype) -> Result<Buffer, OutOfMemory> {
        self.cpu.close_block(block, dtype)
    }
    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory> {
        self.cpu.reserve(reserve)
    }
    fn plan(&self) -> &Plan {
        self.cpu.plan()
    }
    fn computes(&self) -> bool {
        true
    }
    fn upload(&mut self, to: Buffer, bytes: &[u8]) {
        if self.works() {
            self.cpu.upload(to, bytes);
        }
    }
    fn upload_rows(&mut self, to: Rows, bytes: &[u8]) {
        if self.works() {
            self.cpu.upload_rows(to, bytes);
        }
    }
    fn upload_f32(&mut self, to: Buffer, values: &[f32]) {
        if self.works() {
            self.cpu.upload_f32(to, values);
        }
    }
    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        self.status()?;
        self.cpu.download(from, to)
    }
    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError> {
        self.status()?;
        self.cpu.download_bytes(from)
    }
    fn finish(&mut self) -> Result<(), DeviceError> {
        self.status()
    }
    fn mark(&mut self, stage: Stage) {
        self.cpu.mark(stage);
    }
    fn time_stages(&mut self) {
        self.cpu.time_stages();
    }
    fn stage_times(&mut self) -> Result<StageTimes, DeviceError> {
        self.status()?;
        self.cpu.stage_times()
    }
    fn zero(&mut self, x: Buffer) {
        if self.works() {
            self.cpu.zero(x);
        }
    }
    fn copy(&mut self, x: Buffer, y: Buffer) {
        self.run([x], [y], |cpu, [x], [y]| cpu.copy(x, y));
    }
    fn cast(&mut self, x: Buffer, y: Buffer) {
        if self.works() {
            self.cpu.cast(x, y);
        }
    }
    fn cast_shadow(&mut self, value: Buffer, shadow: Shadow) {
        if self.works() {
            self.cpu.cast_shadow(value, shadow);
        }
    }
    fn add(&mut self, x: Buffer, y: Buffer) {
        self.run([x], [y], |cpu, [x], [y]| cpu.add(x, y));
    }
    fn scale(&mut self, x: Buffer, scalars: Buffer) {
        self.run([], [], |cpu, [], []| cpu.scale(x, scalars));
    }
    fn matmul(&mut self, x: Rows, weight: &Weight, y: Rows, rows: usize, scale: f32, write: Write) {
        check(weight);
        if write == Write::Set {
            let weight = self.dense_weight(0, weight);
            return self.run_all(&[x.first(rows)], [y.first(rows)], |cpu, x, [y]| {
                cpu.matmul(x[0], &weight, y, rows, scale, write);
            });
        }
        // As cuBLASLt does it: a product is rounded before it is added to what is there.
        self.apart_product(y, rows, |device, y| device.matmul(x, weight, y, rows, scale, Write::Set));
    }
    fn matmul_backward(&mut self, dy: Rows, weight: &Weight, dx: Rows, rows: usize, scale: f32, write: Write) {
        check(weight);
        if write == Write::Set {
            let weight = self.dense_weight(0, weight);
            return self.run_all(&[dy.first(rows)], [dx.first(rows)], |cpu, dy, [dx]| {
                cpu.matmul_backward(dy[0], &weight, dx, rows, scale, write);
            });
        }
        self.apart_product(dx, rows, |device, dx| device.matmul_backward(dy, weight, dx, rows, scale, Write::Set));
    }
    fn weight_gradient(&mut self, dy: Rows, x: Rows, gradient: &Weight, rows: usize, scale: f32) {
        self.run_all(&[dy.first(rows), x.first(rows)], [], |cpu, read, []| {
            cpu.weight_gradient(read[0], read[1], gradient, rows, scale);
        });
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
        let (weight, mut t) = (self.dense_weights(weight), t.iter());
        for (part, y) in weight.parts.iter().zip(y) {
            let t = part.adapter.and_then(|_| t.next());
            let read: Vec<Rows> = [x].into_iter().chain(t.copied()).map(|given| given.first(rows)).collect();
            let alone = FusedWeight { inputs: weight.inputs, parts: vec![*part], joined: None };
            self.run_all(&read, [y.first(rows)], |cpu, read, [y]| {
                cpu.fused_linear(read[0], &read[1..], &alone, &[y], rows, None);
            });
            // As on a GPU, the sum of both is rounded before it is added to the residual.
            if let Some(other) = plus {
                let other = Rows::dense(other, y.width);
                self.run_all(&[other], [y.first(rows)], |cpu, other, [y]| cpu.add(other[0].buffer, y.joined(rows)));
            }
        }
    }
    fn fused_linear_backward(&mut self, dy: &[Rows], dt: &[Rows], weight: &FusedWeight, dx: Rows, rows: usize) {
        let weight = self.dense_weights(weight);
        let read: Vec<Rows> = dy.iter().chain(dt).map(|given| given.first(rows)).collect();
        self.run_all(&read, [dx.first(rows)], |cpu, read, [dx]| {
            let (dy, dt) = read.split_at(dy.len());
            cpu.fused_linear_backward(dy, dt, &weight, dx, rows);
        });
    }
    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        self.run([], [y], |cpu, [], [y]| cpu.add_bias(y, bias, rows));
    }
    fn bias_gradient(&mut self, dy: Rows, gradient: Buffer, rows: usize) {
        self.run_all(&[dy.first(rows)], [], |cpu, dy, []| cpu.bias_gradient(dy[0], gradient, rows));
    }
    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Rows, rows: usize, epsilon: f32) {
        let x = Rows::dense(x, y.width);
        self.run_all(&[x], [y.first(rows)], |cpu, x, [y]| cpu.rms_norm(x[0].buffer, weight, y, rows, epsilon));
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
        let [dy, x] = [dy, x].map(|buffer| Rows::dense(buffer, dx.width));
        self.run_all(&[dy, x], [dx.first(rows)], |cpu, read, [dx]| {
            cpu.rms_norm_backward(read[0].buffer, read[1].buffer, weight, dx, gradient, rows, epsilon, write);
        });
    }
    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.run([], [x.buffer], |cpu, [], [buffer]| {
            cpu.rotate(Heads { buffer, ..x }, head_size, cosines, sines, rows);
        });
    }
    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.run([], [dx.buffer], |cpu, [], [buffer]| {
            cpu.rotate_backward(Heads { buffer, ..dx }, head_size, cosines, sines, rows);
        });
    }
    fn attend(&mut self, attention: &Attention, y: Rows, lse: Buffer) {
        self.run_all(&heads_of(attention), [y], |cpu, given, [y]| cpu.attend(&over(attention, given), y, lse));
    }
    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        workspace: Option<Buffer>,
        y: Rows,
    ) {
        self.run_all(&heads_of(attention), [y], |cpu, given, [y]| {
            cpu.attend_kv_cache(&over(attention, given), firsts, lengths, workspace, y);
        });
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
        let mut read = heads_of(attention).to_vec();
        read.extend([y, Rows::dense(dy, y.width)]);
        let whole = |heads: Heads| Rows::dense(heads.buffer, 1);
        // Side by side in one buffer, which begins with the queries.
        if dq.buffer.id == dk.buffer.id {
            return self.run_all(&read, [whole(dq)], |cpu, read, [all]| {
                let moved = |heads: Heads| {
                    let offset = heads.offset + heads.buffer.offset - dq.buffer.offset;
                    Heads { buffer: all.buffer, offset, ..heads }
                };
                let [dq, dk, dv] = [dq, dk, dv].map(moved);
                cpu.attend_backward(&over(attention, read), read[3], lse, read[4].buffer, dq, dk, dv);
            });
        }
        self.run_all(&read, [whole(dq), whole(dk), whole(dv)], |cpu, read, [to_q, to_k, to_v]| {
            let with = |heads: Heads, rows: Rows| Heads { buffer: rows.buffer, ..heads };
            let (dq, dk, dv) = (with(dq, to_q), with(dk, to_k), with(dv, to_v));
            cpu.attend_backward(&over(attention, read), read[3], lse, read[4].buffer, dq, dk, dv);
        });
    }
    fn swiglu(&mut self, gate: Rows, up: Rows, y: Rows, rows: usize) {
        let read = [gate, up].map(|given| given.first(rows));
        self.run_all(&read, [y.first(rows)], |cpu, read, [y]| cpu.swiglu(read[0], read[1], y, rows));
    }
    fn swiglu_backward(&mut self, dy: Rows, gate: Rows, up: Rows, dgate: Rows, y: Option<Rows>, rows: usize) {
        if let Some(y) = y {
            self.swiglu(gate, up, y, rows);
        }
        let (read, written) = ([gate, up].map(|given| given.first(rows)), [dy, dgate].map(|given| given.first(rows)));
        self.run_all(&read, written, |cpu, read, [dy, dgate]| {
            cpu.swiglu_backward(dy, read[0], read[1], dgate, None, rows);
        });
    }
    fn gelu(&mut self, x: Buffer, y: Buffer) {
        self.run([x], [y], |cpu, [x], [y]| cpu.gelu(x, y));
    }
    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer) {
        if dx != dy {
            self.copy(dy, dx);
        }
        self.run([x], [dx], |cpu, [x], [dx]| cpu.gelu_backward(dx, x, dx));
    }
    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize) {
        check(weight);
        self.run([], [y], |cpu, [], [y]| cpu.embed(weight, tokens, y, rows));
    }
    fn embed_backward(&mut self, dy: Rows, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        self.run_all(&[dy.first(rows)], [], |cpu, dy, []| cpu.embed_backward(dy[0], tokens, gradient, rows, skipped));
    }
    fn gather(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        self.run_all(&[x], [y.first(rows)], |cpu, x, [y]| cpu.gather(x[0], places, y, rows));
    }
    fn scatter(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize) {
        self.run_all(&[x.first(rows)], [y], |cpu, x, [y]| cpu.scatter(x[0], places, y, rows));
    }
    fn keep_own(&mut self, x: Rows, owners: Buffer, each: usize, of: usize, rows: usize) {
        self.run_all(&[], [x.first(rows)], |cpu, _, [x]| cpu.keep_own(x, owners, each, of, rows));
    }
    fn copy_rows(&mut self, x: Rows, y: Rows, rows: usize) {
        self.run_all(&[x.first(rows)], [y.first(rows)], |cpu, x, [y]| cpu.copy_rows(x[0], y, rows));
    }
    fn dropout(&mut self, x: Rows, y: Rows, rows: usize, rate: f32, seed: Seed, write: Write) {
        self.run_all(&[x.first(rows)], [y.first(rows)], |cpu, x, [y]| cpu.dropout(x[0], y, rows, rate, seed, write));
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
        self.run([], [logits], |cpu, [], [logits]| cpu.cross_entropy(logits, targets, losses, hits, rows, scalars));
    }
    fn add_losses(&mut self, losses: Buffer, hits: Buffer, sums: Buffer, scalars: Buffer) {
        self.run([], [], |cpu, [], []| cpu.add_losses(losses, hits, sums, scalars));
    }
    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize) {
        self.run([logits], [], |cpu, [logits], []| cpu.best_of_rows(logits, best, rows));
    }
    fn add_squares(&mut self, x: Buffer, sum: Buffer) {
        self.run([], [], |cpu, [], []| cpu.add_squares(x, sum));
    }
    fn repeat(&mut self, _: Buffer, _: usize, work: &mut dyn FnMut(&mut dyn Device)) {
        work(self);
    }
    fn adamw(&mut self, updates: &[AdamW], clip: Option<(Buffer, f32)>) {
        self.run([], [], |cpu, [], []| cpu.adamw(updates, clip));
    }
}
