//! Qwen2.5-VL: its configuration, names, rules and released models. All that names this family is in this file.
//!
//! `config.json` comes in both layouts: decoder fields at the top (as on the hub) or under `text_config`. Missing fields are errors, not defaults: the defaults
//! of the transformers classes differ from the released models.

use serde_json::Value;

use crate::config::{
    AttentionSpec, CHANNELS, Config, LayerSpec, Mixer, MlpSpec, NormSpec, RotarySpec, TextConfig, VisionConfig,
    WindowSpec,
};
use crate::error::Error;
use crate::family::{
    BoxRules, CardRules, Family, ImageRules, LayerNames, TargetRules, TensorNames, TokenRules, TowerNames,
};
use crate::fields::Fields;
use crate::presets::Preset;

/// Base of the vision tower's rotary frequencies.
const VISION_THETA: f64 = 10_000.0;

/// Norms of the vision tower: set in the model's code, not in its configuration. They are called `norm1`, `norm2` and `ln_q`, which transformers' trainers decay.
const VISION_NORM: NormSpec = NormSpec { epsilon: 1e-6, is_decayed: true };

/// Names of gate, up and down in both towers.
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// The family.
pub(crate) static FAMILY: Family = Family {
    name: "Qwen2.5-VL",
    model_type: "qwen2_5_vl",
    parse,
    presets: &PRESETS,
    names: TensorNames {
        newer,
        embedding: "model.language_model.embed_tokens.weight",
        head: "lm_head.weight",
        norm: "model.language_model.norm",
        layer: "model.language_model.layers",
        layers: LayerNames {
            norms: ["input_layernorm", "post_attention_layernorm"],
            qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            output: "self_attn.o_proj",
            mlp: MLP,
        },
        tower: TowerNames {
            patches: "model.visual.patch_embed.proj.weight",
            block: "model.visual.blocks",
            norms: ["norm1", "norm2"],
            qkv: "attn.qkv",
            output: "attn.proj",
            mlp: MLP,
            merger_norm: "model.visual.merger.ln_q",
            merger: ["model.visual.merger.mlp.0", "model.visual.merger.mlp.2"],
        },
    },
    positions,
    images: ImageRules {
        processors: &["Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"],
        patch: 14,
        frames: 2,
        merge: 2,
        pixels: [56 * 56, 28 * 28 * 1280],
        released_max_pixels: 12_845_056,
        mean: [0.48145466, 0.4578275, 0.40821073],
        deviation: [0.26862954, 0.26130258, 0.27577711],
    },
    tokens: TokenRules {
        tokenizers: &["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"],
        end_of_text: "<|endoftext|>",
        image: "<|image_pad|>",
        vision: &["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
    },
    boxes: BoxRules {
        keys: ["\"bbox_2d\"", "\"point_2d\""],
        tokens: ["<|box_start|>", "<|box_end|>", "<|object_ref_start|>", "<|object_ref_end|>"],
    },
    targets: TargetRules {
        decoder: r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
        all: r".*\.(language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)|visual\..*\.(qkv|attn\.proj|gate_proj|up_proj|down_proj)|visual\.merger\.mlp\.[02])",
        linears: "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj (the last three in the vision tower too); vision tower: attn.qkv, \
                  attn.proj; merger: merger.mlp.0, merger.mlp.2",
        saved: ["visual.merger", "lm_head", "embed_tokens"],
    },
    card: CardRules { class: "Qwen2_5_VLForConditionalGeneration", tag: "qwen2_5_vl" },
};

/// Files on the hub have `visual.*` and `model.*`, newer ones `model.visual.*` and `model.language_model.*`.
fn newer(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("visual.") {
        return format!("model.visual.{rest}");
    }
    match name.strip_prefix("model.") {
        Some(rest) if !rest.starts_with("visual.") && !rest.starts_with("language_model.") => {
            format!("model.language_model.{rest}")
        }
        _ => name.to_string(),
    }
}

/// M-RoPE: time, row and column of each token of an image.
fn positions([frames, rows, columns]: [usize; 3], first: i32, positions: &mut Vec<[i32; 3]>) -> i32 {
    for frame in 0..frames as i32 {
        let places = (0..rows as i32).flat_map(|row| (0..columns as i32).map(move |column| [row, column]));
        positions.extend(places.map(|[row, column]| [first + frame, first + row, first + column]));
    }
    first + rows.max(columns).max(frames) as i32
}

fn parse(fields: Fields<'_>) -> Result<Config, Error> {
    let of_text = fields.inside("text_config").unwrap_or(fields);
    let of_vision = fields.inside("vision_config").ok_or_else(|| fields.missing("vision_config"))?;
    let config = Config {
        family: &FAMILY,
        text: text(of_text)?,
        vision: vision(of_vision)?,
        // Either place ties them, as in transformers.
        is_tied: [fields, of_text].iter().any(|fields| fields.is_true("tie_word_embeddings")),
        image_token: fields.whole("image_token_id")? as i32,
        padding_token: of_text.get("pad_token_id").and_then(Value::as_i64).map(|token| token as i32),
        is_quantised: fields.get("quantization_config").is_some(),
    };
    check(fields, &config)?;
    Ok(config)
}

fn text(fields: Fields<'_>) -> Result<TextConfig, Error> {
    fields.must_be("hidden_act", "silu")?;
    if fields.is_true("use_sliding_window") {
        return Err(Error::field(fields.path, fields.way("use_sliding_window"), "is true, which is not supported"));
    }
    let kinds = fields.get("layer_types").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if let Some(kind) = kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
        let problem = format!("has {kind}; only \"full_attention\" is supported");
        return Err(Error::field(fields.path, fields.way("layer_types"), problem));
    }
    // Of the two, transformers takes the older one.
    let rope = fields.inside("rope_scaling").or_else(|| fields.inside("rope_parameters"));
    let rope = rope.ok_or_else(|| fields.missing("rope_scaling"))?;
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
    if !matches!(kind, "default" | "mrope") {
        return Err(Error::field(
            fields.path,
            fields.way("rope_scaling"),
            format!("has the type `{kind}`; only `default` and `mrope` are supported"),
        ));
    }
    let theta = rope.get("rope_theta").or_else(|| fields.get("rope_theta")).and_then(Value::as_f64);
    let (hidden, heads) = (fields.whole("hidden_size")?, fields.whole("num_attention_heads")?);
    let rotary = RotarySpec {
        theta: theta.ok_or_else(|| fields.missing("rope_theta"))? as f32,
        sections: rope.three("mrope_section")?,
    };
    let norm = NormSpec { epsilon: fields.number("rms_norm_eps")? as f32, is_decayed: false };
    let attention = AttentionSpec {
        heads,
        kv_heads: fields.whole("num_key_value_heads")?,
        // transformers' class of this family does not ask `head_dim`; another value there is refused (`check_head`).
        head_dim: hidden / heads,
        has_qkv_bias: true,
        has_output_bias: false,
        rotary,
    };
    let mlp = MlpSpec { intermediate: fields.whole("intermediate_size")?, has_bias: false };
    let layer = LayerSpec { norm, mixer: Mixer::Attention(attention), mlp };
    Ok(TextConfig {
        hidden,
        vocabulary: fields.whole("vocab_size")?,
        layers: vec![layer; fields.whole("num_hidden_layers")?],
        norm,
        attention_dropout: fields.get("attention_dropout").and_then(Value::as_f64).unwrap_or(0.0) as f32,
    })
}

