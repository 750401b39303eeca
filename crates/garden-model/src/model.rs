//! The whole model: its buffers, and one pass forward and backward over a batch.

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose, Reserve};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::config::{Config, VisionConfig};
use crate::decoder::{DecoderWorkspace, LayerActivations, Sequence};
use crate::error::Error;
use crate::head::HeadWorkspace;
use crate::linear::LinearWorkspace;
use crate::lora::LoraConfig;
use crate::mode::Mode;
use crate::network::Network;
use crate::optimizer::Optimizer;
use crate::parameters::{Builder, Parameter, Part, Storage};
use crate::patches::{PatchInputs, Patches};
use crate::vision::VisionWorkspace;

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
pub enum GradientCheckpointing {
    /// Everything that takes a matrix product to make again.
    Off,
    /// What each layer gets; the rest is made again.
    PerLayer,
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
            rows: batch.cu_seqlens.len() - 1,
            targets: batch.targets(),
            patches: batch.patches(),
            windows: batch.windows.cu_window_seqlens.len() - 1,
            images: batch.windows.cu_image_seqlens.len() - 1,
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
    workspace: Workspace,
    /// What operations need besides their buffers.
    pub(crate) reserve: Reserve,
}

/// All buffers that are no parameters.
#[derive(Debug)]
struct Workspace {
    linear: LinearWorkspace,
    decoder: DecoderWorkspace,
    vision: VisionWorkspace,
    head: HeadWorkspace,
    /// What each layer gets, and what the last one gives [tokens, hidden].
    inputs: Vec<Buffer>,
    saved: Vec<LayerActivations>,
    /// The gradient that goes down through the layers [tokens, hidden].
    dx: Buffer,
    squares: Buffer,
    batch: BatchInputs,
}

/// Where a batch is put.
#[derive(Debug)]
struct BatchInputs {
    tokens: Buffer,
    cu_seqlens: Buffer,
    loss_positions: Buffer,
    targets: Buffer,
    cosines: Buffer,
    sines: Buffer,
    images: PatchInputs,
}

