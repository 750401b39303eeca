//! Quantises a checkpoint to NF4 in the format of transformers and bitsandbytes: tensor by tensor, never a whole model in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use garden_device::{Dtype, dynamic_8bit, nf4};
use serde_json::{Value, json};

use crate::checkpoint::files::SINGLE;
use crate::checkpoint::nf4_checkpoint::{self, FourBit};
use crate::checkpoint::safetensors_writer::{
    Place, Shard, copy_others, name_dtype, read_config, torch_name, write_config, write_index,
};
use crate::checkpoint::{Checkpoint, Stored};
use crate::error::Error;
use crate::model::bytes_of;
use crate::network::declared;
use crate::network::role::Declared;
use garden_input::Config;

/// Summary of quantisation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackReport {
    /// Number of quantised weights.
    pub packed: usize,
    /// Bytes of all tensors before.
    pub bytes_before: u64,
    /// Bytes of all tensors after.
    pub bytes_after: u64,
    /// Modules that were not quantised.
    pub kept: Vec<String>,
}

/// Quantises the linears of the checkpoint in folder `from` and writes everything into the new folder `to`. Other files are copied.
pub fn pack_checkpoint(
    from: &Path,
    to: &Path,
    settings: &FourBit,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<PackReport, Error> {
    let checkpoint = Checkpoint::open(from)?;
    let mut config = read_config(from)?;
    if config.get("quantization_config").is_some() {
        let path = from.join("config.json");
        return Err(Error::field(&path, "quantization_config", "already exists: the checkpoint is packed"));
    }
    fs::create_dir_all(to).map_err(|error| Error::file(to, error))?;
    if fs::read_dir(to).map_err(|error| Error::file(to, error))?.next().is_some() {
        return Err(Error::broken(to, "the folder is not empty: use a new or empty one"));
    }
    let packed = pack_files(&checkpoint, from, to, &mut config, settings, progress);
    if packed.is_err() {
        // The folder was empty, so it holds nothing but an incomplete checkpoint.
        for entry in fs::read_dir(to).into_iter().flatten().flatten() {
            drop(fs::remove_file(entry.path()));
        }
    }
    packed
}

fn pack_files(
    checkpoint: &Checkpoint,
    from: &Path,
    to: &Path,
    config: &mut Value,
    settings: &FourBit,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<PackReport, Error> {
    copy_others(from, to)?;
    let model = Config::read(&from.join("config.json"))?;
    checkpoint.check(&model)?;
    let tensors = declared(&model)?;
    let known: BTreeMap<&str, &Declared> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut files = checkpoint.files()?;
    // A tied head is the embedding, and is not saved separately.
    files
        .iter_mut()
        .for_each(|file| file.1.retain(|stored| !(model.is_tied && stored.newer == model.family.names.head)));
    let total: usize = files.iter().map(|file| file.1.len()).sum();
    let mut report = PackReport { kept: settings.kept_of(&tensors, model.family), ..PackReport::default() };
    let (mut done, mut weight_map) = (0, BTreeMap::new());
    // Other programs compute in the original dtype of the weights.
    let mut computed_in = Dtype::F32;
    for (path, tensors) in files {
        let packs = |tensor: &Stored<'_>| {
            let module = tensor.newer.strip_suffix(".weight").unwrap_or("");
            known.get(tensor.newer).is_some_and(|known| settings.packs(module, known.role))
        };
        let places = tensors.iter().flat_map(|stored| match packs(stored) {
            true => packed_places(stored, settings),
            false => {
                let (shape, known) = (stored.tensor.shape, known.get(stored.newer));
                let shape = known.map_or(shape.to_vec(), |known| known.written(shape));
                vec![Place::new(stored.name.into(), stored.tensor.dtype, shape)]
            }
        });
        let writer = Shard::create(&to.join(path.file_name().unwrap_or_default()), places.collect())?;
        for stored in &tensors {
            if let Some(place) = stored.tensor.not_finite() {
                return Err(Error::tensor(path, stored.name, format!("has a value that is not finite at {place}")));
            }
            report.bytes_before += stored.tensor.bytes.len() as u64;
            if packs(stored) {
                pack(&writer, stored, settings)?;
                report.packed += 1;
                computed_in = stored.tensor.dtype;
            } else {
                writer.write(stored.name, stored.tensor.bytes)?;
            }
            stored.tensor.forget();
            done += 1;
            progress(done, total);
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for place in writer.places.values() {
            report.bytes_after += place.bytes as u64;
            weight_map.insert(place.name.clone(), file.clone());
        }
        writer.finish()?;
    }
    if !to.join(SINGLE).exists() {
        write_index(to, report.bytes_after, &weight_map)?;
    }
    name_dtype(config, checkpoint.usual_dtype());
    config["quantization_config"] = quantization_config(settings, &report.kept, computed_in);
    write_config(to, config)?;
    Ok(report)
}

/// The `quantization_config` for transformers. Modules have both their newer and their hub name, as versions match them differently.
fn quantization_config(settings: &FourBit, names: &[String], computed_in: Dtype) -> Value {
    let mut kept = names.to_vec();
    kept.extend(names.iter().filter_map(|name| name.strip_prefix("model.")).map(String::from));
    json!({
        "quant_method": "bitsandbytes",
        "load_in_4bit": true,
        "_load_in_4bit": true,
        "load_in_8bit": false,
        "_load_in_8bit": false,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": settings.is_double,
        "bnb_4bit_compute_dtype": torch_name(computed_in),
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": kept,
        "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_enable_fp32_cpu_offload": false,
    })
}

/// The tensors of a quantised weight.
fn packed_places(stored: &Stored<'_>, settings: &FourBit) -> Vec<Place> {
    let (name, length) = (stored.name, stored.tensor.shape.iter().product());
    let blocks = nf4::blocks(length);
    let part = |part: &str, dtype, shape| Place::new(format!("{name}{part}"), dtype, shape);
    let mut places = vec![
        part("", Dtype::U8, vec![nf4::packed_length(length), 1]),
        part(".quant_map", Dtype::F32, vec![nf4::CODES.len()]),
        // The offset of the scales is not known yet; the state has the same length for any.
        part(&format!(".{}", nf4_checkpoint::STATE), Dtype::U8, vec![state(stored, settings, 0.0).len()]),
    ];
    if settings.is_double {
        places.push(part(".absmax", Dtype::U8, vec![blocks]));
        places.push(part(".nested_absmax", Dtype::F32, vec![blocks.div_ceil(dynamic_8bit::BLOCK)]));
        places.push(part(".nested_quant_map", Dtype::F32, vec![256]));
    } else {
        places.push(part(".absmax", Dtype::F32, vec![blocks]));
    }
    places
}

/// Quantises a weight.
fn pack(writer: &Shard, stored: &Stored<'_>, settings: &FourBit) -> Result<(), Error> {
    let name = stored.name;
    let mut filled = 0;
    let scales = nf4_checkpoint::pack(&stored.tensor, |bytes| {
        let written = writer.write_at(name, filled, bytes);
        filled += bytes.len();
        written
    })?;
    writer.write(&format!("{name}.quant_map"), bytes_of(&nf4::CODES))?;
    let mut offset = 0.0;
    if settings.is_double {
        let double = nf4::DoubleScales::of(&scales);
        offset = double.offset;
        writer.write(&format!("{name}.absmax"), &double.codes)?;
        writer.write(&format!("{name}.nested_absmax"), bytes_of(&double.scales))?;
        writer.write(&format!("{name}.nested_quant_map"), bytes_of(&dynamic_8bit::Map::signed().values))?;
    } else {
        writer.write(&format!("{name}.absmax"), bytes_of(&scales))?;
    }
    writer.write(&format!("{name}.{}", nf4_checkpoint::STATE), state(stored, settings, offset).as_bytes())
}

/// The quantisation state as text. It is padded with trailing spaces, so that the digits of the offset do not change its length.
fn state(stored: &Stored<'_>, settings: &FourBit, offset: f32) -> String {
    let mut state = json!({
        "quant_type": "nf4",
        "blocksize": nf4::BLOCK,
        "dtype": torch_name(stored.tensor.dtype),
        "shape": stored.tensor.shape,
    });
    if settings.is_double {
        state["nested_blocksize"] = dynamic_8bit::BLOCK.into();
        state["nested_dtype"] = "float32".into();
        // As f64 it keeps all digits.
        state["nested_offset"] = f64::from(offset).into();
    }
    let text = state.to_string();
    format!("{text:<width$}", width = text.len().max(STATE_LENGTH))
}

/// Padded length of the state.
const STATE_LENGTH: usize = 256;
