//! Buffers: handles to a device's memory. They are small values that locate data, not the memory itself.

/// The dtype of a buffer's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// 32-bit floating point: trainable parameters, statistics, and activations on some devices.
    F32,
    /// bfloat16, as in most checkpoints: frozen weights, and activations on other devices.
    Bf16,
    /// IEEE half precision, as in some checkpoints: frozen weights.
    F16,
    /// 32-bit integers: tokens, positions, segment boundaries.
    I32,
    /// Bytes: codes of 4-bit weights and of 8-bit scales and moments.
    U8,
}

impl Dtype {
    /// Converts a 16-bit value to f32.
    ///
    /// # Panics
    /// For dtypes of other sizes.
    pub fn widened(self, bits: u16) -> f32 {
        let mut wide = [0.0];
        self.widen(&bits.to_le_bytes(), &mut wide);
        wide[0]
    }

    /// Converts little-endian values, as in files, to f32.
    ///
    /// # Panics
    /// For dtypes that are not floating point, and if the lengths do not match.
    pub fn widen(self, bytes: &[u8], to: &mut [f32]) {
        assert_eq!(bytes.len(), to.len() * self.size(), "{} values of {self:?} are needed", to.len());
        match self {
            Dtype::F32 => {
                let fours = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
                to.iter_mut().zip(fours).for_each(|(to, value)| *to = value);
            }
            Dtype::Bf16 | Dtype::F16 => crate::cpu::widen_bytes(self, bytes, to),
            Dtype::I32 | Dtype::U8 => panic!("{self:?} is no floating point"),
        }
    }

    /// Converts values to little-endian bytes of this dtype, rounding to nearest even. Values that are too large become infinite.
    ///
    /// # Panics
    /// For dtypes that are not floating point, and if the lengths do not match.
    pub fn narrow(self, values: &[f32], to: &mut [u8]) {
        assert_eq!(to.len(), values.len() * self.size(), "places for {} values of {self:?} are needed", values.len());
        match self {
            Dtype::F32 => {
                to.chunks_exact_mut(4).zip(values).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
            }
            Dtype::Bf16 | Dtype::F16 => crate::cpu::narrow_bytes(self, values, to),
            Dtype::I32 | Dtype::U8 => panic!("{self:?} is no floating point"),
        }
    }

    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::U8 => 1,
        }
    }
}

/// The purpose of a buffer: the lines of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Weights of the base model.
    Weights,
    /// LoRA adapters.
    Adapters,
    /// Gradients of trainable parameters.
    Gradients,
    /// The optimizer state.
    Optimizer,
    /// Activations kept from the forward to the backward pass.
    Activations,
    /// Activations of one layer, recomputed in the backward pass.
    RecomputedActivations,
    /// The KV cache of generation.
    KvCache,
    /// The batch: tokens, pixels, positions.
    Batch,
    /// Scratch memory used only within an operation or a layer.
    Workspace,
}

impl Purpose {
    /// All purposes, in the order of a plan.
    pub const ALL: [Purpose; 9] = [
        Purpose::Weights,
        Purpose::Adapters,
        Purpose::Gradients,
        Purpose::Optimizer,
        Purpose::Activations,
        Purpose::RecomputedActivations,
        Purpose::KvCache,
        Purpose::Batch,
        Purpose::Workspace,
    ];

    /// The displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Weights => "weights",
            Purpose::Adapters => "adapters",
            Purpose::Gradients => "gradients",
            Purpose::Optimizer => "optimizer",
            Purpose::Activations => "activations kept",
            Purpose::RecomputedActivations => "activations recomputed",
            Purpose::KvCache => "key/value cache",
            Purpose::Batch => "batch",
            Purpose::Workspace => "workspace",
        }
    }
}

/// A range of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    pub(crate) id: u32,
    pub(crate) dtype: Dtype,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Buffer {
    /// Number of values.
    pub fn length(self) -> usize {
        self.length
    }

    /// The dtype of the values.
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// The first `length` values.
    pub fn first(self, length: usize) -> Buffer {
        self.part(0, length)
    }

    /// A range of the values.
    ///
    /// # Panics
    /// If it has fewer: the plan and the step disagree, which must never go unnoticed.
    pub fn part(self, offset: usize, length: usize) -> Buffer {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        assert!(end.is_some(), "{length} values from {offset} on are wanted of a buffer of {}", self.length);
        Buffer { offset: self.offset + offset, length, ..self }
    }
}

/// A weight matrix in one of several formats: `rows` outputs, each with `columns` inputs, row-major; padding ([`crate::Profile::padded`])
/// is included, and holds zeros.
///
/// Matrix products take a weight of any format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// The values, or two NF4 codes per byte.
    pub buffer: Buffer,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// The quantisation of NF4 codes; `None` if the buffer holds plain values.
    pub blocks: Option<Nf4Blocks>,
}

impl Weight {
    /// An unquantised weight.
    pub fn plain(buffer: Buffer, rows: usize, columns: usize) -> Weight {
        Weight { buffer, rows, columns, blocks: None }
    }

    /// Whether it can be read without conversion.
    pub fn is_f32(&self) -> bool {
        self.buffer.dtype == Dtype::F32
    }
}

/// Block-wise quantisation of an NF4 weight: [`crate::nf4`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nf4Blocks {
    /// Quantised outputs; any further rows of the weight are padding.
    pub rows: usize,
    /// Quantised inputs per output; any further columns are padding.
    pub columns: usize,
    /// The scale of each block.
    pub scales: Nf4Scales,
    /// The dtype before quantisation. Backward passes round to it, as in bitsandbytes; forward passes do not.
    pub packed_from: Dtype,
}

/// Scales of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nf4Scales {
    /// One f32 per block.
    Plain(Buffer),
    /// Double quantisation: 8 bits per block.
    Double {
        /// One code per block.
        codes: Buffer,
        /// One f32 per 256 codes.
        scales: Buffer,
        /// Added to all scales.
        offset: f32,
    },
}
