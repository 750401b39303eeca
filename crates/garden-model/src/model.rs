//! The whole model: its buffers, and one pass forward and backward over a batch.

use garden_device::{Buffer, Device, Kind, OutOfMemory, Purpose, Reserve};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::config::{Config, VisionConfig};
use crate::decoder::{DecoderRoom, LayerKept, Sequence};
use crate::error::Error;
use crate::head::HeadRoom;
use crate::linear::LinearRoom;
use crate::lora::LoraConfig;
use crate::network::Network;
use crate::optimizer::Optimizer;
use crate::parameters::{Builder, Parameter, Part, Storage};
use crate::passes::Passes;
use crate::patches::{PatchRoom, Patches};
use crate::vision::VisionRoom;

/// What is trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Training {
    /// Adapters beside frozen weights.
    Lora(LoraConfig),
    /// All weights.
    Full,
}

/// What is kept from the forward to the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Everything that takes a matrix product to make again.
    Nothing,
    /// What each layer gets; the rest is made again.
    Layers,
}

/// The largest batch that there will be: buffers are made for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Tokens of all rows.
    pub tokens: usize,
    /// Rows.
    pub rows: usize,
    /// Places whose next token is asked for.
    pub targets: usize,
    /// Patches of all images.
    pub patches: usize,
    /// Windows of all images.
    pub windows: usize,
    /// Frames of all images.
    pub images: usize,
    /// The longest stretch that attention runs over.
    pub longest: usize,
}

impl Limits {
    /// The limits that one batch needs.
    pub fn of(batch: &Batch) -> Limits {
        Limits {
            tokens: batch.tokens(),
            rows: batch.row_starts.len() - 1,
            targets: batch.targets(),
            patches: batch.patches(),
            windows: batch.windows.window_starts.len() - 1,
            images: batch.windows.image_starts.len() - 1,
            longest: batch.longest(),
        }
    }

    /// The limits that one row with images of these grids needs, without its pixels: those of the batch that has only this row.
    pub fn of_row(config: &Config, tokens: usize, targets: usize, grids: &[[usize; 3]]) -> Limits {
        let mut limits = Limits { tokens, rows: 1, targets, longest: tokens, ..Limits::default() };
        let VisionConfig { merge, window, .. } = config.vision;
        for &[frames, height, width] in grids {
            limits.patches += frames * height * width;
            limits.windows += frames * (height / merge).div_ceil(window) * (width / merge).div_ceil(window);
            limits.images += frames;
            // A window is never longer than its frame.
            limits.longest = limits.longest.max(height * width);
        }
        limits
    }

    /// The limits of a batch of both.
    pub fn plus(self, other: Limits) -> Limits {
        Limits {
            tokens: self.tokens + other.tokens,
            rows: self.rows + other.rows,
            targets: self.targets + other.targets,
            patches: self.patches + other.patches,
            windows: self.windows + other.windows,
            images: self.images + other.images,
            longest: self.longest.max(other.longest),
        }
    }

    /// The limits that fit both.
    pub fn max(self, other: Limits) -> Limits {
        Limits {
            tokens: self.tokens.max(other.tokens),
            rows: self.rows.max(other.rows),
            targets: self.targets.max(other.targets),
            patches: self.patches.max(other.patches),
            windows: self.windows.max(other.windows),
            images: self.images.max(other.images),
            longest: self.longest.max(other.longest),
        }
    }
}

/// A model on a device.
#[derive(Debug)]
pub struct Model {
    config: Config,
    limits: Limits,
    pub(crate) network: Network,
    /// The adapters, and their widest input.
    pub(crate) lora: Option<(LoraConfig, usize)>,
    trained: Vec<Parameter>,
    room: Room,
    /// What operations need besides their buffers.
    pub(crate) reserve: Reserve,
}

/// All buffers that are no parameters.
#[derive(Debug)]
struct Room {
    linear: LinearRoom,
    decoder: DecoderRoom,
    vision: VisionRoom,
    head: HeadRoom,
    /// What each layer gets, and what the last one gives [tokens, hidden].
    inputs: Vec<Buffer>,
    kept: Vec<LayerKept>,
    /// The gradient that goes down through the layers [tokens, hidden].
    dx: Buffer,
    squares: Buffer,
    batch: BatchRoom,
}

