//! State of a pass through the network: the device, and the adapters' workspace and dropout.

use garden_device::{Buffer, Device, Seed};

use crate::network::linear::LinearWorkspace;

/// A forward or backward pass.
pub(crate) struct Pass<'a> {
    pub device: &'a mut dyn Device,
    pub linear: LinearWorkspace,
    /// The step's scalars if dropout is on; they have its seed.
    pub dropout: Option<Buffer>,
    pub adapters: Adapters,
}

/// Which adapters take part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Adapters {
    /// The model's own, in every row.
    Own,
    /// None.
    Off,
    /// Each row's own of several: A and B of a linear have columns for `slots` adapters of rank `rank`.
    OfRows {
        /// The adapter of each row, i32; those without one have -1.
        owners: Buffer,
        rank: usize,
        slots: usize,
    },
}

impl Pass<'_> {
    /// The seed of an adapter's dropout, if it is on.
    pub fn seed(&self, number: u64) -> Option<Seed> {
        self.dropout.map(|scalars| Seed { scalars, number })
    }
}
