//! LoRA adapters in PEFT's format: `adapter_model.safetensors` and `adapter_config.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use garden_device::{Device, Dtype};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::model::Model;
use crate::network::lora::{LoraConfig, Targets};
use crate::network::parameters::{ADAPTER_PREFIX as PREFIX, FrozenAdapter};
use garden_files::read_settings;

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// A LoRA adapter in a folder.
#[derive(Debug)]
pub struct Adapter {
    /// Its configuration.
    pub config: LoraConfig,
    /// Its base model: a hub name or a path.
    pub base: Option<String>,
    weights: Checkpoint,
}

/// The LoRA matrices of one linear: B A is added to its weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// A `[rank, in]`.
    pub down: Tensor<'a>,
    /// B `[out, rank]`.
    pub up: Tensor<'a>,
}

impl Pair<'_> {
    /// Whether it changes nothing: B is initialised with zeros.
    pub fn is_no_op(&self) -> bool {
        let is_zero = |tensor: &Tensor<'_>| tensor.values().iter().all(|value| *value == 0.0);
        let is_no_op = is_zero(&self.up) || is_zero(&self.down);
        self.forget();
        is_no_op
    }

    /// Lets the kernel drop the pages of the file.
    pub fn forget(&self) {
        self.down.forget();
        self.up.forget();
    }
}

/// Opens an adapter saved by PEFT or by this program.
pub fn read_adapter(folder: &Path) -> Result<Adapter, Error> {
    let path = folder.join(CONFIG);
    let text = read_settings(&path).map_err(|error| Error::file(&path, error))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| Error::broken(&path, format!("not JSON: {error}")))?;
    let config = config_of(&path, &value)?;
    let base = value.get("base_model_name_or_path").and_then(Value::as_str).map(String::from);
    Ok(Adapter { config, base, weights: Checkpoint::open_file(&folder.join(WEIGHTS))? })
}

fn config_of(path: &Path, value: &Value) -> Result<LoraConfig, Error> {
    let kind = value.get("peft_type").and_then(Value::as_str).unwrap_or("");
    if kind != "LORA" {
        return Err(Error::field(path, "peft_type", format!("is `{kind}`; only `LORA` is supported")));
    }
    for field in ["use_dora", "lora_bias"] {
        if value.get(field).and_then(Value::as_bool) == Some(true) {
            return Err(Error::field(path, field, "is true, which is not supported"));
        }
    }
    for field in ["rank_pattern", "alpha_pattern"] {
        let is_empty = |given: &Value| {
            given.is_null()
                || given.as_object().is_some_and(|all| all.is_empty())
                || given.as_array().is_some_and(Vec::is_empty)
        };
        if value.get(field).is_some_and(|given| !is_empty(given)) {
            return Err(Error::field(path, field, "is set, which is not supported"));
        }
    }
    let number = |field: &str| {
        value.get(field).and_then(Value::as_f64).ok_or_else(|| Error::field(path, field, "is missing or not a number"))
    };
    let targets = match value.get("target_modules") {
        Some(Value::String(pattern)) => Targets::Pattern(pattern.clone()),
        Some(Value::Array(names)) => {
            Targets::Names(names.iter().filter_map(|name| name.as_str().map(str::to_string)).collect())
        }
        _ => return Err(Error::field(path, "target_modules", "is neither a string nor a list")),
    };
    let modules_to_save = match value.get("modules_to_save") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(names)) => names.iter().filter_map(|name| name.as_str().map(str::to_string)).collect(),
        Some(_) => return Err(Error::field(path, "modules_to_save", "is not a list of names")),
    };
    Ok(LoraConfig {
        modules_to_save,
        rank: number("r")? as usize,
        alpha: number("lora_alpha")? as f32,
        is_rank_stabilised: value.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        dropout: value.get("lora_dropout").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        targets,
    })
}

