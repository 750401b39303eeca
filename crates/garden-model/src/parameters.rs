//! Parameters: what a model is made of, with gradients and optimizer state for what is trained, and how they come into being.

use garden_device::{Buffer, Device, Dtype, Moments, Nf4Blocks, Nf4Scales, Purpose, Weight, dynamic_8bit, nf4};

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::linear::{Linear, Lora};
use crate::lora::{LoraConfig, Matcher};
use crate::mode::Mode;
use crate::model::bytes_of;
use crate::names::is_decayed;
use crate::nf4_checkpoint::{self, FourBit, Packed, PackedScales};

/// Which half of the model a parameter belongs to: a batch without images does not reach the vision tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Vision tower and merger.
    Vision,
    /// Decoder, embedding and head.
    Decoder,
}

/// A parameter that is trained.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name: as in the checkpoint (newer form), or as in an adapter's file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    pub(crate) value: Buffer,
    pub(crate) gradient: Buffer,
    pub(crate) moments: Moments,
    pub(crate) is_decayed: bool,
    pub(crate) part: Part,
    /// Updates that it has had.
    pub(crate) steps: u32,
}

/// How weights and moments are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Packs linears on load that the checkpoint has in more bits; what it has packed already stays as it is.
    pub four_bit: Option<FourBit>,
    /// Moments of 8 bits, for parameters with at least 4096 values.
    pub has_8bit_moments: bool,
}

/// Smaller parameters keep moments of 32 bits, as in bitsandbytes.
const SMALLEST_NARROW: usize = 4096;

/// A matrix of an adapter that is applied and not trained.
#[derive(Clone, Debug)]
pub(crate) struct FrozenAdapter {
    pub name: String,
    pub shape: Vec<usize>,
    pub value: Buffer,
}

/// Builds a model's buffers from a checkpoint.
pub(crate) struct Builder<'a> {
    pub device: &'a mut dyn Device,
    pub checkpoint: &'a Checkpoint,
    pub lora: Option<(LoraConfig, Matcher)>,
    pub is_full: bool,
    pub storage: Storage,
    pub mode: Mode,
    pub part: Part,
    pub trained: Vec<Parameter>,
    /// Adapters that are only applied.
    pub frozen: Vec<FrozenAdapter>,
    /// Columns of the widest weight that has to be widened.
    pub widest: usize,
    /// The widest input of an adapter, and how many there are.
    pub widest_adapted: usize,
    pub adapters: u64,
}

