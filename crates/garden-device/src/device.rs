//! What a device can do. Shapes stand in brackets, row by row; a backward pass stands beside its forward pass.

use std::fmt;

use crate::buffer::{Buffer, Dtype, Purpose, Weight};
use crate::plan::{Block, Plan};
use crate::profile::Profile;
use crate::scalars::{Part, Seed};
use crate::stages::{OperationTime, Stage, StageTimes};

/// Whether a result replaces what is there or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replace.
    Set,
    /// Add.
    Add,
}

/// What the result of a linear is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plus {
    /// Nothing.
    Nothing,
    /// What is there already.
    Itself,
    /// What another buffer of its shape has: the input of a residual connection.
    Other(Buffer),
}

/// There is not enough memory for a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub label: String,
    /// How much.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no memory for `{}` ({} bytes)", self.label, self.bytes)
    }
}

impl std::error::Error for OutOfMemory {}

/// The memory of a device that has its own, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMemory {
    /// All of it.
    pub total: usize,
    /// What nobody has taken.
    pub free: usize,
    /// How much less is free than when the device was opened.
    pub taken: usize,
}

/// A device that failed while it was computing: a GPU that was lost, a kernel that trapped. Nothing that it holds can be trusted any more.
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

/// What operations need besides their buffers, at most. Devices take of this what they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Columns of the widest weight that is not stored as f32: it is widened tile by tile.
    pub widest: usize,
    /// Values of the largest weight of 4 bits: some devices widen it as a whole.
    pub largest_packed: usize,
    /// Values of the longest bias or norm that is trained.
    pub longest_vector: usize,
    /// Tokens of the longest segment that attention runs over.
    pub longest: usize,
    /// The largest head.
    pub head_size: usize,
    /// Tokens that attention runs over at once, and the segments that they are cut into.
    pub attention_tokens: usize,
    /// See above.
    pub segments: usize,
    /// Query heads of all those tokens.
    pub query_heads: usize,
    /// Values of all query heads of tokens that share key heads, in a backward pass.
    pub grouped_values: usize,
}

/// Heads in a buffer: value `d` of head `h` of token `t` is at `offset + t * stride + h * head_size + d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the first head of the first token is.
    pub offset: usize,
    /// From one token to the next.
    pub stride: usize,
    /// How many heads.
    pub heads: usize,
}

/// Attention over segments of variable length that never see each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Queries [tokens, heads, head_size].
    pub query: Heads,
    /// Keys [tokens, kv heads, head_size]; query head h reads key head h / (heads / kv heads).
    pub key: Heads,
    /// Values [tokens, kv heads, head_size].
    pub value: Heads,
    /// Values of a head.
    pub head_size: usize,
    /// Where segments begin, and where the last one ends: i32 [segments + 1].
    pub cu_seqlens: Buffer,
    /// How many segments there are.
    pub segments: usize,
    /// Queries of the longest segment: the host knows it, and some devices choose by it.
    pub longest: usize,
    /// Whether a token sees only itself and those before it.
    pub is_causal: bool,
}

/// The moments of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// As f32.
    F32 {
        /// First moment.
        first: Buffer,
        /// Second moment.
        second: Buffer,
    },
    /// With 8 bits for each value and a scale for each block ([`crate::dynamic_8bit`]).
    Int8 {
        /// Codes of the first moment and of the second, a byte for each value.
        codes: [Buffer; 2],
        /// Their scales: f32 for each 256 values.
        scales: [Buffer; 2],
    },
}

/// One update of AdamW with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The master of what is trained, f32.
    pub value: Buffer,
    /// The same in the activations' dtype, for products; refreshed by the update.
    pub shadow: Option<Buffer>,
    /// Its gradient.
    pub gradient: Buffer,
    /// Its moments.
    pub moments: Moments,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// Weight decay; 0 for what is not decayed.
    pub decay: f32,
    /// The step's scalars ([`crate::StepScalars`]): learning rate and numbers of updates.
    pub scalars: Buffer,
    /// Whose number of updates counts.
    pub part: Part,
}

/// A device that holds buffers and fills them.
///
/// Operations are queued: one is done when its results are read, in the order in which operations were given, and none returns anything to the
/// host. What fails is latched: operations after it do nothing, and whatever reads from the device returns the error, so nothing that a failed
/// device made can reach a file. Sizes and dtypes that do not fit together are mistakes of the model's code, and panic. Operands of one operation
/// do not overlap where one of them is written, unless the operation says that they may.
///
/// "Activations" are buffers of the profile's dtype; gradients of activations have it too.
pub trait Device {
    /// How it computes.
    fn profile(&self) -> &Profile;

    /// Takes all memory that a plan needs at once ([`Plan::total`]), before the first buffer of it. Some devices take buffer by buffer instead.
    fn prepare(&mut self, _bytes: usize) -> Result<(), OutOfMemory> {
        Ok(())
    }

