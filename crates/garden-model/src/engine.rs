//! An engine answers prompts: rows are admitted, read into the KV cache (prefill), get a token in every step (decode), and are retired.
//!
//! Prompts are read one after the other, [`CHUNK`] tokens at a time from their first token on, so a layer's workspace does not grow with their number
//! or length, and a row's first logits do not depend on other rows. A decode step takes all unfinished rows at once: each weight is read once for all
//! of them. A row's place in the cache, its slot, is its own until it is retired, whoever comes and goes beside it.

pub(crate) mod bank;
mod generate;
mod prefix;
mod row;
pub(crate) mod sampling;
mod workspace;

use std::cmp::Reverse;
use std::hash::RandomState;
use std::ops::Range;

use garden_device::{Buffer, Device, Reserve};
use garden_input::{Config, Prompt};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::nf4_checkpoint::FourBit;
use crate::engine::bank::Bank;
use crate::engine::prefix::Prefix;
use crate::engine::row::Row;
use crate::engine::sampling::{Sampler, Sampling, random_of_row};
use crate::engine::workspace::{Workspace, answering};
use crate::error::Error;
use crate::model::{Model, upload};
use crate::network::Network;
use crate::network::decoder::DecoderContext;
use crate::network::kv_cache::{KvCache, Piece, Step};
use crate::network::lora::LoraConfig;
use crate::network::mode::Mode;
use crate::network::parameters::{Builder, FrozenAdapter, RowFactors, Storage};
use crate::network::pass::{Adapters, Pass};
use crate::network::rotary;

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

/// A prompt, and how to answer it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The caller's number for it: no two rows of an engine have the same.
    pub row: usize,
    /// The prompt.
    pub prompt: Prompt,
    /// The place of its adapter in the bank; `None` for the base alone, or the model's own adapter where there is no bank.
    pub adapter: Option<usize>,
    /// How tokens are chosen, and when the answer ends.
    pub sampling: Sampling,
}

/// A token just added to an answer.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    /// The number of its row: the index of its prompt, or what [`Question::row`] says.
    pub row: usize,
    /// The token.
    pub token: i32,
    /// Whether the answer is finished with it.
    pub is_last: bool,
    /// The model's logits that it was chosen from; empty for the best token of a row that does not request them ([`Sampling::has_logits`]): they
    /// stayed on the device.
    pub logits: &'a [f32],
}

/// What a step does while there are prompts to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Reads the next piece of a prompt and nothing else: all rows then get their tokens in the same steps, of which there are fewest.
    PromptsFirst,
    /// Reads the next piece of a prompt, and adds a token to every row that has been read: answers flow while prompts are read.
    InTurn,
}

/// Limits of an engine; buffers are sized for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLimits {
    /// Prompts answered at once.
    pub rows: usize,
    /// Maximum tokens of a prompt and its answer.
    pub context: usize,
    /// Maximum patches of a prompt's images.
    pub patches: usize,
}

impl EngineLimits {
    /// The limits of these prompts.
    pub fn of(prompts: &[Prompt], max_new_tokens: usize) -> EngineLimits {
        let patches = |prompt: &Prompt| prompt.images.grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        EngineLimits {
            rows: prompts.len(),
            context: prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0) + max_new_tokens,
            patches: prompts.iter().map(patches).max().unwrap_or(0),
        }
    }
}

/// A model on a device that answers prompts.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    limits: EngineLimits,
    network: Network,
    kv_cache: KvCache,
    workspace: Workspace,
    /// Several adapters, if there is not one for all rows.
    bank: Option<Bank>,
    /// In the order of their admission.
    rows: Vec<Row>,
    /// What prompts are known by, and what of them is left in each slot, if that is wanted.
    prefixes: Option<(RandomState, Vec<Prefix>)>,
    /// Logits of one row, on the host.
    logits: Vec<f32>,
    sampler: Sampler,
}

