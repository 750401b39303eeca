//! Released models, so that planning needs no model files.
//!
//! Their configurations match `config.json` on the hub; tests check the parameter count of each against the published one.

use crate::config::Config;
use crate::family::FAMILIES;

/// A released model.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name here: in lower case, without its owner.
    pub name: &'static str,
    /// Its name on the hub.
    pub hub_name: &'static str,
    /// Parameters, as published.
    pub parameters: usize,
    /// Its configuration.
    pub config: fn() -> Config,
}

impl Preset {
    /// The released models of all families.
    pub fn all() -> impl Iterator<Item = Preset> {
        FAMILIES.into_iter().flat_map(|family| family.presets.iter().copied())
    }

    /// Finds a preset by its name here or on the hub, case-insensitively, with or without its owner.
    pub fn find(name: &str) -> Option<Preset> {
        let name = name.to_ascii_lowercase();
        Preset::all().find(|preset| {
            let hub_name = preset.hub_name.to_ascii_lowercase();
            let (owner, whole) = hub_name.split_once('/').unwrap_or(("", &hub_name));
            let plain = name.strip_prefix(owner).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&name);
            plain == preset.name || plain == whole
        })
    }

    /// The preset's configuration.
    pub fn config(&self) -> Config {
        (self.config)()
    }
}
