//! The configuration of a checkpoint, in both layouts: decoder fields at the top (as on the hub) or under `text_config`.
//!
//! Missing fields are errors, not defaults: the defaults of the transformers classes differ from the released models.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use garden_files::read_settings;

/// The largest number in a configuration. Vocabularies have a few hundred thousand tokens, everything else is smaller, and products of three fit into 64 bits.
const LARGEST: u64 = 1 << 20;

/// Channels of an image.
const CHANNELS: usize = 3;

/// Base of the vision tower's rotary frequencies.
const VISION_THETA: f64 = 10_000.0;

/// The configuration of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
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

/// Norms of the vision tower: set in the model's code, not in its configuration. They are called `norm1`, `norm2` and `ln_q`, which transformers' trainers decay.
pub(crate) const VISION_NORM: NormSpec = NormSpec { epsilon: 1e-6, is_decayed: true };

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
        Fields { path, value: &value, name: "" }.config()
    }

    /// The largest head dimension of decoder and vision tower.
    pub fn largest_head(&self) -> usize {
        self.text.most(|layer| layer.attention().head_dim).max(self.vision.head_size())
    }
}

/// Fields of a JSON object, with their path for error messages.
#[derive(Clone, Copy)]
struct Fields<'a> {
    path: &'a Path,
    value: &'a Value,
    name: &'a str,
}

impl<'a> Fields<'a> {
    fn config(self) -> Result<Config, Error> {
        let kind = self.get("model_type").and_then(Value::as_str).unwrap_or("");
        if kind != "qwen2_5_vl" {
            return Err(Error::Unsupported { path: self.path.to_path_buf(), kind: kind.to_string() });
        }
        self.check_weights()?;
        let text = self.inside("text_config").unwrap_or(self);
        let vision = self.inside("vision_config").ok_or_else(|| self.missing("vision_config"))?;
        let config = Config {
            text: text.text()?,
            vision: vision.vision()?,
            // Either place ties them, as in transformers.
            is_tied: [self, text].iter().any(|fields| fields.is_true("tie_word_embeddings")),
            image_token: self.whole("image_token_id")? as i32,
            padding_token: text.get("pad_token_id").and_then(Value::as_i64).map(|token| token as i32),
            is_quantised: self.get("quantization_config").is_some(),
        };
        self.check(&config)?;
        Ok(config)
    }

    /// Refuses weights in other files or formats than are read here.
    fn check_weights(self) -> Result<(), Error> {
        if let Some(file) = self.get("transformers_weights") {
            let hint = "rename the file to model.safetensors and remove the field";
            let problem = format!("is {file}; only model.safetensors or the files of its index are read");
            return Err(Error::field(self.path, "transformers_weights", problem).with_hint(hint));
        }
        let Some(quantised) = self.inside("quantization_config") else { return Ok(()) };
        let method = quantised.get("quant_method").and_then(Value::as_str).unwrap_or("bitsandbytes");
        let is_nf4 = quantised.get("bnb_4bit_quant_type").and_then(Value::as_str) == Some("nf4");
        if method == "bitsandbytes" && is_nf4 && quantised.is_true("load_in_4bit") {
            return Ok(());
        }
        let hint = "use the original 16-bit weights, with --load-in-4bit where memory is short";
        let problem = format!("is of `{method}`; only NF4 of bitsandbytes is supported");
        Err(Error::field(self.path, "quantization_config", problem).with_hint(hint))
    }

