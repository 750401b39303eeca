//! Generation: prefill reads each prompt into the KV cache, then every decode step adds one token to each unfinished answer.
//!
//! Prompts are read one after the other, [`CHUNK`] tokens at a time, so a layer's workspace does not grow with their number or length, and a
//! row's first logits do not depend on other rows. Decode steps take all unfinished rows at once: each weight is read once for all of them.

pub(crate) mod sampling;

use garden_device::{Buffer, Device, Dtype, Purpose, Reserve};
use garden_random::SplitMix64;

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::nf4_checkpoint::FourBit;
use crate::error::Error;
use crate::generator::sampling::{Sampler, Sampling, random_of_row};
use crate::model::{Model, upload};
use crate::network::Network;
use crate::network::activations::{GradientCheckpointing, activations};
use crate::network::decoder::{DecoderContext, DecoderWorkspace, LayerActivations, LayerSizes};
use crate::network::head::HeadWorkspace;
use crate::network::kv_cache::{KvCache, Piece, Step, StepInputs};
use crate::network::linear::{AdapterSizes, LinearWorkspace};
use crate::network::lora::LoraConfig;
use crate::network::mode::Mode;
use crate::network::parameters::{Builder, FrozenAdapter, RowFactors, Storage};
use crate::network::pass::Pass;
use crate::network::patches::PatchInputs;
use crate::network::rotary;
use crate::network::vision::{Vision, VisionWorkspace};
use garden_input::{Config, Limits, Prompt};

/// Tokens of a prompt per pass through the layers: enough for matrix products to run at full speed.
const CHUNK: usize = 256;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// New tokens, including the end token if there is one.
    pub tokens: Vec<i32>,
    /// Whether it ended with an end token.
    pub is_ended: bool,
}

/// A token just added to an answer.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    /// Index of its prompt.
    pub row: usize,
    /// The token.
    pub token: i32,
    /// The model's logits that it was chosen from; empty if not requested ([`Sampling::has_logits`]), in which case they stayed on the
    /// device.
    pub logits: &'a [f32],
}

/// Limits of a generator; buffers are sized for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratorLimits {
    /// Prompts answered at once.
    pub rows: usize,
    /// Maximum tokens of a prompt and its answer.
    pub context: usize,
    /// Maximum patches of a prompt's images.
    pub patches: usize,
}

impl GeneratorLimits {
    /// The limits of these prompts.
    pub fn of(prompts: &[Prompt], max_new_tokens: usize) -> GeneratorLimits {
        let patches = |prompt: &Prompt| prompt.images.grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        GeneratorLimits {
            rows: prompts.len(),
            context: prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0) + max_new_tokens,
            patches: prompts.iter().map(patches).max().unwrap_or(0),
        }
    }
}

/// A model on a device that answers prompts.
#[derive(Debug)]
pub struct Generator {
    config: Config,
    limits: GeneratorLimits,
    network: Network,
    kv_cache: KvCache,
    workspace: Workspace,
    /// Logits of one row, on the host.
    logits: Vec<f32>,
    sampler: Sampler,
}

/// Buffers reused in every step.
#[derive(Debug)]
struct Workspace {
    tokens: Buffer,
    images: PatchInputs,
    step: StepInputs,
    /// Hidden states, updated in place by the layers `[tokens of a prompt or rows, hidden]`.
    x: Buffer,
    /// Of each kind of layer.
    layers: Vec<LayerActivations>,
    decoder: Vec<DecoderWorkspace>,
    vision: VisionWorkspace,
    linear: LinearWorkspace,
    head: HeadWorkspace,
    /// The best token of each row `[rows]`.
    best: Buffer,
}

/// An unfinished answer.
struct Open {
    row: usize,
    /// Prompt and answer so far.
    tokens: Vec<i32>,
    /// The position of the next token.
    next: i32,
    random: SplitMix64,
}

