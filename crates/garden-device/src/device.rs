//! The operations of a device. Shapes are in brackets, row-major; each backward pass is next to its forward pass.

use std::fmt;

use crate::buffer::{Buffer, Dtype, Purpose, Rows, Weight};
use crate::fused::FusedWeight;
use crate::plan::{Block, Plan};
use crate::profile::Profile;
use crate::scalars::{ParameterGroup, Seed};
use crate::stages::{OperationTime, Stage, StageTimes};

/// Whether a result replaces the destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replace.
    Set,
    /// Add.
    Add,
}

/// There is not enough memory for a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The buffer's label.
    pub label: String,
    /// Its size.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not enough memory for `{}` ({} bytes)", self.label, self.bytes)
    }
}

impl std::error::Error for OutOfMemory {}

/// The memory of a device with its own memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMemory {
    /// All of it.
    pub total: usize,
    /// Free.
    pub free: usize,
    /// How much less is free than when the device was opened.
    pub taken: usize,
}

/// A device that failed while computing: a GPU that was lost, a kernel that trapped. Nothing on it can be trusted any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// What happened, as a sentence without a full stop.
    pub problem: String,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for DeviceError {}

/// Upper bounds for the workspace of operations, besides their buffers. Devices use the ones they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Columns of the widest weight that is not f32: it is widened tile by tile.
    pub widest: usize,
    /// Values of the largest matrix with an NF4 weight in it: some devices dequantise it as a whole.
    pub largest_packed: usize,
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Values of the longest trainable bias or norm.
    pub longest_vector: usize,
    /// Tokens of the longest attention segment.
    pub longest: usize,
    /// The largest head dimension.
    pub head_size: usize,
    /// Tokens that attention runs over at once.
    pub attention_tokens: usize,
    /// Number of segments of those tokens.
    pub segments: usize,
    /// Query heads of all those tokens.
    pub query_heads: usize,
    /// Values of all query heads that share key heads, for the backward pass.
    pub grouped_values: usize,
}

/// Heads in a buffer: value `d` of head `h` of token `t` is at `offset + t * stride + h * head_size + d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The buffer.
    pub buffer: Buffer,
    /// Offset of the first head of the first token.
    pub offset: usize,
    /// Stride between tokens.
    pub stride: usize,
    /// Number of heads.
    pub heads: usize,
}

/// Attention over segments of variable length that never attend to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Queries `[tokens, heads, head_size]`.
    pub query: Heads,
    /// Keys `[tokens, kv heads, head_size]`; query head h reads key head h / (heads / kv heads).
    pub key: Heads,
    /// Values `[tokens, kv heads, head_size]`.
    pub value: Heads,
    /// Head dimension.
    pub head_size: usize,
    /// Start of each segment, and the end of the last: i32 `[segments + 1]`.
    pub cu_seqlens: Buffer,
    /// Number of segments.
    pub segments: usize,
    /// Queries of the longest segment, known to the host; some devices choose kernels by it.
    pub longest: usize,
    /// Whether a token attends only to itself and the tokens before it.
    pub is_causal: bool,
}

/// The optimizer moments of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// In f32.
    F32 {
        /// First moment.
        first: Buffer,
        /// Second moment.
        second: Buffer,
    },
    /// 8-bit codes with a scale per block ([`crate::dynamic_8bit`]).
    Int8 {
        /// Codes of the first and second moment, a byte per value.
        codes: [Buffer; 2],
        /// Their scales: f32 per 256 values.
        scales: [Buffer; 2],
    },
}

/// The copy of a parameter in the activation dtype, for matrix products.
///
/// It is rounded up or down by a threshold of each value's own: on average, a change far below the distance of two 16-bit values arrives. Rounded to the nearest,
/// weights that begin as 16-bit values would stay what they are until their changes add up to half of that distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shadow {
    /// Where it lies; rows are as wide as the parameter's.
    pub rows: Rows,
    /// Its values are this times the parameter's.
    pub scale: f32,
}

