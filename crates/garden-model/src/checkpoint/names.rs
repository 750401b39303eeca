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
}
