//! The whole model: its buffers, and the forward and backward pass over a batch.

use garden_device::{
    AdamW, Buffer, Device, DeviceError, Dtype, GROUPS, OutOfMemory, ParameterGroup, Purpose, Reserve, Rows, Stage,
    StepScalars,
};

use crate::batch::{Batch, longest};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::network::Network;
use crate::network::activations::{GradientCheckpointing, Saved, activations, roomy};
use crate::network::decoder::{DecoderContext, DecoderWorkspace, LayerActivations, LayerSizes, Sequence};
use crate::network::head::{Asked, HeadWorkspace};
use crate::network::linear::{AdapterSizes, LinearWorkspace};
use crate::network::lora::LoraConfig;
use crate::network::mode::Mode;
use crate::network::parameters::{Builder, Parameter, Storage};
use crate::network::pass::{Adapters, Pass};
use crate::network::patches::{PatchInputs, Patches};
use crate::network::role::{EVERY_BATCH, Part, WITH_IMAGES};
use crate::network::rotary::AngleInputs;
use crate::network::vision::{VisionContext, VisionWorkspace};
use crate::optimizer::Optimizer;
use garden_input::{Config, Family, LayerSpec, Limits};

/// Trainable parameters.
#[allow(clippy::large_enum_variant, reason = "a run has one")]
#[derive(Clone, Debug, PartialEq)]
pub enum Training {
    /// LoRA adapters beside frozen weights.
    Lora(LoraConfig),
    /// All weights.
    Full,
}

impl Training {
    /// Whether parameters of a part of a model are trained.
    pub fn reaches(&self, part: Part, config: &Config) -> Result<bool, Error> {
        match self {
            Training::Lora(lora) => lora.reaches(part, config),
            Training::Full => Ok(true),
        }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// The sum over its batches of scale times loss.
    pub loss: f32,
    /// Targets of its batches whose logit no other one exceeded.
    pub hits: usize,
    /// The norm of all gradients at the update, before clipping.
    pub gradient_norm: f32,
}

/// A model on a device.
#[derive(Debug)]
pub struct Model {
    config: Config,
    limits: Limits,
    pub(crate) network: Network,
    pub(crate) adapter_sizes: AdapterSizes,
    trained: Vec<Parameter>,
    /// Memory for the updates of a step.
    updates: Vec<AdamW>,
    /// All gradients, contiguous.
    gradients: Buffer,
    workspace: Workspace,
    scalars: StepScalars,
    /// Workspace that operations need besides their buffers.
    pub(crate) reserve: Reserve,
}

/// All buffers that are not parameters.
#[derive(Debug)]
struct Workspace {
    linear: LinearWorkspace,
    /// Of each kind of layer.
    decoder: Vec<DecoderWorkspace>,
    vision: VisionWorkspace,
    head: HeadWorkspace,
    /// The input of each layer, and the output of the last `[tokens, hidden]`.
    inputs: Vec<Buffer>,
    saved: Saved<LayerActivations>,
    /// The gradient passed down through the layers `[tokens, hidden]`.
    dx: Rows,
    /// The step's scalars.
    scalars: Buffer,
    /// The step's scalars with separate learning rates for vision tower and merger, if they have them.
    group_scalars: [Buffer; 2],
    /// The step's loss, its hits, and the sum of squares of all gradients: f32 `[3]`.
    results: Buffer,
    /// Input buffers of the batches on the device at once, used in turn.
    batches: Vec<BatchInputs>,
    /// Number of batches uploaded so far.
    put: usize,
    /// The batch already uploaded for the next pass.
    placed: Option<Given>,
}

/// Input buffers of a batch.
#[derive(Debug)]
struct BatchInputs {
    tokens: Buffer,
    cu_seqlens: Buffer,
    loss_positions: Buffer,
    targets: Buffer,
    angles: AngleInputs,
    images: PatchInputs,
}

/// A batch on the device.
#[derive(Clone, Copy, Debug)]
struct Given {
    tokens: Buffer,
    asked: Asked,
    sequence: Sequence,
    images: Patches,
}

impl Model {
    /// The family of the model.
    pub fn family(&self) -> &'static Family {
        self.config.family
    }

