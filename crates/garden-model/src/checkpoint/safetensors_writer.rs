//! Writes safetensors files tensor by tensor, in any order and in pieces, and the other files of a checkpoint folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use garden_device::Dtype;
use serde_json::{Value, json};

use crate::error::Error;
use garden_files::read_settings;

/// The index from tensors to files of a sharded checkpoint.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A tensor of a new file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    pub bytes: usize,
    /// Offset from the start of the data.
    begin: usize,
}

impl Place {
    pub fn new(name: String, dtype: Dtype, shape: Vec<usize>) -> Place {
        Place { name, dtype, bytes: shape.iter().product::<usize>() * dtype.size(), shape, begin: 0 }
    }

    fn dtype(&self) -> &'static str {
        match self.dtype {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
            Dtype::I32 => "I32",
            Dtype::U8 => "U8",
        }
    }
}

/// A safetensors file being written: all offsets are known before the first byte.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
    pub places: BTreeMap<String, Place>,
    start: usize,
}

impl Shard {
    pub fn create(path: &Path, mut places: Vec<Place>) -> Result<Shard, Error> {
        // Wider dtypes first, so that every tensor is aligned to its dtype.
        places.sort_by(|a, b| (b.dtype.size(), &a.name).cmp(&(a.dtype.size(), &b.name)));
        let mut end = 0;
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt"}));
        for place in &mut places {
            place.begin = end;
            end += place.bytes;
            let about = json!({"dtype": place.dtype(), "shape": place.shape, "data_offsets": [place.begin, end]});
            header.insert(place.name.clone(), about);
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

    /// Writes a whole tensor.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        debug_assert_eq!(bytes.len(), self.places[name].bytes, "{name}");
        self.write_at(name, 0, bytes)
    }

    /// Writes some bytes of a tensor.
    pub fn write_at(&self, name: &str, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self.start + self.places[name].begin + offset;
        self.file.write_all_at(bytes, at as u64).map_err(|error| Error::file(&self.path, error))
    }

    /// Syncs the file and renames it into place.
    pub fn finish(self) -> Result<(), Error> {
        let done = self.file.sync_all().and_then(|()| fs::rename(partial(&self.path), &self.path));
        done.map_err(|error| Error::file(&self.path, error))
    }
}

/// Reads `config.json` of a folder unchanged.
pub(crate) fn read_config(folder: &Path) -> Result<Value, Error> {
    let path = folder.join("config.json");
    let text = read_settings(&path).map_err(|error| Error::file(&path, error))?;
    serde_json::from_str(&text).map_err(|error| Error::broken(&path, format!("not JSON: {error}")))
}

/// Writes `config.json`.
pub(crate) fn write_config(folder: &Path, config: &Value) -> Result<(), Error> {
    write_whole(&folder.join("config.json"), format!("{config:#}\n").as_bytes())
}

/// Sets the dtype in a configuration, wherever it occurs.
pub(crate) fn name_dtype(config: &mut Value, dtype: Dtype) {
    let name = |fields: &mut Value| {
        for field in ["dtype", "torch_dtype"] {
            if fields.get(field).is_some_and(|value| !value.is_null()) {
                fields[field] = torch_name(dtype).into();
            }
        }
    };
    if !["dtype", "torch_dtype"].iter().any(|field| config.get(field).is_some_and(|value| !value.is_null())) {
        config["torch_dtype"] = torch_name(dtype).into();
    }
    name(config);
    for inner in ["text_config", "vision_config"] {
        if let Some(fields) = config.get_mut(inner).filter(|fields| fields.is_object()) {
            name(fields);
        }
    }
}

/// PyTorch's name of a dtype.
pub(crate) fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "bfloat16",
        Dtype::F16 => "float16",
        _ => "float32",
    }
}

/// Writes the index from tensors to files.
pub(crate) fn write_index(folder: &Path, bytes: u64, weight_map: &BTreeMap<String, String>) -> Result<(), Error> {
    let index = json!({"metadata": {"total_size": bytes}, "weight_map": weight_map});
    write_whole(&folder.join(INDEX), format!("{index:#}\n").as_bytes())
}

/// Copies tokenizer, templates and so on: no weights in any format, no adapter (transformers would apply it again), no hidden files.
pub(crate) fn copy_others(from: &Path, to: &Path) -> Result<(), Error> {
    const WEIGHTS: [&str; 8] = ["safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx"];
    for entry in fs::read_dir(from).map_err(|error| Error::file(from, error))? {
        let path = entry.map_err(|error| Error::file(from, error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = path.extension().is_some_and(|ending| WEIGHTS.iter().any(|weights| ending == *weights));
        let is_left = is_weights || name.ends_with(".index.json") || name.starts_with('.');
        if path.is_file() && !is_left && name != "config.json" && name != "adapter_config.json" {
            let copy = to.join(&name);
            fs::copy(&path, &copy).map_err(|error| Error::file(&copy, error))?;
        }
    }
    Ok(())
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    garden_files::replace(path, bytes).map_err(|error| Error::file(path, error))
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}
