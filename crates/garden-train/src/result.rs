//! The result of a run: what was trained, with everything that others need to load its folder.

use std::fs;
use std::path::Path;

use garden_data::ImageSettings;
use garden_device::{Device, Dtype};
use garden_model::{Error as ModelError, Model, saved_dtype};

use crate::checkpoint::write_trained;
use crate::error::Error;
use crate::job::Job;
use crate::observer::Observer;

/// What processors and tokenizers are loaded from.
const PROCESSOR: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];
/// What belongs to the weights; an adapter's base has it.
const GENERATION: &str = "generation_config.json";

/// Writes the result into the output folder; returns what the values were rounded to.
pub(crate) fn write_result(
    job: &Job,
    model: &Model,
    device: &mut dyn Device,
    observer: &mut dyn Observer,
) -> Result<Dtype, Error> {
    let folder = job.recipe.output_dir.as_path();
    for name in PROCESSOR.into_iter().chain(job.recipe.full.then_some(GENERATION)) {
        copy(&job.base.join(name), &folder.join(name))?;
    }
    if let Some(template) = &job.chat_template {
        template.write(folder)?;
    }
    if job.recipe.max_pixels.is_some() || job.recipe.min_pixels.is_some() {
        // Whoever loads the result shall see pictures as large as they were in training. A whole processor would hold a second tokenizer.
        if let Some((mut images, _)) = ImageSettings::find(&job.base, &model.family().images)? {
            job.recipe.bound_pixels(&mut images);
            images.bound_files(folder)?;
        }
    }
    if !job.recipe.full {
        write_trained(job, model, device, folder)?;
        return Ok(Dtype::F32);
    };
    let dtype = saved_dtype(&job.base)?;
    match model.write_checkpoint(device, &job.base, dtype, folder) {
        // Too large for 16 bits: a result that is twice as large is better than none.
        Err(error @ ModelError::TooLarge { .. }) if dtype == Dtype::F16 => {
            observer.say(&format!("the result is saved in 32 bits: {error}"));
            model.write_checkpoint(device, &job.base, Dtype::F32, folder)?;
            Ok(Dtype::F32)
        }
        written => Ok(written.map(|()| dtype)?),
    }
}

/// Bytes of what a result gets copies of.
pub(crate) fn processor_bytes(base: &Path) -> u64 {
    let files = PROCESSOR.into_iter().filter_map(|name| fs::metadata(base.join(name)).ok());
    files.map(|file| file.len()).sum()
}

/// Copies a file as a whole or not at all; what the base does not have, its result does not need.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    if !from.exists() {
        return Ok(());
    }
    let draft = to.with_extension("partial");
    let copied = fs::copy(from, &draft).and_then(|_| fs::rename(&draft, to));
    copied.map_err(|error| Error::file(to, error))
}
