//! The vision tower's inputs, and their buffers on the device.

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose};

use crate::batch::{Batch, longest};
use crate::model::upload;
use crate::network::activations::activations;
use garden_input::Config;

/// Inputs of the vision tower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patches {
    pub patches: usize,
    /// `[patches, values per patch]`.
    pub pixels: Buffer,
    /// The patches in window order.
    pub order: Buffer,
    pub cu_window_seqlens: Buffer,
    pub windows: usize,
    /// Patches of the longest window.
    pub longest_window: usize,
    pub cu_image_seqlens: Buffer,
    pub images: usize,
    /// Patches of the longest frame.
    pub longest_image: usize,
    pub cosines: Buffer,
    pub sines: Buffer,
    /// The token index of each merged token, in window order.
    pub places: Buffer,
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

impl PatchInputs {
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        patches: usize,
        windows: usize,
        images: usize,
    ) -> Result<PatchInputs, OutOfMemory> {
        let pixels = activations(device, Purpose::Batch, "pixels", patches, config.vision.patch_values())?;
        let mut make = |label: &str, dtype: Dtype, length: usize| device.buffer(Purpose::Batch, label, dtype, length);
        let angles = patches.saturating_mul(config.vision.head_size() / 2);
        Ok(PatchInputs {
            pixels,
            order: make("patch order", Dtype::I32, patches)?,
            cu_window_seqlens: make("window starts", Dtype::I32, windows + 1)?,
            cu_image_seqlens: make("image starts", Dtype::I32, images + 1)?,
            cosines: make("patch cosines", Dtype::F32, angles)?,
            sines: make("patch sines", Dtype::F32, angles)?,
            places: make("image places", Dtype::I32, patches / config.vision.merged())?,
        })
    }

    /// Uploads a batch's images.
    pub fn put(&self, device: &mut dyn Device, batch: &Batch) -> Patches {
        let windows = &batch.windows;
        let pixels = self.pixels.first(batch.pixels.len());
        device.upload_f32(pixels, &batch.pixels);
        Patches {
            patches: batch.patches(),
            pixels,
            order: upload(device, self.order, &batch.patch_order),
            cu_window_seqlens: upload(device, self.cu_window_seqlens, &windows.cu_window_seqlens),
            windows: windows.cu_window_seqlens.len() - 1,
            longest_window: longest(&windows.cu_window_seqlens),
            cu_image_seqlens: upload(device, self.cu_image_seqlens, &windows.cu_image_seqlens),
            images: windows.cu_image_seqlens.len() - 1,
            longest_image: longest(&windows.cu_image_seqlens),
            cosines: upload(device, self.cosines, &batch.patch_angles.cosines),
            sines: upload(device, self.sines, &batch.patch_angles.sines),
            places: upload(device, self.places, &batch.image_places),
        }
    }
}
