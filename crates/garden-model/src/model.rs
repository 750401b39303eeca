//! The whole model: its buffers, and one pass forward and backward over a batch.

use garden_device::{Buffer, Device, Kind, OutOfMemory, Purpose, Reserve, Weight};

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::decoder::{DecoderRoom, Layer, LayerKept, Norm, Sequence};
use crate::error::Error;
use crate::head::{Head, HeadRoom};
use crate::linear::LinearRoom;
use crate::lora::LoraConfig;
use crate::optimizer::Optimizer;
use crate::parameters::{Builder, Parameter, Part, Storage};
use crate::vision::{BlockKept, Patches, Vision, VisionRoom};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    vision: Vision,
    embedding: Weight,
    embedding_gradient: Option<Weight>,
    layers: Vec<Layer>,
    head: Head,
    trained: Vec<Parameter>,
    room: Room,
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
    /// What each block of the vision tower gets, and what the last one gives [patches, hidden].
    vision_inputs: Vec<Buffer>,
    vision_kept: Vec<BlockKept>,
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
    pixels: Buffer,
    patch_order: Buffer,
    window_starts: Buffer,
    image_starts: Buffer,
    patch_cosines: Buffer,
    patch_sines: Buffer,
    image_places: Buffer,
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
            Training::Lora(lora) => Some((lora.clone(), lora.targets.matcher().map_err(Error::Batch)?)),
            Training::Full => None,
        };
        let mut builder = Builder {
            device,
            checkpoint,
            lora,
            is_full: *training == Training::Full,
            storage: storage.clone(),
            part: Part::Vision,
            trained: Vec::new(),
            widest: 0,
            widest_adapted: 0,
            adapters: 0,
        };
        let text = &config.text;
        let vision = Vision::build(&mut builder, &config.vision)?;
        builder.part = Part::Decoder;
        let name = "model.language_model";
        let (embedding, embedding_gradient) =
            builder.weight(&format!("{name}.embed_tokens.weight"), text.vocabulary, text.hidden)?;
        let layers = (0..text.layers).map(|index| Layer::build(&mut builder, &format!("{name}.layers.{index}"), text));
        let layers = layers.collect::<Result<Vec<Layer>, Error>>()?;
        let norm = Norm::build(&mut builder, &format!("{name}.norm"), text.hidden, text.epsilon)?;
        let (weight, gradient) = match config.is_tied {
            true => (embedding, embedding_gradient),
            false => builder.linear_weight("lm_head", text.vocabulary, text.hidden)?,
        };
        let (trained, widest, widest_adapted) = (builder.trained, builder.widest, builder.widest_adapted);
        if trained.is_empty() {
            return Err(Error::Batch(
                "no linear of the model matches the adapter's targets: nothing would be trained".into(),
            ));
        }
        let lora = match training {
            Training::Lora(lora) => Some((lora, widest_adapted)),
            Training::Full => None,
        };
        let room = Room::build(device, config, recompute, limits, lora, vision.is_trained())?;
        let head_size = text.head_size().max(config.vision.head_size());
        device.reserve(Reserve { widest, longest: limits.longest, head_size })?;
        let head = Head { norm, weight, gradient };
        Ok(Model { config: config.clone(), limits, vision, embedding, embedding_gradient, layers, head, trained, room })
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
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

    /// Adds the gradients of `scale` times the sum of all losses of a batch. `seed` decides what is dropped; 0 drops nothing.
    pub fn learn(&mut self, device: &mut dyn Device, batch: &Batch, scale: f32, seed: u64) -> Result<(), Error> {
        self.put(device, batch)?;
        self.room.linear.seed = seed;
        self.forward(device, batch);
        let (text, room) = (&self.config.text, &self.room);
        let sequence = self.sequence(batch);
        let part = |buffer: Buffer| buffer.first(sequence.tokens * text.hidden);
        let dx = part(room.dx);
        let last = part(room.inputs[text.layers]);
        let (asked, targets) = (room.batch.asked.first(batch.targets()), room.batch.targets.first(batch.targets()));
        self.head.loss(device, text, last, dx, asked, targets, batch.targets(), scale, &room.head);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let x = part(room.inputs[index]);
            let kept = &room.kept[index.min(room.kept.len() - 1)];
            if room.kept.len() == 1 && self.layers.len() > 1 {
                layer.forward(device, text, x, None, kept, &room.decoder, &room.linear, &sequence);
            }
            // Below the lowest layer there may be nothing that is trained.
            let wants_dx = index > 0 || self.embedding_gradient.is_some() || self.vision.is_trained();
            layer.backward(device, text, x, dx, wants_dx, kept, &room.decoder, &room.linear, &sequence);
        }
        if let Some(gradient) = &self.embedding_gradient {
            // Image tokens have been replaced, so their own embedding had no part.
            let skipped: Vec<i32> =
                [Some(self.config.image_token), self.config.padding_token].into_iter().flatten().collect();
            device.embed_backward(dx, room.batch.tokens.first(sequence.tokens), gradient, sequence.tokens, &skipped);
        }
        if batch.patches() > 0 && self.vision.is_trained() {
            let given = self.patches(batch);
            let tokens = given.patches / self.config.vision.merged();
            device.gather(
                dx,
                room.batch.image_places.first(tokens),
                room.vision.out.first(tokens * text.hidden),
                tokens,
                text.hidden,
            );
            self.vision.backward(
                device,
                &self.config.vision,
                &room.vision_inputs,
                &room.vision_kept,
                &room.vision,
                &room.linear,
                &given,
            );
        }
        Ok(())
    }

    /// The losses of the places that were asked, in order, of the batch that was learnt last.
    pub fn losses(&self, device: &mut dyn Device, batch: &Batch) -> Vec<f32> {
        let mut losses = vec![0.0; batch.targets()];
        device.download(self.room.head.losses.first(batch.targets()), &mut losses);
        losses
    }

    /// Logits [tokens, vocabulary] of a batch.
    pub fn logits(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<Vec<f32>, Error> {
        self.put(device, batch)?;
        self.room.linear.seed = 0;
        self.forward(device, batch);
        let text = &self.config.text;
        let last = self.room.inputs[text.layers].first(batch.tokens() * text.hidden);
        let mut all = Vec::with_capacity(batch.tokens() * text.vocabulary);
        self.head.logits(device, text, last, batch.tokens(), &self.room.head, |chunk| all.extend_from_slice(chunk));
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

    fn forward(&self, device: &mut dyn Device, batch: &Batch) {
        let (text, room) = (&self.config.text, &self.room);
        let sequence = self.sequence(batch);
        let part = |buffer: Buffer| buffer.first(sequence.tokens * text.hidden);
        device.embed(&self.embedding, room.batch.tokens.first(sequence.tokens), part(room.inputs[0]), sequence.tokens);
        if batch.patches() > 0 {
            let given = self.patches(batch);
            self.vision.forward(
                device,
                &self.config.vision,
                &room.vision_inputs,
                &room.vision_kept,
                &room.vision,
                &room.linear,
                &given,
            );
            let tokens = given.patches / self.config.vision.merged();
            device.scatter(
                room.vision.out.first(tokens * text.hidden),
                room.batch.image_places.first(tokens),
                part(room.inputs[0]),
                tokens,
                text.hidden,
            );
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let (x, y) = (part(room.inputs[index]), part(room.inputs[index + 1]));
            let kept = &room.kept[index.min(room.kept.len() - 1)];
            layer.forward(device, text, x, Some(y), kept, &room.decoder, &room.linear, &sequence);
        }
    }

    fn sequence(&self, batch: &Batch) -> Sequence {
        let (tokens, half) = (batch.tokens(), self.config.text.head_size() / 2);
        let (room, rows) = (&self.room.batch, batch.row_starts.len() - 1);
        Sequence {
            tokens,
            rows,
            row_starts: room.row_starts.first(rows + 1),
            cosines: room.cosines.first(tokens * half),
            sines: room.sines.first(tokens * half),
        }
    }

    fn patches(&self, batch: &Batch) -> Patches {
        let (patches, vision, room) = (batch.patches(), &self.config.vision, &self.room.batch);
        let half = vision.head_size() / 2;
        let (windows, images) = (batch.windows.window_starts.len() - 1, batch.windows.image_starts.len() - 1);
        Patches {
            patches,
            pixels: room.pixels.first(patches * vision.patch_values()),
            order: room.patch_order.first(patches),
            window_starts: room.window_starts.first(windows + 1),
            windows,
            image_starts: room.image_starts.first(images + 1),
            images,
            cosines: room.patch_cosines.first(patches * half),
            sines: room.patch_sines.first(patches * half),
        }
    }

    /// Brings a batch to the device.
    fn put(&self, device: &mut dyn Device, batch: &Batch) -> Result<(), Error> {
        let (needed, limits) = (Limits::of(batch), self.limits);
        if needed.max(limits) != limits {
            return Err(Error::Batch(format!("the batch needs {needed:?}; the model was built for {limits:?}")));
        }
        let room = &self.room.batch;
        let mut whole = |to: Buffer, values: &[i32]| device.upload(to.first(values.len()), bytes_of(values));
        whole(room.tokens, &batch.tokens);
        whole(room.row_starts, &batch.row_starts);
        whole(room.asked, &batch.asked);
        whole(room.targets, &batch.targets);
        whole(room.patch_order, &batch.patch_order);
        whole(room.window_starts, &batch.windows.window_starts);
        whole(room.image_starts, &batch.windows.image_starts);
        whole(room.image_places, &batch.image_places);
        let mut real = |to: Buffer, values: &[f32]| device.upload(to.first(values.len()), bytes_of(values));
        real(room.cosines, &batch.angles.cosines);
        real(room.sines, &batch.angles.sines);
        real(room.pixels, &batch.pixels);
        real(room.patch_cosines, &batch.patch_angles.cosines);
        real(room.patch_sines, &batch.patch_angles.sines);
        Ok(())
    }
}

impl Room {
    fn build(
        device: &mut dyn Device,
        config: &Config,
        recompute: Recompute,
        limits: Limits,
        lora: Option<(&LoraConfig, usize)>,
        trains_vision: bool,
    ) -> Result<Room, OutOfMemory> {
        let (text, vision) = (&config.text, &config.vision);
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
            kept.push(LayerKept::build(device, purpose, &format!("layer {index}"), text, limits.tokens)?);
        }
        // A tower that is not trained has no backward pass: two buffers take turns, and nothing is kept.
        let (purpose, inputs_purpose, blocks, vision_buffers) = match (trains_vision, recompute) {
            (false, _) => (Purpose::Workspace, Purpose::Workspace, 1, 2),
            (true, Recompute::Nothing) => (Purpose::Kept, Purpose::Kept, vision.depth, vision.depth + 1),
            (true, Recompute::Layers) => (Purpose::Recomputed, Purpose::Kept, 1, vision.depth + 1),
        };
        let mut vision_inputs = Vec::new();
        for index in 0..vision_buffers {
            vision_inputs.push(real(
                device,
                inputs_purpose,
                &format!("vision block {index} input"),
                limits.patches * vision.hidden,
            )?);
        }
        let mut vision_kept = Vec::new();
        for index in 0..blocks {
            vision_kept.push(BlockKept::build(
                device,
                purpose,
                &format!("vision block {index}"),
                vision,
                limits.patches,
            )?);
        }
        let rows = limits.tokens.max(limits.patches);
        let mut narrow = |label: &str, width: usize| real(device, Purpose::Workspace, label, rows * width);
        let linear = match lora {
            None => LinearRoom { narrow: None, narrow_gradient: None, dropped: None, seed: 0 },
            Some((lora, widest)) => LinearRoom {
                narrow: Some(narrow("adapter", lora.rank)?),
                narrow_gradient: Some(narrow("adapter gradient", lora.rank)?),
                dropped: (lora.dropout > 0.0).then(|| narrow("dropped inputs", widest)).transpose()?,
                seed: 0,
            },
        };
        Ok(Room {
            linear,
            decoder: DecoderRoom::build(device, text, limits.tokens)?,
            vision: VisionRoom::build(device, vision, limits.patches, trains_vision)?,
            head: HeadRoom::build(device, text, limits.targets)?,
            inputs,
            kept,
            vision_inputs,
            vision_kept,
            dx: real(device, Purpose::Workspace, "gradient", limits.tokens * text.hidden)?,
            squares: real(device, Purpose::Workspace, "sum of squares", 1)?,
            batch,
        })
    }
}