    /// Its own memory, as its driver counts it; nothing for a processor, whose memory is the host's.
    fn own_memory(&self) -> Option<OwnMemory> {
        None
    }

    /// A new buffer of zeros.
    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory>;

    /// Begins a block: one piece of memory for all buffers that are asked for while it is entered.
    ///
    /// They lie one after the other, so that one operation can fill all of them, or over each other where they are never in use at the same time.
    fn open_block(&mut self) -> Block;

    /// Puts the buffers that follow into a block, or into memory of their own again. Nothing of a block may be used before it is closed.
    fn enter_block(&mut self, block: Option<Block>);

    /// The buffers that follow lie over those that the block has already.
    fn branch_block(&mut self, block: Block);

    /// Ends a block; returns all of it, zeros between its buffers included, as values of one dtype.
    fn close_block(&mut self, block: Block, dtype: Dtype) -> Result<Buffer, OutOfMemory>;

    /// Makes room for what operations need besides their buffers.
    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory>;

    /// What it holds.
    fn plan(&self) -> &Plan;

    /// Whether it computes: one that does not need not be given any values.
    fn computes(&self) -> bool;

    /// Work on a batch begins: whatever was queued before it is done with the buffers of other batches.
    fn begin_batch(&mut self) {}

    /// While this is on, uploads may overtake the work on the batch that has begun, but nothing before it: they fill buffers which that work does not
    /// use. What is queued after it was turned off sees what they brought.
    fn upload_ahead(&mut self, _is_ahead: bool) {}

    /// For tests: fails as a GPU does that is lost while it computes.
    fn fail(&mut self) {}

    /// Fills a buffer from the host, as bytes of its dtype. They are copied before this returns.
    fn upload(&mut self, to: Buffer, bytes: &[u8]);

    /// Fills a buffer of any floating point from f32.
    fn upload_f32(&mut self, to: Buffer, values: &[f32]) {
        let mut bytes = vec![0; values.len() * to.dtype().size()];
        to.dtype().narrow(values, &mut bytes);
        self.upload(to, &bytes);
    }

    /// Waits, and copies a buffer of any floating point to the host as f32.
    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError>;

    /// Waits, and copies a buffer of any dtype to the host as its bytes.
    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError>;

    /// Waits until everything that was queued is done.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Says to which stage of a step the operations that follow belong. It waits for nothing, and does nothing unless stages are timed.
    fn mark(&mut self, _stage: Stage) {}

    /// Times stages from now on.
    fn time_stages(&mut self) {}

    /// Times every operation from now on, which makes each of them a little slower.
    fn time_operations(&mut self) {}

    /// Waits, and tells what operations took since this was last asked for, the longest first; nothing for a device that cannot tell.
    fn operation_times(&mut self) -> Result<Vec<OperationTime>, DeviceError> {
        Ok(Vec::new())
    }

    /// Waits, and tells what each stage took since this was last asked for. The stage that was marked last goes on. All zero for a device that
    /// does not time.
    fn stage_times(&mut self) -> Result<StageTimes, DeviceError> {
        Ok(StageTimes::default())
    }

    /// Fills with zeros. Any dtype.
    fn zero(&mut self, x: Buffer);

    /// y = x, activations.
    fn copy(&mut self, x: Buffer, y: Buffer);

    /// y = x, each of any floating point: rounds to the nearest, of two equally near ones to the even one.
    fn cast(&mut self, x: Buffer, y: Buffer);

    /// y += x, activations.
    fn add(&mut self, x: Buffer, y: Buffer);

    /// x *= the gradient scale of the step's scalars; x is f32.
    fn scale(&mut self, x: Buffer, scalars: Buffer);

    /// y [rows, n] = scale x [rows, k] W [n, k]^T.
    fn matmul(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write);

    /// `y [rows, n] = x [rows, k] W [n, k]^T + bias [n]` + what `plus` names. The bias is f32, or what the profile has frozen ones in.
    fn linear(&mut self, x: Buffer, weight: &Weight, bias: Option<Buffer>, y: Buffer, rows: usize, plus: Plus) {
        if let Plus::Other(other) = plus {
            self.copy(other, y);
        }
        let write = if plus == Plus::Nothing { Write::Set } else { Write::Add };
        self.matmul(x, weight, y, rows, 1.0, write);
        if let Some(bias) = bias {
            self.add_bias(y, bias, rows);
        }
    }

    /// dx [rows, k] = scale dy [rows, n] W [n, k].
    fn matmul_backward(&mut self, dy: Buffer, weight: &Weight, dx: Buffer, rows: usize, scale: f32, write: Write);

    /// dW [n, k] += scale dy [rows, n]^T x [rows, k]; dW is f32.
    fn weight_gradient(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32);

    /// `y [rows, n] += bias [n]`, for every row; the bias is f32.
    fn add_bias(&mut self, y: Buffer, bias: Buffer, rows: usize);

    /// `dbias [n] +=` sum over the rows of `dy [rows, n]`; dbias is f32.
    fn bias_gradient(&mut self, dy: Buffer, gradient: Buffer, rows: usize);