    fn text(self) -> Result<TextConfig, Error> {
        self.must_be("hidden_act", "silu")?;
        if self.is_true("use_sliding_window") {
            return Err(Error::field(self.path, self.way("use_sliding_window"), "is true, which is not supported"));
        }
        let kinds = self.get("layer_types").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if let Some(kind) = kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            let problem = format!("has {kind}; only \"full_attention\" is supported");
            return Err(Error::field(self.path, self.way("layer_types"), problem));
        }
        // Of the two, transformers takes the older one.
        let rope = self.inside("rope_scaling").or_else(|| self.inside("rope_parameters"));
        let rope = rope.ok_or_else(|| self.missing("rope_scaling"))?;
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        if !matches!(kind, "default" | "mrope") {
            return Err(Error::field(
                self.path,
                self.way("rope_scaling"),
                format!("has the type `{kind}`; only `default` and `mrope` are supported"),
            ));
        }
        let theta = rope.get("rope_theta").or_else(|| self.get("rope_theta")).and_then(Value::as_f64);
        let (hidden, heads) = (self.whole("hidden_size")?, self.whole("num_attention_heads")?);
        let rotary =
            RotarySpec { theta: theta.ok_or_else(|| self.missing("rope_theta"))? as f32, sections: rope.sections()? };
        let norm = NormSpec { epsilon: self.number("rms_norm_eps")? as f32, is_decayed: false };
        let attention = AttentionSpec {
            heads,
            kv_heads: self.whole("num_key_value_heads")?,
            // transformers' class of this family does not ask `head_dim`; another value there is refused (`check_head`).
            head_dim: hidden / heads,
            has_qkv_bias: true,
            has_output_bias: false,
            rotary,
        };
        let mlp = MlpSpec { intermediate: self.whole("intermediate_size")?, has_bias: false };
        let layer = LayerSpec { norm, mixer: Mixer::Attention(attention), mlp };
        Ok(TextConfig {
            hidden,
            vocabulary: self.whole("vocab_size")?,
            layers: vec![layer; self.whole("num_hidden_layers")?],
            norm,
            attention_dropout: self.get("attention_dropout").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        })
    }

    fn sections(self) -> Result<[usize; 3], Error> {
        let given = self.get("mrope_section").and_then(Value::as_array).ok_or_else(|| self.missing("mrope_section"))?;
        let numbers: Vec<usize> = given.iter().filter_map(|one| Some(one.as_u64()? as usize)).collect();
        numbers.try_into().map_err(|_| {
            Error::field(self.path, self.way("mrope_section"), format!("is {given:?}; expected three whole numbers"))
        })
    }

    fn vision(self) -> Result<VisionConfig, Error> {
        self.must_be("hidden_act", "silu")?;
        let channels = self.get("in_channels").or_else(|| self.get("in_chans")).and_then(Value::as_u64);
        if let Some(channels) = channels.filter(|channels| *channels != CHANNELS as u64) {
            return Err(Error::field(
                self.path,
                self.way("in_channels"),
                format!("is {channels}; only {CHANNELS} are supported"),
            ));
        }
        self.check_rotary()?;
        let (patch, merge, window) =
            (self.whole("patch_size")?, self.whole("spatial_merge_size")?, self.whole("window_size")?);
        let side = window / merge.max(1) / patch.max(1);
        if side == 0 {
            return Err(Error::field(
                self.path,
                self.way("window_size"),
                format!("is {window}, less than a merged token of {merge} x {patch} pixels"),
            ));
        }
        let full = self
            .get("fullatt_block_indexes")
            .and_then(Value::as_array)
            .ok_or_else(|| self.missing("fullatt_block_indexes"))?;
        Ok(VisionConfig {
            depth: self.whole("depth")?,
            hidden: self.whole("hidden_size")?,
            intermediate: self.whole("intermediate_size")?,
            heads: self.whole("num_heads")?,
            patch,
            frames: self.whole("temporal_patch_size")?,
            merge,
            windows: Some(WindowSpec {
                side,
                full_blocks: full.iter().filter_map(|block| Some(block.as_u64()? as usize)).collect(),
            }),
            rotary_theta: VISION_THETA as f32,
            out: self.whole("out_hidden_size")?,
            norm: VISION_NORM,
        })
    }

    /// The vision tower's rotary frequencies have one base in all models of this family.
    fn check_rotary(self) -> Result<(), Error> {
        let rope = self.inside("rope_parameters").unwrap_or(self);
        if let Some(theta) = rope.get("rope_theta").filter(|theta| theta.as_f64() != Some(VISION_THETA)) {
            let problem = format!("is {theta}; only {VISION_THETA} is supported");
            return Err(Error::field(self.path, rope.way("rope_theta"), problem));
        }
        match rope.get("rope_type").filter(|kind| !matches!(kind.as_str(), Some("axial" | "default"))) {
            Some(kind) => {
                let problem = format!("is {kind}; only \"axial\" is supported");
                Err(Error::field(self.path, rope.way("rope_type"), problem))
            }
            None => Ok(()),
        }
    }

    /// Refuses a head dimension that is not the usual one.
    fn check_head(self, size: usize) -> Result<(), Error> {
        match self.get("head_dim").filter(|head| head.as_u64() != Some(size as u64)) {
            Some(head) => Err(Error::field(self.path, self.way("head_dim"), format!("is {head}; expected {size}"))),
            None => Ok(()),
        }
    }

    fn check(self, config: &Config) -> Result<(), Error> {
        let (text, vision) = (&config.text, &config.vision);
        let wrong = |field: &str, problem: String| Err(Error::field(self.path, field, problem));
        for layer in text.kinds() {
            let &AttentionSpec { heads, kv_heads, head_dim, rotary, .. } = layer.attention();
            self.inside("text_config").unwrap_or(self).check_head(head_dim)?;
            if !text.hidden.is_multiple_of(heads) || !head_dim.is_multiple_of(2) {
                let problem =
                    format!("is {heads}, which does not split {} values into heads of even size", text.hidden);
                return wrong("num_attention_heads", problem);
            }
            if !heads.is_multiple_of(kv_heads) {
                return wrong("num_key_value_heads", format!("is {kv_heads}, which does not divide {heads} heads"));
            }
            if rotary.width() != head_dim / 2 {
                let problem = format!("is {:?}; its sum must be half a head, {}", rotary.sections, head_dim / 2);
                return wrong("mrope_section", problem);
            }
        }
        self.inside("vision_config").map_or(Ok(()), |fields| fields.check_head(vision.hidden / vision.heads))?;
        if !vision.hidden.is_multiple_of(vision.heads) || !vision.head_size().is_multiple_of(4) {
            return wrong(
                "vision_config.num_heads",
                format!(
                    "is {}, which does not split {} values into heads of a multiple of 4",
                    vision.heads, vision.hidden
                ),
            );
        }
        if vision.out != text.hidden {
            return wrong(
                "vision_config.out_hidden_size",
                format!("is {}; the decoder's hidden_size is {}", vision.out, text.hidden),
            );
        }
        Ok(())
    }

    fn get(self, name: &str) -> Option<&'a Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    fn is_true(self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool) == Some(true)
    }

    fn inside(self, name: &'a str) -> Option<Fields<'a>> {
        let value = self.get(name).filter(|value| value.is_object())?;
        Some(Fields { value, name, ..self })
    }

    fn way(self, field: &str) -> String {
        if self.name.is_empty() { field.to_string() } else { format!("{}.{field}", self.name) }
    }

    fn missing(self, field: &str) -> Error {
        Error::field(self.path, self.way(field), "is missing")
    }

    fn whole(self, field: &str) -> Result<usize, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        let number = value.as_u64().filter(|number| (1..=LARGEST).contains(number));
        number.map(|number| number as usize).ok_or_else(|| {
            Error::field(self.path, self.way(field), format!("is {value}; expected a whole number from 1 to {LARGEST}"))
        })
    }

    fn number(self, field: &str) -> Result<f64, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        value.as_f64().ok_or_else(|| Error::field(self.path, self.way(field), format!("is {value}; expected a number")))
    }

    fn must_be(self, field: &str, wanted: &str) -> Result<(), Error> {
        match self.get(field).and_then(Value::as_str) {
            None => Ok(()),
            Some(value) if value == wanted => Ok(()),
            Some(value) => {
                Err(Error::field(self.path, self.way(field), format!("is `{value}`; only `{wanted}` is supported")))
            }
        }
    }
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
