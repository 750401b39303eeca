//! Tensor names: files on the hub have `visual.*` and `model.*`, newer ones `model.visual.*` and `model.language_model.*`.

/// The LM head, unless tied to the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";

/// The embedding.
pub(crate) const EMBEDDING: &str = "model.language_model.embed_tokens.weight";

/// The newer name of a tensor, whichever a file has.
pub(crate) fn newer(name: &str) -> String {
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

/// Whether a parameter gets weight decay. As in the usual trainers, biases and parameters whose name says norm do not.
///
/// The vision tower's `norm1`, `norm2` and `ln_q` are not matched there, and are decayed.
pub(crate) fn is_decayed(name: &str) -> bool {
    let is_norm = |part: &str| {
        part == "norm" || part.ends_with("_norm") || part.contains("layernorm") || part.contains("rmsnorm")
    };
    !name.contains("bias") && !name.split('.').any(is_norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_become_the_newer_one() {
        assert_eq!(newer("visual.blocks.0.norm1.weight"), "model.visual.blocks.0.norm1.weight");
        assert_eq!(newer("model.layers.0.mlp.up_proj.weight"), "model.language_model.layers.0.mlp.up_proj.weight");
        assert_eq!(newer("model.language_model.norm.weight"), "model.language_model.norm.weight");
        assert_eq!(newer("lm_head.weight"), "lm_head.weight");
    }

    #[test]
    fn what_is_decayed() {
        assert!(!is_decayed("model.language_model.norm.weight"));
        assert!(!is_decayed("model.language_model.layers.0.input_layernorm.weight"));
        assert!(!is_decayed("model.visual.blocks.0.attn.qkv.bias"));
        assert!(is_decayed("model.visual.blocks.0.norm1.weight"));
        assert!(is_decayed("model.visual.merger.ln_q.weight"));
    }
}