impl<'a> Builder<'a> {
    /// A builder for what is trained: adapters, all weights, or, for the forward pass alone, nothing.
    pub fn new(
        device: &'a mut dyn Device,
        checkpoint: &'a Checkpoint,
        lora: Option<&LoraConfig>,
        mode: Mode,
        storage: &Storage,
    ) -> Result<Builder<'a>, Error> {
        let lora = match lora {
            Some(lora) => Some((lora.clone(), lora.targets.matcher().map_err(Error::Batch)?)),
            None => None,
        };
        Ok(Builder {
            device,
            checkpoint,
            is_full: lora.is_none() && mode == Mode::Training,
            lora,
            mode,
            storage: storage.clone(),
            part: Part::Vision,
            trained: Vec::new(),
            frozen: Vec::new(),
            widest: 0,
            widest_adapted: 0,
            adapters: 0,
        })
    }

    /// A parameter from the checkpoint, with its gradient if it is trained.
    pub fn parameter(&mut self, name: &str, shape: &[usize]) -> Result<(Buffer, Option<Buffer>), Error> {
        let tensor = self.checked(name, shape)?;
        let length = shape.iter().product();
        // Biases and norms are small, and used value by value: widened once instead of at each use.
        let dtype = if self.is_full || shape.len() == 1 { Dtype::F32 } else { tensor.dtype };
        let value = self.device.buffer(Purpose::Weights, name, dtype, length)?;
        self.fill(value, tensor);
        // It is on the device now: the pages of the file need not stay beside it.
        tensor.forget();
        if !self.is_full {
            return Ok((value, None));
        }
        let gradient = self.train(name.to_string(), shape.to_vec(), value, is_decayed(name))?;
        Ok((value, Some(gradient)))
    }

    /// A tensor of the checkpoint that has the right shape and finite values.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, Error> {
        let tensor = self.checkpoint.shaped(name, shape)?;
        // A plan needs no values, so it can be had in a moment.
        if !self.device.computes() {
            return Ok(tensor);
        }
        if !tensor.has_values() {
            return Err(Error::tensor(tensor.path, name, "has a shape and no values, which is enough for a plan only"));
        }
        match tensor.not_finite() {
            Some(place) => Err(Error::tensor(tensor.path, name, format!("has no finite number at {place}"))),
            None => Ok(tensor),
        }
    }

    fn fill(&mut self, value: Buffer, tensor: Tensor<'_>) {
        if !self.device.computes() {
            return;
        }
        if value.dtype() == tensor.dtype {
            self.device.upload(value, tensor.bytes);
            return;
        }
        self.device.upload(value, bytes_of(&tensor.values()));
    }

    fn train(&mut self, name: String, shape: Vec<usize>, value: Buffer, is_decayed: bool) -> Result<Buffer, Error> {
        let length = value.length();
        let gradient = self.device.buffer(Purpose::Gradients, &name, Dtype::F32, length)?;
        let mut make = |what: &str, dtype, length| {
            self.device.buffer(Purpose::Optimizer, &format!("{name} {what}"), dtype, length)
        };
        let moments = match self.storage.has_8bit_moments && length >= SMALLEST_NARROW {
            false => Moments::F32 {
                first: make("first moment", Dtype::F32, length)?,
                second: make("second moment", Dtype::F32, length)?,
            },
            true => {
                let blocks = length.div_ceil(dynamic_8bit::BLOCK);
                Moments::Int8 {
                    codes: [make("first moment", Dtype::U8, length)?, make("second moment", Dtype::U8, length)?],
                    scales: [make("first scales", Dtype::F32, blocks)?, make("second scales", Dtype::F32, blocks)?],
                }
            }
        };
        self.trained.push(Parameter { name, shape, value, gradient, moments, is_decayed, part: self.part, steps: 0 });
        Ok(gradient)
    }

    /// A matrix.
    pub fn weight(&mut self, name: &str, rows: usize, columns: usize) -> Result<(Weight, Option<Weight>), Error> {
        let (value, gradient) = self.parameter(name, &[rows, columns])?;
        if value.dtype() != Dtype::F32 {
            self.widest = self.widest.max(columns);
        }
        let of = |buffer| Weight::plain(buffer, rows, columns);
        Ok((of(value), gradient.map(of)))
    }

    /// The matrix of a linear, which may have 4 bits.
    pub fn linear_weight(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<(Weight, Option<Weight>), Error> {
        let full = format!("{name}.weight");
        let blocks = match Packed::read(self.checkpoint, &full, rows, columns)? {
            Some(packed) if self.is_full => {
                let problem = "has 4 bits, which cannot be trained: train an adapter, or take a checkpoint of 16 bits";
                return Err(Error::tensor(packed.codes.path, full, problem));
            }
            Some(packed) => self.packed(&full, &packed)?,
            None => match &self.storage.four_bit {
                Some(four_bit) if four_bit.packs(name) && !self.is_full => {
                    let is_double = four_bit.is_double;
                    self.pack(&full, rows, columns, is_double)?
                }
                _ => return self.weight(&full, rows, columns),
            },
        };
        self.widest = self.widest.max(columns);
        let (buffer, blocks) = blocks;
        Ok((Weight { buffer, rows, columns, blocks: Some(blocks) }, None))
    }

    /// A weight that the checkpoint has packed.
    fn packed(&mut self, name: &str, packed: &Packed<'_>) -> Result<(Buffer, Nf4Blocks), Error> {
        let mut put = |what: &str, tensor: &Tensor<'_>| -> Result<Buffer, Error> {
            let length = tensor.bytes.len() / tensor.dtype.size();
            let buffer = self.device.buffer(Purpose::Weights, &format!("{name}{what}"), tensor.dtype, length)?;
            self.device.upload(buffer, tensor.bytes);
            Ok(buffer)
        };
        let buffer = put("", &packed.codes)?;
        let scales = match &packed.scales {
            PackedScales::Plain(scales) => Nf4Scales::Plain(put(" scales", scales)?),
            PackedScales::Double { codes, scales, offset } => Nf4Scales::Double {
                codes: put(" scale codes", codes)?,
                scales: put(" scales of scales", scales)?,
                offset: *offset,
            },
        };
        packed.forget();
        Ok((buffer, Nf4Blocks { scales, packed_from: packed.packed_from }))
    }

    /// Packs a weight of the checkpoint piece by piece: it never exists as a whole beside the file.
    fn pack(&mut self, name: &str, rows: usize, columns: usize, is_double: bool) -> Result<(Buffer, Nf4Blocks), Error> {
        let tensor = self.checked(name, &[rows, columns])?;
        let (length, device) = (rows * columns, &mut *self.device);
        let packed = device.buffer(Purpose::Weights, name, Dtype::U8, nf4::packed_length(length))?;
        let blocks = nf4::blocks(length);
        let mut filled = 0;
        let scales = match device.computes() {
            true => nf4_checkpoint::pack(&tensor, |bytes| {
                device.upload(packed.part(filled, bytes.len()), bytes);
                filled += bytes.len();
                Ok::<(), Error>(())
            })?,
            // A plan of a large model has no time for scales that nobody reads.
            false => return Ok((packed, unfilled(device, name, blocks, is_double)?)),
        };
        tensor.forget();
        let mut make = |what: &str, dtype: Dtype, length: usize, bytes: &[u8]| -> Result<Buffer, Error> {
            let buffer = device.buffer(Purpose::Weights, &format!("{name} {what}"), dtype, length)?;
            device.upload(buffer, bytes);
            Ok(buffer)
        };
        let scales = match is_double {
            false => Nf4Scales::Plain(make("scales", Dtype::F32, blocks, bytes_of(&scales))?),
            true => {
                let double = nf4::DoubleScales::of(&scales);
                Nf4Scales::Double {
                    codes: make("scale codes", Dtype::U8, blocks, &double.codes)?,
                    scales: make("scales of scales", Dtype::F32, double.scales.len(), bytes_of(&double.scales))?,
                    offset: double.offset,
                }
            }
        };
        // Everything is computed in f32, so there is nothing that backward passes would round to.
        Ok((packed, Nf4Blocks { scales, packed_from: Dtype::F32 }))
    }

    /// A linear with its adapter, if it has one.
    pub fn linear(&mut self, name: &str, inputs: usize, outputs: usize, has_bias: bool) -> Result<Linear, Error> {
        let (weight, weight_gradient) = self.linear_weight(name, outputs, inputs)?;
        let bias = has_bias.then(|| self.parameter(&format!("{name}.bias"), &[outputs])).transpose()?;
        let lora = self.adapter(name, inputs, outputs)?;
        Ok(Linear {
            weight,
            weight_gradient,
            bias: bias.map(|bias| bias.0),
            bias_gradient: bias.and_then(|bias| bias.1),
            lora,
        })
    }

    fn adapter(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Option<Lora>, Error> {
        let Some((config, matcher)) = &self.lora else { return Ok(None) };
        if !matcher.matches(name) {
            return Ok(None);
        }
        let (rank, scale, dropout) = (config.rank, config.scale(), config.dropout);
        let mut matrix = |side: &str, rows: usize, columns: usize| -> Result<(Weight, Option<Weight>), Error> {
            let full = format!("base_model.model.{name}.lora_{side}.weight");
            let value = self.device.buffer(Purpose::Adapters, &full, Dtype::F32, rows * columns)?;
            let of = |buffer| Weight::plain(buffer, rows, columns);
            let shape = vec![rows, columns];
            if self.mode == Mode::Inference {
                self.frozen.push(FrozenAdapter { name: full, shape, value });
                return Ok((of(value), None));
            }
            let gradient = self.train(full, shape, value, true)?;
            Ok((of(value), Some(of(gradient))))
        };
        let (down, down_gradient) = matrix("A", rank, inputs)?;
        let (up, up_gradient) = matrix("B", outputs, rank)?;
        self.widest_adapted = self.widest_adapted.max(inputs);
        self.adapters += 1;
        Ok(Some(Lora { down, down_gradient, up, up_gradient, scale, dropout, number: self.adapters }))
    }
}

/// Scales as [`Builder::pack`] makes them, without values.
fn unfilled(device: &mut dyn Device, name: &str, blocks: usize, is_double: bool) -> Result<Nf4Blocks, Error> {
    let mut make = |what: &str, dtype: Dtype, length: usize| {
        device.buffer(Purpose::Weights, &format!("{name} {what}"), dtype, length)
    };
    let scales = match is_double {
        false => Nf4Scales::Plain(make("scales", Dtype::F32, blocks)?),
        true => Nf4Scales::Double {
            codes: make("scale codes", Dtype::U8, blocks)?,
            scales: make("scales of scales", Dtype::F32, blocks.div_ceil(dynamic_8bit::BLOCK))?,
            offset: 0.0,
        },
    };
    Ok(Nf4Blocks { scales, packed_from: Dtype::F32 })
}