/// A batch on the device.
#[derive(Clone, Copy, Debug)]
struct Given {
    tokens: Buffer,
    loss_positions: Buffer,
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
        recompute: GradientCheckpointing,
        storage: &Storage,
        limits: Limits,
    ) -> Result<Model, Error> {
        let lora = match training {
            Training::Lora(lora) => Some(lora),
            Training::Full => None,
        };
        let mut builder = Builder::new(device, checkpoint, lora, Mode::Training, storage)?;
        let network = Network::build(&mut builder, config)?;
        let (trained, widest, widest_adapted) = (builder.trained, builder.widest, builder.widest_adapted);
        if trained.is_empty() {
            return Err(Error::Batch(
                "no linear of the model matches the adapter's targets: nothing would be trained".into(),
            ));
        }
        let lora = lora.map(|lora| (lora.clone(), widest_adapted));
        let adapters = lora.as_ref().map(|(lora, widest)| (lora, *widest));
        let workspace = Workspace::build(device, config, recompute, limits, adapters, network.vision.passes())?;
        let head_size = config.text.head_size().max(config.vision.head_size());
        let reserve = Reserve { widest, longest: limits.longest, head_size };
        device.reserve(reserve)?;
        Ok(Model { config: config.clone(), limits, network, lora, trained, workspace, reserve })
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
    pub(crate) fn image_workspaces(&self) -> (PatchInputs, VisionWorkspace) {
        (self.workspace.batch.images, self.workspace.vision.clone())
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
        self.workspace.linear.seed = seed;
        self.forward(device, &given);
        let (text, workspace, network) = (&self.config.text, &self.workspace, &self.network);
        let sequence = &given.sequence;
        let part = |buffer: Buffer| buffer.first(sequence.tokens * text.hidden);
        let dx = part(workspace.dx);
        let last = part(workspace.inputs[text.layers]);
        network.head.loss(
            device,
            text,
            last,
            dx,
            given.loss_positions,
            given.targets,
            batch.targets(),
            scale,
            &workspace.head,
        );
        for (index, layer) in network.layers.iter().enumerate().rev() {
            let x = part(workspace.inputs[index]);
            let saved = &workspace.saved[index.min(workspace.saved.len() - 1)];
            if workspace.saved.len() == 1 && network.layers.len() > 1 {
                layer.forward(device, text, x, None, saved, &workspace.decoder, &workspace.linear, sequence);
            }
            // Below the lowest layer there may be nothing that is trained.
            let wants_dx = index > 0 || network.embedding_gradient.is_some() || network.vision.is_trained();
            layer.backward(device, text, x, dx, wants_dx, saved, &workspace.decoder, &workspace.linear, sequence);
        }
        if let Some(gradient) = &network.embedding_gradient {
            // Image tokens have been replaced, so their own embedding had no part.
            let skipped: Vec<i32> =
                [Some(self.config.image_token), self.config.padding_token].into_iter().flatten().collect();
            device.embed_backward(dx, given.tokens, gradient, sequence.tokens, &skipped);
        }
        if given.images.patches > 0 && network.vision.is_trained() {
            network.vision.backward(
                device,
                &self.config.vision,
                dx,
                &workspace.vision,
                &workspace.linear,
                &given.images,
            );
        }
        Ok(())
    }

    /// The losses of the places that a batch asks for, in order. Nothing is learnt, and no gradient changes.
    pub fn evaluate(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        let given = self.put(device, batch)?;
        self.workspace.linear.seed = 0;
        self.forward(device, &given);
        let (text, workspace) = (&self.config.text, &self.workspace);
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let last = part(workspace.inputs[text.layers]);
        // Gradients of nothing are zeros, so those that are summed up stay as they are.
        let head = &self.network.head;
        head.loss(
            device,
            text,
            last,
            part(workspace.dx),
            given.loss_positions,
            given.targets,
            batch.targets(),
            0.0,
            &workspace.head,
        );
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
        device.download(self.workspace.head.losses.first(batch.targets()), &mut losses);
        losses
    }

    /// Logits [tokens, vocabulary] of a batch.
    pub fn logits(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        let given = self.put(device, batch)?;
        self.workspace.linear.seed = 0;
        self.forward(device, &given);
        let text = &self.config.text;
        let last = self.workspace.inputs[text.layers].first(batch.tokens() * text.hidden);
        let mut all = Vec::with_capacity(batch.tokens() * text.vocabulary);
        let head = &self.network.head;
        head.logits(device, text, last, batch.tokens(), &self.workspace.head, |chunk| all.extend_from_slice(chunk));
        Ok(all)
    }

    /// Updates what took part in a batch with images or without; returns nothing until the norm is asked for.
    pub fn update(&mut self, device: &mut dyn Device, optimizer: &Optimizer, rate: f32, had_images: bool) {
        let taking_part = self.trained.iter_mut().filter(|parameter| had_images || parameter.part == Part::Decoder);
        optimizer.update(device, taking_part, self.workspace.squares, rate);
    }

    /// The norm of all gradients at the last update, before clipping.
    pub fn gradient_norm(&self, device: &mut dyn Device) -> f32 {
        let mut squares = [0.0];
        device.download(self.workspace.squares, &mut squares);
        squares[0].sqrt()
    }

    fn forward(&self, device: &mut dyn Device, given: &Given) {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let x = part(workspace.inputs[0]);
        self.network.embed(device, &self.config, given.tokens, &given.images, x, &workspace.vision, &workspace.linear);
        for (index, layer) in self.network.layers.iter().enumerate() {
            let (x, y) = (part(workspace.inputs[index]), part(workspace.inputs[index + 1]));
            let saved = &workspace.saved[index.min(workspace.saved.len() - 1)];
            layer.forward(device, text, x, Some(y), saved, &workspace.decoder, &workspace.linear, &given.sequence);
        }
    }

    /// Brings a batch to the device.
    fn put(&self, device: &mut dyn Device, batch: &Batch) -> Result<Given, Error> {
        let (needed, limits) = (Limits::of(batch), self.limits);
        if needed.max(limits) != limits {
            return Err(Error::Batch(format!("the batch needs {needed:?}; the model was built for {limits:?}")));
        }
        let workspace = &self.workspace.batch;
        Ok(Given {
            tokens: upload(device, workspace.tokens, &batch.tokens),
            loss_positions: upload(device, workspace.loss_positions, &batch.loss_positions),
            targets: upload(device, workspace.targets, &batch.targets),
            sequence: Sequence {
                tokens: batch.tokens(),
                rows: batch.cu_seqlens.len() - 1,
                cu_seqlens: upload(device, workspace.cu_seqlens, &batch.cu_seqlens),
                cosines: upload(device, workspace.cosines, &batch.angles.cosines),
                sines: upload(device, workspace.sines, &batch.angles.sines),
            },
            images: workspace.images.put(device, batch),
        })
    }
}