impl Adapter {
    /// The LoRA matrices by the linear's newer name.
    pub(crate) fn pairs(&self) -> Result<BTreeMap<String, Pair<'_>>, Error> {
        let mut halves: BTreeMap<String, [Option<&str>; 2]> = BTreeMap::new();
        for name in self.weights.names() {
            let newer = current(name);
            let module = newer.strip_prefix(PREFIX).unwrap_or(&newer);
            let found = [".lora_A.weight", ".lora_B.weight"].map(|ending| module.strip_suffix(ending));
            let [None, None] = found else {
                for (side, module) in found.into_iter().enumerate() {
                    if let Some(module) = module {
                        halves.entry(module.into()).or_default()[side] = Some(name);
                    }
                }
                continue;
            };
            if self.config.saved_module(module).is_none() {
                return Err(Error::tensor(
                    self.weights.path(),
                    name,
                    "is neither lora_A.weight nor lora_B.weight, nor of `modules_to_save`",
                ));
            }
        }
        let whole = |(module, names): (String, [Option<&str>; 2])| {
            let tensor = |name: Option<&str>, side: &str| {
                let name = name.ok_or_else(|| {
                    Error::tensor(self.weights.path(), format!("{PREFIX}{module}.lora_{side}.weight"), "is missing")
                })?;
                let tensor = self.weights.tensor(name)?;
                match tensor.not_finite() {
                    Some(place) => {
                        Err(Error::tensor(tensor.path, name, format!("has a value that is not finite at {place}")))
                    }
                    None => Ok(tensor),
                }
            };
            let pair = Pair { down: tensor(names[0], "A")?, up: tensor(names[1], "B")? };
            pair.forget();
            Ok((module, pair))
        };
        halves.into_iter().map(whole).collect()
    }

    /// Tensors that replace the base's (`modules_to_save`), by their newer names.
    pub(crate) fn saved(&self) -> Result<BTreeMap<String, Tensor<'_>>, Error> {
        let mut saved = BTreeMap::new();
        for name in self.weights.names() {
            let newer = current(name);
            let module = newer.strip_prefix(PREFIX).unwrap_or(&newer);
            if self.config.saved_module(module).is_some() {
                saved.insert(module.to_string(), self.weights.tensor(name)?);
            }
        }
        Ok(saved)
    }

    /// Number of linears that it changes, and of linears whose LoRA matrices change nothing.
    pub fn effect(&self) -> Result<(usize, usize), Error> {
        let pairs = self.pairs()?;
        let idle = pairs.values().filter(|pair| pair.is_no_op()).count();
        Ok((pairs.len() - idle, idle))
    }

    /// Loads the adapter's values into a model; names must match exactly on both sides.
    pub fn put(&self, device: &mut dyn Device, model: &Model) -> Result<(), Error> {
        self.fill(
            model.parameters().iter(),
            |place| (&place.name, &place.shape),
            |place, values| place.set(device, values),
        )
    }

    /// Loads the adapter's values into a model for inference only.
    pub(crate) fn fill_frozen(&self, device: &mut dyn Device, places: &[FrozenAdapter]) -> Result<(), Error> {
        self.fill(places.iter(), |place| (&place.name, &place.shape), |place, values| place.set(device, values))
    }

    /// Loads the adapter's values into parameters that have a name and a shape, by `set`.
    fn fill<'a, P: 'a>(
        &self,
        places: impl Iterator<Item = &'a P>,
        about: impl Fn(&'a P) -> (&'a str, &'a [usize]),
        mut set: impl FnMut(&P, &[f32]),
    ) -> Result<(), Error> {
        let mut found: BTreeMap<String, &str> = self.weights.names().map(|name| (current(name), name)).collect();
        for place in places {
            let (wanted, shape) = about(place);
            let Some(name) = found.remove(wanted) else {
                return Err(Error::tensor(self.weights.path(), wanted, "is missing"));
            };
            let tensor = self.weights.shaped(name, shape)?;
            if let Some(place) = tensor.not_finite() {
                return Err(Error::tensor(tensor.path, name, format!("has a value that is not finite at {place}")));
            }
            set(place, &tensor.values());
            tensor.forget();
        }
        match found.into_keys().next() {
            Some(name) => Err(Error::tensor(self.weights.path(), name, "does not belong to this model")),
            None => Ok(()),
        }
    }
}

/// The newer name: older adapters have no `language_model`, and `visual` at the top.
fn current(name: &str) -> String {
    match name.strip_prefix(PREFIX) {
        Some(rest) => format!("{PREFIX}{}", crate::checkpoint::names::newer(rest)),
        None => name.to_string(),
    }
}

/// Saves a model's adapter in PEFT's format. `base` becomes PEFT's `base_model_name_or_path`.
pub fn write_adapter(
    device: &mut dyn Device,
    model: &Model,
    config: &LoraConfig,
    base: Option<&str>,
    folder: &Path,
) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    model.write_values(device, Dtype::F32, &str::to_string, &folder.join(WEIGHTS))?;
    let text = serde_json::to_string_pretty(&config_json(config, base)).unwrap_or_default();
    write_whole(&folder.join(CONFIG), text.as_bytes())
}

fn config_json(config: &LoraConfig, base: Option<&str>) -> Value {
    let targets = match &config.targets {
        Targets::Pattern(pattern) => json!(pattern),
        Targets::Names(names) => json!(names),
    };
    // All fields that PEFT 0.15 and later write for such an adapter; PEFT fills in defaults for missing ones.
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "revision": null,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.is_rank_stabilised,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": (!config.modules_to_save.is_empty()).then_some(&config.modules_to_save),
        "rank_pattern": {},
        "alpha_pattern": {},
        "exclude_modules": null,
        "layers_to_transform": null,
        "layers_pattern": null,
        "layer_replication": null,
        "loftq_config": {},
        "eva_config": null,
        "corda_config": null,
        "lora_bias": false,
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "trainable_token_indices": null,
        "use_dora": false,
    })
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    garden_files::replace(path, bytes).map_err(|error| Error::file(path, error))
}
