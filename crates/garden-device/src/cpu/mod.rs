//! The CPU device: the specification of every operation, with f32 sums, on all cores.
//!
//! Work is cut into pieces that do not depend on who does them, so the same seed and number of threads give the same bits.

mod arena;
mod attention;
mod elementwise;
mod exponential;
mod few;
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

use arena::Arena;
use threads::Threads;
pub(crate) use widen::{narrow_bytes, widen_bytes};

use crate::buffer::{Buffer, Dtype, Purpose, Weight};
use crate::device::{AdamW, Attention, Device, Heads, Moments, OutOfMemory, Reserve, Write};
use crate::plan::Plan;

/// Rows and columns of a weight that a thread widens at once.
const TILE_ROWS: usize = 256;
const TILE_COLUMNS: usize = 2048;
/// Queries that attention works on at once.
const QUERY_BLOCK: usize = 64;

/// A device that computes on the host.
#[derive(Debug)]
pub struct Cpu {
    arena: Arena,
    threads: Threads,
    /// Tiles of a weight as f32, for each thread.
    tiles: Option<Buffer>,
    /// Scores of attention, for each thread.
    scores: Option<Buffer>,
}

impl Cpu {
    /// A device with so many threads; 0 for all cores.
    pub fn new(threads: usize) -> Cpu {
        Cpu { arena: Arena::default(), threads: Threads::new(threads), tiles: None, scores: None }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.number()
    }
}