impl BatchRoom {
    fn build(device: &mut dyn Device, config: &Config, limits: Limits) -> Result<BatchRoom, OutOfMemory> {
        let mut make = |label: &str, kind: Kind, length: usize| device.buffer(Purpose::Batch, label, kind, length);
        let (half, patch_half) = (config.text.head_size() / 2, config.vision.head_size() / 2);
        Ok(BatchRoom {
            tokens: make("tokens", Kind::I32, limits.tokens)?,
            row_starts: make("row starts", Kind::I32, limits.rows + 1)?,
            asked: make("asked places", Kind::I32, limits.targets)?,
            targets: make("targets", Kind::I32, limits.targets)?,
            cosines: make("cosines", Kind::F32, limits.tokens * half)?,
            sines: make("sines", Kind::F32, limits.tokens * half)?,
            pixels: make("pixels", Kind::F32, limits.patches * config.vision.patch_values())?,
            patch_order: make("patch order", Kind::I32, limits.patches)?,
            window_starts: make("window starts", Kind::I32, limits.windows + 1)?,
            image_starts: make("image starts", Kind::I32, limits.images + 1)?,
            patch_cosines: make("patch cosines", Kind::F32, limits.patches * patch_half)?,
            patch_sines: make("patch sines", Kind::F32, limits.patches * patch_half)?,
            image_places: make("image places", Kind::I32, limits.patches / config.vision.merged())?,
        })
    }
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
