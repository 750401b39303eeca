//! The tensors of a model from its configuration alone: names and shapes as in checkpoint files.

use garden_input::Config;

/// The patch embedding's convolution.
pub(crate) const PATCHES: &str = "model.visual.patch_embed.proj.weight";

/// Newer names and shapes of all tensors of a model.
pub(crate) fn tensors(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (text, vision) = (&config.text, &config.vision);
    let mut list = List::default();
    list.add(PATCHES, &vision.kernel());
    for index in 0..vision.depth {
        let name = format!("model.visual.blocks.{index}");
        list.add(&format!("{name}.norm1.weight"), &[vision.hidden]);
        list.linear(&format!("{name}.attn.qkv"), vision.hidden, 3 * vision.hidden, true);
        list.linear(&format!("{name}.attn.proj"), vision.hidden, vision.hidden, true);
        list.add(&format!("{name}.norm2.weight"), &[vision.hidden]);
        list.swiglu(&format!("{name}.mlp"), vision.hidden, vision.intermediate, true);
    }
    let wide = vision.merged() * vision.hidden;
    list.add("model.visual.merger.ln_q.weight", &[vision.hidden]);
    list.linear("model.visual.merger.mlp.0", wide, wide, true);
    list.linear("model.visual.merger.mlp.2", wide, vision.out, true);
    list.add("model.language_model.embed_tokens.weight", &[text.vocabulary, text.hidden]);
    let (queries, keys) = (text.query_width(), text.key_width());
    for index in 0..text.layers {
        let name = format!("model.language_model.layers.{index}");
        list.add(&format!("{name}.input_layernorm.weight"), &[text.hidden]);
        list.linear(&format!("{name}.self_attn.q_proj"), text.hidden, queries, text.has_qkv_bias);
        list.linear(&format!("{name}.self_attn.k_proj"), text.hidden, keys, text.has_qkv_bias);
        list.linear(&format!("{name}.self_attn.v_proj"), text.hidden, keys, text.has_qkv_bias);
        list.linear(&format!("{name}.self_attn.o_proj"), queries, text.hidden, text.has_output_bias);
        list.add(&format!("{name}.post_attention_layernorm.weight"), &[text.hidden]);
        list.swiglu(&format!("{name}.mlp"), text.hidden, text.intermediate, false);
    }
    list.add("model.language_model.norm.weight", &[text.hidden]);
    if !config.is_tied {
        list.linear("lm_head", text.hidden, text.vocabulary, false);
    }
    list.tensors
}

#[derive(Default)]
struct List {
    tensors: Vec<(String, Vec<usize>)>,
}

impl List {
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push((name.to_string(), shape.to_vec()));
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize, has_bias: bool) {
        self.add(&format!("{name}.weight"), &[outputs, inputs]);
        if has_bias {
            self.add(&format!("{name}.bias"), &[outputs]);
        }
    }

    fn swiglu(&mut self, name: &str, hidden: usize, inner: usize, has_bias: bool) {
        self.linear(&format!("{name}.gate_proj"), hidden, inner, has_bias);
        self.linear(&format!("{name}.up_proj"), hidden, inner, has_bias);
        self.linear(&format!("{name}.down_proj"), inner, hidden, has_bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_input::PRESETS;

    #[test]
    fn parameters_are_those_that_were_published() {
        for preset in PRESETS {
            let counted: usize =
                tensors(&preset.config()).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            assert_eq!(counted, preset.parameters, "{}", preset.name);
        }
    }
}
