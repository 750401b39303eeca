//! Which linear layers a model has for adapters, by name: what targets that somebody types are compared with.

use garden_input::Config;

use super::lora::{LoraConfig, MERGER, Names, Targets, VISION};

/// Linears of a layer of the decoder.
const DECODER: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// The short names of all linears, for whoever has typed another one.
pub const LINEARS: &str = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj (the last three in the vision tower too); vision tower: attn.qkv, \
                           attn.proj; merger: merger.mlp.0, merger.mlp.2";

impl Targets {
    /// The first of these names that no linear layer of the model has, or the pattern that none matches.
    pub fn first_unknown(&self, config: &Config) -> Result<Option<String>, String> {
        let linears = linears(config);
        let reaches = |names: Names| {
            let targets = Targets { names, excluded: None, layers: None };
            let modules = LoraConfig { targets, ..LoraConfig::default() }.modules()?;
            Ok::<bool, String>(linears.iter().any(|name| modules.contain(name)))
        };
        match &self.names {
            Names::Pattern(pattern) => Ok((!reaches(self.names.clone())?).then(|| pattern.clone())),
            Names::Listed(names) => {
                for name in names {
                    if !reaches(Names::Listed(vec![name.clone()]))? {
                        return Ok(Some(name.clone()));
                    }
                }
                Ok(None)
            }
        }
    }
}

fn linears(config: &Config) -> Vec<String> {
    let decoder = (0..config.text.layers)
        .flat_map(|layer| DECODER.map(|name| format!("model.language_model.layers.{layer}.{name}")));
    let vision =
        (0..config.vision.depth).flat_map(|block| VISION.map(|name| format!("model.visual.blocks.{block}.{name}")));
    decoder.chain(vision).chain(MERGER.map(|name| format!("model.visual.merger.{name}"))).collect()
}