/// Where a batch is put.
#[derive(Debug)]
struct BatchRoom {
    tokens: Buffer,
    row_starts: Buffer,
    asked: Buffer,
    targets: Buffer,
    cosines: Buffer,
    sines: Buffer,
    images: PatchRoom,
}

/// A batch on the device.
#[derive(Clone, Copy, Debug)]
struct Given {
    tokens: Buffer,
    asked: Buffer,
    targets: Buffer,
    sequence: Sequence,
    images: Patches,
}

impl Model {
    /// Puts a model on a device, with everything that training batches within the limits needs.
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        training: &Training,
        recompute: Recompute,
        storage: &Storage,
        limits: Limits,
    ) -> Result<Model, Error> {
        let lora = match training {
            Training::Lora(lora) => Some(lora),
            Training::Full => None,
        };
        let mut builder = Builder::new(device, checkpoint, lora, Passes::Both, storage)?;
        let network = Network::build(&mut builder, config)?;
        let (trained, widest, widest_adapted) = (builder.trained, builder.widest, builder.widest_adapted);
        if trained.is_empty() {
            return Err(Error::Batch(
                "no linear of the model matches the adapter's targets: nothing would be trained".into(),
            ));
        }
        let lora = lora.map(|lora| (lora.clone(), widest_adapted));
        let adapters = lora.as_ref().map(|(lora, widest)| (lora, *widest));
        let room = Room::build(device, config, recompute, limits, adapters, network.vision.passes())?;
        let head_size = config.text.head_size().max(config.vision.head_size());
        let reserve = Reserve { widest, longest: limits.longest, head_size };
        device.reserve(reserve)?;
        Ok(Model { config: config.clone(), limits, network, lora, trained, room, reserve })
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it was built for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Where images are put, and where they go through the vision tower.
    pub(crate) fn rooms_of_images(&self) -> (PatchRoom, VisionRoom) {
        (self.room.batch.images, self.room.vision.clone())
    }

    /// What is trained.
    pub fn parameters(&self) -> &[Parameter] {
        &self.trained
    }

    /// The values of a parameter.
    pub fn value(&self, device: &mut dyn Device, parameter: &Parameter) -> Vec<f32> {
        let mut values = vec![0.0; parameter.value.length()];
        device.download(parameter.value, &mut values);
        values
    }

    /// The gradient of a parameter.
    pub fn gradient(&self, device: &mut dyn Device, parameter: &Parameter) -> Vec<f32> {
        let mut values = vec![0.0; parameter.gradient.length()];
        device.download(parameter.gradient, &mut values);
        values
    }

    /// Sets the values of a parameter.
    pub fn set(&self, device: &mut dyn Device, parameter: &Parameter, values: &[f32]) {
        device.upload(parameter.value, bytes_of(values));
    }

    /// Forgets all gradients.
    pub fn forget_gradients(&self, device: &mut dyn Device) {
        for parameter in &self.trained {
            device.zero(parameter.gradient);
        }
    }

    /// Multiplies all gradients.
    pub fn scale_gradients(&self, device: &mut dyn Device, factor: f32) {
        for parameter in &self.trained {
            device.scale(parameter.gradient, factor);
        }
    }

    /// Adds the gradients of `scale` times the sum of all losses of a batch. `seed` decides what is dropped; 0 drops nothing.
    pub fn learn(&mut self, device: &mut dyn Device, batch: &Batch, scale: f32, seed: u64) -> Result<(), Error> {
        let given = self.put(device, batch)?;
        self.room.linear.seed = seed;
        self.forward(device, &given);
        let (text, room, network) = (&self.config.text, &self.room, &self.network);
        let sequence = &given.sequence;
        let part = |buffer: Buffer| buffer.first(sequence.tokens * text.hidden);
        let dx = part(room.dx);
        let last = part(room.inputs[text.layers]);
        network.head.loss(device, text, last, dx, given.asked, given.targets, batch.targets(), scale, &room.head);
        for (index, layer) in network.layers.iter().enumerate().rev() {
            let x = part(room.inputs[index]);
            let kept = &room.kept[index.min(room.kept.len() - 1)];
            if room.kept.len() == 1 && network.layers.len() > 1 {
                layer.forward(device, text, x, None, kept, &room.decoder, &room.linear, sequence);
            }
            // Below the lowest layer there may be nothing that is trained.
            let wants_dx = index > 0 || network.embedding_gradient.is_some() || network.vision.is_trained();
            layer.backward(device, text, x, dx, wants_dx, kept, &room.decoder, &room.linear, sequence);
        }
        if let Some(gradient) = &network.embedding_gradient {
            // Image tokens have been replaced, so their own embedding had no part.
            let skipped: Vec<i32> =
                [Some(self.config.image_token), self.config.padding_token].into_iter().flatten().collect();
            device.embed_backward(dx, given.tokens, gradient, sequence.tokens, &skipped);
        }
        if given.images.patches > 0 && network.vision.is_trained() {
            network.vision.backward(device, &self.config.vision, dx, &room.vision, &room.linear, &given.images);
        }
        Ok(())
    }

    /// The losses of the places that a batch asks for, in order. Nothing is learnt, and no gradient changes.
    pub fn evaluate(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        let given = self.put(device, batch)?;
        self.room.linear.seed = 0;
        self.forward(device, &given);
        let (text, room) = (&self.config.text, &self.room);
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let last = part(room.inputs[text.layers]);
        // Gradients of nothing are zeros, so those that are summed up stay as they are.
        let head = &self.network.head;
        head.loss(device, text, last, part(room.dx), given.asked, given.targets, batch.targets(), 0.0, &room.head);
        Ok(self.losses(device, batch))
    }

    pub(crate) fn set_updates(&mut self, updates: &[u32]) {
        for (parameter, steps) in self.trained.iter_mut().zip(updates) {
            parameter.steps = *steps;
        }
    }

    /// The losses of the places that were asked, in order, of the batch that was learnt last.
    pub fn losses(&self, device: &mut dyn Device, batch: &Batch) -> Vec<f32> {
        let mut losses = vec![0.0; batch.targets()];
        device.download(self.room.head.losses.first(batch.targets()), &mut losses);
        losses
    }

    /// Logits [tokens, vocabulary] of a batch.
    pub fn logits(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        let given = self.put(device, batch)?;
        self.room.linear.seed = 0;
        self.forward(device, &given);
        let text = &self.config.text;
        let last = self.room.inputs[text.layers].first(batch.tokens() * text.hidden);
        let mut all = Vec::with_capacity(batch.tokens() * text.vocabulary);
        let head = &self.network.head;
        head.logits(device, text, last, batch.tokens(), &self.room.head, |chunk| all.extend_from_slice(chunk));
        Ok(all)
    }

    /// Updates what took part in a batch with images or without; returns nothing until the norm is asked for.
    pub fn update(&mut self, device: &mut dyn Device, optimizer: &Optimizer, rate: f32, had_images: bool) {
        let taking_part = self.trained.iter_mut().filter(|parameter| had_images || parameter.part == Part::Decoder);
        optimizer.update(device, taking_part, self.room.squares, rate);
    }

    /// The norm of all gradients at the last update, before clipping.
    pub fn gradient_norm(&self, device: &mut dyn Device) -> f32 {
        let mut squares = [0.0];
        device.download(self.room.squares, &mut squares);
        squares[0].sqrt()
    }

    fn forward(&self, device: &mut dyn Device, given: &Given) {
        let (text, room) = (&self.config.text, &self.room);
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let x = part(room.inputs[0]);
        self.network.embed(device, &self.config, given.tokens, &given.images, x, &room.vision, &room.linear);
        for (index, layer) in self.network.layers.iter().enumerate() {
            let (x, y) = (part(room.inputs[index]), part(room.inputs[index + 1]));
            let kept = &room.kept[index.min(room.kept.len() - 1)];
            layer.forward(device, text, x, Some(y), kept, &room.decoder, &room.linear, &given.sequence);
        }
    }

    /// Brings a batch to the device.
    fn put(&self, device: &mut dyn Device, batch: &Batch) -> Result<Given, Error> {
        let (needed, limits) = (Limits::of(batch), self.limits);
        if needed.max(limits) != limits {
            return Err(Error::Batch(format!("the batch needs {needed:?}; the model was built for {limits:?}")));
        }
        let room = &self.room.batch;
        Ok(Given {
            tokens: upload(device, room.tokens, &batch.tokens),
            asked: upload(device, room.asked, &batch.asked),
            targets: upload(device, room.targets, &batch.targets),
            sequence: Sequence {
                tokens: batch.tokens(),
                rows: batch.row_starts.len() - 1,
                row_starts: upload(device, room.row_starts, &batch.row_starts),
                cosines: upload(device, room.cosines, &batch.angles.cosines),
                sines: upload(device, room.sines, &batch.angles.sines),
            },
            images: room.images.put(device, batch),
        })
    }
}

