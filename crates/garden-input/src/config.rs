//! The configuration of a model: sizes and kinds of its parts. Its family reads it from `config.json`.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use crate::family::Family;
use crate::fields::Fields;
use garden_files::read_settings;

/// Channels of an image.
pub(crate) const CHANNELS: usize = 3;

/// The configuration of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its family.
    pub family: &'static Family,
    /// The decoder.
    pub text: TextConfig,
    /// The vision tower.
    pub vision: VisionConfig,
    /// Whether the LM head shares its weights with the embedding.
    pub is_tied: bool,
    /// The placeholder token of an image (`image_token_id`).
    pub image_token: i32,
    /// The padding token, whose embedding is not trained, if there is one.
    pub padding_token: Option<i32>,
    /// Whether the weights are said to be quantised (`quantization_config`).
    pub is_quantised: bool,
}

/// RMSNorm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Epsilon.
    pub epsilon: f32,
    /// Whether its weight gets weight decay in transformers' trainers, which leave out those whose names say that they are norms.
    pub is_decayed: bool,
}

/// The decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Hidden size.
    pub hidden: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Its layers, in order; they need not be alike.
    pub layers: Vec<LayerSpec>,
    /// The norm before the head.
    pub norm: NormSpec,
    /// Share of attention weights that transformers drops in training (`attention_dropout`).
    pub attention_dropout: f32,
}

/// A layer of the decoder: x += mixer(norm(x)); x += mlp(norm(x)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Both norms.
    pub norm: NormSpec,
    /// How tokens see each other.
    pub mixer: Mixer,
    /// The MLP.
    pub mlp: MlpSpec,
}

/// How tokens of a row see each other in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Causal attention over the whole row.
    Attention(AttentionSpec),
}

/// Attention with queries in groups that share keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of a head (`head_dim`), which need not be hidden size / heads.
    pub head_dim: usize,
    /// Whether the projections to queries, keys and values have biases.
    pub has_qkv_bias: bool,
    /// Whether the projection from heads back to the hidden size has a bias.
    pub has_output_bias: bool,
    /// Rotary embedding of queries and keys.
    pub rotary: RotarySpec,
}

/// M-RoPE: rotary embedding whose frequencies are divided among time, row and column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotarySpec {
    /// Base of the frequencies (`rope_theta`).
    pub theta: f32,
    /// Frequencies for time, row and column (`mrope_section`): half a head together.
    pub sections: [usize; 3],
}

/// y = down(silu(gate(x)) up(x)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Intermediate size.
    pub intermediate: usize,
    /// Whether its linears have biases.
    pub has_bias: bool,
}

impl AttentionSpec {
    /// Values of all queries of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of all keys of a token, and of all its values.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl RotarySpec {
    /// Frequencies of a head: half its values.
    pub fn width(&self) -> usize {
        self.sections.iter().sum()
    }
}

impl LayerSpec {
    /// Its attention.
    pub fn attention(&self) -> &AttentionSpec {
        let Mixer::Attention(attention) = &self.mixer;
        attention
    }
}

impl TextConfig {
    /// The kinds of its layers: those that differ, in the order in which they come.
    pub fn kinds(&self) -> Vec<LayerSpec> {
        distinct(self.layers.iter().copied())
    }

    /// The rotary embeddings that differ, in the order in which they come.
    pub fn rotaries(&self) -> Vec<RotarySpec> {
        distinct(self.layers.iter().map(|layer| layer.attention().rotary))
    }

    /// The most of a size of its layers.
    pub fn most(&self, of: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(of).max().unwrap_or(0)
    }
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// The vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Blocks.
    pub depth: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Intermediate size of the MLP.
    pub intermediate: usize,
    /// Heads.
    pub heads: usize,
    /// Side of a patch in pixels (`patch_size`).
    pub patch: usize,
    /// Frames per patch (`temporal_patch_size`).
    pub frames: usize,
    /// Side of a merged token in patches (`spatial_merge_size`).
    pub merge: usize,
    /// Windows that attention stays within, in most blocks; without them all blocks see whole images.
    pub windows: Option<WindowSpec>,
    /// Base of its rotary frequencies.
    pub rotary_theta: f32,
    /// Hidden size of a merged token (`out_hidden_size`).
    pub out: usize,
    /// Its norms.
    pub norm: NormSpec,
}

