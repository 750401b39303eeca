//! Activations that the backward pass needs, and how many of them exist at once.

use garden_device::{Buffer, Device, OutOfMemory, Purpose, Rows};

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
    /// All layers of a kind share one, in turn: it holds that of the last one, the others are recomputed.
    EachKind {
        of_kinds: Vec<T>,
        /// The kind of each layer.
        kinds: Vec<usize>,
    },
}

impl<T> Saved<T> {
    /// Makes the activations of layers of these kinds, numbered from 0 on; `make` receives their purpose and the index of a layer.
    pub fn build<E>(
        checkpointing: GradientCheckpointing,
        kinds: Vec<usize>,
        mut make: impl FnMut(Purpose, usize) -> Result<T, E>,
    ) -> Result<Saved<T>, E> {
        Ok(match checkpointing {
            GradientCheckpointing::Off => {
                let all = (0..kinds.len()).map(|layer| make(Purpose::Activations, layer));
                Saved::EachLayer(all.collect::<Result<Vec<T>, E>>()?)
            }
            GradientCheckpointing::PerLayer => {
                let most = kinds.iter().max().map_or(0, |most| most + 1);
                let first = (0..most).filter_map(|kind| kinds.iter().position(|other| *other == kind));
                let of_kinds =
                    first.map(|layer| make(Purpose::RecomputedActivations, layer)).collect::<Result<_, E>>()?;
                Saved::EachKind { of_kinds, kinds }
            }
        })
    }

    /// The activations of a layer.
    pub fn of(&self, layer: usize) -> &T {
        match self {
            Saved::EachLayer(all) => &all[layer],
            Saved::EachKind { of_kinds, kinds } => &of_kinds[kinds[layer]],
        }
    }

    /// Whether a layer's activations were overwritten by a later layer, so that its forward pass has to run again.
    pub fn is_gone(&self, layer: usize) -> bool {
        matches!(self, Saved::EachKind { kinds, .. } if kinds[layer + 1..].contains(&kinds[layer]))
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

/// Activations `[rows, width]` with room behind each row.
pub(crate) fn roomy(
    device: &mut dyn Device,
    purpose: Purpose,
    label: &str,
    rows: usize,
    width: usize,
    room: usize,
) -> Result<Rows, OutOfMemory> {
    let stride = width.saturating_add(room);
    Ok(Rows { buffer: activations(device, purpose, label, rows, stride)?, width, stride })
}

/// Outputs of linears that share their inputs: side by side, with room behind each row, where a device joins them; else in buffers of their own.
pub(crate) fn side_by_side<const N: usize>(
    device: &mut dyn Device,
    purpose: Purpose,
    label: &str,
    named: [(&str, usize); N],
    rows: usize,
    room: usize,
) -> Result<[Rows; N], OutOfMemory> {
    let of = |buffer: Buffer, width: usize| Rows { buffer, width, stride: width };
    let mut made = named.map(|(_, width)| width);
    if device.profile().is_joined {
        let names = named.map(|(name, _)| name).join(", ");
        let width = made.iter().fold(room, |all, width| all.saturating_add(*width));
        let buffer = activations(device, purpose, &format!("{label}{names}"), rows, width)?;
        let all = of(buffer, width);
        let mut first = 0;
        for width in &mut made {
            first += std::mem::replace(width, first);
        }
        let mut starts = made.into_iter();
        return Ok(named.map(|(_, width)| all.columns(starts.next().unwrap_or_default(), width)));
    }
    let mut buffers = Vec::new();
    for (name, width) in named {
        buffers.push(of(activations(device, purpose, &format!("{label}{name}"), rows, width)?, width));
    }
    Ok(std::array::from_fn(|index| buffers[index]))
}