/// One update of AdamW with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The master copy of the parameter, f32.
    pub value: Buffer,
    /// Its copy for matrix products; refreshed by the update.
    pub shadow: Option<Shadow>,
    /// Its gradient.
    pub gradient: Buffer,
    /// Its moments.
    pub moments: Moments,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Epsilon, added to the square root.
    pub epsilon: f32,
    /// Weight decay; 0 for none.
    pub decay: f32,
    /// The step's scalars ([`crate::StepScalars`]): learning rate and numbers of updates.
    pub scalars: Buffer,
    /// The group whose number of updates counts.
    pub group: ParameterGroup,
}

/// A device that holds buffers and fills them.
///
/// Operations are queued: they run in order, are done when their results are read, and return nothing to the
/// host. Failures are latched: later operations do nothing, and whatever reads from the device returns the error, so no result of a failed
/// device can reach a file. Mismatched sizes and dtypes are bugs of the model's code, and panic. Operands of one operation
/// must not overlap with anything it writes, unless the operation allows it.
///
/// "Activations" are buffers of the profile's dtype; gradients of activations have it too.
pub trait Device {
    /// The device's profile.
    fn profile(&self) -> &Profile;

    /// Allocates all memory of a plan at once ([`Plan::total`]), before its first buffer. Some devices allocate buffer by buffer instead.
    fn prepare(&mut self, _bytes: usize) -> Result<(), OutOfMemory> {
        Ok(())
    }

    /// The device's own memory, as counted by its driver; `None` for a CPU, which uses the host's.
    fn own_memory(&self) -> Option<OwnMemory> {
        None
    }

    /// A new buffer of zeros.
    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory>;

    /// Opens a block: one piece of memory for all buffers requested while it is entered.
    ///
    /// They are consecutive, so that one operation can fill all of them, or overlap if they are never in use at the same time.
    fn open_block(&mut self) -> Block;

    /// Puts the following buffers into a block, or into separate memory again. Nothing of a block may be used before it is closed.
    fn enter_block(&mut self, block: Option<Block>);

    /// The following buffers overlap those already in the block.
    fn branch_block(&mut self, block: Block);

    /// Closes a block; returns all of it, including zeros between its buffers, as values of one dtype.
    fn close_block(&mut self, block: Block, dtype: Dtype) -> Result<Buffer, OutOfMemory>;

    /// Allocates the workspace of operations, besides their buffers.
    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory>;

    /// The plan of all buffers.
    fn plan(&self) -> &Plan;

    /// Whether it computes: a device that does not need not be given any values.
    fn computes(&self) -> bool;

    /// Starts work on a batch: operations queued before it are done with the buffers of other batches.
    fn begin_batch(&mut self) {}

    /// While this is on, uploads may overtake the work on the current batch, but nothing before it: they fill buffers that this work does not
    /// use. Operations queued after it was turned off see the uploaded values.
    fn upload_ahead(&mut self, _is_ahead: bool) {}

    /// For tests: fails like a GPU that is lost while computing.
    fn fail(&mut self) {}

    /// Fills a buffer from the host with bytes of its dtype. They are copied before this returns.
    fn upload(&mut self, to: Buffer, bytes: &[u8]);

    /// Fills a floating-point buffer from f32.
    fn upload_f32(&mut self, to: Buffer, values: &[f32]) {
        let mut bytes = vec![0; values.len() * to.dtype().size()];
        to.dtype().narrow(values, &mut bytes);
        self.upload(to, &bytes);
    }

    /// Fills rows from the host with bytes of their dtype, rows one behind the other.
    fn upload_rows(&mut self, to: Rows, bytes: &[u8]) {
        let rows = bytes.len() / (to.width * to.buffer.dtype().size()).max(1);
        self.upload(to.joined(rows), bytes);
    }

    /// Waits, and copies a floating-point buffer to the host as f32.
    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError>;