impl Engine {
    /// Builds a model on a device, with its adapter, a KV cache and all buffers for prompts within the limits. With `four_bit`, linears are
    /// quantised to NF4 unless the checkpoint has them in 4 bits already.
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        adapter: Option<&Adapter>,
        four_bit: Option<&FourBit>,
        limits: EngineLimits,
    ) -> Result<Engine, Error> {
        let lora = adapter.map(|adapter| &adapter.config);
        let computes = device.computes();
        let factors = adapter.map(|adapter| adapter.row_factors(checkpoint, computes)).transpose()?.unwrap_or_default();
        let (engine, places) = Engine::with_idle_adapter(device, config, checkpoint, lora, &factors, four_bit, limits)?;
        if let Some(adapter) = adapter {
            adapter.fill_frozen(device, &places, &factors)?;
        }
        Ok(engine)
    }

    /// Builds an engine with a zero adapter: without factors of rows it answers as without an adapter until that is filled.
    pub(crate) fn with_idle_adapter(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        lora: Option<&LoraConfig>,
        factors: &RowFactors,
        four_bit: Option<&FourBit>,
        limits: EngineLimits,
    ) -> Result<(Engine, Vec<FrozenAdapter>), Error> {
        let storage = Storage { four_bit: four_bit.cloned(), ..Storage::default() };
        let mut builder = Builder::new(device, checkpoint, lora, Mode::Inference, &storage)?;
        builder.row_factors = factors.clone();
        let network = Network::build(&mut builder, config)?;
        let (frozen, reserve, adapters) = (builder.frozen, builder.reserve, builder.adapter_sizes);
        let kv_cache = KvCache::build(device, &config.text, limits.rows, limits.context)?;
        let workspace = Workspace::build(device, config, adapters, &network.vision, limits)?;
        device.reserve(answering(reserve, config, limits))?;
        Ok((Engine::of(config, limits, network, kv_cache, workspace), frozen))
    }

    /// Without rows.
    fn of(config: &Config, limits: EngineLimits, network: Network, kv_cache: KvCache, workspace: Workspace) -> Engine {
        Engine {
            config: config.clone(),
            limits,
            network,
            kv_cache,
            workspace,
            bank: None,
            rows: Vec::new(),
            prefixes: None,
            logits: vec![0.0; config.text.vocabulary],
            sampler: Sampler::default(),
        }
    }

    /// An engine that shares the weights of a model in training, and its image workspaces: only a KV cache and the workspace of a layer are new. It answers
    /// with the model's current values. Prompts must fit the model's limits for images.
    pub fn beside(device: &mut dyn Device, model: &Model, limits: EngineLimits) -> Result<Engine, Error> {
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
        Ok(Engine::of(config, limits, model.network.clone(), kv_cache, workspace))
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether another row may be admitted.
    pub fn has_room(&self) -> bool {
        self.rows.len() < self.limits.rows
    }

    /// Whether no row has anything left to do.
    pub fn is_idle(&self) -> bool {
        self.rows.iter().all(|row| row.is_finished())
    }

    /// From now on a prompt that begins as one before it is not read again as far as whole pieces of it are the same. The weights must not change.
    pub fn keep_prefixes(&mut self) {
        self.prefixes = Some((RandomState::new(), vec![Prefix::default(); self.limits.rows]));
    }

    /// Takes a row in; the next steps read and answer it. Refuses what cannot be answered within the limits. Returns how many tokens of its prompt are in the
    /// cache already.
    pub fn admit(&mut self, question: Question) -> Result<usize, Error> {
        let Question { row: number, prompt, adapter, sampling } = question;
        sampling.check()?;
        self.check_adapter(number, adapter)?;
        if self.rows.iter().any(|row| row.number == number) {
            return Err(Error::Batch(format!("there is a row {number} already")));
        }
        let prefix = match &self.prefixes {
            Some((keys, _)) => Prefix::of(&prompt.tokens, &prompt.images, adapter, &self.config, keys),
            None => Prefix::default(),
        };
        let Some((slot, reused)) = self.free_slot(&prefix) else {
            return Err(Error::Batch(format!(
                "row {number} has no place: the engine was built for {} at once",
                self.limits.rows
            )));
        };
        let batch = self.batch(number, prompt, sampling.max_new_tokens)?;
        self.rows.push(Row {
            number,
            slot,
            adapter,
            random: random_of_row(sampling.seed, sampling.stream),
            sampling,
            cached: reused,
            is_embedded: false,
            prefix,
            prompt: batch.tokens(),
            tokens: batch.tokens.clone(),
            next: batch.next[0],
            unread: Some(batch),
            is_ended: false,
            is_broken: false,
        });
        Ok(reused)
    }

    /// A slot without a row, with how many tokens of a prompt are in it: the one with most; where none has any, the one with least to lose.
    fn free_slot(&self, prefix: &Prefix) -> Option<(usize, usize)> {
        let used = |slot: &usize| self.rows.iter().any(|row| row.slot == *slot);
        let mut free = (0..self.limits.rows).filter(|slot| !used(slot));
        let Some((_, left)) = &self.prefixes else { return free.next().map(|slot| (slot, 0)) };
        let worth = |slot: &usize| (prefix.shared_with(&left[*slot]), Reverse(left[*slot].length()));
        free.max_by_key(worth).map(|slot| (slot, prefix.shared_with(&left[slot])))
    }

    /// Removes a row, finished or not, and frees its place; returns what was answered, and nothing for a row that is not here.
    pub fn retire(&mut self, number: usize) -> Option<Answer> {
        let index = self.rows.iter().position(|row| row.number == number)?;
        let Row { tokens, prompt, is_ended, slot, cached, prefix, is_broken, .. } = self.rows.remove(index);
        if let Some((_, left)) = &mut self.prefixes {
            left[slot] = if is_broken { Prefix::default() } else { prefix.whole_pieces(cached) };
        }
        Some(Answer { tokens: tokens[prompt..].to_vec(), is_ended })
    }

    /// The next work of the order; `on_token` receives each token as soon as it is chosen.
    ///
    /// An error about numbers ([`Error::NotFinite`]) ends the row that it names; other rows go on with the next step.
    pub fn step(
        &mut self,
        device: &mut dyn Device,
        order: Order,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        if let Some(index) = self.rows.iter().position(|row| row.unread.is_some()) {
            self.read(device, index, on_token)?;
            if order == Order::PromptsFirst {
                return Ok(());
            }
        }
        self.decode(device, on_token)
    }

    /// The batch of a prompt, within the limits.
    fn batch(&self, number: usize, prompt: Prompt, new: usize) -> Result<Batch, Error> {
        let limits = self.limits;
        if prompt.tokens.is_empty() {
            return Err(Error::Batch(format!("row {number} has no tokens; expected at least 1")));
        }
        let batch = Batch::of_prompt(&self.config, number, prompt.tokens, prompt.images)?;
        let tokens = batch.tokens();
        if tokens.saturating_add(new) > limits.context {
            return Err(Error::Batch(format!(
                "row {number} has {tokens} tokens and may get {new} new ones; the engine was built for {} together",
                limits.context
            )));
        }
        if batch.patches() > limits.patches {
            return Err(Error::Batch(format!(
                "row {number} has images of {} patches; the engine was built for {}",
                batch.patches(),
                limits.patches
            )));
        }
        Ok(batch)
    }

    /// Prefill: reads the next piece of a prompt; after the last one the answer's first token is chosen.
    fn read(
        &mut self,
        device: &mut dyn Device,
        index: usize,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let row = &mut self.rows[index];
        let (slot, adapter, before) = (row.slot, row.adapter, row.cached);
        let Some(batch) = row.unread.take() else { return Ok(()) };
        if !std::mem::replace(&mut row.is_embedded, true) {
            self.embed(device, &batch, adapter, before);
        }
        let count = CHUNK.min(batch.tokens() - before);
        let x = self.read_piece(device, slot, adapter, &batch, before..before + count);
        let row = &mut self.rows[index];
        row.cached += count;
        if row.cached < batch.tokens() {
            row.unread = Some(batch);
            return Ok(());
        }
        let hidden = self.config.text.hidden;
        let last = x.part((count - 1) * hidden, hidden);
        self.choose_all(device, last, &[index], on_token)
    }

    /// Embeds a prompt with its images, from a token on: hidden states `[tokens, hidden]`, the first in the workspace.
    fn embed(&self, device: &mut dyn Device, batch: &Batch, adapter: Option<usize>, from: usize) {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let tail = &batch.tokens[from..];
        if from > 0 && !tail.contains(&self.config.image_token) {
            let given = upload(device, workspace.tokens, tail);
            let x = workspace.x.part(from * text.hidden, tail.len() * text.hidden);
            return device.embed(&self.network.embedding, given, x, tail.len());
        }
        let images = workspace.images.put(device, &batch.images);
        let given = upload(device, workspace.tokens, &batch.tokens);
        let x = workspace.x.first(batch.tokens() * text.hidden);
        let adapters = self.adapters_of_all(device, adapter, batch.patches());
        let pass = &mut Pass { device, linear: workspace.linear, dropout: None, adapters };
        self.network.embed(pass, &self.config.vision, &workspace.vision, given, &images, x);
    }

    /// Runs some tokens of an embedded prompt through the layers, in place; returns their hidden states `[count, hidden]`.
    fn read_piece(
        &self,
        device: &mut dyn Device,
        slot: usize,
        adapter: Option<usize>,
        batch: &Batch,
        tokens: Range<usize>,
    ) -> Buffer {
        let (hidden, workspace) = (self.config.text.hidden, &self.workspace);
        let x = workspace.x.part(tokens.start * hidden, tokens.len() * hidden);
        let piece = Piece { slot, before: tokens.start, tokens: tokens.len() };
        let adapters = self.adapters_of_all(device, adapter, tokens.len());
        let step = workspace.step.put(device, &self.kv_cache, &[piece], &batch.angles, tokens);
        self.layers(device, x, &step, adapters);
        x
    }

    /// Decode: runs the newest token of each open row through the model, and chooses the next one.
    fn decode(&mut self, device: &mut dyn Device, on_token: &mut dyn FnMut(NewToken<'_>)) -> Result<(), Error> {
        let open: Vec<usize> = (0..self.rows.len()).filter(|index| self.rows[*index].is_open()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let (text, workspace, rows) = (&self.config.text, &self.workspace, open.len());
        let of_rows = || open.iter().map(|index| &self.rows[*index]);
        let newest: Vec<i32> = of_rows().filter_map(|row| row.tokens.last().copied()).collect();
        let given = upload(device, workspace.tokens, &newest);
        let x = workspace.newest.first(rows * text.hidden);
        let pieces: Vec<Piece> =
            of_rows().map(|row| Piece { slot: row.slot, before: row.tokens.len() - 1, tokens: 1 }).collect();
        // All axes have the same position, also after images.
        let positions: Vec<[i32; 3]> = of_rows().map(|row| [row.next - 1; 3]).collect();
        let angles = rotary::of_tokens(&positions, text);
        let step = workspace.step.put(device, &self.kv_cache, &pieces, &angles, 0..rows);
        let adapters = self.adapters_of(device, &of_rows().map(|row| row.adapter).collect::<Vec<Option<usize>>>());
        if rows > workspace.head.chunk {
            device.embed(&self.network.embedding, given, x, rows);
            self.layers(device, x, &step, adapters);
            return self.choose_all(device, x, &open, on_token);
        }
        // The work is the same for every token, with adapters and without; only the inputs uploaded before it differ.
        let number = 2 * rows + usize::from(matches!(adapters, Adapters::Off));
        device.repeat(x, number, &mut |device| {
            device.embed(&self.network.embedding, given, x, rows);
            self.layers(device, x, &step, adapters);
            let logits = self.network.head.chunk(device, text, x, rows, &workspace.head);
            device.best_of_rows(logits, workspace.best.first(rows), rows);
        });
        self.choose(device, &open, on_token)
    }

    /// Runs new tokens x `[tokens, hidden]` through all layers, in place.
    fn layers(&self, device: &mut dyn Device, x: Buffer, step: &Step, adapters: Adapters) {
        let (text, workspace) = (&self.config.text, &self.workspace);
        let context = DecoderContext { hidden: text.hidden, workspaces: &workspace.decoder, sequence: &step.sequence };
        let pass = &mut Pass { device, linear: workspace.linear, dropout: None, adapters };
        for (layer, kv_cache) in self.network.layers.iter().zip(&self.kv_cache.layers) {
            layer.forward_with_kv_cache(pass, context, x, &workspace.layers[layer.kind], kv_cache, step);
        }
    }

    /// Chooses the next token of rows, given by their indexes, from their last hidden states x `[rows, hidden]`.
    fn choose_all(
        &mut self,
        device: &mut dyn Device,
        x: Buffer,
        rows: &[usize],
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let (hidden, size) = (self.config.text.hidden, self.workspace.head.chunk);
        for (chunk, rows) in rows.chunks(size).enumerate() {
            let x = x.part(chunk * size * hidden, rows.len() * hidden);
            let logits = self.network.head.chunk(device, &self.config.text, x, rows.len(), &self.workspace.head);
            device.best_of_rows(logits, self.workspace.best.first(rows.len()), rows.len());
            self.choose(device, rows, on_token)?;
        }
        Ok(())
    }

    /// Chooses the next token of rows whose logits and best tokens are in the workspace.
    fn choose(
        &mut self,
        device: &mut dyn Device,
        rows: &[usize],
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let (vocabulary, workspace) = (self.config.text.vocabulary, &self.workspace);
        let mut best = Vec::new();
        if rows.iter().any(|index| self.rows[*index].sampling.is_best()) {
            best = device.download_bytes(workspace.best.first(rows.len()))?;
        }
        for (place, index) in rows.iter().enumerate() {
            let row = &mut self.rows[*index];
            if row.sampling.is_best() {
                let token = i32::from_le_bytes(std::array::from_fn(|byte| best[place * 4 + byte]));
                row.add((token >= 0).then_some(token), &[], on_token)?;
                continue;
            }
            let logits = workspace.head.logits.part(place * vocabulary, vocabulary);
            device.download(logits, &mut self.logits)?;
            let chosen = self.sampler.choose(&row.sampling, &self.logits, &row.tokens, &mut row.random);
            row.add(chosen, &self.logits, on_token)?;
        }
        Ok(())
    }
}