/// What operations need besides their buffers, as names and numbers of f32.
pub(crate) fn workspace(reserve: Reserve, threads: usize) -> [(&'static str, usize); 2] {
    // Attention keeps probabilities and their gradients of a block of queries, and sums of keys and values in the backward pass.
    [
        ("weight tiles", threads * TILE_ROWS * reserve.widest.min(TILE_COLUMNS)),
        ("attention scores", threads * 2 * QUERY_BLOCK * reserve.longest),
    ]
}

impl Device for Cpu {
    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory> {
        self.arena.buffer(purpose, label, dtype, length)
    }

    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory> {
        let [tile, scores] = workspace(reserve, self.threads.number());
        self.tiles = Some(self.buffer(Purpose::Workspace, tile.0, Dtype::F32, tile.1)?);
        self.scores = Some(self.buffer(Purpose::Workspace, scores.0, Dtype::F32, scores.1)?);
        Ok(())
    }

    fn plan(&self) -> &Plan {
        self.arena.plan()
    }

    fn computes(&self) -> bool {
        true
    }

    fn upload(&mut self, to: Buffer, bytes: &[u8]) {
        self.arena.upload(to, bytes);
    }

    fn download(&mut self, from: Buffer, to: &mut [f32]) {
        to.copy_from_slice(self.arena.read(from));
    }

    fn download_bytes(&mut self, from: Buffer) -> Vec<u8> {
        self.arena.read_bytes(from).to_vec()
    }

    fn zero(&mut self, x: Buffer) {
        self.threads.by_rows(self.arena.write(x), 1, |_, x| x.fill(0.0));
    }

    fn scale(&mut self, x: Buffer, factor: f32) {
        self.threads.by_rows(self.arena.write(x), 1, |_, x| x.iter_mut().for_each(|value| *value *= factor));
    }

    fn copy(&mut self, x: Buffer, y: Buffer) {
        self.arena.apart(&[x], &[y]);
        let x = self.arena.read(x);
        self.threads.by_rows(self.arena.write(y), 1, |first, y| y.copy_from_slice(&x[first..first + y.len()]));
    }

    fn add(&mut self, x: Buffer, y: Buffer) {
        self.arena.apart(&[x], &[y]);
        elementwise::add(&self.threads, self.arena.read(x), self.arena.write(y));
    }

    fn matmul(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        self.product(x, weight, y, rows, scale, write);
    }

    fn matmul_backward(&mut self, dy: Buffer, weight: &Weight, dx: Buffer, rows: usize, scale: f32, write: Write) {
        self.product_backward(dy, weight, dx, rows, scale, write);
    }

    fn weight_gradient(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        self.outer_product(dy, x, gradient, rows, scale);
    }

    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize) {
        self.arena.apart(&[bias], &[y]);
        let bias = self.arena.widened(bias);
        elementwise::add_bias(&self.threads, self.arena.write(y), &bias, rows);
    }

    fn bias_gradient(&mut self, dy: Buffer, gradient: Buffer, rows: usize) {
        self.arena.apart(&[dy], &[gradient]);
        elementwise::bias_gradient(&self.threads, self.arena.read(dy), self.arena.write(gradient), rows);
    }

    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Buffer, rows: usize, epsilon: f32) {
        self.arena.apart(&[x, weight], &[y]);
        let weight = self.arena.widened(weight);
        norm::forward(&self.threads, self.arena.read(x), &weight, self.arena.write(y), rows, epsilon);
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
        let written: Vec<Buffer> = [Some(dx), gradient].into_iter().flatten().collect();
        self.arena.apart(&[dy, x, weight], &written);
        let weight = self.arena.widened(weight);
        let (dy, x, dx) = (self.arena.read(dy), self.arena.read(x), self.arena.write(dx));
        let gradient = gradient.map(|gradient| self.arena.write(gradient));
        norm::backward(&self.threads, dy, x, &weight, dx, gradient, rows, epsilon, write);
    }

    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.arena.apart(&[cosines, sines], &[x.buffer]);
        let (cosines, sines) = (self.arena.read(cosines), self.arena.read(sines));
        rotary::rotate(&self.threads, self.arena.write(x.buffer), x, head_size, cosines, sines, rows, 1.0);
    }

    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize) {
        self.arena.apart(&[cosines, sines], &[dx.buffer]);
        let (cosines, sines) = (self.arena.read(cosines), self.arena.read(sines));
        rotary::rotate(&self.threads, self.arena.write(dx.buffer), dx, head_size, cosines, sines, rows, -1.0);
    }

    fn attend(&mut self, attention: &Attention, y: Buffer, lse: Buffer) {
        attention::forward(self, attention, y, lse);
    }

    fn attend_kv_cache(&mut self, attention: &Attention, firsts: Buffer, lengths: Buffer, y: Buffer) {
        attention::forward_cached(self, attention, firsts, lengths, y);
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
        attention::backward(self, attention, y, lse, dy, dq, dk, dv);
    }

    fn swiglu(&mut self, gate: Buffer, up: Buffer, y: Buffer) {
        self.arena.apart(&[gate, up], &[y]);
        elementwise::swiglu(&self.threads, self.arena.read(gate), self.arena.read(up), self.arena.write(y));
    }

    fn swiglu_backward(&mut self, dy: Buffer, gate: Buffer, up: Buffer, dgate: Buffer, dup: Buffer) {
        self.arena.apart(&[dy, gate, up], &[dgate, dup]);
        let (dgate, dup) = (self.arena.write(dgate), self.arena.write(dup));
        elementwise::swiglu_backward(
            &self.threads,
            self.arena.read(dy),
            self.arena.read(gate),
            self.arena.read(up),
            dgate,
            dup,
        );
    }

    fn gelu(&mut self, x: Buffer, y: Buffer) {
        self.arena.apart(&[x], &[y]);
        elementwise::gelu(&self.threads, self.arena.read(x), self.arena.write(y));
    }

    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer) {
        self.arena.apart(&[x], &[dx]);
        if dx != dy {
            self.copy(dy, dx);
        }
        elementwise::gelu_backward(&self.threads, self.arena.read(x), self.arena.write(dx));
    }

    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize) {
        self.arena.apart(&[weight.buffer, tokens], &[y]);
        rows::embed(&self.arena, &self.threads, weight, self.arena.read_whole(tokens), self.arena.write(y), rows);
    }

    fn embed_backward(&mut self, dy: Buffer, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]) {
        self.arena.apart(&[dy, tokens], &[gradient.buffer]);
        let (dy, tokens) = (self.arena.read(dy), self.arena.read_whole(tokens));
        rows::embed_backward(dy, tokens, self.arena.write(gradient.buffer), rows, gradient.columns, skipped);
    }

    fn gather(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        self.arena.apart(&[x, places], &[y]);
        rows::gather(
            &self.threads,
            self.arena.read(x),
            self.arena.read_whole(places),
            self.arena.write(y),
            rows,
            width,
        );
    }

    fn scatter(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
        self.arena.apart(&[x, places], &[y]);
        rows::scatter(self.arena.read(x), self.arena.read_whole(places), self.arena.write(y), rows, width);
    }

    fn dropout(&mut self, x: Buffer, y: Buffer, rate: f32, seed: u64, write: Write) {
        self.arena.apart(&[x], &[y]);
        elementwise::dropout(&self.threads, self.arena.read(x), self.arena.write(y), rate, seed, write);
    }

    fn cross_entropy(&mut self, logits: Buffer, targets: Buffer, losses: Buffer, rows: usize, scale: f32) {
        self.arena.apart(&[targets], &[logits, losses]);
        let (logits, losses) = (self.arena.write(logits), self.arena.write(losses));
        loss::cross_entropy(&self.threads, logits, self.arena.read_whole(targets), losses, rows, scale);
    }

    fn add_squares(&mut self, x: Buffer, sum: Buffer) {
        self.arena.apart(&[x], &[sum]);
        optimizer::add_squares(&self.threads, self.arena.read(x), self.arena.write(sum));
    }

    fn adamw(&mut self, update: &AdamW, clip: Option<(Buffer, f32)>) {
        let shrink = clip.map_or(1.0, |(squares, largest)| optimizer::shrink(self.arena.read(squares)[0], largest));
        let (value, gradient) = (self.arena.write(update.value), self.arena.read(update.gradient));
        match update.moments {
            Moments::F32 { first, second } => {
                self.arena.apart(&[update.gradient], &[update.value, first, second]);
                let (first, second) = (self.arena.write(first), self.arena.write(second));
                optimizer::adamw(&self.threads, update, shrink, value, gradient, first, second);
            }
            Moments::Int8 { codes, scales } => {
                self.arena.apart(&[update.gradient], &[update.value, codes[0], codes[1], scales[0], scales[1]]);
                let codes = codes.map(|codes| self.arena.write_bytes(codes));
                let scales = scales.map(|scales| self.arena.write(scales));
                optimizer::adamw_narrow(&self.threads, update, shrink, value, gradient, codes, scales);
            }
        }
    }
}