impl Room {
    fn build(
        device: &mut dyn Device,
        config: &Config,
        recompute: Recompute,
        limits: Limits,
        lora: Option<(&LoraConfig, usize)>,
        vision_passes: Passes,
    ) -> Result<Room, OutOfMemory> {
        let text = &config.text;
        let batch = BatchRoom::build(device, config, limits)?;
        let real = |device: &mut dyn Device, purpose: Purpose, label: &str, length: usize| {
            device.buffer(purpose, label, Kind::F32, length)
        };
        let mut inputs = Vec::new();
        for index in 0..=text.layers {
            inputs.push(real(device, Purpose::Kept, &format!("layer {index} input"), limits.tokens * text.hidden)?);
        }
        let (purpose, layers) = match recompute {
            Recompute::Nothing => (Purpose::Kept, text.layers),
            Recompute::Layers => (Purpose::Recomputed, 1),
        };
        let mut kept = Vec::new();
        for index in 0..layers {
            kept.push(LayerKept::build(device, purpose, &format!("layer {index}"), text, limits.tokens, Passes::Both)?);
        }
        let rows = limits.tokens.max(limits.patches);
        Ok(Room {
            linear: LinearRoom::build(device, lora, rows, Passes::Both)?,
            decoder: DecoderRoom::build(device, text, limits.tokens, Passes::Both)?,
            vision: VisionRoom::build(device, &config.vision, limits.patches, vision_passes, recompute)?,
            head: HeadRoom::build(device, text, limits.targets, Passes::Both)?,
            inputs,
            kept,
            dx: real(device, Purpose::Workspace, "gradient", limits.tokens * text.hidden)?,
            squares: real(device, Purpose::Workspace, "sum of squares", 1)?,
            batch,
        })
    }
}

