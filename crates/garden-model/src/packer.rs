//! Writes a checkpoint anew with weights of 4 bits, as transformers and bitsandbytes save them: tensor by tensor, never a whole model in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use garden_device::{Kind, dynamic, nf4};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Stored};
use crate::error::Error;
use crate::four_bit::{self, FourBit};
use crate::model::bytes_of;
use crate::names::newer;

/// What packing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackReport {
    /// Weights that were packed.
    pub packed: usize,
    /// Bytes of all tensors before.
    pub bytes_before: u64,
    /// Bytes of all tensors after.
    pub bytes_after: u64,
}

/// A tensor of a new file: where it comes from and where it goes.
struct Place {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: usize,
    /// From the start of the data.
    begin: usize,
}

/// Packs the linears of the checkpoint in folder `from` and writes everything into the new folder `to`. Files that are no weights are copied.
pub fn pack_checkpoint(
    from: &Path,
    to: &Path,
    settings: &FourBit,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<PackReport, Error> {
    let checkpoint = Checkpoint::open(from)?;
    let config_path = from.join("config.json");
    let config = fs::read_to_string(&config_path).map_err(|error| Error::file(&config_path, error))?;
    let mut config: Value =
        serde_json::from_str(&config).map_err(|error| Error::broken(&config_path, format!("no JSON: {error}")))?;
    if config.get("quantization_config").is_some() {
        return Err(Error::field(&config_path, "quantization_config", "is there already: the checkpoint is packed"));
    }
    fs::create_dir_all(to).map_err(|error| Error::file(to, error))?;
    if fs::read_dir(to).map_err(|error| Error::file(to, error))?.next().is_some() {
        return Err(Error::broken(to, "the folder is not empty: give one that is, or a new one"));
    }
    let packed = pack_files(&checkpoint, from, to, &mut config, settings, progress);
    if packed.is_err() {
        // The folder was empty, so what is in it now is half a checkpoint.
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
    let is_tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
    let files = checkpoint.files()?;
    let total: usize = files.iter().map(|file| file.1.len()).sum();
    let (mut report, mut done, mut weight_map) = (PackReport::default(), 0, BTreeMap::new());
    // Others compute in the type that the weights had.
    let mut computed_in = Kind::F32;
    for (path, tensors) in files {
        let packs = |tensor: &Stored<'_>| {
            let name = newer(tensor.name);
            let module = name.strip_suffix(".weight").unwrap_or("");
            let is_linear = tensor.tensor.shape.len() == 2 && !module.is_empty() && !module.ends_with("embed_tokens");
            // A tied head is the embedding, which is never packed.
            is_linear && !(is_tied && module == "lm_head") && settings.packs(module)
        };
        let mut writer = Shard::create(&to.join(path.file_name().unwrap_or_default()), &tensors, packs, settings)?;
        for stored in &tensors {
            if let Some(place) = stored.tensor.not_finite() {
                return Err(Error::tensor(path, stored.name, format!("has no finite number at {place}")));
            }
            report.bytes_before += stored.tensor.bytes.len() as u64;
            if packs(stored) {
                writer.pack(stored, settings)?;
                report.packed += 1;
                computed_in = stored.tensor.kind;
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
            weight_map.insert(place.name.clone(), Value::from(file.clone()));
        }
        writer.finish()?;
    }
    if from.join(INDEX).exists() {
        let index = json!({"metadata": {"total_size": report.bytes_after}, "weight_map": weight_map});
        write_whole(&to.join(INDEX), index.to_string().as_bytes())?;
    }
    config["quantization_config"] = quantization_config(settings, computed_in);
    write_whole(&to.join("config.json"), format!("{config:#}\n").as_bytes())?;
    Ok(report)
}

const INDEX: &str = "model.safetensors.index.json";

/// What transformers wants to know. Modules are named in the newer form and in the hub's, as its versions match differently.
fn quantization_config(settings: &FourBit, computed_in: Kind) -> Value {
    let mut kept = settings.kept.clone();
    kept.extend(settings.kept.iter().filter_map(|name| name.strip_prefix("model.")).map(String::from));
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

/// Copies tokenizer, templates and the like.
fn copy_others(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(from).map_err(|error| Error::file(from, error))? {
        let path = entry.map_err(|error| Error::file(from, error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = path.extension().is_some_and(|ending| ending == "safetensors") || name == INDEX;
        if path.is_file() && !is_weights && name != "config.json" {
            fs::copy(&path, to.join(&name)).map_err(|error| Error::file(&path, error))?;
        }
    }
    Ok(())
}

/// A file that is complete under its name or not there.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let partial = partial(path);
    let written = File::create(&partial).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.and_then(|()| fs::rename(&partial, path)).map_err(|error| Error::file(path, error))
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

/// A safetensors file that is being written: all places are known before the first byte.
struct Shard {
    path: PathBuf,
    file: File,
    places: BTreeMap<String, Place>,
    start: usize,
}

impl Shard {
    fn create(
        path: &Path,
        tensors: &[Stored<'_>],
        packs: impl Fn(&Stored<'_>) -> bool,
        settings: &FourBit,
    ) -> Result<Shard, Error> {
        let mut places = Vec::new();
        for stored in tensors {
            let name = stored.name;
            if !packs(stored) {
                places.push(Place::new(name.into(), stored.tensor.kind, stored.tensor.shape.to_vec()));
                continue;
            }
            let length: usize = stored.tensor.shape.iter().product();
            let blocks = nf4::blocks(length);
            let mut add = |part: &str, kind, shape| places.push(Place::new(format!("{name}{part}"), kind, shape));
            add("", Kind::U8, vec![nf4::packed_length(length), 1]);
            add(".quant_map", Kind::F32, vec![nf4::CODES.len()]);
            if settings.is_double {
                add(".absmax", Kind::U8, vec![blocks]);
                add(".nested_absmax", Kind::F32, vec![blocks.div_ceil(dynamic::BLOCK)]);
                add(".nested_quant_map", Kind::F32, vec![256]);
            } else {
                add(".absmax", Kind::F32, vec![blocks]);
            }
            // The middle of the scales is not known yet; every text of a state has the same length.
            add(&format!(".{}", four_bit::STATE), Kind::U8, vec![state(stored, settings, 0.0).len()]);
        }
        // Wider values first, so that every tensor begins at a multiple of its values' size.
        places.sort_by(|a, b| (size(b.dtype), &a.name).cmp(&(size(a.dtype), &b.name)));
        let mut end = 0;
        for place in &mut places {
            place.begin = end;
            end += place.bytes;
        }
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt"}));
        for place in &places {
            let offsets = [place.begin, place.begin + place.bytes];
            header.insert(
                place.name.clone(),
                json!({"dtype": place.dtype, "shape": place.shape, "data_offsets": offsets}),
            );
        }
        let mut header = Value::from(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let file = File::create(partial(path)).map_err(|error| Error::file(path, error))?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        let start = bytes.len();
        let written = file.set_len((start + end) as u64).and_then(|()| file.write_all_at(&bytes, 0));
        written.map_err(|error| Error::file(path, error))?;
        let places = places.into_iter().map(|place| (place.name.clone(), place)).collect();
        Ok(Shard { path: path.to_path_buf(), file, places, start })
    }

    /// Packs a weight.
    fn pack(&mut self, stored: &Stored<'_>, settings: &FourBit) -> Result<(), Error> {
        let name = stored.name;
        let mut filled = 0;
        let scales = four_bit::pack(&stored.tensor, |bytes| {
            let written = self.write_at(name, filled, bytes);
            filled += bytes.len();
            written
        })?;
        self.write(&format!("{name}.quant_map"), bytes_of(&nf4::CODES))?;
        let mut offset = 0.0;
        if settings.is_double {
            let double = nf4::DoubleScales::of(&scales);
            offset = double.offset;
            self.write(&format!("{name}.absmax"), &double.codes)?;
            self.write(&format!("{name}.nested_absmax"), bytes_of(&double.scales))?;
            self.write(&format!("{name}.nested_quant_map"), bytes_of(&dynamic::Map::signed().values))?;
        } else {
            self.write(&format!("{name}.absmax"), bytes_of(&scales))?;
        }
        self.write(&format!("{name}.{}", four_bit::STATE), state(stored, settings, offset).as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        debug_assert_eq!(bytes.len(), self.places[name].bytes, "{name}");
        self.write_at(name, 0, bytes)
    }

    fn write_at(&self, name: &str, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self.start + self.places[name].begin + offset;
        self.file.write_all_at(bytes, at as u64).map_err(|error| Error::file(&self.path, error))
    }

    fn finish(self) -> Result<(), Error> {
        let done = self.file.sync_all().and_then(|()| fs::rename(partial(&self.path), &self.path));
        done.map_err(|error| Error::file(&self.path, error))
    }
}

impl Place {
    fn new(name: String, kind: Kind, shape: Vec<usize>) -> Place {
        let dtype = match kind {
            Kind::F32 => "F32",
            Kind::Bf16 => "BF16",
            Kind::F16 => "F16",
            Kind::I32 => "I32",
            Kind::U8 => "U8",
        };
        Place { name, dtype, bytes: shape.iter().product::<usize>() * kind.size(), shape, begin: 0 }
    }
}

fn size(dtype: &str) -> usize {
    match dtype {
        "U8" => 1,
        "BF16" | "F16" => 2,
        _ => 4,
    }
}

/// How a weight is packed, as text. The offset is padded with spaces behind, so that its digits do not change the length.
fn state(stored: &Stored<'_>, settings: &FourBit, offset: f32) -> String {
    let mut state = json!({
        "quant_type": "nf4",
        "blocksize": nf4::BLOCK,
        "dtype": torch_name(stored.tensor.kind),
        "shape": stored.tensor.shape,
    });
    if settings.is_double {
        state["nested_blocksize"] = dynamic::BLOCK.into();
        state["nested_dtype"] = "float32".into();
        // As f64 it has all its digits.
        state["nested_offset"] = f64::from(offset).into();
    }
    let text = state.to_string();
    format!("{text:<width$}", width = text.len().max(STATE_LENGTH))
}

fn torch_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bf16 => "bfloat16",
        Kind::F16 => "float16",
        _ => "float32",
    }
}

/// The longest text of a state.
const STATE_LENGTH: usize = 256;
