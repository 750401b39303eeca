//! Activations that the backward pass needs of the forward pass, and how many of them exist at once.

use garden_device::{Buffer, Device, OutOfMemory, Purpose};

/// What is kept from the forward to the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// Everything that takes a matrix product to make again.
    Off,
    /// What each layer gets; the rest is made again.
    PerLayer,
}

/// The activations of a stack of layers.
#[derive(Clone, Debug)]
pub(crate) enum Saved<T> {
    /// Every layer has its own.
    EachLayer(Vec<T>),
    /// All layers use the same, one after the other: those of the last one are there, others are made again.
    OneLayer(T),
}

impl<T> Saved<T> {
    /// Makes the activations of so many layers: `make` is told what they are for, and the number of the layer.
    pub fn build<E>(
        checkpointing: GradientCheckpointing,
        layers: usize,
        mut make: impl FnMut(Purpose, usize) -> Result<T, E>,
    ) -> Result<Saved<T>, E> {
        Ok(match checkpointing {
            GradientCheckpointing::Off => {
                let all = (0..layers).map(|layer| make(Purpose::Activations, layer));
                Saved::EachLayer(all.collect::<Result<Vec<T>, E>>()?)
            }
            GradientCheckpointing::PerLayer => Saved::OneLayer(make(Purpose::RecomputedActivations, 0)?),
        })
    }

    /// Where a layer saves its activations.
    pub fn of(&self, layer: usize) -> &T {
        match self {
            Saved::EachLayer(all) => &all[layer],
            Saved::OneLayer(one) => one,
        }
    }

    /// Whether a layer's activations have been replaced by those of a later one, so that its forward pass has to run again.
    pub fn is_gone(&self, layer: usize, layers: usize) -> bool {
        matches!(self, Saved::OneLayer(_)) && layer + 1 < layers
    }
}

/// A buffer of activations [rows, width] in the device's dtype for them.
pub(crate) fn activations(
    device: &mut dyn Device,
    purpose: Purpose,
    label: &str,
    rows: usize,
    width: usize,
) -> Result<Buffer, OutOfMemory> {
    let dtype = device.profile().activations;
    // A length that no machine has is refused by the device.
    device.buffer(purpose, label, dtype, rows.saturating_mul(width))
}