fn vision(fields: Fields<'_>) -> Result<VisionConfig, Error> {
    fields.must_be("hidden_act", "silu")?;
    let channels = fields.get("in_channels").or_else(|| fields.get("in_chans")).and_then(Value::as_u64);
    if let Some(channels) = channels.filter(|channels| *channels != CHANNELS as u64) {
        return Err(Error::field(
            fields.path,
            fields.way("in_channels"),
            format!("is {channels}; only {CHANNELS} are supported"),
        ));
    }
    check_rotary(fields)?;
    let (patch, merge, window) =
        (fields.whole("patch_size")?, fields.whole("spatial_merge_size")?, fields.whole("window_size")?);
    let side = window / merge.max(1) / patch.max(1);
    if side == 0 {
        return Err(Error::field(
            fields.path,
            fields.way("window_size"),
            format!("is {window}, less than a merged token of {merge} x {patch} pixels"),
        ));
    }
    let full = fields
        .get("fullatt_block_indexes")
        .and_then(Value::as_array)
        .ok_or_else(|| fields.missing("fullatt_block_indexes"))?;
    Ok(VisionConfig {
        depth: fields.whole("depth")?,
        hidden: fields.whole("hidden_size")?,
        intermediate: fields.whole("intermediate_size")?,
        heads: fields.whole("num_heads")?,
        patch,
        frames: fields.whole("temporal_patch_size")?,
        merge,
        windows: Some(WindowSpec {
            side,
            full_blocks: full.iter().filter_map(|block| Some(block.as_u64()? as usize)).collect(),
        }),
        rotary_theta: VISION_THETA as f32,
        out: fields.whole("out_hidden_size")?,
        norm: VISION_NORM,
    })
}

