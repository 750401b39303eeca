//! Buffers: names for memory of a device. They are small values that say where something is, not the memory itself.

/// What the values of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// 32-bit floating point: what is trained, statistics, and activations on some devices.
    F32,
    /// bfloat16, as most checkpoints have it: frozen weights, and activations on other devices.
    Bf16,
    /// IEEE half precision, as some checkpoints have it: frozen weights.
    F16,
    /// 32-bit whole numbers: tokens, places, segment boundaries.
    I32,
    /// Bytes: codes of 4-bit weights and of 8-bit scales and moments.
    U8,
}

impl Dtype {
    /// A 16-bit value as f32.
    ///
    /// # Panics
    /// For dtypes of other sizes.
    pub fn widened(self, bits: u16) -> f32 {
        let mut wide = [0.0];
        self.widen(&bits.to_le_bytes(), &mut wide);
        wide[0]
    }

    /// Values as files have them, little-endian, as f32.
    ///
    /// # Panics
    /// For dtypes that are no floating point, and where there are not as many values as places.
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

    /// Values as bytes of this dtype, little-endian: the nearest that it has, of two equally near ones the even one. What is too large becomes infinite.
    ///
    /// # Panics
    /// For dtypes that are no floating point, and where there are not as many places as values.
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

/// What a buffer is for: the lines of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Weights of the base model.
    Weights,
    /// Low-rank adapters.
    Adapters,
    /// Gradients of what is trained.
    Gradients,
    /// The optimizer's state.
    Optimizer,
    /// Activations that are kept from the forward to the backward pass.
    Activations,
    /// Activations of one layer that are made again in the backward pass.
    RecomputedActivations,
    /// Keys and values of the tokens so far, while generating.
    KvCache,
    /// The batch: tokens, pixels, places.
    Batch,
    /// Room that is used and forgotten within an operation or a layer.
    Workspace,
}

impl Purpose {
    /// All of them, in the order in which a plan lists them.
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

    /// How people call it.
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

/// A stretch of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    pub(crate) id: u32,
    pub(crate) dtype: Dtype,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Buffer {
    /// The number of values.
    pub fn length(self) -> usize {
        self.length
    }

    /// What the values are.
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// The first values of it.
    pub fn first(self, length: usize) -> Buffer {
        self.part(0, length)
    }

    /// Some of its values.
    ///
    /// # Panics
    /// If it has fewer: the plan and the step disagree, which must never go unnoticed.
    pub fn part(self, offset: usize, length: usize) -> Buffer {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        assert!(end.is_some(), "{length} values from {offset} on are wanted of a buffer of {}", self.length);
        Buffer { offset: self.offset + offset, length, ..self }
    }
}

/// A matrix of weights in one of several storages: `rows` outputs, each with `columns` inputs, row by row; padding ([`crate::Profile::padded`])
/// is counted, and holds zeros.
///
/// Products are asked for by weight, never by storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// The values, or two codes in each byte.
    pub buffer: Buffer,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// What codes of 4 bits stand for; `None` where the buffer holds the values themselves.
    pub blocks: Option<Nf4Blocks>,
}

impl Weight {
    /// A weight whose values are stored as they are.
    pub fn plain(buffer: Buffer, rows: usize, columns: usize) -> Weight {
        Weight { buffer, rows, columns, blocks: None }
    }

    /// Whether it can be read where it lies.
    pub fn is_f32(&self) -> bool {
        self.buffer.dtype == Dtype::F32
    }
}

/// Blocks of a weight of 4 bits: [`crate::nf4`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nf4Blocks {
    /// Outputs that are packed; those that the weight has more of are padding.
    pub rows: usize,
    /// Inputs of each output that are packed, likewise.
    pub columns: usize,
    /// The scale of each block.
    pub scales: Nf4Scales,
    /// What the weight was before it was packed. Backward passes round to that, as those of bitsandbytes do; forward passes do not.
    pub packed_from: Dtype,
}

/// Scales of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nf4Scales {
    /// One f32 for each block.
    Plain(Buffer),
    /// With 8 bits for each block.
    Double {
        /// A code for each block.
        codes: Buffer,
        /// f32 for each 256 codes.
        scales: Buffer,
        /// What is added to all.
        offset: f32,
    },
}
