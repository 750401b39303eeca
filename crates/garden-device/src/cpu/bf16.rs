//! A CPU device with bf16 activations, as on a GPU: the reference for what bf16 costs in precision, and the test that model code
//! assumes no dtype. Frozen matrices are bf16, rows inside layers are padded, two batches are held.
//!
//! An operation widens its activations, computes in f32 like [`Cpu`], and rounds its outputs: one rounding per value that
//! reaches memory. That is slow, and as simple as possible. It can also be made to fail, as a GPU may.

use crate::buffer::{Buffer, Dtype, Purpose, Weight};
use crate::device::{AdamW, Attention, Device, DeviceError, Heads, OutOfMemory, Plus, Reserve, Write};
use crate::plan::{Block, Plan};
use crate::profile::Profile;
use crate::scalars::Seed;
use crate::stages::{Stage, StageTimes};

use super::Cpu;
use super::arena::apart;
use super::threads::Threads;

/// First id of the memory for widened activations: no plan reaches it.
const FIRST_WIDE: u32 = 1 << 31;

/// A device that computes on the host, with bf16 activations.
#[derive(Debug)]
pub struct CpuBf16 {
    cpu: Cpu,
    /// Lengths of the memory for widened activations, allocated on first use: for tests that is early enough.
    wide: Vec<usize>,
    /// Operations until a simulated failure, if any.
    operations_left: Option<usize>,
    failure: Option<DeviceError>,
}

impl CpuBf16 {
    /// A device with `threads` threads; 0 for all cores.
    pub fn new(threads: usize) -> CpuBf16 {
        let threads = Threads::new(threads);
        let cpu = Cpu::with_profile(Profile::cpu_bf16(threads.number()), threads);
        CpuBf16 { cpu, wide: Vec::new(), operations_left: None, failure: None }
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

/// The same attention over other buffers.
fn over(attention: &Attention, [q, k, v]: [Buffer; 3]) -> Attention {
    let with = |heads: Heads, buffer: Buffer| Heads { buffer, ..heads };
    Attention {
        query: with(attention.query, q),
        key: with(attention.key, k),
        value: with(attention.value, v),
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
    fn add(&mut self, x: Buffer, y: Buffer) {
        self.run([x], [y], |cpu, [x], [y]| cpu.add(x, y));
    }
    fn scale(&mut self, x: Buffer, scalars: Buffer) {
        self.run([], [], |cpu, [], []| cpu.scale(x, scalars));
    }
    fn matmul(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        check(weight);
        self.run([x], [y], |cpu, [x], [y]| cpu.matmul(x, weight, y, rows, scale, write));
    }
    fn linear(&mut self, x: Buffer, weight: &Weight, bias: Option<Buffer>, y: Buffer, rows: usize, plus: Plus) {
        check(weight);
        // Everything is summed before rounding.
        match plus {
            Plus::Other(other) => self.run([x, other], [y], |cpu, [x, other], [y]| {
                cpu.linear(x, weight, bias, y, rows, Plus::Other(other));
            }),
            plus => self.run([x], [y], |cpu, [x], [y]| cpu.linear(x, weight, bias, y, rows, plus)),
        }
    }
    fn matmul_backward(&mut self, dy: Buffer, weight: &Weight, dx: Buffer, rows: usize, scale: f32, write: Write) {
        check(weight);
        self.run([dy], [dx], |cpu, [dy], [dx]| cpu.matmul_backward(dy, weight, dx, rows, scale, write));
    }
    fn weight_gradient(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        self.run([dy, x], [], |cpu, [dy, x], []| cpu.weight_gradient(dy, x, gradient, rows, scale));
    }
    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        self.run([], [y], |cpu, [], [y]| cpu.add_bias(y, bias, rows));
    }
    fn bias_gradient(&mut self, dy: Buffer, gradient: Buffer, rows: usize) {
        self.run([dy], [], |cpu, [dy], []| cpu.bias_gradient(dy, gradient, rows));
    }
    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Buffer, rows: usize, epsilon: f32) {
        self.run([x], [y], |cpu, [x], [y]| cpu.rms_norm(x, weight, y, rows, epsilon));
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
        self.run([dy, x], [dx], |cpu, [dy, x], [dx]| {
            cpu.rms_norm_backward(dy, x, weight, dx, gradient, rows, epsilon, write);
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
    fn attend(&mut self, attention: &Attention, y: Buffer, lse: Buffer) {
        let Attention { query, key, value, .. } = attention;
        self.run([query.buffer, key.buffer, value.buffer], [y], |cpu, given, [y]| {
            cpu.attend(&over(attention, given), y, lse);
        });
    }
    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        workspace: Option<Buffer>,
        y: Buffer,
    ) {
        let Attention { query, key, value, .. } = attention;
        self.run([query.buffer, key.buffer, value.buffer], [y], |cpu, given, [y]| {
            cpu.attend_kv_cache(&over(attention, given), firsts, lengths, workspace, y);
        });
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
        let Attention { query, key, value, .. } = attention;
        let read = [query.buffer, key.buffer, value.buffer, y, dy];
        if dq.buffer == dk.buffer && dq.buffer == dv.buffer {
            return self.run(read, [dq.buffer], |cpu, [q, k, v, y, dy], [buffer]| {
                let [dq, dk, dv] = [dq, dk, dv].map(|heads| Heads { buffer, ..heads });
                cpu.attend_backward(&over(attention, [q, k, v]), y, lse, dy, dq, dk, dv);
            });
        }
        self.run(read, [dq.buffer, dk.buffer, dv.buffer], |cpu, [q, k, v, y, dy], [to_q, to_k, to_v]| {
            let with = |heads: Heads, buffer: Buffer| Heads { buffer, ..heads };
            let attention = over(attention, [q, k, v]);
            cpu.attend_backward(&attention, y, lse, dy, with(dq, to_q), with(dk, to_k), with(dv, to_v));
        });
    }
    fn swiglu(&mut self, gate: Buffer, up: Buffer, y: Buffer) {
        self.run([gate, up], [y], |cpu, [gate, up], [y]| cpu.swiglu(gate, up, y));
    }
    fn swiglu_backward(&mut self, dy: Buffer, gate: Buffer, up: Buffer, dgate: Buffer, y: Option<Buffer>) {
        if let Some(y) = y {
            self.swiglu(gate, up, y);
        }
        self.run([gate, up], [dy, dgate], |cpu, [gate, up], [dy, dgate]| {
            cpu.swiglu_backward(dy, gate, up, dgate, None);
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
    fn embed_backward(&mut self, dy: Buffer, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        self.run([dy], [], |cpu, [dy], []| cpu.embed_backward(dy, tokens, gradient, rows, skipped));
    }
    fn gather(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        self.run([x], [y], |cpu, [x], [y]| cpu.gather(x, places, y, rows, width));
    }
    fn scatter(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        self.run([x], [y], |cpu, [x], [y]| cpu.scatter(x, places, y, rows, width));
    }
    fn dropout(&mut self, x: Buffer, y: Buffer, rate: f32, seed: Seed, write: Write) {
        self.run([x], [y], |cpu, [x], [y]| cpu.dropout(x, y, rate, seed, write));
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
    fn adamw(&mut self, update: &AdamW, clip: Option<(Buffer, f32)>) {
        self.run([], [], |cpu, [], []| cpu.adamw(update, clip));
    }
}
