//! What a base model is, in one number: a run that goes on notices another one, and knows the same one in another place.
//!
//! It is made of samples of the weights (`garden-model`, `samples.rs`) and of what the configuration says beyond their shapes. The tokenizer, the template
//! and the image settings are not part of it, nor is a change that lies between the samples.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread::ScopedJoinHandle;

use garden_data::Fingerprint;
use garden_model::{Checkpoint, Config, TensorSample};

use crate::error::Error;

/// Places of files that are read at the same time: a disk answers many questions as fast as one.
const AT_ONCE: usize = 16;

/// The fingerprint of a model's folder. The same model has the same one in any folder, in any number of files.
pub(crate) fn fingerprint(folder: &Path, config: &Config) -> Result<u64, Error> {
    let checkpoint = Checkpoint::open(folder)?;
    let samples = checkpoint.samples()?;
    let mut made = Fingerprint::default();
    meaning(config).into_iter().for_each(|number| made.number(number));
    for tensor in of_tensors(&samples) {
        made.number(tensor);
    }
    Ok(made.value())
}

/// The fingerprint of each tensor, in order.
fn of_tensors(samples: &[TensorSample<'_>]) -> Vec<u64> {
    let share = samples.len().div_ceil(AT_ONCE).max(1);
    let of_share = |share: &[TensorSample<'_>]| share.iter().map(of_tensor).collect::<Vec<u64>>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = samples.chunks(share).map(|share| scope.spawn(move || of_share(share))).collect();
        let join = |thread: ScopedJoinHandle<'_, Vec<u64>>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().flat_map(join).collect()
    })
}

fn of_tensor(sample: &TensorSample<'_>) -> u64 {
    let mut made = Fingerprint::default();
    made.text(&sample.header);
    sample.places.iter().for_each(|place| made.bytes(place));
    made.value()
}

/// What a configuration says that shapes do not.
fn meaning(config: &Config) -> Vec<u64> {
    let (text, vision) = (&config.text, &config.vision);
    let windows = vision.windows.as_ref();
    let side = windows.map(|windows| windows.side);
    let of_tower = [vision.heads, vision.patch, vision.frames, vision.merge].into_iter().chain(side);
    let of_tower: Vec<u64> = of_tower.map(|size| size as u64).collect();
    let mut sizes = Vec::new();
    for (number, layer) in text.kinds().iter().enumerate() {
        let attention = layer.attention();
        sizes.extend([attention.heads, attention.kv_heads].map(|size| size as u64));
        // Checkpoints know the number that this order gives.
        if number == 0 {
            sizes.extend(&of_tower);
        }
        sizes.extend([layer.norm.epsilon, attention.rotary.theta].map(|value| u64::from(value.to_bits())));
        sizes.extend(attention.rotary.sections.map(|size| size as u64));
    }
    sizes.extend(windows.iter().flat_map(|windows| &windows.full_blocks).map(|block| *block as u64));
    sizes.into_iter().chain([u64::from(config.is_tied), config.image_token as u64]).collect()
}
