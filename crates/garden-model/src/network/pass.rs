//! State of a pass through the network: the device, and the adapters' workspace and dropout.

use garden_device::{Buffer, Device, Seed};

use crate::network::linear::LinearWorkspace;

/// A forward or backward pass.
pub(crate) struct Pass<'a> {
    pub device: &'a mut dyn Device,
    pub linear: LinearWorkspace,
    /// The step's scalars if dropout is on; they have its seed.
    pub dropout: Option<Buffer>,
}

impl Pass<'_> {
    /// The seed of an adapter's dropout, if it is on.
    pub fn seed(&self, number: u64) -> Option<Seed> {
        self.dropout.map(|scalars| Seed { scalars, number })
    }
}
