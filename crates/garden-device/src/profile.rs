//! What models and plans have to know about a device. A plan for a device follows from its profile, so it can be made where there is none.

use crate::buffer::Dtype;
use crate::cpu;
use crate::cuda;
use crate::device::Reserve;

/// How a device computes.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What activations and their gradients are. Statistics, log-sum-exp, losses, gradients of parameters, moments and the masters of trained
    /// weights are f32 on every device.
    pub activations: Dtype,
    /// What frozen matrices of 16 or 32 bits become when they are loaded; `None` leaves them as the checkpoint has them.
    pub frozen: Option<Dtype>,
    /// What biases are that are not trained.
    pub frozen_bias: Dtype,
    /// Row widths inside layers (of an MLP, of an adapter) are rounded up to multiples of so many values; the padding holds zeros.
    pub width_multiple: usize,
    /// Buffers begin at multiples of so many bytes.
    pub alignment: usize,
    /// Batches that are on the device at once: with two, one is copied there while the other is computed with.
    pub batches: usize,
    /// Keys of a piece that attention of single queries over a cache is cut into; 0 where it is not cut.
    pub cache_piece: usize,
    /// Rows of logits that exist at once.
    pub logit_rows: usize,
    /// Threads of the host that compute.
    pub threads: usize,
    /// What operations need besides their buffers.
    pub workspace: fn(&Profile, Reserve) -> Vec<Scratch>,
    /// How far results may be from exact ones, relative to their size: a few roundings of the activations' dtype.
    pub tolerance: f32,
}

/// Memory that operations use and forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// What for.
    pub label: &'static str,
    /// What its values are.
    pub dtype: Dtype,
    /// How many.
    pub length: usize,
}

impl Profile {
    /// A processor with so many threads; everything is f32.
    pub fn cpu(threads: usize) -> Profile {
        Profile {
            activations: Dtype::F32,
            frozen: None,
            frozen_bias: Dtype::F32,
            width_multiple: 1,
            // A cache line, and what the widest vector instructions like.
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

    /// A processor that keeps activations as a GPU does ([`crate::CpuBf16`]).
    pub fn cpu_bf16(threads: usize) -> Profile {
        Profile {
            activations: Dtype::Bf16,
            frozen: Some(Dtype::Bf16),
            width_multiple: 8,
            alignment: 256,
            batches: 2,
            // A bf16 has 8 significant bits: a rounding moves a value by 2^-8 of it at most.
            tolerance: 1.0 / 256.0,
            ..Profile::cpu(threads)
        }
    }

    /// A GPU of NVIDIA's ([`crate::Cuda`]).
    pub fn cuda() -> Profile {
        Profile {
            // What the library adds to a product before it rounds it.
            frozen_bias: Dtype::Bf16,
            // Enough rows for the library to be at its fastest; as bf16 156 MB with Qwen's vocabulary.
            logit_rows: 512,
            cache_piece: cuda::CACHE_PIECE,
            workspace: cuda::workspace,
            ..Profile::cpu_bf16(1)
        }
    }

    /// Values f32 that attention of `heads` single queries over caches of so many tokens needs room for: for each piece mixed values, the highest score
    /// and a sum.
    pub fn kv_cache_workspace(&self, heads: usize, context: usize, head_size: usize) -> usize {
        match self.cache_piece {
            0 => 0,
            piece => heads.saturating_mul(context.div_ceil(piece)).saturating_mul(head_size + 2),
        }
    }

    /// The width of rows inside a layer that have so many values.
    pub fn padded(&self, width: usize) -> usize {
        width.next_multiple_of(self.width_multiple)
    }

    /// What a frozen matrix is on this device that a checkpoint has as this.
    pub fn frozen(&self, stored: Dtype) -> Dtype {
        self.frozen.unwrap_or(stored)
    }

    /// What trained matrices have beside their f32 master for products with activations, if that is something else.
    pub fn shadow(&self) -> Option<Dtype> {
        (self.activations != Dtype::F32).then_some(self.activations)
    }
}