    /// Waits, and copies a buffer of any dtype to the host as bytes.
    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError>;

    /// Waits for all queued operations.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Marks the stage of a step that the following operations belong to. It waits for nothing, and does nothing unless stages are timed.
    fn mark(&mut self, _stage: Stage) {}

    /// Times stages from now on.
    fn time_stages(&mut self) {}

    /// Times every operation from now on, which slows each of them a little.
    fn time_operations(&mut self) {}

    /// Waits, and returns the times of operations since the last call, the longest first; empty for a device that cannot time them.
    fn operation_times(&mut self) -> Result<Vec<OperationTime>, DeviceError> {
        Ok(Vec::new())
    }

    /// Waits, and returns the times of stages since the last call. The stage marked last is still running. All zero for a device that
    /// does not time.
    fn stage_times(&mut self) -> Result<StageTimes, DeviceError> {
        Ok(StageTimes::default())
    }

    /// Fills with zeros. Any dtype.
    fn zero(&mut self, x: Buffer);

    /// y = x, activations.
    fn copy(&mut self, x: Buffer, y: Buffer);

    /// y = x, between floating-point dtypes: rounds to nearest even.
    fn cast(&mut self, x: Buffer, y: Buffer);

    /// The copy of a parameter for matrix products.
    fn cast_shadow(&mut self, value: Buffer, shadow: Shadow);

    /// y = x, `rows` rows of activations.
    fn copy_rows(&mut self, x: Rows, y: Rows, rows: usize) {
        self.copy(x.joined(rows), y.joined(rows));
    }

    /// Rows of which each keeps the columns of its owner, activations: of `x [rows, width]`, whose columns belong in groups of `each` to `of` owners in
    /// turn, everything becomes zero but the columns of the row's own in `owners`, i32 `[rows]`. A negative owner has none.
    fn keep_own(&mut self, x: Rows, owners: Buffer, each: usize, of: usize, rows: usize);

    /// y += x, activations.
    fn add(&mut self, x: Buffer, y: Buffer);

    /// x *= the gradient scale of the step's scalars; x is f32.
    fn scale(&mut self, x: Buffer, scalars: Buffer);

    /// y `[rows, n]` = scale x `[rows, k]` W `[n, k]`^T.
    fn matmul(&mut self, x: Rows, weight: &Weight, y: Rows, rows: usize, scale: f32, write: Write);

    /// dx `[rows, k]` = scale dy `[rows, n]` W `[n, k]`.
    fn matmul_backward(&mut self, dy: Rows, weight: &Weight, dx: Rows, rows: usize, scale: f32, write: Write);

    /// dW `[n, k]` += scale dy `[rows, n]`^T x `[rows, k]`; dW is f32.
    fn weight_gradient(&mut self, dy: Rows, x: Rows, gradient: &Weight, rows: usize, scale: f32);