/// The vision tower's rotary frequencies have one base in all models of this family.
fn check_rotary(fields: Fields<'_>) -> Result<(), Error> {
    let rope = fields.inside("rope_parameters").unwrap_or(fields);
    if let Some(theta) = rope.get("rope_theta").filter(|theta| theta.as_f64() != Some(VISION_THETA)) {
        let problem = format!("is {theta}; only {VISION_THETA} is supported");
        return Err(Error::field(fields.path, rope.way("rope_theta"), problem));
    }
    match rope.get("rope_type").filter(|kind| !matches!(kind.as_str(), Some("axial" | "default"))) {
        Some(kind) => {
            let problem = format!("is {kind}; only \"axial\" is supported");
            Err(Error::field(fields.path, rope.way("rope_type"), problem))
        }
        None => Ok(()),
    }
}

/// Refuses a head dimension that is not the usual one.
fn check_head(fields: Fields<'_>, size: usize) -> Result<(), Error> {
    match fields.get("head_dim").filter(|head| head.as_u64() != Some(size as u64)) {
        Some(head) => Err(Error::field(fields.path, fields.way("head_dim"), format!("is {head}; expected {size}"))),
        None => Ok(()),
    }
}

fn check(fields: Fields<'_>, config: &Config) -> Result<(), Error> {
    let (text, vision) = (&config.text, &config.vision);
    let wrong = |field: &str, problem: String| Err(Error::field(fields.path, field, problem));
    for layer in text.kinds() {
        let &AttentionSpec { heads, kv_heads, head_dim, rotary, .. } = layer.attention();
        check_head(fields.inside("text_config").unwrap_or(fields), head_dim)?;
        if !text.hidden.is_multiple_of(heads) || !head_dim.is_multiple_of(2) {
            let problem = format!("is {heads}, which does not split {} values into heads of even size", text.hidden);
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
    fields.inside("vision_config").map_or(Ok(()), |fields| check_head(fields, vision.hidden / vision.heads))?;
    if !vision.hidden.is_multiple_of(vision.heads) || !vision.head_size().is_multiple_of(4) {
        return wrong(
            "vision_config.num_heads",
            format!("is {}, which does not split {} values into heads of a multiple of 4", vision.heads, vision.hidden),
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

/// Sizes in which the released models differ.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    is_tied: bool,
    vision_intermediate: usize,
}

/// The released models, smallest first.
static PRESETS: [Preset; 4] = [
    Preset {
        name: "qwen2.5-vl-3b",
        hub_name: "Qwen/Qwen2.5-VL-3B-Instruct",
        parameters: 3_754_622_976,
        config: || {
            released(Sizes {
                hidden: 2048,
                intermediate: 11008,
                layers: 36,
                heads: 16,
                kv_heads: 2,
                vocabulary: 151_936,
                is_tied: true,
                vision_intermediate: 3420,
            })
        },
    },
    Preset {
        name: "qwen2.5-vl-7b",
        hub_name: "Qwen/Qwen2.5-VL-7B-Instruct",
        parameters: 8_292_166_656,
        config: || {
            released(Sizes {
                hidden: 3584,
                intermediate: 18944,
                layers: 28,
                heads: 28,
                kv_heads: 4,
                vocabulary: 152_064,
                is_tied: false,
                vision_intermediate: 3420,
            })
        },
    },
    Preset {
        name: "qwen2.5-vl-32b",
        hub_name: "Qwen/Qwen2.5-VL-32B-Instruct",
        parameters: 33_452_718_336,
        config: || {
            released(Sizes {
                hidden: 5120,
                intermediate: 27648,
                layers: 64,
                heads: 40,
                kv_heads: 8,
                vocabulary: 152_064,
                is_tied: false,
                vision_intermediate: 3456,
            })
        },
    },
    Preset {
        name: "qwen2.5-vl-72b",
        hub_name: "Qwen/Qwen2.5-VL-72B-Instruct",
        parameters: 73_410_777_344,
        config: || {
            released(Sizes {
                hidden: 8192,
                intermediate: 29568,
                layers: 80,
                heads: 64,
                kv_heads: 8,
                vocabulary: 152_064,
                is_tied: false,
                vision_intermediate: 3456,
            })
        },
    },
];

fn released(sizes: Sizes) -> Config {
    Config {
        family: &FAMILY,
        text: decoder(sizes, 1e6, [16, 24, 24]),
        vision: VisionConfig {
            depth: 32,
            hidden: 1280,
            intermediate: sizes.vision_intermediate,
            heads: 16,
            patch: 14,
            frames: 2,
            merge: 2,
            // 112 pixels; a merged token has 28.
            windows: Some(WindowSpec { side: 4, full_blocks: vec![7, 15, 23, 31] }),
            rotary_theta: 1e4,
            out: sizes.hidden,
            norm: VISION_NORM,
        },
        is_tied: sizes.is_tied,
        image_token: 151_655,
        padding_token: None,
        is_quantised: false,
    }
}

impl Config {
    /// A model small enough to train on a CPU in moments; `model-garden demo` uses it.
    pub fn tiny() -> Config {
        Config {
            family: &FAMILY,
            text: decoder(
                Sizes {
                    hidden: 128,
                    intermediate: 256,
                    layers: 3,
                    heads: 4,
                    kv_heads: 2,
                    vocabulary: 544,
                    is_tied: true,
                    vision_intermediate: 192,
                },
                1e4,
                [4, 6, 6],
            ),
            vision: VisionConfig {
                depth: 3,
                hidden: 96,
                intermediate: 192,
                heads: 3,
                patch: 14,
                frames: 2,
                merge: 2,
                windows: Some(WindowSpec { side: 4, full_blocks: vec![2] }),
                rotary_theta: 1e4,
                out: 128,
                norm: VISION_NORM,
            },
            is_tied: true,
            image_token: 536,
            padding_token: None,
            is_quantised: false,
        }
    }
}

fn decoder(sizes: Sizes, theta: f32, sections: [usize; 3]) -> TextConfig {
    let Sizes { hidden, intermediate, layers, heads, kv_heads, vocabulary, .. } = sizes;
    let norm = NormSpec { epsilon: 1e-6, is_decayed: false };
    let rotary = RotarySpec { theta, sections };
    let (head_dim, has_qkv_bias, has_output_bias) = (hidden / heads, true, false);
    let attention = AttentionSpec { heads, kv_heads, head_dim, has_qkv_bias, has_output_bias, rotary };
    let mlp = MlpSpec { intermediate, has_bias: false };
    let layers = vec![LayerSpec { norm, mixer: Mixer::Attention(attention), mlp }; layers];
    TextConfig { hidden, vocabulary, layers, norm, attention_dropout: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_one_is_that_of_the_demo() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-garden/assets/demo-base/config.json");
        assert_eq!(Config::read(&path).unwrap(), Config::tiny());
    }

    #[test]
    fn names_are_found_as_people_write_them() {
        for name in ["qwen2.5-vl-7b", "Qwen2.5-VL-7B", "Qwen/Qwen2.5-VL-7B-Instruct"] {
            assert_eq!(Preset::find(name).map(|preset| preset.name), Some("qwen2.5-vl-7b"));
        }
        assert!(Preset::find("qwen3-vl").is_none());
    }
}
