//! Which linear layers a model has for adapters, by name: what targets that somebody types are compared with.

use garden_input::Config;

use super::lora::{LoraConfig, Names, Targets};
use crate::error::Error;
use crate::network::declared;

impl Targets {
    /// The first of these names that no linear layer of the model has, or the pattern that none matches.
    pub fn first_unknown(&self, config: &Config) -> Result<Option<String>, Error> {
        let tensors = declared(config)?;
        let reaches = |names: Names| {
            let targets = Targets { names, excluded: None, layers: None };
            let modules = LoraConfig { targets, ..LoraConfig::default() }.modules().map_err(Error::Adapter)?;
            Ok::<bool, Error>(tensors.iter().filter_map(|tensor| tensor.linear()).any(|name| modules.contain(name)))
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