/// Attention within windows of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSpec {
    /// Side of a window in merged tokens; `window_size` in `config.json` is in pixels.
    pub side: usize,
    /// Blocks that see whole images all the same (`fullatt_block_indexes`).
    pub full_blocks: Vec<usize>,
}

impl VisionConfig {
    /// Head dimension.
    pub fn head_size(&self) -> usize {
        self.hidden / self.heads
    }

    /// Shape of the patch embedding's convolution in checkpoint files; here it is a matrix.
    pub fn kernel(&self) -> [usize; 5] {
        [self.hidden, CHANNELS, self.frames, self.patch, self.patch]
    }

    /// Pixel values per patch.
    pub fn patch_values(&self) -> usize {
        CHANNELS * self.frames * self.patch * self.patch
    }

    /// Patches per merged token.
    pub fn merged(&self) -> usize {
        self.merge * self.merge
    }

    /// Whether attention of a block runs over whole images.
    pub fn sees_all(&self, block: usize) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.full_blocks.contains(&block))
    }

    /// The most sequences that attention runs over in images of so many patches: windows and frames have a merged token at least.
    pub fn most_segments(&self, patches: usize) -> usize {
        patches / self.merged()
    }
}

impl Config {
    /// Reads `config.json`.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let text = read_settings(path).map_err(|error| Error::file(path, error))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| Error::broken(path, format!("not JSON: {error}")))?;
        let fields = Fields::of(path, &value);
        let kind = fields.get("model_type").and_then(Value::as_str).unwrap_or("");
        let family = Family::find(kind);
        let family = family.ok_or_else(|| Error::Unsupported { path: path.to_path_buf(), kind: kind.to_string() })?;
        check_weights(fields)?;
        (family.parse)(fields)
    }

    /// The largest head dimension of decoder and vision tower.
    pub fn largest_head(&self) -> usize {
        self.text.most(|layer| layer.attention().head_dim).max(self.vision.head_size())
    }
}

/// Refuses weights in other files or formats than are read here.
fn check_weights(fields: Fields<'_>) -> Result<(), Error> {
    if let Some(file) = fields.get("transformers_weights") {
        let hint = "rename the file to model.safetensors and remove the field";
        let problem = format!("is {file}; only model.safetensors or the files of its index are read");
        return Err(Error::field(fields.path, "transformers_weights", problem).with_hint(hint));
    }
    let Some(quantised) = fields.inside("quantization_config") else { return Ok(()) };
    let method = quantised.get("quant_method").and_then(Value::as_str).unwrap_or("bitsandbytes");
    let is_nf4 = quantised.get("bnb_4bit_quant_type").and_then(Value::as_str) == Some("nf4");
    if method == "bitsandbytes" && is_nf4 && quantised.is_true("load_in_4bit") {
        return Ok(());
    }
    let hint = "use the original 16-bit weights, with --load-in-4bit where memory is short";
    let problem = format!("is of `{method}`; only NF4 of bitsandbytes is supported");
    Err(Error::field(fields.path, "quantization_config", problem).with_hint(hint))
}

/// `max_position_embeddings` of the model in a folder, if its configuration has it.
pub fn read_max_positions(folder: &Path) -> Option<usize> {
    let value: Value = serde_json::from_str(&read_settings(&folder.join("config.json")).ok()?).ok()?;
    let found = |value: &Value| value.get("max_position_embeddings").and_then(Value::as_u64);
    value.get("text_config").and_then(found).or_else(|| found(&value)).map(|positions| positions as usize)
}

/// End-of-sequence tokens from `generation_config.json`, or without such a file from `config.json`, as in transformers; empty if it has none.
pub fn read_end_tokens(folder: &Path) -> Result<Vec<i32>, Error> {
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let Ok(text) = read_settings(&path) else { continue };
        let value: Value =
            serde_json::from_str(&text).map_err(|error| Error::broken(&path, format!("not JSON: {error}")))?;
        let said = |fields: &Value| fields.get("eos_token_id").filter(|token| !token.is_null()).cloned();
        let found = said(&value).or_else(|| said(value.get("text_config")?));
        let all = match found {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) => all,
            Some(one) => vec![one],
        };
        let token = |value: &Value| {
            let token = value.as_i64().and_then(|token| i32::try_from(token).ok());
            token.ok_or_else(|| Error::field(&path, "eos_token_id", format!("has {value}; expected tokens")))
        };
        return all.iter().map(token).collect();
    }
    Ok(Vec::new())
}
