//! LoRA configuration: target modules and scaling.

use regex_lite::Regex;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::network::declared;
use crate::network::role::{Declared, Part};
use garden_input::{Config, Family};

/// LoRA adapters: y = W x + b + scale B A x.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Ranks of some modules, by patterns; the first that matches counts (PEFT's `rank_pattern`).
    #[serde(default)]
    pub ranks: Vec<(String, usize)>,
    /// Alphas of some modules, in the same way (PEFT's `alpha_pattern`).
    #[serde(default)]
    pub alphas: Vec<(String, f32)>,
}

impl LoraConfig {
    /// Whether parameters of a part of a model are trained.
    pub fn reaches(&self, part: Part, config: &Config) -> Result<bool, Error> {
        let modules = self.modules().map_err(Error::Adapter)?;
        let is_trained = |tensor: &Declared| {
            self.saved_module(&tensor.name).is_some() || tensor.linear().is_some_and(|name| modules.contain(name))
        };
        Ok(declared(config)?.iter().any(|tensor| tensor.role.part == part && is_trained(tensor)))
    }

    /// The entry of `modules_to_save` that a tensor belongs to. As in PEFT, it matches modules whose names end with it.
    pub(crate) fn saved_module(&self, tensor: &str) -> Option<&str> {
        let mut modules = tensor.match_indices('.').map(|(dot, _)| &tensor[..dot]);
        modules.find_map(|module| {
            self.modules_to_save.iter().find(|name| module.ends_with(name.as_str())).map(String::as_str)
        })
    }
}

/// Target modules by name, as in PEFT's `target_modules`, without those of `exclude_modules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// Which modules.
    pub names: Names,
    /// Which of them are not (PEFT's `exclude_modules`).
    #[serde(default)]
    pub excluded: Option<Names>,
    /// Which layers; `None` for all.
    #[serde(default)]
    pub layers: Option<Layers>,
}

/// Names of modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Names {
    /// A regular expression for the whole name.
    Pattern(String),
    /// Names, or suffixes after a dot.
    Listed(Vec<String>),
}

/// Layers by number (PEFT's `layers_to_transform` and `layers_pattern`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// Their numbers.
    pub numbers: Vec<usize>,
    /// Patterns of the segment before the number; empty for any segment.
    pub before: Vec<String>,
}

impl Default for Names {
    fn default() -> Names {
        Names::Listed(Vec::new())
    }
}

impl From<Names> for Targets {
    fn from(names: Names) -> Targets {
        Targets { names, excluded: None, layers: None }
    }
}

impl Targets {
    /// The linears of every decoder layer.
    pub fn decoder(family: &Family) -> Targets {
        Targets::pattern(family.targets.decoder)
    }

    /// All linears of the decoder, the vision tower and the merger.
    pub fn all(family: &Family) -> Targets {
        Targets::pattern(family.targets.all)
    }

    /// Modules whose whole names match a regular expression.
    pub fn pattern(pattern: &str) -> Targets {
        Names::Pattern(pattern.to_string()).into()
    }

    /// Modules by names, or by suffixes after a dot.
    pub fn listed<S: ToString>(names: impl IntoIterator<Item = S>) -> Targets {
        Names::Listed(names.into_iter().map(|name| name.to_string()).collect()).into()
    }
}

impl LoraConfig {
    /// The modules with adapters, and the settings of each; an error if a pattern is not a valid regular expression.
    pub(crate) fn modules(&self) -> Result<Modules, String> {
        let ends = |pattern: &str| regex(pattern, &format!(r"^(?:.*\.)?(?:{pattern})$"));
        let ranks = self.ranks.iter().map(|(pattern, rank)| Ok((ends(pattern)?, *rank)));
        let alphas = self.alphas.iter().map(|(pattern, alpha)| Ok((ends(pattern)?, *alpha)));
        let targets = &self.targets;
        Ok(Modules {
            names: targets.names.matcher()?,
            excluded: targets.excluded.as_ref().map(Names::matcher).transpose()?,
            layers: targets.layers.as_ref().map(Layers::matcher).transpose()?,
            rank: self.rank,
            alpha: self.alpha,
            is_rank_stabilised: self.is_rank_stabilised,
            ranks: ranks.collect::<Result<_, String>>()?,
            alphas: alphas.collect::<Result<_, String>>()?,
        })
    }
}

impl Names {
    fn matcher(&self) -> Result<Matcher, String> {
        Ok(match self {
            Names::Pattern(pattern) => Matcher::Pattern(regex(pattern, &format!("^(?:{pattern})$"))?),
            Names::Listed(names) => Matcher::Listed(names.clone()),
        })
    }
}

impl Layers {
    fn matcher(&self) -> Result<LayerMatcher, String> {
        // The first number counts: later ones are those of experts.
        let before = match self.before.is_empty() {
            true => vec![regex("", r"^.*?\.[^.]*\.(\d+)\.")?],
            false => {
                let pattern = |before: &String| regex(before, &format!(r"^(?:|.*?\.)(?:{before})\.(\d+)\."));
                self.before.iter().map(pattern).collect::<Result<_, String>>()?
            }
        };
        Ok(LayerMatcher { before, numbers: self.numbers.clone() })
    }
}

