//! What goes with a pass through the network: the device, and what adapters need on the way.

use garden_device::{Buffer, Device, Seed};

use crate::network::linear::LinearWorkspace;

/// A pass forward or backward.
pub(crate) struct Pass<'a> {
    pub device: &'a mut dyn Device,
    pub linear: LinearWorkspace,
    /// The step's scalars while inputs of adapters are dropped; the choice is drawn from their seed.
    pub dropout: Option<Buffer>,
}

impl Pass<'_> {
    /// What an adapter's dropped inputs are drawn from, if any are dropped.
    pub fn seed(&self, number: u64) -> Option<Seed> {
        self.dropout.map(|scalars| Seed { scalars, number })
    }
}