    /// `y [rows, n] += bias [n]`, for every row; the bias is f32.
    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize);

    /// `dbias [n] +=` sum over the rows of `dy [rows, n]`; dbias is f32.
    fn bias_gradient(&mut self, dy: Rows, gradient: Buffer, rows: usize);

    /// t `[rows, rank]` = x A^T of every adapter. On a joined device they lie side by side.
    fn fused_down(&mut self, x: Rows, weight: &FusedWeight, t: &[Rows], rows: usize) {
        for (adapter, t) in weight.adapters().zip(t) {
            self.matmul(x, &adapter.down, *t, rows, 1.0, Write::Set);
        }
    }

    /// y `[rows, outputs]` = x W^T + bias + s t B^T of every part, summed before it is rounded; then `plus` is added, the input of a residual connection.
    /// Without `t` adapters take no part. On a joined device, the parts of y lie side by side, and t behind x.
    fn fused_linear(
        &mut self,
        x: Rows,
        t: &[Rows],
        weight: &FusedWeight,
        y: &[Rows],
        rows: usize,
        plus: Option<Buffer>,
    ) {
        let mut t = t.iter();
        for (part, y) in weight.parts.iter().zip(y) {
            let adapter = part.adapter.as_ref().and_then(|adapter| Some((adapter, *t.next()?)));
            let write = match (plus, adapter) {
                (Some(other), _) => {
                    self.copy(other, y.joined(rows));
                    Write::Add
                }
                (None, Some((adapter, t))) => {
                    self.matmul(t, &adapter.up, *y, rows, adapter.scale, Write::Set);
                    Write::Add
                }
                (None, None) => Write::Set,
            };
            self.matmul(x, &part.weight, *y, rows, 1.0, write);
            if let Some(bias) = part.bias {
                self.add_bias(y.joined(rows), bias, rows);
            }
            if let Some((adapter, t)) = adapter.filter(|_| plus.is_some()) {
                self.matmul(t, &adapter.up, *y, rows, adapter.scale, Write::Add);
            }
        }
    }

    /// dt `[rows, rank]` = s dy B of every adapter.
    fn fused_up_backward(&mut self, dy: &[Rows], weight: &FusedWeight, dt: &[Rows], rows: usize) {
        let adapted = weight.parts.iter().zip(dy).filter_map(|(part, dy)| Some((part.adapter.as_ref()?, *dy)));
        for ((adapter, dy), dt) in adapted.zip(dt) {
            self.matmul_backward(dy, &adapter.up, *dt, rows, adapter.scale, Write::Set);
        }
    }

    /// dx `[rows, inputs]` = the sum over all parts of dy W + dt A, summed before it is rounded. Without `dt` adapters take no part. On a joined device, the
    /// parts of dy lie side by side, and dt behind them.
    fn fused_linear_backward(&mut self, dy: &[Rows], dt: &[Rows], weight: &FusedWeight, dx: Rows, rows: usize) {
        let mut dt = dt.iter();
        for (number, (part, dy)) in weight.parts.iter().zip(dy).enumerate() {
            let adapter = part.adapter.as_ref().and_then(|adapter| Some((adapter, *dt.next()?)));
            match (number, adapter) {
                (0, Some((adapter, dt))) => {
                    self.matmul_backward(dt, &adapter.down, dx, rows, 1.0, Write::Set);
                    self.matmul_backward(*dy, &part.weight, dx, rows, 1.0, Write::Add);
                }
                (_, adapter) => {
                    let write = if number == 0 { Write::Set } else { Write::Add };
                    self.matmul_backward(*dy, &part.weight, dx, rows, 1.0, write);
                    if let Some((adapter, dt)) = adapter {
                        self.matmul_backward(dt, &adapter.down, dx, rows, 1.0, Write::Add);
                    }
                }
            }
        }
    }

    /// dA += dt^T x of every adapter; gradients are f32.
    fn fused_down_gradient(&mut self, dt: &[Rows], x: Rows, gradients: &[Weight], rows: usize) {
        for (dt, gradient) in dt.iter().zip(gradients) {
            self.weight_gradient(*dt, x, gradient, rows, 1.0);
        }
    }

    /// y `[rows, n]` = w x / sqrt(mean(x^2) + eps), row by row; w is f32.
    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Rows, rows: usize, epsilon: f32);

    /// dx `[rows, n]` from dy `[rows, n]`; the gradient of w is added to `gradient`, f32, if given.
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
    );

    /// Rotary embedding: rotates the pairs (i, i + half) of every head of `rows` tokens by angles whose cosines and sines are f32 `[rows, half]`.
    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize);

    /// Rotates back, which is also the backward pass of `rotate`.
    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize);

    /// Attention into `y` `[tokens, heads * head_size]`. The log-sum-exp of each row of scores goes to `lse`, f32 `[tokens, heads]`.
    fn attend(&mut self, attention: &Attention, y: Rows, lse: Buffer);

    /// Attention over a KV cache into `y` `[tokens, heads * head_size]`, forward only.
    ///
    /// Keys and values are in the cache; `cu_seqlens` splits the queries. The queries of segment s are the last of the `lengths[s]`
    /// tokens in the cache from token `firsts[s]` on, and each attends to itself and the tokens before it. `workspace` has the profile's size
    /// ([`Profile::kv_cache_workspace`]).
    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        workspace: Option<Buffer>,
        y: Rows,
    );

    /// Gradients of queries, keys and values from `dy`; the forward pass's outputs are given again. The three may lie in one buffer, as in a
    /// fused qkv projection; the rest of it stays unchanged.
    fn attend_backward(
        &mut self,
        attention: &Attention,
        y: Rows,
        lse: Buffer,
        dy: Buffer,
        dq: Heads,
        dk: Heads,
        dv: Heads,
    );

    /// y `[rows, inner]` = silu(gate) up, elementwise.
    fn swiglu(&mut self, gate: Rows, up: Rows, y: Rows, rows: usize);

    /// dgate `[rows, inner]` from dy and the saved gate and up; dy is replaced by dup. The output of `swiglu` is recomputed if wanted, as all
    /// its inputs are at hand. No operands may overlap.
    fn swiglu_backward(&mut self, dy: Rows, gate: Rows, up: Rows, dgate: Rows, y: Option<Rows>, rows: usize);

    /// y = exact GELU of x, elementwise.
    fn gelu(&mut self, x: Buffer, y: Buffer);

    /// dx from dy and x; `dx` may be `dy`.
    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer);

    /// y `[rows, columns of W]` = the rows of W at the tokens.
    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize);

    /// dW += dy, row by row, in token order, except for tokens in `skipped`. dW is f32.
    fn embed_backward(&mut self, dy: Rows, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]);

    /// y `[rows, width]` = rows of x at `places`.
    fn gather(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize);

    /// Rows of y at `places`, each at most once, = x `[rows, width]`.
    fn scatter(&mut self, x: Rows, places: Buffer, y: Rows, rows: usize);

    /// Dropout: y `[rows, width]` = x / (1 - rate) or 0, by a random number for (seed, index in x). The same seed gives the same choice.
    fn dropout(&mut self, x: Rows, y: Rows, rows: usize, rate: f32, seed: Seed, write: Write);

    /// Each row's loss for its target and whether that is a hit, f32 `[rows]`, and in place of the logits `[rows, vocabulary]`, activations, the gradient
    /// of the summed losses times the loss scale of the step's scalars. A hit is 1 where the target is the first of the largest logits, as an
    /// argmax has it, else 0.
    fn cross_entropy(
        &mut self,
        logits: Buffer,
        targets: Buffer,
        losses: Buffer,
        hits: Buffer,
        rows: usize,
        scalars: Buffer,
    );

    /// `sums [2] +=` the loss scale of the step's scalars times the sum of the losses, and the sum of the hits, which is not scaled; all f32.
    fn add_losses(&mut self, losses: Buffer, hits: Buffer, sums: Buffer, scalars: Buffer);

    /// `sum [1] +=` sum of squares of x; both f32.
    fn add_squares(&mut self, x: Buffer, sum: Buffer);

    /// Index of the largest logit of each row `[rows, vocabulary]`, activations; of equal ones the first: i32 `[rows]`. NaN
    /// counts as less than everything; -1 if the largest is not finite.
    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize);

    /// Runs repeated work. A device may record its operations, and replay them when the same buffer and number are given again,
    /// without calling `work`. They must depend only on the contents of buffers, and must neither upload nor download anything.
    fn repeat(&mut self, buffer: Buffer, number: usize, work: &mut dyn FnMut(&mut dyn Device));

    /// AdamW updates. With `clip`, gradients are scaled down to that norm first: (f32 `[1]` with the sum of all squares, largest norm).
    fn adamw(&mut self, updates: &[AdamW], clip: Option<(Buffer, f32)>);
}
