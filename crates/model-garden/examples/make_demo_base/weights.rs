//! Weights of a model: drawn by chance to begin with, and written as bfloat16.

use std::path::Path;

use garden_model::Config;
use safetensors::tensor::{Dtype, TensorView};

use crate::demo::random::Random;

/// A tensor of a checkpoint: its name, its shape and its values.
pub type Named = (String, Vec<usize>, Vec<f32>);

/// The tensors of a model with a tied head, with the shapes that transformers has for them.
pub fn shapes(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (vision, text) = (&config.vision, &config.text);
    let mut all = Shapes(Vec::new());
    let (name, hidden) = ("model.visual", vision.hidden);
    all.add(format!("{name}.patch_embed.proj.weight"), &[hidden, 3, vision.frames, vision.patch, vision.patch]);
    for block in 0..vision.depth {
        let name = format!("{name}.blocks.{block}");
        all.add(format!("{name}.norm1.weight"), &[hidden]);
        all.add(format!("{name}.norm2.weight"), &[hidden]);
        all.linear(&format!("{name}.attn.qkv"), hidden, 3 * hidden, Bias::Yes);
        all.linear(&format!("{name}.attn.proj"), hidden, hidden, Bias::Yes);
        all.swiglu(&name, hidden, vision.intermediate, Bias::Yes);
    }
    let wide = hidden * vision.merged();
    all.add(format!("{name}.merger.ln_q.weight"), &[hidden]);
    all.linear(&format!("{name}.merger.mlp.0"), wide, wide, Bias::Yes);
    all.linear(&format!("{name}.merger.mlp.2"), wide, vision.out, Bias::Yes);

    let (name, hidden) = ("model.language_model", text.hidden);
    all.add(format!("{name}.embed_tokens.weight"), &[text.vocabulary, hidden]);
    for (layer, spec) in text.layers.iter().enumerate() {
        let (queries, keys) = (spec.attention().query_width(), spec.attention().key_width());
        let name = format!("{name}.layers.{layer}");
        all.add(format!("{name}.input_layernorm.weight"), &[hidden]);
        all.add(format!("{name}.post_attention_layernorm.weight"), &[hidden]);
        all.linear(&format!("{name}.self_attn.q_proj"), hidden, queries, Bias::Yes);
        all.linear(&format!("{name}.self_attn.k_proj"), hidden, keys, Bias::Yes);
        all.linear(&format!("{name}.self_attn.v_proj"), hidden, keys, Bias::Yes);
        all.linear(&format!("{name}.self_attn.o_proj"), queries, hidden, Bias::No);
        all.swiglu(&name, hidden, spec.mlp.intermediate, Bias::No);
    }
    all.add(format!("{name}.norm.weight"), &[hidden]);
    all.0
}

/// Whether a linear has a bias.
#[derive(Clone, Copy, PartialEq)]
enum Bias {
    Yes,
    No,
}

struct Shapes(Vec<(String, Vec<usize>)>);

impl Shapes {
    fn add(&mut self, name: String, shape: &[usize]) {
        self.0.push((name, shape.to_vec()));
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize, bias: Bias) {
        self.add(format!("{name}.weight"), &[outputs, inputs]);
        if bias == Bias::Yes {
            self.add(format!("{name}.bias"), &[outputs]);
        }
    }

    fn swiglu(&mut self, name: &str, hidden: usize, intermediate: usize, bias: Bias) {
        self.linear(&format!("{name}.mlp.gate_proj"), hidden, intermediate, bias);
        self.linear(&format!("{name}.mlp.up_proj"), hidden, intermediate, bias);
        self.linear(&format!("{name}.mlp.down_proj"), intermediate, hidden, bias);
    }
}

/// Weights to begin with: normal, so that what goes through a linear keeps its size, and what is added to a residual is small; norms are 1, biases 0.
pub fn random(config: &Config, random: &mut Random) -> Vec<Named> {
    let draw = |(name, shape): (String, Vec<usize>)| {
        let length = shape.iter().product();
        if shape.len() == 1 {
            let value = if name.contains("norm") || name.contains("ln_q") { 1.0 } else { 0.0 };
            return (name, shape, vec![value; length]);
        }
        let inputs: usize = shape[1..].iter().product();
        let layers = if name.contains("visual") { config.vision.depth } else { config.text.layers.len() };
        let adds = ["attn.proj.", "o_proj.", "down_proj."].iter().any(|ending| name.contains(ending));
        let spread = 1.0 / (inputs as f32 * if adds { 2.0 * layers as f32 } else { 1.0 }).sqrt();
        let values = (0..length).map(|_| spread * normal(random)).collect();
        (name, shape, values)
    };
    shapes(config).into_iter().map(draw).collect()
}

/// A number of the normal distribution (Box and Muller).
fn normal(random: &mut Random) -> f32 {
    let (length, angle) = (random.between(1e-7, 1.0), random.between(0.0, std::f32::consts::TAU));
    (-2.0 * length.ln()).sqrt() * angle.cos()
}

/// Writes tensors as bfloat16, rounded to the nearest.
pub fn write(path: &Path, tensors: &[Named]) {
    let narrow = |value: &f32| {
        let bits = value.to_bits();
        (((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16).to_le_bytes()
    };
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(_, _, values)| values.iter().flat_map(narrow).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap()));
    let about = [("format".to_string(), "pt".to_string())].into_iter().collect();
    std::fs::write(path, safetensors::serialize(views, Some(about)).unwrap()).unwrap();
}