impl Workspace {
    fn build(
        device: &mut dyn Device,
        config: &Config,
        recompute: GradientCheckpointing,
        limits: Limits,
        lora: Option<(&LoraConfig, usize)>,
        vision_mode: Mode,
    ) -> Result<Workspace, OutOfMemory> {
        let text = &config.text;
        let batch = BatchInputs::build(device, config, limits)?;
        let real = |device: &mut dyn Device, purpose: Purpose, label: &str, length: usize| {
            device.buffer(purpose, label, Dtype::F32, length)
        };
        let mut inputs = Vec::new();
        for index in 0..=text.layers {
            inputs.push(real(
                device,
                Purpose::Activations,
                &format!("layer {index} input"),
                limits.tokens * text.hidden,
            )?);
        }
        let (purpose, layers) = match recompute {
            GradientCheckpointing::Off => (Purpose::Activations, text.layers),
            GradientCheckpointing::PerLayer => (Purpose::RecomputedActivations, 1),
        };
        let mut saved = Vec::new();
        for index in 0..layers {
            saved.push(LayerActivations::build(
                device,
                purpose,
                &format!("layer {index}"),
                text,
                limits.tokens,
                Mode::Training,
            )?);
        }
        let rows = limits.tokens.max(limits.patches);
        Ok(Workspace {
            linear: LinearWorkspace::build(device, lora, rows, Mode::Training)?,
            decoder: DecoderWorkspace::build(device, text, limits.tokens, Mode::Training)?,
            vision: VisionWorkspace::build(device, &config.vision, limits.patches, vision_mode, recompute)?,
            head: HeadWorkspace::build(device, text, limits.targets, Mode::Training)?,
            inputs,
            saved,
            dx: real(device, Purpose::Workspace, "gradient", limits.tokens * text.hidden)?,
            squares: real(device, Purpose::Workspace, "sum of squares", 1)?,
            batch,
        })
    }
}

impl BatchInputs {
    fn build(device: &mut dyn Device, config: &Config, limits: Limits) -> Result<BatchInputs, OutOfMemory> {
        let mut make = |label: &str, dtype: Dtype, length: usize| device.buffer(Purpose::Batch, label, dtype, length);
        let half = config.text.head_size() / 2;
        Ok(BatchInputs {
            tokens: make("tokens", Dtype::I32, limits.tokens)?,
            cu_seqlens: make("row starts", Dtype::I32, limits.rows + 1)?,
            loss_positions: make("loss_positions places", Dtype::I32, limits.targets)?,
            targets: make("targets", Dtype::I32, limits.targets)?,
            cosines: make("cosines", Dtype::F32, limits.tokens * half)?,
            sines: make("sines", Dtype::F32, limits.tokens * half)?,
            images: PatchInputs::build(device, config, limits.patches, limits.windows, limits.images)?,
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
