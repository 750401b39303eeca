//! Properties of a device that models and plans depend on. A plan follows from the profile alone, so it can be made without the device.

use crate::buffer::Dtype;
use crate::cpu;
use crate::cuda;
use crate::device::Reserve;

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Dtype of activations and their gradients. Statistics, log-sum-exp, losses, parameter gradients, moments and the master copies of trained
    /// weights are f32 on every device.
    pub activations: Dtype,
    /// Dtype of frozen 16-bit or 32-bit matrices after loading; `None` keeps the checkpoint's.
    pub frozen: Option<Dtype>,
    /// Dtype of biases in products.
    pub bias: Dtype,
    /// Whether linears of the same inputs and their adapters are one matrix ([`crate::FusedWeight`]).
    pub is_joined: bool,
    /// Row widths inside layers (of an MLP, of an adapter) are padded with zeros to a multiple of this.
    pub width_multiple: usize,
    /// Alignment of buffers in bytes.
    pub alignment: usize,
    /// Batches on the device at once: with two, one is uploaded while the other is computed.
    pub batches: usize,
    /// Keys per piece of decode attention over the KV cache; 0 if it is not split.
    pub cache_piece: usize,
    /// Rows of logits that exist at once.
    pub logit_rows: usize,
    /// Host threads that compute.
    pub threads: usize,
    /// Workspace that operations need besides their buffers.
    pub workspace: fn(&Profile, Reserve) -> Vec<Scratch>,
    /// Relative tolerance of results: a few roundings of the activation dtype.
    pub tolerance: f32,
}

/// Scratch memory of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Its purpose.
    pub label: &'static str,
    /// Its dtype.
    pub dtype: Dtype,
    /// Number of values.
    pub length: usize,
}

impl Profile {
    /// A CPU with `threads` threads; everything is f32.
    pub fn cpu(threads: usize) -> Profile {
        Profile {
            activations: Dtype::F32,
            frozen: None,
            bias: Dtype::F32,
            is_joined: false,
            width_multiple: 1,
            // A cache line, and the alignment of the widest vector instructions.
            alignment: 64,
            batches: 1,
            cache_piece: 0,
            logit_rows: 64,
            threads,
            workspace: cpu::workspace,
            // Sums of a few hundred products in f32.
            tolerance: 1e-5,
        }
    }

    /// A CPU with the activations of a GPU ([`crate::CpuBf16`]).
    pub fn cpu_bf16(threads: usize) -> Profile {
        Profile {
            activations: Dtype::Bf16,
            frozen: Some(Dtype::Bf16),
            bias: Dtype::Bf16,
            is_joined: true,
            width_multiple: 8,
            alignment: 256,
            batches: 2,
            // bf16 has 8 significant bits: rounding changes a value by at most 2^-8 of it.
            tolerance: 1.0 / 256.0,
            ..Profile::cpu(threads)
        }
    }

    /// An NVIDIA GPU ([`crate::Cuda`]).
    pub fn cuda() -> Profile {
        Profile {
            // Enough rows for full speed of cuBLASLt; 156 MB in bf16 with Qwen's vocabulary.
            logit_rows: 512,
            cache_piece: cuda::CACHE_PIECE,
            workspace: cuda::workspace,
            ..Profile::cpu_bf16(1)
        }
    }

    /// Workspace in f32 values for decode attention of `heads` single queries over a context of this length: per piece the mixed values, the highest score
    /// and a sum.
    pub fn kv_cache_workspace(&self, heads: usize, context: usize, head_size: usize) -> usize {
        match self.cache_piece {
            0 => 0,
            piece => heads.saturating_mul(context.div_ceil(piece)).saturating_mul(head_size + 2),
        }
    }

    /// The padded width of rows inside a layer.
    pub fn padded(&self, width: usize) -> usize {
        width.next_multiple_of(self.width_multiple)
    }

    /// The dtype on this device of a frozen matrix stored as `stored`.
    pub fn frozen(&self, stored: Dtype) -> Dtype {
        self.frozen.unwrap_or(stored)
    }

    /// Dtype of the copies of trained matrices for products with activations, if it is not the master's f32.
    pub fn shadow(&self) -> Option<Dtype> {
        (self.activations != Dtype::F32).then_some(self.activations)
    }
}
