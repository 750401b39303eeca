//! Parameters: what a model is made of, with gradients and optimizer state for what is trained, and how they come into being.

use garden_device::{Buffer, Device, Kind, Purpose, Weight};

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::linear::{Linear, Lora};
use crate::lora::{LoraConfig, Matcher};
use crate::model::bytes_of;
use crate::names::is_decayed;

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
    pub(crate) moments: [Buffer; 2],
    pub(crate) is_decayed: bool,
    pub(crate) part: Part,
    /// Updates that it has had.
    pub(crate) steps: u32,
}

/// Builds a model's buffers from a checkpoint.
pub(crate) struct Builder<'a> {
    pub device: &'a mut dyn Device,
    pub checkpoint: &'a Checkpoint,
    pub lora: Option<(LoraConfig, Matcher)>,
    pub is_full: bool,
    pub part: Part,
    pub trained: Vec<Parameter>,
    /// Columns of the widest weight that has to be widened.
    pub widest: usize,
    /// The widest input of an adapter, and how many there are.
    pub widest_adapted: usize,
    pub adapters: u64,
}

impl Builder<'_> {
    /// A parameter from the checkpoint, with its gradient if it is trained.
    pub fn parameter(&mut self, name: &str, shape: &[usize]) -> Result<(Buffer, Option<Buffer>), Error> {
        let tensor = self.checkpoint.shaped(name, shape)?;
        if let Some(place) = tensor.not_finite() {
            return Err(Error::tensor(tensor.path, name, format!("has no finite number at {place}")));
        }
        let length = shape.iter().product();
        // Biases and norms are small, and used value by value: widened once instead of at each use.
        let kind = if self.is_full || shape.len() == 1 { Kind::F32 } else { tensor.kind };
        let value = self.device.buffer(Purpose::Weights, name, kind, length)?;
        self.fill(value, tensor);
        // It is on the device now: the pages of the file need not stay beside it.
        tensor.forget();
        if !self.is_full {
            return Ok((value, None));
        }
        let gradient = self.train(name.to_string(), shape.to_vec(), value, is_decayed(name))?;
        Ok((value, Some(gradient)))
    }

    fn fill(&mut self, value: Buffer, tensor: Tensor<'_>) {
        if value.kind() == tensor.kind {
            self.device.upload(value, tensor.bytes);
            return;
        }
        self.device.upload(value, bytes_of(&tensor.values()));
    }

    fn train(&mut self, name: String, shape: Vec<usize>, value: Buffer, is_decayed: bool) -> Result<Buffer, Error> {
        let length = value.length();
        let gradient = self.device.buffer(Purpose::Gradients, &name, Kind::F32, length)?;
        let first = self.device.buffer(Purpose::Optimizer, &format!("{name} first moment"), Kind::F32, length)?;
        let second = self.device.buffer(Purpose::Optimizer, &format!("{name} second moment"), Kind::F32, length)?;
        let moments = [first, second];
        self.trained.push(Parameter { name, shape, value, gradient, moments, is_decayed, part: self.part, steps: 0 });
        Ok(gradient)
    }

    /// A matrix.
    pub fn weight(&mut self, name: &str, rows: usize, columns: usize) -> Result<(Weight, Option<Weight>), Error> {
        let (value, gradient) = self.parameter(name, &[rows, columns])?;
        if value.kind() != Kind::F32 {
            self.widest = self.widest.max(columns);
        }
        let of = |buffer| Weight::plain(buffer, rows, columns);
        Ok((of(value), gradient.map(of)))
    }

    /// A linear with its adapter, if it has one.
    pub fn linear(&mut self, name: &str, inputs: usize, outputs: usize, has_bias: bool) -> Result<Linear, Error> {
        let (weight, weight_gradient) = self.weight(&format!("{name}.weight"), outputs, inputs)?;
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
        let mut matrix = |side: &str, rows: usize, columns: usize| -> Result<(Weight, Weight), Error> {
            let full = format!("base_model.model.{name}.lora_{side}.weight");
            let value = self.device.buffer(Purpose::Adapters, &full, Kind::F32, rows * columns)?;
            let gradient = self.train(full, vec![rows, columns], value, true)?;
            let of = |buffer| Weight::plain(buffer, rows, columns);
            Ok((of(value), of(gradient)))
        };
        let (down, down_gradient) = matrix("A", rank, inputs)?;
        let (up, up_gradient) = matrix("B", outputs, rank)?;
        self.widest_adapted = self.widest_adapted.max(inputs);
        self.adapters += 1;
        Ok(Some(Lora { down, down_gradient, up, up_gradient, scale, dropout, number: self.adapters }))
    }
}