impl Generator {
    /// Builds a model on a device, with its adapter, a KV cache and all buffers for prompts within the limits. With `four_bit`, linears are
    /// quantised to NF4 unless the checkpoint has them in 4 bits already.
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        adapter: Option<&Adapter>,
        four_bit: Option<&FourBit>,
        limits: GeneratorLimits,
    ) -> Result<Generator, Error> {
        let lora = adapter.map(|adapter| &adapter.config);
        let computes = device.computes();
        let factors = adapter.map(|adapter| adapter.row_factors(checkpoint, computes)).transpose()?.unwrap_or_default();
        let (generator, places) =
            Generator::with_idle_adapter(device, config, checkpoint, lora, &factors, four_bit, limits)?;
        if let Some(adapter) = adapter {
            adapter.fill_frozen(device, &places, &factors)?;
        }
        Ok(generator)
    }

    /// Builds a generator with a zero adapter: without factors of rows it answers as without an adapter until that is filled.
    pub(crate) fn with_idle_adapter(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        lora: Option<&LoraConfig>,
        factors: &RowFactors,
        four_bit: Option<&FourBit>,
        limits: GeneratorLimits,
    ) -> Result<(Generator, Vec<FrozenAdapter>), Error> {
        let storage = Storage { four_bit: four_bit.cloned(), ..Storage::default() };
        let mut builder = Builder::new(device, checkpoint, lora, Mode::Inference, &storage)?;
        builder.row_factors = factors.clone();
        let network = Network::build(&mut builder, config)?;
        let (frozen, reserve, adapters) = (builder.frozen, builder.reserve, builder.adapter_sizes);
        let kv_cache = KvCache::build(device, &config.text, limits.rows, limits.context)?;
        let workspace = Workspace::build(device, config, adapters, &network.vision, limits)?;
        device.reserve(answering(reserve, config, limits))?;
        let logits = vec![0.0; config.text.vocabulary];
        let sampler = Sampler::default();
        Ok((Generator { config: config.clone(), limits, network, kv_cache, workspace, logits, sampler }, frozen))
    }

    /// A generator that shares the weights of a model in training, and its image workspaces: only a KV cache and the workspace of a layer are new. It answers
    /// with the model's current values. Prompts must fit the model's limits for images.
    pub fn beside(device: &mut dyn Device, model: &Model, limits: GeneratorLimits) -> Result<Generator, Error> {
        let (config, most) = (model.config(), model.limits());
        if limits.patches > most.patches {
            return Err(Error::Batch(format!(
                "answers need images of {} patches; the model was built for {}",
                limits.patches, most.patches
            )));
        }
        let kv_cache = KvCache::build(device, &config.text, limits.rows, limits.context)?;
        let (images, vision) = model.image_workspaces();
        let workspace = Workspace::beside(device, config, model.adapter_sizes, limits, images, vision)?;
        // The model's reserve is enough for its images; answers may be longer than its training rows.
        let (own, needed) = (model.reserve, answering(model.reserve, config, limits));
        if needed.longest > own.longest
            || needed.attention_tokens > own.attention_tokens
            || needed.segments > own.segments
        {
            device.reserve(Reserve {
                longest: needed.longest.max(own.longest),
                attention_tokens: needed.attention_tokens.max(own.attention_tokens),
                segments: needed.segments.max(own.segments),
                ..own
            })?;
        }
        let logits = vec![0.0; config.text.vocabulary];
        let (network, sampler) = (model.network.clone(), Sampler::default());
        Ok(Generator { config: config.clone(), limits, network, kv_cache, workspace, logits, sampler })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Answers prompts; `on_token` receives each token as soon as it is chosen.
    pub fn generate(
        &mut self,
        device: &mut dyn Device,
        prompts: Vec<Prompt>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<Vec<Answer>, Error> {
        self.generate_until(device, prompts, sampling, on_token, &mut || false)
    }

    /// Answers prompts until `wants_end`, which is called before every step, returns true: the result is then [`Error::Stopped`].
    pub fn generate_until(
        &mut self,
        device: &mut dyn Device,
        prompts: Vec<Prompt>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Answer>, Error> {
        sampling.check()?;
        let batches = self.batches(prompts, sampling)?;
        let mut answers = vec![Answer::default(); batches.len()];
        let mut open = Vec::new();
        for (row, batch) in batches.into_iter().enumerate() {
            if wants_end() {
                return Err(Error::Stopped);
            }
            let last = self.prefill(device, row, &batch);
            let (next, random) = (batch.next[0], random_of_row(sampling.seed, row));
            open.push(Open { row, tokens: batch.tokens, next, random });
            let newest = open.len() - 1;
            self.choose(device, last, &mut open[newest..], &mut answers, sampling, on_token)?;
            open.retain(|row| !is_done(&answers[row.row], sampling));
        }
        while !open.is_empty() {
            if wants_end() {
                return Err(Error::Stopped);
            }
            self.decode_step(device, &mut open, &mut answers, sampling, on_token)?;
            open.retain(|row| !is_done(&answers[row.row], sampling));
        }
        Ok(answers)
    }

    /// Logits of every token of a prompt `[tokens, vocabulary]`.
    pub fn logits(&mut self, device: &mut dyn Device, prompt: Prompt) -> Result<Vec<f32>, Error> {
        let batches = self.batches(vec![prompt], &Sampling { max_new_tokens: 0, ..Sampling::default() })?;
        let (text, workspace, mut all) = (&self.config.text, &self.workspace, Vec::new());
        for batch in batches {
            self.prefill(device, 0, &batch);
            let x = workspace.x.first(batch.tokens() * text.hidden);
            let head = &self.network.head;
            head.logits(device, text, x, batch.tokens(), &workspace.head, |chunk| all.extend_from_slice(chunk))?;
        }
        Ok(all)
    }

    /// The batch of each prompt; all are validated before the first is read.
    fn batches(&self, prompts: Vec<Prompt>, sampling: &Sampling) -> Result<Vec<Batch>, Error> {
        let limits = self.limits;
        if prompts.len() > limits.rows {
            return Err(Error::Batch(format!(
                "there are {} prompts; the generator was built for {} at once",
                prompts.len(),
                limits.rows
            )));
        }
        let batch = |(number, prompt): (usize, Prompt)| {
            if prompt.tokens.is_empty() {
                return Err(Error::Batch(format!("row {number} has no tokens; expected at least 1")));
            }
            let batch = Batch::of_prompt(&self.config, number, prompt.tokens, prompt.images)?;
            let (tokens, new) = (batch.tokens(), sampling.max_new_tokens);
            if tokens.saturating_add(new) > limits.context {
                return Err(Error::Batch(format!(
                    "row {number} has {tokens} tokens and may get {new} new ones; the generator was built for {} together",
                    limits.context
                )));
            }
            if batch.patches() > limits.patches {
                return Err(Error::Batch(format!(
                    "row {number} has images of {} patches; the generator was built for {}",
                    batch.patches(),
                    limits.patches
                )));
            }
            Ok(batch)
        };
        prompts.into_iter().enumerate().map(batch).collect()
    }

    /// Prefill: reads a prompt into the KV cache; returns the hidden state of its last token `[1, hidden]`.
    fn prefill(&self, device: &mut dyn Device, row: usize, batch: &Batch) -> Buffer {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let tokens = batch.tokens();
        let images = workspace.images.put(device, &batch.images);
        let given = upload(device, workspace.tokens, &batch.tokens);
        let x = workspace.x.first(tokens * text.hidden);
        let pass = &mut Pass { device, linear: workspace.linear, dropout: None };
        self.network.embed(pass, &self.config.vision, &workspace.vision, given, &images, x);
        for before in (0..tokens).step_by(CHUNK) {
            let count = CHUNK.min(tokens - before);
            let x = x.part(before * text.hidden, count * text.hidden);
            let piece = Piece { row, before, tokens: count };
            let step = workspace.step.put(device, &self.kv_cache, &[piece], &batch.angles, before..before + count);
            self.layers(device, x, &step);
        }
        x.part((tokens - 1) * text.hidden, text.hidden)
    }

    /// Decode: runs the newest token of each row through the model, and chooses the next one.
    fn decode_step(
        &mut self,
        device: &mut dyn Device,
        open: &mut [Open],
        answers: &mut [Answer],
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let (text, workspace, rows) = (&self.config.text, &self.workspace, open.len());
        let newest: Vec<i32> = open.iter().filter_map(|row| row.tokens.last().copied()).collect();
        let given = upload(device, workspace.tokens, &newest);
        let x = workspace.x.first(rows * text.hidden);
        let pieces: Vec<Piece> =
            open.iter().map(|row| Piece { row: row.row, before: row.tokens.len() - 1, tokens: 1 }).collect();
        // All axes have the same position, also after images.
        let positions: Vec<[i32; 3]> = open.iter().map(|row| [row.next - 1; 3]).collect();
        let angles = rotary::of_tokens(&positions, text);
        let step = workspace.step.put(device, &self.kv_cache, &pieces, &angles, 0..rows);
        // The best tokens are found on the device, if all rows fit in one chunk.
        let is_best = sampling.is_best() && rows <= workspace.head.chunk;
        if !is_best {
            device.embed(&self.network.embedding, given, x, rows);
            self.layers(device, x, &step);
            return self.choose(device, x, open, answers, sampling, on_token);
        }
        // The work is the same for every token; only the inputs uploaded before it differ.
        device.repeat(x, rows, &mut |device| {
            device.embed(&self.network.embedding, given, x, rows);
            self.layers(device, x, &step);
            let logits = self.network.head.chunk(device, text, x, rows, &workspace.head);
            device.best_of_rows(logits, workspace.best.first(rows), rows);
        });
        let best = device.download_bytes(workspace.best.first(rows))?;
        let best = best.chunks_exact(4).map(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        for (open, token) in open.iter_mut().zip(best) {
            let token = (token >= 0).then_some(token);
            add_token(open, token, &[], answers, sampling, on_token)?;
        }
        Ok(())
    }

    /// Runs new tokens x `[tokens, hidden]` through all layers, in place.
    fn layers(&self, device: &mut dyn Device, x: Buffer, step: &Step) {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let context = DecoderContext { hidden: text.hidden, workspaces: &workspace.decoder, sequence: &step.sequence };
        let pass = &mut Pass { device, linear: workspace.linear, dropout: None };
        for (layer, kv_cache) in self.network.layers.iter().zip(&self.kv_cache.layers) {
            layer.forward_with_kv_cache(pass, context, x, &workspace.layers[layer.kind], kv_cache, step);
        }
    }

    /// Chooses the next token of rows from their last hidden states x `[rows, hidden]`.
    fn choose(
        &mut self,
        device: &mut dyn Device,
        x: Buffer,
        rows: &mut [Open],
        answers: &mut [Answer],
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let text = &self.config.text;
        let size = self.workspace.head.chunk;
        for (chunk, rows) in rows.chunks_mut(size).enumerate() {
            let x = x.part(chunk * size * text.hidden, rows.len() * text.hidden);
            let logits = self.network.head.chunk(device, text, x, rows.len(), &self.workspace.head);
            for (index, open) in rows.iter_mut().enumerate() {
                device.download(logits.part(index * text.vocabulary, text.vocabulary), &mut self.logits)?;
                let chosen = self.sampler.choose(sampling, &self.logits, &open.tokens, &mut open.random);
                add_token(open, chosen, &self.logits, answers, sampling, on_token)?;
            }
        }
        Ok(())
    }
}

/// Adds the chosen token to its answer; an error if there is none.
fn add_token(
    open: &mut Open,
    chosen: Option<i32>,
    logits: &[f32],
    answers: &mut [Answer],
    sampling: &Sampling,
    on_token: &mut dyn FnMut(NewToken<'_>),
) -> Result<(), Error> {
    let answer = &mut answers[open.row];
    let Some(token) = chosen else {
        let (row, after) = (open.row, answer.tokens.len());
        return Err(Error::NotFinite(format!("row {row}: the model's logits are not finite after {after} new tokens")));
    };
    open.tokens.push(token);
    open.next += 1;
    answer.tokens.push(token);
    answer.is_ended = sampling.end_tokens.contains(&token);
    on_token(NewToken { row: open.row, token, logits });
    Ok(())
}

/// Workspace of operations for answers within the limits, beside the weights' needs.
fn answering(reserve: Reserve, config: &Config, limits: GeneratorLimits) -> Reserve {
    Reserve {
        longest: limits.context.max(limits.patches),
        head_size: config.largest_head(),
        attention_tokens: limits.context.max(limits.patches).max(limits.rows),
        // A window has at least one merged token.
        segments: limits.rows.max(config.vision.most_segments(limits.patches)),
        ..reserve
    }
}

/// Whether an answer is finished.
fn is_done(answer: &Answer, sampling: &Sampling) -> bool {
    answer.is_ended || answer.tokens.len() >= sampling.max_new_tokens
}

impl Workspace {
    fn build(
        device: &mut dyn Device,
        config: &Config,
        adapters: AdapterSizes,
        tower: &Vision,
        limits: GeneratorLimits,
    ) -> Result<Workspace, Error> {
        // A window has at least one merged token, and so has an image.
        let most = config.vision.most_segments(limits.patches);
        let of_images = Limits { patches: limits.patches, images: most, ..Limits::default() };
        let images = PatchInputs::build(device, &config.vision, of_images)?;
        let vision = VisionWorkspace::build(
            device,
            &config.vision,
            limits.patches,
            tower.adapter_sizes(adapters),
            tower.adapts_merger(),
            Mode::Inference,
            GradientCheckpointing::PerLayer,
        )?;
        Workspace::beside(device, config, adapters, limits, images, vision)
    }

    /// Builds the workspace around existing image buffers.
    fn beside(
        device: &mut dyn Device,
        config: &Config,
        adapters: AdapterSizes,
        limits: GeneratorLimits,
        images: PatchInputs,
        vision: VisionWorkspace,
    ) -> Result<Workspace, Error> {
        let (text, mode) = (&config.text, Mode::Inference);
        let all = limits.context.max(limits.rows);
        let at_once = CHUNK.min(limits.context).max(limits.rows);
        let sizes = LayerSizes { hidden: text.hidden, tokens: at_once, adapters, mode };
        Ok(Workspace {
            tokens: device.buffer(Purpose::Batch, "tokens", Dtype::I32, all)?,
            images,
            step: StepInputs::build(device, text, limits.rows, at_once)?,
            x: activations(device, Purpose::Workspace, "decoder x", all, text.hidden)?,
            layers: LayerActivations::of_kinds(device, text, sizes)?,
            decoder: DecoderWorkspace::of_kinds(device, text, sizes)?,
            vision,
            linear: LinearWorkspace::build(device, adapters, at_once.max(limits.patches), mode)?,
            head: HeadWorkspace::build(device, text, limits.rows, mode)?,
            best: device.buffer(Purpose::Workspace, "best tokens", Dtype::I32, limits.rows)?,
        })
    }
}