    /// Builds a model on a device, with all buffers for training batches within the limits.
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        training: &Training,
        checkpointing: GradientCheckpointing,
        storage: &Storage,
        limits: Limits,
    ) -> Result<Model, Error> {
        let lora = match training {
            Training::Lora(lora) => Some(lora),
            Training::Full => None,
        };
        let gradients = device.open_block();
        let mut builder = Builder::new(device, checkpoint, lora, Mode::Training, storage)?;
        builder.gradients = Some(gradients);
        let network = Network::build(&mut builder, config)?;
        let (trained, adapter_sizes) = (builder.trained, builder.adapter_sizes);
        let (text, vision) = (&config.text, &config.vision);
        let grouped = |layer: &LayerSpec| {
            let attention = layer.attention();
            if attention.heads == attention.kv_heads { 0 } else { attention.query_width() }
        };
        let heads = text.most(|layer| layer.attention().heads);
        let reserve = Reserve {
            longest: limits.longest,
            head_size: config.largest_head(),
            attention_tokens: limits.tokens.max(limits.patches),
            segments: limits.rows.max(vision.most_segments(limits.patches)),
            query_heads: (limits.tokens * heads).max(limits.patches * vision.heads),
            grouped_values: limits.tokens * text.most(grouped),
            parameters: trained.len(),
            ..builder.reserve
        };
        if trained.is_empty() {
            return Err(Error::Adapter(
                "no linear layer of the model matches the adapter's targets: nothing would be trained".into(),
            ));
        }
        let gradients = device.close_block(gradients, Dtype::F32)?;
        let workspace = Workspace::build(device, config, checkpointing, limits, adapter_sizes, &network)?;
        device.reserve(reserve)?;
        let (config, scalars, updates) = (config.clone(), StepScalars::default(), Vec::with_capacity(trained.len()));
        Ok(Model { config, limits, network, adapter_sizes, trained, updates, gradients, workspace, scalars, reserve })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The limits it was built for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Input buffers of images, and the workspace of the vision tower.
    pub(crate) fn image_workspaces(&self) -> (PatchInputs, VisionWorkspace) {
        (self.workspace.batches[0].images, self.workspace.vision.clone())
    }

    /// Trainable parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.trained
    }

    /// The values of a parameter.
    pub fn value(&self, device: &mut dyn Device, parameter: &Parameter) -> Result<Vec<f32>, Error> {
        Ok(parameter.layout.unpad(downloaded(device, parameter.value)?))
    }

    /// The gradient of a parameter.
    pub fn gradient(&self, device: &mut dyn Device, parameter: &Parameter) -> Result<Vec<f32>, Error> {
        Ok(parameter.layout.unpad(downloaded(device, parameter.gradient)?))
    }

    /// Sets the values of a parameter.
    pub fn set(&self, device: &mut dyn Device, parameter: &Parameter, values: &[f32]) {
        parameter.set(device, values);
    }

    /// Starts a step: clears the gradients, the loss and the hits of the previous one.
    pub fn begin_step(&self, device: &mut dyn Device) {
        device.mark(Stage::Update);
        device.zero(self.gradients);
        device.zero(self.workspace.results);
        // The first batch may not be there yet.
        device.mark(Stage::Idle);
    }

    /// Uploads a batch while the device computes with the previous one. It must be the next one passed to [`Model::learn`].
    pub fn place(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<(), Error> {
        device.upload_ahead(true);
        let placed = self.put(device, batch);
        device.upload_ahead(false);
        self.workspace.placed = Some(placed?);
        Ok(())
    }

    /// Whether a batch is uploaded ahead.
    pub fn has_placed(&self) -> bool {
        self.workspace.placed.is_some()
    }

    /// Drops the batch uploaded ahead, as others come first and may reuse its buffers.
    pub fn displace(&mut self) {
        self.workspace.placed = None;
    }

    /// Accumulates the gradients of `scale` times the sum of a batch's losses. `seed` selects the dropout; 0 means none.
    pub fn learn(&mut self, device: &mut dyn Device, batch: &Batch, scale: f32, seed: u64) -> Result<(), Error> {
        (self.scalars.loss_scale, self.scalars.seed) = (scale, seed);
        device.mark(Stage::Batch);
        let given = self.begin(device, batch)?;
        let dropout = (seed != 0).then_some(self.workspace.scalars);
        let pass = &mut Pass { device, linear: self.workspace.linear, dropout, adapters: Adapters::Own };
        self.forward(pass, &given);
        let (text, workspace, network) = (&self.config.text, &self.workspace, &self.network);
        let context = DecoderContext { hidden: text.hidden, workspaces: &workspace.decoder, sequence: &given.sequence };
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let dx = workspace.dx.first(given.sequence.tokens);
        network.head.loss(
            pass.device,
            text,
            part(workspace.inputs[text.layers.len()]),
            dx,
            given.asked,
            &workspace.head,
        );
        let [losses, hits] = [workspace.head.losses, workspace.head.hits].map(|buffer| buffer.first(given.asked.rows));
        pass.device.add_losses(losses, hits, workspace.results.first(2), workspace.scalars);
        pass.device.mark(Stage::Backward);
        for (index, layer) in network.layers.iter().enumerate().rev() {
            let (x, mut saved) = (part(workspace.inputs[index]), *workspace.saved.of(index));
            if workspace.saved.is_gone(index) {
                layer.forward(pass, context, x, None, &saved);
                saved = saved.made_again();
            }
            // Below the lowest layer there may be nothing trainable.
            let wants_dx = index > 0 || network.embedding_gradient.is_some() || network.vision.is_trained();
            layer.backward(pass, context, x, dx, wants_dx, &saved);
        }
        if let Some(gradient) = &network.embedding_gradient {
            // Image tokens were replaced, so their own embedding gets no gradient.
            let skipped = [self.config.image_token, self.config.padding_token.unwrap_or(self.config.image_token)];
            pass.device.embed_backward(dx, given.tokens, gradient, given.sequence.tokens, &skipped);
        }
        if given.images.patches > 0 && network.vision.is_trained() {
            network.vision.backward(pass, self.vision_context(&given), dx);
        }
        pass.device.mark(Stage::Idle);
        Ok(())
    }

    /// The loss at each position of a batch that counts, in order. No gradient changes.
    pub fn evaluate(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        // A loss scale of zero gives zero gradients, so the accumulated ones stay unchanged.
        (self.scalars.loss_scale, self.scalars.seed) = (0.0, 0);
        self.displace();
        let given = self.begin(device, batch)?;
        self.forward(
            &mut Pass { device, linear: self.workspace.linear, dropout: None, adapters: Adapters::Own },
            &given,
        );
        let (text, workspace) = (&self.config.text, &self.workspace);
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let (last, dx) = (part(workspace.inputs[text.layers.len()]), workspace.dx.first(given.sequence.tokens));
        self.network.head.loss(device, text, last, dx, given.asked, &workspace.head);
        self.losses(device, batch)
    }

    /// Number of updates of a group of parameters.
    pub(crate) fn updates_of(&self, group: ParameterGroup) -> u32 {
        self.scalars.updates_of(group)
    }

    pub(crate) fn set_updates(&mut self, updates: [u32; GROUPS]) {
        self.scalars.updates = updates;
    }

    /// The loss at each position that counts, in order, of the batch that was learnt last.
    pub fn losses(&self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        Ok(downloaded(device, self.workspace.head.losses.first(batch.targets()))?)
    }

    /// Whether each target that counts is a hit, in order, of the batch that was learnt or evaluated last: 1 if no logit was above the target's, else 0.
    pub fn hits(&self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        Ok(downloaded(device, self.workspace.head.hits.first(batch.targets()))?)
    }

    /// Logits `[tokens, vocabulary]` of a batch.
    pub fn logits(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        self.displace();
        let given = self.begin(device, batch)?;
        self.forward(
            &mut Pass { device, linear: self.workspace.linear, dropout: None, adapters: Adapters::Own },
            &given,
        );
        let text = &self.config.text;
        let last = self.workspace.inputs[text.layers.len()].first(batch.tokens() * text.hidden);
        let mut all = Vec::with_capacity(batch.tokens() * text.vocabulary);
        let (head, workspace) = (&self.network.head, &self.workspace.head);
        head.logits(device, text, last, batch.tokens(), workspace, |chunk| all.extend_from_slice(chunk))?;
        Ok(all)
    }

    /// The input `[tokens, hidden]` of each layer of the decoder, and the output of the last, of the batch that was computed last.
    pub fn hidden_states(&self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<Vec<f32>>, Error> {
        let length = batch.tokens() * self.config.text.hidden;
        let states = self.workspace.inputs.iter().map(|buffer| Ok(downloaded(device, buffer.first(length))?));
        states.collect()
    }

    /// Ends a step: scales all gradients and updates the parameters; the vision tower only if a batch of the step had images.
    pub fn update(
        &mut self,
        device: &mut dyn Device,
        optimizer: &Optimizer,
        rate: f32,
        gradient_scale: f32,
        had_images: bool,
    ) {
        device.mark(Stage::Update);
        let scalars = &mut self.scalars;
        (scalars.rate, scalars.gradient_scale) = (rate, gradient_scale);
        scalars.updates[usize::from(EVERY_BATCH.0)] += 1;
        scalars.updates[usize::from(WITH_IMAGES.0)] += u32::from(had_images);
        device.upload(self.workspace.scalars, bytes_of(&self.scalars.words()));
        if gradient_scale != 1.0 {
            device.scale(self.gradients, self.workspace.scalars);
        }
        let squares = self.workspace.results.part(2, 1);
        // Gradients of parameters that took no part are zero.
        device.add_squares(self.gradients, squares);
        let taking_part = self.trained.iter().filter(|parameter| had_images || parameter.role.group() == EVERY_BATCH);
        let rates = [Part::Tower, Part::Merger].map(|part| optimizer.factor(part));
        for (factor, buffer) in rates.into_iter().zip(self.workspace.group_scalars) {
            if factor != 1.0 {
                let scalars = StepScalars { rate: rate * factor, ..self.scalars };
                device.upload(buffer, bytes_of(&scalars.words()));
            }
        }
        let (all, [vision, merger]) = (self.workspace.scalars, self.workspace.group_scalars);
        let scalars = |part| match part {
            Part::Tower if optimizer.vision_factor != 1.0 => vision,
            Part::Merger if optimizer.merger_factor != 1.0 => merger,
            _ => all,
        };
        optimizer.update(device, taking_part, squares, scalars, &mut self.updates);
    }

    /// Waits for the end of a step; an error if the device failed meanwhile.
    pub fn step_result(&self, device: &mut dyn Device) -> Result<StepResult, Error> {
        device.mark(Stage::Idle);
        let mut results = [0.0; 3];
        device.download(self.workspace.results, &mut results)?;
        let [loss, hits, squares] = results;
        // f32 counts exactly up to 16,777,216.
        Ok(StepResult { loss, hits: hits as usize, gradient_norm: squares.sqrt() })
    }

    fn vision_context<'a>(&'a self, given: &'a Given) -> VisionContext<'a> {
        VisionContext { vision: &self.config.vision, workspace: &self.workspace.vision, images: &given.images }
    }

    fn forward(&self, pass: &mut Pass, given: &Given) {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let context = DecoderContext { hidden: text.hidden, workspaces: &workspace.decoder, sequence: &given.sequence };
        let part = |buffer: Buffer| buffer.first(given.sequence.tokens * text.hidden);
        let x = part(workspace.inputs[0]);
        self.network.embed(pass, &self.config.vision, &workspace.vision, given.tokens, &given.images, x);
        for (index, layer) in self.network.layers.iter().enumerate() {
            let (x, y) = (part(workspace.inputs[index]), part(workspace.inputs[index + 1]));
            layer.forward(pass, context, x, Some(y), workspace.saved.of(index));
        }
    }

    /// Starts a batch: uploads the scalars, and the batch unless that was done ahead.
    fn begin(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Given, Error> {
        device.begin_batch();
        device.upload(self.workspace.scalars, bytes_of(&self.scalars.words()));
        match self.workspace.placed.take() {
            Some(placed) => {
                let (tokens, patches) = (placed.sequence.tokens, placed.images.patches);
                assert_eq!((tokens, patches), (batch.tokens(), batch.patches()), "another batch was placed");
                Ok(placed)
            }
            None => self.put(device, batch),
        }
    }

    /// Uploads a batch.
    fn put(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Given, Error> {
        let (needed, limits) = (batch.limits(), self.limits);
        if needed.max(limits) != limits {
            return Err(Error::Batch(format!("the batch needs {needed:?}; the model was built for {limits:?}")));
        }
        let scalars = self.workspace.scalars;
        let inputs = &self.workspace.batches[self.workspace.put % self.workspace.batches.len()];
        self.workspace.put += 1;
        Ok(Given {
            tokens: upload(device, inputs.tokens, &batch.tokens),
            asked: Asked {
                positions: upload(device, inputs.loss_positions, &batch.loss_positions),
                targets: upload(device, inputs.targets, &batch.targets),
                rows: batch.targets(),
                scalars,
            },
            sequence: Sequence {
                tokens: batch.tokens(),
                rows: batch.cu_seqlens.len() - 1,
                longest: longest(&batch.cu_seqlens),
                cu_seqlens: upload(device, inputs.cu_seqlens, &batch.cu_seqlens),
                angles: inputs.angles.put(device, &batch.angles, 0..batch.tokens()),
            },
            images: inputs.images.put(device, &batch.images),
        })
    }
}

impl Workspace {
    fn build(
        device: &mut dyn Device,
        config: &Config,
        checkpointing: GradientCheckpointing,
        limits: Limits,
        adapters: AdapterSizes,
        network: &Network,
    ) -> Result<Workspace, OutOfMemory> {
        let vision_mode = network.vision.mode();
        let (text, tokens) = (&config.text, limits.tokens);
        let batches = (0..device.profile().batches).map(|_| BatchInputs::build(device, config, limits));
        let batches = batches.collect::<Result<Vec<BatchInputs>, OutOfMemory>>()?;
        let inputs = (0..=text.layers.len()).map(|index| {
            activations(device, Purpose::Activations, &format!("layer {index} input"), tokens, text.hidden)
        });
        let inputs = inputs.collect::<Result<Vec<Buffer>, OutOfMemory>>()?;
        let sizes = LayerSizes { hidden: text.hidden, tokens, adapters, mode: Mode::Training };
        let save = |device: &mut dyn Device| {
            let kinds = network.layers.iter().map(|layer| layer.kind).collect();
            Saved::build(checkpointing, kinds, |purpose, index| {
                let (label, spec) = (format!("layer {index}"), &text.layers[index]);
                LayerActivations::build(device, purpose, &label, spec, sizes)
            })
        };
        // The activations of all layers are needed to the end; those of a single recomputed layer lie in the block below.
        let all_saved = match checkpointing {
            GradientCheckpointing::Off => Some(save(device)?),
            GradientCheckpointing::PerLayer => None,
        };
        // A frozen vision tower is done when the decoder begins, so both share memory; otherwise its backward pass is still to come.
        let (block, adapted_rows) = match vision_mode {
            Mode::Inference => (Some(device.open_block()), tokens),
            Mode::Training => (None, tokens.max(limits.patches)),
        };
        device.enter_block(block);
        let vision = VisionWorkspace::build(
            device,
            &config.vision,
            limits.patches,
            network.vision.adapter_sizes(adapters),
            network.vision.adapts_merger(),
            vision_mode,
            checkpointing,
        )?;
        if let Some(block) = block {
            device.branch_block(block);
        }
        let saved = all_saved.map_or_else(|| save(device), Ok)?;
        let linear = LinearWorkspace::build(device, adapters, adapted_rows, Mode::Training)?;
        let decoder = DecoderWorkspace::of_kinds(device, text, sizes)?;
        let head = HeadWorkspace::build(device, text, limits.targets, Mode::Training)?;
        let room = adapters.room(device.profile());
        let dx = roomy(device, Purpose::Workspace, "gradient", tokens, text.hidden, room)?;
        device.enter_block(None);
        if let Some(block) = block {
            device.close_block(block, Dtype::U8)?;
        }
        let mut scalars = |label: &str| device.buffer(Purpose::Batch, label, Dtype::I32, StepScalars::LENGTH);
        let group_scalars = [scalars("scalars of the vision tower")?, scalars("scalars of the merger")?];
        let scalars = scalars("scalars")?;
        let results = device.buffer(Purpose::Workspace, "loss, hits and sum of squares", Dtype::F32, 3)?;
        let (put, placed) = (0, None);
        Ok(Workspace {
            linear,
            decoder,
            vision,
            head,
            inputs,
            saved,
            dx,
            scalars,
            group_scalars,
            results,
            batches,
            put,
            placed,
        })
    }
}

impl BatchInputs {
    fn build(device: &mut dyn Device, config: &Config, limits: Limits) -> Result<BatchInputs, OutOfMemory> {
        let images = PatchInputs::build(device, &config.vision, limits)?;
        let mut make = |label: &str, dtype: Dtype, length: usize| device.buffer(Purpose::Batch, label, dtype, length);
        Ok(BatchInputs {
            tokens: make("tokens", Dtype::I32, limits.tokens)?,
            cu_seqlens: make("row starts", Dtype::I32, limits.rows + 1)?,
            loss_positions: make("loss positions", Dtype::I32, limits.targets)?,
            targets: make("targets", Dtype::I32, limits.targets)?,
            angles: AngleInputs::build(device, &config.text, limits.tokens)?,
            images,
        })
    }
}

/// Uploads values to the start of a buffer, and returns that part.
pub(crate) fn upload<T: bytemuck::NoUninit>(device: &mut dyn Device, to: Buffer, values: &[T]) -> Buffer {
    let to = to.first(values.len());
    device.upload(to, bytes_of(values));
    to
}

/// Downloads all values of a buffer.
pub(crate) fn downloaded(device: &mut dyn Device, buffer: Buffer) -> Result<Vec<f32>, DeviceError> {
    let mut values = vec![0.0; buffer.length()];
    device.download(buffer, &mut values)?;
    Ok(values)
}

/// The bytes of values in memory. Devices and files use the same little-endian format.
pub(crate) fn bytes_of<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "files and devices are little-endian") };
    bytemuck::cast_slice(values)
}
