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

    /// The purpose of this name.
    pub fn named(name: &str) -> Option<Purpose> {
        Purpose::ALL.into_iter().find(|purpose| purpose.name() == name)
    }

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

/// Rows of values in a buffer: value `c` of row `r` is at `r * stride + c`. Rows may lie side by side with others in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The memory from the first value on.
    pub buffer: Buffer,
    /// Values of a row.
    pub width: usize,
    /// Distance between rows, at least the width.
    pub stride: usize,
}

impl Rows {
    /// Rows one behind the other.
    pub fn dense(buffer: Buffer, width: usize) -> Rows {
        Rows { buffer, width, stride: width }
    }

    /// The first `rows` rows, with what lies beside them.
    pub fn first(self, rows: usize) -> Rows {
        assert!(self.length(rows) <= self.buffer.length, "{rows} rows are wanted of {self:?}");
        Rows { buffer: self.buffer.first((rows * self.stride).min(self.buffer.length)), ..self }
    }

    /// The rows from one of them on.
    pub fn below(self, row: usize) -> Rows {
        let begin = row * self.stride;
        Rows { buffer: self.buffer.part(begin, self.buffer.length - begin), ..self }
    }

    /// Some columns of every row, counted from the row's start; they may lie behind its width.
    pub fn columns(self, first: usize, width: usize) -> Rows {
        assert!(first + width <= self.stride, "columns {first} to {} of rows {} apart", first + width, self.stride);
        // A buffer without rows has no columns either.
        let first = first.min(self.buffer.length);
        Rows { buffer: self.buffer.part(first, self.buffer.length - first), width, ..self }
    }

    /// The columns right behind these rows.
    pub fn beside(self, width: usize) -> Rows {
        self.columns(self.width, width)
    }

    /// The memory of `rows` rows that lie one behind the other.
    ///
    /// # Panics
    /// If they do not: the device that computes this has no use for rows that are apart.
    pub fn joined(self, rows: usize) -> Buffer {
        assert_eq!(self.stride, self.width, "rows one behind the other are needed");
        self.buffer.first(rows * self.width)
    }

    /// How many rows the memory has.
    pub(crate) fn count(self) -> usize {
        (self.buffer.length + self.stride - self.width) / self.stride.max(1)
    }

    /// One of the rows.
    pub(crate) fn row(self, number: usize) -> Buffer {
        self.buffer.part(number * self.stride, self.width)
    }

    /// Values from the first of the first row to the last of the last one.
    pub(crate) fn length(self, rows: usize) -> usize {
        rows.saturating_sub(1) * self.stride + if rows > 0 { self.width } else { 0 }
    }

    /// Whether other columns lie right behind these.
    pub(crate) fn is_followed_by(self, next: Rows) -> bool {
        (self.buffer.id, self.stride, self.buffer.offset + self.width)
            == (next.buffer.id, next.stride, next.buffer.offset)
    }

    /// Whether `rows` rows of both have a value in common.
    pub(crate) fn overlap(self, other: Rows, rows: usize) -> bool {
        let begin = |rows: Rows| rows.buffer.offset * rows.buffer.dtype.size();
        let end = |of: Rows| begin(of) + of.length(rows) * of.buffer.dtype.size();
        let share_range =
            self.buffer.id == other.buffer.id && rows > 0 && begin(self) < end(other) && begin(other) < end(self);
        if !share_range || (self.stride, self.buffer.dtype) != (other.stride, other.buffer.dtype) {
            return share_range;
        }
        // Columns of the same rows: how far the other begins behind this one.
        let behind = (other.buffer.offset + self.stride - self.buffer.offset % self.stride) % self.stride;
        behind < self.width || behind + other.width > self.stride
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
    /// Distance between the outputs' values: more than `columns` where it is a part of a larger matrix.
    pub stride: usize,
    /// The quantisation of NF4 codes; `None` if the buffer holds plain values.
    pub blocks: Option<Nf4Blocks>,
}

impl Weight {
    /// An unquantised weight.
    pub fn plain(buffer: Buffer, rows: usize, columns: usize) -> Weight {
        Weight { buffer, rows, columns, stride: columns, blocks: None }
    }

    /// A part of a larger matrix: all of its rows.
    pub fn of_rows(rows: Rows, count: usize) -> Weight {
        let first = rows.first(count);
        Weight { buffer: first.buffer, rows: count, columns: first.width, stride: first.stride, blocks: None }
    }

    /// Its outputs as rows.
    pub fn as_rows(&self) -> Rows {
        Rows { buffer: self.buffer, width: self.columns, stride: self.stride }
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