impl BatchRoom {
    fn build(device: &mut dyn Device, config: &Config, limits: Limits) -> Result<BatchRoom, OutOfMemory> {
        let mut make = |label: &str, kind: Kind, length: usize| device.buffer(Purpose::Batch, label, kind, length);
        let half = config.text.head_size() / 2;
        Ok(BatchRoom {
            tokens: make("tokens", Kind::I32, limits.tokens)?,
            row_starts: make("row starts", Kind::I32, limits.rows + 1)?,
            asked: make("asked places", Kind::I32, limits.targets)?,
            targets: make("targets", Kind::I32, limits.targets)?,
            cosines: make("cosines", Kind::F32, limits.tokens * half)?,
            sines: make("sines", Kind::F32, limits.tokens * half)?,
            images: PatchRoom::build(device, config, limits.patches, limits.windows, limits.images)?,
        })
    }
}

/// Brings values to the first places of a buffer, and returns those.
pub(crate) fn upload<T: Plain>(device: &mut dyn Device, to: Buffer, values: &[T]) -> Buffer {
    let to = to.first(values.len());
    device.upload(to, bytes_of(values));
    to
}

/// Values as the bytes that they are in memory, which is how devices and files have them: little-endian.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "files and devices are little-endian") };
    // SAFETY: numbers without padding, of which any byte may be read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Numbers that are nothing but their bytes.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i32 {}
