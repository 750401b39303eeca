//! Which linear layers a model has for adapters, by name: what targets that somebody types are compared with.

use std::collections::BTreeSet;

use garden_input::Config;

use super::lora::{LoraConfig, Names, Targets};
use crate::error::Error;
use crate::network::declared;

impl Targets {
    /// The linear layers of the model that these targets choose.
    pub fn linears(&self, config: &Config) -> Result<BTreeSet<String>, Error> {
        let targets = self.clone();
        let modules = LoraConfig { targets, ..LoraConfig::default() }.modules().map_err(Error::Adapter)?;
        let tensors = declared(config)?;
        let linears = tensors.iter().filter_map(|tensor| tensor.linear());
        Ok(linears.filter(|name| modules.contain(name)).map(str::to_string).collect())
    }

    /// The first of these names that no linear layer of the model has, or the pattern that none matches.
    pub fn first_unknown(&self, config: &Config) -> Result<Option<String>, Error> {
        let reaches = |names: Names| Ok::<bool, Error>(!Targets::from(names).linears(config)?.is_empty());
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
