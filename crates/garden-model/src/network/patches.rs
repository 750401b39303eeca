//! The vision tower's inputs: of a batch, and as buffers on the device. Only the tower knows the order in which it takes patches.

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Planner, Profile, Purpose};
use garden_input::{Images, Limits, VisionConfig};

use crate::batch::longest;
use crate::model::upload;
use crate::network::activations::activations;
use crate::network::rotary::{self, Table};
use crate::network::windows::Windows;

/// The images of a batch as the tower takes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PackedImages {
    /// `[patches, values per patch]`, in input order.
    pub pixels: Vec<f32>,
    segments: Windows,
    /// The patches in the tower's order.
    order: Vec<i32>,
    /// Rotary embedding, `[patches, half a head]` in the tower's order.
    angles: Table,
    /// The token index of each merged token, in the tower's order.
    places: Vec<i32>,
}

/// Inputs of the vision tower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patches {
    pub patches: usize,
    /// `[patches, values per patch]`.
    pub pixels: Buffer,
    /// The patches in the tower's order.
    pub order: Buffer,
    /// Whole frames.
    pub frames: Segments,
    /// Windows; without any, no block asks for them.
    pub windows: Segments,
    pub cosines: Buffer,
    pub sines: Buffer,
    /// The token index of each merged token, in the tower's order.
    pub places: Buffer,
}

/// Sequences that attention runs over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    /// Start of each in patches, and the end of the last.
    pub starts: Buffer,
    pub count: usize,
    /// Patches of the longest.
    pub longest: usize,
}

/// Input buffers of images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatchInputs {
    pixels: Buffer,
    order: Buffer,
    cu_window_seqlens: Buffer,
    cu_image_seqlens: Buffer,
    cosines: Buffer,
    sines: Buffer,
    places: Buffer,
}

impl PackedImages {
    /// Packs images; `places` are the token indices of all merged tokens in input order.
    pub fn of(images: Images, places: &[i32], vision: &VisionConfig) -> PackedImages {
        let segments = Windows::of(&images.grids, vision);
        let order = segments.patches(vision.merged());
        let angles = rotary::of_patches(order.iter().map(|patch| segments.positions[*patch]), vision);
        let places = segments.order.iter().map(|token| places[*token]).collect();
        let order = order.into_iter().map(|patch| patch as i32).collect();
        PackedImages { pixels: images.pixels, segments, order, angles, places }
    }

    pub fn patches(&self) -> usize {
        self.order.len()
    }

    pub fn frames(&self) -> usize {
        self.segments.cu_image_seqlens.len().saturating_sub(1)
    }

    /// Patches of the longest frame; no window is longer.
    pub fn longest(&self) -> usize {
        longest(&self.segments.cu_image_seqlens)
    }
}

/// `[patches, values per patch]`.
fn pixels(device: &mut dyn Device, vision: &VisionConfig, patches: usize) -> Result<Buffer, OutOfMemory> {
    activations(device, Purpose::Batch, "pixels", patches, vision.patch_values())
}

/// Bytes of the largest batch's pixels on a device: the host has them in the loader's buffers, and no copy.
pub fn pixel_bytes(profile: &Profile, vision: &VisionConfig, patches: usize) -> usize {
    let mut planner = Planner::like(profile);
    // A planner has all the memory that is asked for.
    let planned = pixels(&mut planner, vision, patches);
    planned.map_or(0, |_| planner.plan().total())
}

impl PatchInputs {
    pub fn build(device: &mut dyn Device, vision: &VisionConfig, limits: Limits) -> Result<PatchInputs, OutOfMemory> {
        let patches = limits.patches;
        let pixels = pixels(device, vision, patches)?;
        let mut make = |label: &str, dtype: Dtype, length: usize| device.buffer(Purpose::Batch, label, dtype, length);
        let angles = patches.saturating_mul(vision.head_size() / 2);
        let windows = vision.windows.as_ref().map_or(0, |_| vision.most_segments(patches) + 1);
        Ok(PatchInputs {
            pixels,
            order: make("patch order", Dtype::I32, patches)?,
            cu_window_seqlens: make("window starts", Dtype::I32, windows)?,
            cu_image_seqlens: make("image starts", Dtype::I32, limits.images + 1)?,
            cosines: make("patch cosines", Dtype::F32, angles)?,
            sines: make("patch sines", Dtype::F32, angles)?,
            places: make("image places", Dtype::I32, patches / vision.merged())?,
        })
    }

    /// Uploads a batch's images.
    pub fn put(&self, device: &mut dyn Device, images: &PackedImages) -> Patches {
        let pixels = self.pixels.first(images.pixels.len());
        device.upload_f32(pixels, &images.pixels);
        let mut segments = |buffer: Buffer, starts: &[i32]| Segments {
            starts: upload(device, buffer, starts),
            count: starts.len().saturating_sub(1),
            longest: longest(starts),
        };
        let frames = segments(self.cu_image_seqlens, &images.segments.cu_image_seqlens);
        let windows = segments(self.cu_window_seqlens, &images.segments.cu_window_seqlens);
        Patches {
            patches: images.patches(),
            pixels,
            order: upload(device, self.order, &images.order),
            frames,
            windows,
            cosines: upload(device, self.cosines, &images.angles.cosines),
            sines: upload(device, self.sines, &images.angles.sines),
            places: upload(device, self.places, &images.places),
        }
    }
}
