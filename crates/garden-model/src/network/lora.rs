//! LoRA configuration: target modules and scaling.

use regex_lite::Regex;

/// LoRA adapters: y = W x + b + scale B A x.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rows of A.
    pub rank: usize,
    /// Alpha.
    pub alpha: f32,
    /// Whether the scale is alpha / sqrt(rank) instead of alpha / rank.
    pub is_rank_stabilised: bool,
    /// Dropout rate of A's inputs during training.
    pub dropout: f32,
    /// Target modules.
    pub targets: Targets,
    /// Modules trained in full and saved with the adapter, by the ends of their names (PEFT's `modules_to_save`).
    pub modules_to_save: Vec<String>,
}

impl LoraConfig {
    /// The factor of the adapter's product.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.is_rank_stabilised { rank.sqrt() } else { rank }
    }
}

/// Linears of the vision tower's blocks, and of the merger.
const VISION: [&str; 5] = ["attn.qkv", "attn.proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
const MERGER: [&str; 2] = ["mlp.0", "mlp.2"];

impl LoraConfig {
    /// Whether parameters of the vision tower are trained.
    pub fn reaches_vision(&self) -> bool {
        self.reaches(VISION.map(|name| format!("model.visual.blocks.0.{name}")))
    }

    /// Whether parameters of the merger are trained.
    pub fn reaches_merger(&self) -> bool {
        self.reaches(MERGER.map(|name| format!("model.visual.merger.{name}")))
    }

    fn reaches<const N: usize>(&self, names: [String; N]) -> bool {
        let is_trained = |name: &String| self.saved_module(&format!("{name}.weight")).is_some();
        names.iter().any(is_trained)
            || self.targets.matcher().is_ok_and(|matcher| names.iter().any(|name| matcher.matches(name)))
    }

    /// The entry of `modules_to_save` that a tensor belongs to. As in PEFT, it matches modules whose names end with it.
    pub(crate) fn saved_module(&self, tensor: &str) -> Option<&str> {
        let mut modules = tensor.match_indices('.').map(|(dot, _)| &tensor[..dot]);
        modules.find_map(|module| {
            self.modules_to_save.iter().find(|name| module.ends_with(name.as_str())).map(String::as_str)
        })
    }
}

/// Target modules by name, as in PEFT's `target_modules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// A regular expression for the whole name.
    Pattern(String),
    /// Names, or suffixes after a dot.
    Names(Vec<String>),
}

impl Targets {
    /// The seven linears of every decoder layer.
    pub fn decoder() -> Targets {
        Targets::Pattern(r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)".into())
    }

    /// All linears of the decoder, the vision tower and the merger.
    pub fn all() -> Targets {
        let decoder = r"language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)";
        let vision = r"visual\..*\.(qkv|attn\.proj|gate_proj|up_proj|down_proj)|visual\.merger\.mlp\.[02]";
        Targets::Pattern(format!(r".*\.({decoder}|{vision})"))
    }

    /// The matcher of names; an error if the pattern is not a valid regular expression.
    pub(crate) fn matcher(&self) -> Result<Matcher, String> {
        Ok(match self {
            Targets::Pattern(pattern) => {
                let whole = Regex::new(&format!("^(?:{pattern})$"))
                    .map_err(|error| format!("`{pattern}` is not a regular expression: {error}"))?;
                Matcher::Pattern(whole)
            }
            Targets::Names(names) => Matcher::Names(names.clone()),
        })
    }
}

/// Decides which linears are targets.
#[derive(Debug)]
pub(crate) enum Matcher {
    Pattern(Regex),
    Names(Vec<String>),
}

impl Matcher {
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Matcher::Pattern(pattern) => pattern.is_match(name),
            Matcher::Names(names) => names.iter().any(|ending| {
                name == ending || name.strip_suffix(ending.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_whole_parts() {
        let some = Targets::Names(vec!["gate_proj".into(), "mlp.0".into()]).matcher().unwrap();
        assert!(some.matches("model.visual.blocks.0.mlp.gate_proj"));
        assert!(some.matches("model.visual.merger.mlp.0"));
        assert!(!some.matches("model.x.aggregate_proj"));
        let decoder = Targets::decoder().matcher().unwrap();
        assert!(decoder.matches("model.language_model.layers.11.self_attn.q_proj"));
        assert!(!decoder.matches("model.visual.blocks.0.mlp.gate_proj"));
        assert!(Targets::all().matcher().unwrap().matches("model.visual.blocks.0.attn.proj"));
        assert!(!Targets::all().matcher().unwrap().matches("lm_head"));
    }

    #[test]
    fn saved_modules_are_named_by_their_ends() {
        let lora = LoraConfig {
            rank: 1,
            alpha: 1.0,
            is_rank_stabilised: false,
            dropout: 0.0,
            targets: Targets::decoder(),
            modules_to_save: vec!["visual.merger".into(), "lm_head".into(), "norm".into()],
        };
        assert_eq!(lora.saved_module("model.visual.merger.mlp.0.bias"), Some("visual.merger"));
        assert_eq!(lora.saved_module("lm_head.weight"), Some("lm_head"));
        assert_eq!(lora.saved_module("model.language_model.norm.weight"), Some("norm"));
        // PEFT requires no dot before the name.
        assert_eq!(lora.saved_module("model.language_model.layers.0.input_layernorm.weight"), Some("norm"));
        assert_eq!(lora.saved_module("model.language_model.layers.0.mlp.up_proj.weight"), None);
        assert!(lora.reaches_merger() && !lora.reaches_vision());
    }
}
