//! A family that exists in tests alone, to see what one takes: other names, heads that do not divide the hidden size, no biases in the decoder, two kinds of
//! layers in turn that differ in kv heads, rotary base and MLP width, and a tower without windows. `testdata/reference/mixed_layers.py` records it.

use garden_input::{
    AttentionSpec, BoxRules, CardRules, Config, Error, FAMILIES, Family, Fields, ImageRules, LayerNames, LayerSpec,
    Mixer, MlpSpec, NormSpec, RotarySpec, TargetRules, TensorNames, TextConfig, TokenRules, TowerNames, VisionConfig,
};

/// The family.
pub static TOY: Family = Family {
    name: "Toy",
    model_type: "toy",
    parse,
    presets: &[],
    names: TensorNames {
        newer: str::to_string,
        embedding: "toy.words.weight",
        head: "toy.answer.weight",
        norm: "toy.last",
        layer: "toy.layers",
        layers: LayerNames {
            norms: ["before_mixer", "before_mlp"],
            qkv: ["mixer.query", "mixer.key", "mixer.value"],
            output: "mixer.back",
            mlp: MLP,
        },
        tower: TowerNames {
            patches: "toy.eye.patches.weight",
            block: "toy.eye.blocks",
            norms: ["before_looking", "before_mlp"],
            qkv: "look.all",
            output: "look.back",
            mlp: MLP,
            merger_norm: "toy.bridge.norm",
            merger: ["toy.bridge.wide", "toy.bridge.narrow"],
        },
    },
    positions,
    images: ImageRules {
        processors: &["ToyImageProcessor"],
        patch: 4,
        frames: 2,
        merge: 2,
        pixels: [64, 4096],
        released_max_pixels: 4096,
        mean: [0.5; 3],
        deviation: [0.5; 3],
    },
    tokens: TokenRules { tokenizers: &[], end_of_text: "<end>", image: "<image>", vision: &["<image>"] },
    boxes: BoxRules { keys: ["\"box\"", "\"point\""], tokens: ["<box>", "</box>", "<name>", "</name>"] },
    targets: TargetRules {
        decoder: r".*\.layers\..*\.(query|key|value|back|gate|rise|fall)",
        all: r".*\.(layers|blocks)\..*\.(query|key|value|all|back|gate|rise|fall)|.*\.bridge\.(wide|narrow)",
        linears: "query, key, value, back, gate, rise, fall; tower: all; bridge: wide, narrow",
        saved: ["toy.bridge", "toy.answer", "toy.words"],
    },
    card: CardRules { class: "ToyForConditionalGeneration", tag: "toy" },
};

/// Names of gate, up and down.
const MLP: [&str; 3] = ["mlp.gate", "mlp.rise", "mlp.fall"];

/// Images have positions as in the first family.
fn positions(sizes: [usize; 3], first: i32, positions: &mut Vec<[i32; 3]>) -> i32 {
    (FAMILIES[0].positions)(sizes, first, positions)
}

fn parse(fields: Fields<'_>) -> Result<Config, Error> {
    let vision = fields.inside("vision_config").ok_or_else(|| fields.missing("vision_config"))?;
    Ok(Config {
        family: &TOY,
        text: text(fields)?,
        vision: tower(vision)?,
        is_tied: false,
        image_token: fields.whole("image_token_id")? as i32,
        padding_token: None,
        is_quantised: false,
    })
}

fn text(fields: Fields<'_>) -> Result<TextConfig, Error> {
    let norm = NormSpec { epsilon: fields.number("rms_norm_eps")? as f32, is_decayed: false };
    let layers = fields.objects("layers")?.into_iter().map(|layer| {
        let rotary = RotarySpec { theta: layer.number("theta")? as f32, sections: layer.three("sections")? };
        let attention = AttentionSpec {
            heads: layer.whole("heads")?,
            kv_heads: layer.whole("kv_heads")?,
            head_dim: layer.whole("head_dim")?,
            has_qkv_bias: false,
            has_output_bias: false,
            rotary,
        };
        let mlp = MlpSpec { intermediate: layer.whole("intermediate")?, has_bias: false };
        Ok(LayerSpec { norm, mixer: Mixer::Attention(attention), mlp })
    });
    let layers = layers.collect::<Result<Vec<LayerSpec>, Error>>()?;
    let (hidden, vocabulary) = (fields.whole("hidden_size")?, fields.whole("vocab_size")?);
    Ok(TextConfig { hidden, vocabulary, layers, norm, attention_dropout: 0.0 })
}

fn tower(fields: Fields<'_>) -> Result<VisionConfig, Error> {
    Ok(VisionConfig {
        depth: fields.whole("depth")?,
        hidden: fields.whole("hidden_size")?,
        intermediate: fields.whole("intermediate_size")?,
        heads: fields.whole("num_heads")?,
        patch: fields.whole("patch_size")?,
        frames: fields.whole("temporal_patch_size")?,
        merge: fields.whole("spatial_merge_size")?,
        windows: None,
        rotary_theta: 1e4,
        out: fields.whole("out_hidden_size")?,
        norm: NormSpec { epsilon: 1e-6, is_decayed: true },
    })
}
