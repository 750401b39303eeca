//! The KV cache: keys and values of all tokens so far, so that a new token is one row through the layers.

use std::ops::Range;

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose};

use crate::model::upload;
use crate::network::activations::activations;
use crate::network::decoder::Sequence;
use crate::network::rotary::{AngleInputs, Table};
use garden_input::TextConfig;

/// Keys and values of every row, layer by layer, all allocated before the first token. A row has a slot of its own.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub layers: Vec<LayerKvCache>,
    /// Maximum tokens of a slot.
    context: usize,
    /// Workspace of decode attention for partial sums, f32, and its values per row.
    workspace: Option<(Buffer, usize)>,
}

/// Keys (after rotary embedding) and values of a layer `[slots, context, kv heads * head]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerKvCache {
    pub keys: Buffer,
    pub values: Buffer,
}

impl KvCache {
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        rows: usize,
        context: usize,
    ) -> Result<KvCache, OutOfMemory> {
        let length = rows.saturating_mul(context);
        let mut make = |layer: usize, name: &str| {
            let width = text.layers[layer].attention().key_width();
            activations(device, Purpose::KvCache, &format!("layer {layer} cached {name}"), length, width)
        };
        let layers = (0..text.layers.len())
            .map(|layer| Ok(LayerKvCache { keys: make(layer, "keys")?, values: make(layer, "values")? }));
        let layers = layers.collect::<Result<_, OutOfMemory>>()?;
        let profile = device.profile();
        let row = text.most(|layer| {
            let attention = layer.attention();
            profile.kv_cache_workspace(attention.heads, context, attention.head_dim)
        });
        let mut make =
            || device.buffer(Purpose::Workspace, "attention over the cache", Dtype::F32, rows.saturating_mul(row));
        let workspace = if row > 0 { Some((make()?, row)) } else { None };
        Ok(KvCache { layers, context, workspace })
    }

    /// Cache position of a slot's first token.
    fn first(&self, slot: usize) -> usize {
        slot * self.context
    }
}

/// New tokens of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub slot: usize,
    /// Tokens of the row already in the cache.
    pub before: usize,
    /// Number of new tokens.
    pub tokens: usize,
}

/// The step's new tokens, shared by all layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub sequence: Sequence,
    /// Cache position of each new token `[tokens]`.
    pub places: Buffer,
    /// Cache position of each row's first token `[rows]`.
    pub firsts: Buffer,
    /// Tokens of each row, including the new ones `[rows]`.
    pub lengths: Buffer,
    /// Workspace for the attention of these rows.
    pub workspace: Option<Buffer>,
}

/// Input buffers of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepInputs {
    cu_seqlens: Buffer,
    places: Buffer,
    firsts: Buffer,
    lengths: Buffer,
    angles: AngleInputs,
}

impl StepInputs {
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        rows: usize,
        tokens: usize,
    ) -> Result<StepInputs, OutOfMemory> {
        let mut make = |label: &str, dtype: Dtype, length: usize| device.buffer(Purpose::Batch, label, dtype, length);
        Ok(StepInputs {
            cu_seqlens: make("row starts", Dtype::I32, rows + 1)?,
            places: make("cache places", Dtype::I32, tokens)?,
            firsts: make("cache rows", Dtype::I32, rows)?,
            lengths: make("row lengths", Dtype::I32, rows)?,
            angles: AngleInputs::build(device, text, tokens)?,
        })
    }

    /// Uploads a step: the rows with new tokens, and their rows of rotary tables.
    pub fn put(
        &self,
        device: &mut dyn Device,
        cache: &KvCache,
        pieces: &[Piece],
        tables: &[Table],
        tokens: Range<usize>,
    ) -> Step {
        let (mut starts, mut places) = (vec![0_i32], Vec::new());
        for piece in pieces {
            let first = cache.first(piece.slot) + piece.before;
            places.extend((first..first + piece.tokens).map(|place| place as i32));
            starts.push(places.len() as i32);
        }
        let firsts: Vec<i32> = pieces.iter().map(|piece| cache.first(piece.slot) as i32).collect();
        let lengths: Vec<i32> = pieces.iter().map(|piece| (piece.before + piece.tokens) as i32).collect();
        let sequence = Sequence {
            tokens: places.len(),
            rows: pieces.len(),
            longest: pieces.iter().map(|piece| piece.tokens).max().unwrap_or(0),
            cu_seqlens: upload(device, self.cu_seqlens, &starts),
            angles: self.angles.put(device, tables, tokens),
        };
        Step {
            sequence,
            places: upload(device, self.places, &places),
            firsts: upload(device, self.firsts, &firsts),
            lengths: upload(device, self.lengths, &lengths),
            workspace: cache.workspace.map(|(workspace, row)| workspace.first(pieces.len() * row)),
        }
    }
}
