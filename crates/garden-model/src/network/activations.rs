//! Activations that the backward pass needs, and how many of them exist at once.

use garden_device::{Buffer, Device, OutOfMemory, Purpose};

/// Gradient checkpointing: activations kept from the forward to the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// Keep everything that would take a matrix product to recompute.
    Off,
    /// Keep each layer's input; recompute the rest.
    PerLayer,
}

/// The activations of a stack of layers.
#[derive(Clone, Debug)]
pub(crate) enum Saved<T> {
    /// Each layer has its own.
    EachLayer(Vec<T>),
    /// All layers share one, in turn: it holds the last layer's, the others are recomputed.
    OneLayer(T),
}

impl<T> Saved<T> {
    /// Makes the activations of all layers; `make` receives their purpose and the layer's index.
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

    /// The activations of a layer.
    pub fn of(&self, layer: usize) -> &T {
        match self {
            Saved::EachLayer(all) => &all[layer],
            Saved::OneLayer(one) => one,
        }
    }

    /// Whether a layer's activations were overwritten by a later layer, so that its forward pass has to run again.
    pub fn is_gone(&self, layer: usize, layers: usize) -> bool {
        matches!(self, Saved::OneLayer(_)) && layer + 1 < layers
    }
}

/// A buffer of activations `[rows, width]` in the device's activation dtype.
pub(crate) fn activations(
    device: &mut dyn Device,
    purpose: Purpose,
    label: &str,
    rows: usize,
    width: usize,
) -> Result<Buffer, OutOfMemory> {
    let dtype = device.profile().activations;
    // The device refuses lengths beyond any machine.
    device.buffer(purpose, label, dtype, rows.saturating_mul(width))
}