    /// y [rows, n] = w x / sqrt(mean(x^2) + eps), row by row; w is f32.
    fn rms_norm(&mut self, x: Buffer, weight: Buffer, y: Buffer, rows: usize, epsilon: f32);

    /// dx [rows, n] from dy [rows, n]; the gradient of w is added to `gradient`, f32, where there is one.
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
    );

    /// Rotates the pairs (i, i + half) of every head of `rows` tokens by angles whose cosines and sines are f32 [rows, half].
    fn rotate(&mut self, x: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize);

    /// Rotates back, which is also the backward pass of `rotate`.
    fn rotate_backward(&mut self, dx: Heads, head_size: usize, cosines: Buffer, sines: Buffer, rows: usize);

    /// Mixes values into `y` [tokens, heads * head_size]. The log-sum-exp of each row of scores goes to `lse`, f32 [tokens, heads].
    fn attend(&mut self, attention: &Attention, y: Buffer, lse: Buffer);

    /// Mixes values of a cache into `y` [tokens, heads * head_size], forward only.
    ///
    /// Keys and values are those of the cache; `cu_seqlens` cuts the queries. Those of segment s are the last of the `lengths[s]`
    /// tokens that lie in the cache from token `firsts[s]` on, and each sees itself and those before it. `workspace` is what the profile asks for
    /// ([`Profile::kv_cache_workspace`]).
    fn attend_kv_cache(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        workspace: Option<Buffer>,
        y: Buffer,
    );

    /// Gradients of queries, keys and values from `dy`; what the forward pass made is given again. Those three may lie in one buffer, as in a
    /// projection of queries, keys and values at once; what they do not cover of it stays as it is.
    fn attend_backward(
        &mut self,
        attention: &Attention,
        y: Buffer,
        lse: Buffer,
        dy: Buffer,
        dq: Heads,
        dk: Heads,
        dv: Heads,
    );

    /// y = silu(gate) up, value by value.
    fn swiglu(&mut self, gate: Buffer, up: Buffer, y: Buffer);

    /// dgate [rows, inner] from dy and the saved gate and up; in place of dy comes dup. What `swiglu` gave is made again where it is wanted, as all
    /// it is made of is at hand. None may overlap.
    fn swiglu_backward(&mut self, dy: Buffer, gate: Buffer, up: Buffer, dgate: Buffer, y: Option<Buffer>);

    /// y = exact GELU of x, value by value.
    fn gelu(&mut self, x: Buffer, y: Buffer);

    /// dx from dy and x; `dx` may be `dy`.
    fn gelu_backward(&mut self, dy: Buffer, x: Buffer, dx: Buffer);

    /// y [rows, columns of W] = the rows of W that the tokens name.
    fn embed(&mut self, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize);

    /// dW += dy, row by row, in the order of the tokens; those in `skipped` get nothing. dW is f32.
    fn embed_backward(&mut self, dy: Buffer, tokens: Buffer, gradient: &Weight, rows: usize, skipped: &[i32]);

    /// y [rows, width] = rows of x that `places` names.
    fn gather(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize);

    /// Rows of y that `places` names, each at most once, = x [rows, width].
    fn scatter(&mut self, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize);

    /// y = x where a random number for (seed, place) says so, scaled by 1 / (1 - rate), else 0. The same seed gives the same choice.
    fn dropout(&mut self, x: Buffer, y: Buffer, rate: f32, seed: Seed, write: Write);

    /// Each row's loss for its target, f32 `[rows]`, and in place of the logits `[rows, vocabulary]`, activations, the gradient of the losses' sum
    /// times the loss scale of the step's scalars.
    fn cross_entropy(&mut self, logits: Buffer, targets: Buffer, losses: Buffer, rows: usize, scalars: Buffer);

    /// `sum [1] +=` the loss scale of the step's scalars times the sum of the losses; both f32.
    fn add_losses(&mut self, losses: Buffer, sum: Buffer, scalars: Buffer);

    /// `sum [1] +=` sum of squares of x; both f32.
    fn add_squares(&mut self, x: Buffer, sum: Buffer);

    /// The place of the largest of each row of logits `[rows, vocabulary]`, activations; of equal ones the first: i32 `[rows]`. What is no number
    /// counts as less than everything; -1 where the largest is not finite.
    fn best_of_rows(&mut self, logits: Buffer, best: Buffer, rows: usize);

    /// Does work that comes again and again. A device may record its operations and queue them again when the same is asked for with the same buffer
    /// and number, without asking for them. They must depend on nothing else but on what buffers hold, and neither upload nor download anything.
    fn repeat(&mut self, buffer: Buffer, number: usize, work: &mut dyn FnMut(&mut dyn Device));

    /// One update. With `clip`, gradients are scaled down to that norm first: (f32 `[1]` with the sum of all squares, largest norm).
    fn adamw(&mut self, update: &AdamW, clip: Option<(Buffer, f32)>);
}