fn regex(given: &str, whole: &str) -> Result<Regex, String> {
    Regex::new(whole).map_err(|error| format!("`{given}` is not a regular expression: {error}"))
}

/// Decides which linears have adapters, and of what rank and scale.
#[derive(Debug)]
pub(crate) struct Modules {
    names: Matcher,
    excluded: Option<Matcher>,
    layers: Option<LayerMatcher>,
    rank: usize,
    alpha: f32,
    is_rank_stabilised: bool,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f32)>,
}

#[derive(Debug)]
enum Matcher {
    Pattern(Regex),
    Listed(Vec<String>),
}

#[derive(Debug)]
struct LayerMatcher {
    before: Vec<Regex>,
    numbers: Vec<usize>,
}

impl Modules {
    pub fn contain(&self, name: &str) -> bool {
        let is_excluded = self.excluded.as_ref().is_some_and(|excluded| excluded.matches(name));
        // PEFT looks at the number of a layer unless the whole name is listed.
        let is_whole = matches!(&self.names, Matcher::Listed(names) if names.iter().any(|one| one == name));
        let is_in_layer = is_whole || self.layers.as_ref().is_none_or(|layers| layers.matches(name));
        !is_excluded && is_in_layer && self.names.matches(name)
    }

    /// The rows of a linear's A.
    pub fn rank(&self, name: &str) -> usize {
        first_match(&self.ranks, name).unwrap_or(self.rank)
    }

    /// The largest rank that a linear can have.
    pub fn largest_rank(&self) -> usize {
        self.ranks.iter().map(|(_, rank)| *rank).fold(self.rank, usize::max)
    }

    /// A linear's alpha.
    pub fn alpha(&self, name: &str) -> f32 {
        first_match(&self.alphas, name).unwrap_or(self.alpha)
    }

    /// The factor of a linear's product.
    pub fn scale(&self, name: &str) -> f32 {
        let rank = self.rank(name) as f32;
        self.alpha(name) / if self.is_rank_stabilised { rank.sqrt() } else { rank }
    }
}

fn first_match<T: Copy>(patterns: &[(Regex, T)], name: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(name)).map(|(_, value)| *value)
}

impl Matcher {
    fn matches(&self, name: &str) -> bool {
        match self {
            Matcher::Pattern(pattern) => pattern.is_match(name),
            Matcher::Listed(names) => names.iter().any(|ending| {
                name == ending || name.strip_suffix(ending.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }),
        }
    }
}

impl LayerMatcher {
    fn matches(&self, name: &str) -> bool {
        let found = self.before.iter().find_map(|pattern| pattern.captures(name));
        let number = found.and_then(|found| found.get(1)?.as_str().parse::<usize>().ok());
        number.is_some_and(|number| self.numbers.contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_input::FAMILIES;

    #[test]
    fn names_match_whole_parts() {
        let modules = |targets| LoraConfig { targets, ..LoraConfig::default() }.modules().unwrap();
        let some = modules(Targets::listed(["gate_proj", "mlp.0"]));
        assert!(some.contain("model.visual.blocks.0.mlp.gate_proj"));
        assert!(some.contain("model.visual.merger.mlp.0"));
        assert!(!some.contain("model.x.aggregate_proj"));
        let decoder = modules(Targets::decoder(FAMILIES[0]));
        assert!(decoder.contain("model.language_model.layers.11.self_attn.q_proj"));
        assert!(!decoder.contain("model.visual.blocks.0.mlp.gate_proj"));
        assert!(modules(Targets::all(FAMILIES[0])).contain("model.visual.blocks.0.attn.proj"));
        assert!(!modules(Targets::all(FAMILIES[0])).contain("lm_head"));
    }

    #[test]
    fn saved_modules_are_named_by_their_ends() {
        let lora = LoraConfig {
            targets: Targets::decoder(FAMILIES[0]),
            modules_to_save: vec!["visual.merger".into(), "lm_head".into(), "norm".into()],
            ..LoraConfig::default()
        };
        assert_eq!(lora.saved_module("model.visual.merger.mlp.0.bias"), Some("visual.merger"));
        assert_eq!(lora.saved_module("lm_head.weight"), Some("lm_head"));
        assert_eq!(lora.saved_module("model.language_model.norm.weight"), Some("norm"));
        // PEFT requires no dot before the name.
        assert_eq!(lora.saved_module("model.language_model.layers.0.input_layernorm.weight"), Some("norm"));
        assert_eq!(lora.saved_module("model.language_model.layers.0.mlp.up_proj.weight"), None);
        let reaches = |part| lora.reaches(part, &Config::tiny()).unwrap();
        assert!(reaches(Part::Merger) && !reaches(Part::Tower));
    }
}
