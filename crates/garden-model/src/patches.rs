//! What the vision tower is told about images, and where it lies on the device.

use garden_device::{Buffer, Device, Kind, OutOfMemory, Purpose};

use crate::batch::Batch;
use crate::config::Config;
use crate::model::upload;

/// What the tower is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patches {
    pub patches: usize,
    pub pixels: Buffer,
    /// The patch at each place of the window order.
    pub order: Buffer,
    pub window_starts: Buffer,
    pub windows: usize,
    pub image_starts: Buffer,
    pub images: usize,
    pub cosines: Buffer,
    pub sines: Buffer,
    /// Where each merged token belongs among the tokens, in window order.
    pub places: Buffer,
}

/// Where images are put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatchRoom {
    pixels: Buffer,
    order: Buffer,
    window_starts: Buffer,
    image_starts: Buffer,
    cosines: Buffer,
    sines: Buffer,
    places: Buffer,
}

impl PatchRoom {
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        patches: usize,
        windows: usize,
        images: usize,
    ) -> Result<PatchRoom, OutOfMemory> {
        let mut make = |label: &str, kind: Kind, length: usize| device.buffer(Purpose::Batch, label, kind, length);
        let half = config.vision.head_size() / 2;
        Ok(PatchRoom {
            pixels: make("pixels", Kind::F32, patches * config.vision.patch_values())?,
            order: make("patch order", Kind::I32, patches)?,
            window_starts: make("window starts", Kind::I32, windows + 1)?,
            image_starts: make("image starts", Kind::I32, images + 1)?,
            cosines: make("patch cosines", Kind::F32, patches * half)?,
            sines: make("patch sines", Kind::F32, patches * half)?,
            places: make("image places", Kind::I32, patches / config.vision.merged())?,
        })
    }

    /// Brings a batch's images to the device.
    pub fn put(&self, device: &mut dyn Device, batch: &Batch) -> Patches {
        let windows = &batch.windows;
        Patches {
            patches: batch.patches(),
            pixels: upload(device, self.pixels, &batch.pixels),
            order: upload(device, self.order, &batch.patch_order),
            window_starts: upload(device, self.window_starts, &windows.window_starts),
            windows: windows.window_starts.len() - 1,
            image_starts: upload(device, self.image_starts, &windows.image_starts),
            images: windows.image_starts.len() - 1,
            cosines: upload(device, self.cosines, &batch.patch_angles.cosines),
            sines: upload(device, self.sines, &batch.patch_angles.sines),
            places: upload(device, self.places, &batch.image_places),
        }
    }
}
