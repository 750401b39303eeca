//! All weights of a trained model as a checkpoint for transformers: `model.safetensors` and `config.json`, which names their dtype.

use std::path::Path;

use garden_device::{Device, Dtype};
use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::safetensors_writer::{name_dtype, read_config, write_config};
use crate::error::Error;
use crate::model::Model;

const WEIGHTS: &str = "model.safetensors";

/// The dtype of a checkpoint after transformers loads and saves it: the one in `config.json`, else the most common one.
pub fn saved_dtype(base: &Path) -> Result<Dtype, Error> {
    let config = read_config(base)?;
    let named = ["dtype", "torch_dtype"].iter().find_map(|field| config.get(field).and_then(Value::as_str));
    match named.map(|name| name.trim_start_matches("torch.")) {
        Some("float32") => Ok(Dtype::F32),
        Some("bfloat16") => Ok(Dtype::Bf16),
        Some("float16") => Ok(Dtype::F16),
        _ => Ok(Checkpoint::open(base)?.usual_dtype()),
    }
}

impl Model {
    /// Writes all weights into a folder; tensor names and configuration are taken from the folder `base`, except the dtype.
    pub fn write_checkpoint(
        &self,
        device: &mut dyn Device,
        base: &Path,
        dtype: Dtype,
        folder: &Path,
    ) -> Result<(), Error> {
        let mut config = read_config(base)?;
        name_dtype(&mut config, dtype);
        let checkpoint = Checkpoint::open(base)?;
        // There are two naming schemes; transformers saves with the one it has loaded.
        let named = |name: &str| checkpoint.stored_name(name).unwrap_or(name).to_string();
        self.write_values(device, dtype, &named, &folder.join(WEIGHTS))?;
        write_config(folder, &config)
    }

    /// Reads weights written by [`Model::write_checkpoint`].
    pub fn read_checkpoint(&self, device: &mut dyn Device, folder: &Path) -> Result<(), Error> {
        self.take_values(device, &Checkpoint::open(folder)?)
    }
}
