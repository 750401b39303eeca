//! LoRA adapters in PEFT's format: `adapter_model.safetensors` and `adapter_config.json`.

use garden_input::Family;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use garden_device::{Device, Dtype};

use crate::checkpoint::adapter_config::{AdapterConfig, config_text};
use crate::checkpoint::files::check_adapter_folder;
use crate::checkpoint::sum::{Sum, piece, scale_rows};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::model::Model;
use crate::network::lora::LoraConfig;
use crate::network::parameters::{ADAPTER_PREFIX as PREFIX, FrozenAdapter, RowFactors};
use garden_files::read_settings;

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// A LoRA adapter in a folder.
#[derive(Debug)]
pub struct Adapter {
    family: &'static Family,
    /// Its configuration.
    pub config: LoraConfig,
    /// Its base model: a hub name or a path.
    pub base: Option<String>,
    /// Whether it gives the rows of its linears' weights learnt lengths.
    pub is_dora: bool,
    /// Whether PEFT trains its A alone (MiCA).
    pub keeps_b: bool,
    weights: Checkpoint,
}

/// The LoRA matrices of one linear: scale B A is added to its weight; with DoRA, each row of the sum then gets a learnt length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// A `[rank, in]`.
    pub down: Tensor<'a>,
    /// B `[out, rank]`.
    pub up: Tensor<'a>,
    pub scale: f32,
    /// Lengths of rows `[out]`.
    pub lengths: Option<Tensor<'a>>,
}

/// The ends of the names of a pair's tensors. The last two are the same: PEFT 0.10 and earlier wrote the latter.
const ENDINGS: [&str; 4] =
    [".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector.weight", ".lora_magnitude_vector"];

impl Pair<'_> {
    /// Whether it changes nothing: B is initialised with zeros. Lengths are taken to change something.
    pub fn is_no_op(&self) -> bool {
        let is_zero = |tensor: &Tensor<'_>| tensor.values().iter().all(|value| *value == 0.0);
        let is_no_op = self.lengths.is_none() && (is_zero(&self.up) || is_zero(&self.down));
        self.forget();
        is_no_op
    }

    /// Lets the kernel drop the pages of the file.
    pub fn forget(&self) {
        self.down.forget();
        self.up.forget();
        if let Some(lengths) = &self.lengths {
            lengths.forget();
        }
    }
}

/// Opens an adapter saved by PEFT or by this program.
pub fn read_adapter(folder: &Path, family: &'static Family) -> Result<Adapter, Error> {
    check_adapter_folder(folder)?;
    let path = folder.join(CONFIG);
    let text = read_settings(&path).map_err(|error| Error::file(&path, error))?;
    let weights = Checkpoint::open_file(&folder.join(WEIGHTS))?;
    let stored = weights.names().filter_map(|name| name.strip_suffix(ENDINGS[0]));
    let plain = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_string();
    let modules = stored.map(|name| (plain(&current(name, family)), plain(name))).collect();
    let AdapterConfig { lora, is_dora, keeps_b, base } = AdapterConfig::parse(&path, &text, &modules)?;
    Ok(Adapter { family, config: lora, base, is_dora, keeps_b, weights })
}

impl Adapter {
    /// The LoRA matrices by the linear's newer name.
    pub(crate) fn pairs(&self) -> Result<BTreeMap<String, Pair<'_>>, Error> {
        let settings = self.config.modules().map_err(Error::Adapter)?;
        let mut parts: BTreeMap<String, [Option<&str>; 3]> = BTreeMap::new();
        for name in self.weights.names() {
            let newer = current(name, self.family);
            let module = newer.strip_prefix(PREFIX).unwrap_or(&newer);
            let ends = ENDINGS.iter().enumerate();
            let found = ends.filter_map(|(side, ending)| Some((side.min(2), module.strip_suffix(ending)?))).next();
            if let Some((side, module)) = found.filter(|(side, _)| *side < 2 || self.is_dora) {
                parts.entry(module.into()).or_default()[side] = Some(name);
                continue;
            }
            if self.config.saved_module(module).is_none() {
                return Err(Error::tensor(
                    self.weights.path(),
                    name,
                    "is neither lora_A.weight nor lora_B.weight, nor of `modules_to_save`",
                ));
            }
        }
        let whole = |(module, names): (String, [Option<&str>; 3])| {
            let tensor = |side: usize| {
                let name = names[side].ok_or_else(|| {
                    Error::tensor(self.weights.path(), format!("{PREFIX}{module}{}", ENDINGS[side]), "is missing")
                })?;
                let tensor = self.weights.tensor(name)?;
                match tensor.not_finite() {
                    Some(place) => {
                        Err(Error::tensor(tensor.path, name, format!("has a value that is not finite at {place}")))
                    }
                    None => Ok(tensor),
                }
            };
            let lengths = self.is_dora.then(|| tensor(2)).transpose()?;
            let pair = Pair { down: tensor(0)?, up: tensor(1)?, scale: settings.scale(&module), lengths };
            pair.forget();
            Ok((module, pair))
        };
        parts.into_iter().map(whole).collect()
    }

    /// Tensors that replace the base's (`modules_to_save`), by their newer names.
    pub(crate) fn saved(&self) -> Result<BTreeMap<String, Tensor<'_>>, Error> {
        let mut saved = BTreeMap::new();
        for name in self.weights.names() {
            let newer = current(name, self.family);
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

    /// The folder's file of weights, for errors.
    pub(crate) fn path(&self) -> &Path {
        self.weights.path()
    }

    /// Whether it can be trained further.
    pub fn check_trainable(&self) -> Result<(), Error> {
        let (field, problem) = if self.is_dora {
            ("use_dora", "is true: DoRA adapters answer and are exported, but are not trained here")
        } else if self.keeps_b {
            (
                "init_lora_weights",
                "is `mica`: such adapters answer and are exported, but training A alone is not supported",
            )
        } else {
            return Ok(());
        };
        let problem = format!("{problem}: export it, and train a new adapter on the result");
        Err(Error::field(&self.weights.path().with_file_name(CONFIG), field, problem))
    }

    /// The factors that give the rows of its linears' weights their lengths, by the linear's name: none without DoRA. They are not computed for a plan.
    pub(crate) fn row_factors(&self, base: &Checkpoint, is_computed: bool) -> Result<RowFactors, Error> {
        if !self.is_dora {
            return Ok(RowFactors::new());
        }
        let pairs = self.pairs()?;
        if !is_computed {
            return Ok(pairs.into_keys().map(|module| (module, Vec::new())).collect());
        }
        let mut sum = Sum::for_pairs(0, pairs.values())?;
        let of = |(module, pair): (&String, &Pair<'_>)| {
            let weight = base.tensor(&format!("{module}.weight"))?;
            self.check_shapes(module, pair, weight.shape)?;
            if weight.dtype == Dtype::U8 {
                // Of 4 bits: refused where the model is built.
                return Ok((module.clone(), Vec::new()));
            }
            let columns = weight.shape[1];
            let length: usize = weight.shape.iter().product();
            sum.take(pair);
            let (mut factors, mut values) = (Vec::with_capacity(weight.shape[0]), Vec::new());
            for first in (0..length).step_by(piece(columns)) {
                values.resize(piece(columns).min(length - first), 0.0);
                weight.widen(first, &mut values);
                sum.add(pair, first / columns, &mut values)?;
                factors.extend(sum.factors(first / columns, &values, columns));
            }
            weight.forget();
            match factors.iter().position(|factor| !factor.is_finite()) {
                Some(row) => {
                    let problem = format!("has a row {row} of zeros with the adapter, which DoRA cannot give a length");
                    Err(Error::tensor(weight.path, format!("{module}.weight"), problem))
                }
                None => Ok((module.clone(), factors)),
            }
        };
        pairs.iter().map(of).collect()
    }

    /// Whether the matrices of a linear fit each other and its weight.
    pub(crate) fn check_shapes(&self, module: &str, pair: &Pair<'_>, weight: &[usize]) -> Result<(), Error> {
        let rank = pair.down.shape.first().copied().unwrap_or(0);
        let wanted = match weight {
            [rows, columns] => [vec![rank, *columns], vec![*rows, rank], vec![*rows]],
            // Of 4 bits.
            _ => return Ok(()),
        };
        let found = [Some(pair.down), Some(pair.up), pair.lengths];
        for (side, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            if let Some(found) = found.filter(|found| found.shape != *wanted) {
                let problem = format!("has the shape {:?}; the model needs {wanted:?}", found.shape);
                return Err(Error::tensor(found.path, format!("{PREFIX}{module}{}", ENDINGS[side]), problem));
            }
        }
        Ok(())
    }

    /// Loads the adapter's values into a model; names must match exactly on both sides.
    pub fn put(&self, device: &mut dyn Device, model: &Model) -> Result<(), Error> {
        self.check_trainable()?;
        self.fill(
            model.parameters().iter(),
            |place| (&place.name, &place.shape),
            |place, values| place.set(device, values),
        )
    }

    /// Loads the adapter's values into a model for inference only.
    pub(crate) fn fill_frozen(
        &self,
        device: &mut dyn Device,
        places: &[FrozenAdapter],
        factors: &RowFactors,
    ) -> Result<(), Error> {
        let set = |place: &FrozenAdapter, values: &[f32]| {
            let module = place.name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(ENDINGS[1]));
            let mut values = values.to_vec();
            if let Some(factors) = module.and_then(|module| factors.get(module)) {
                scale_rows(&mut values, factors);
            }
            place.set(device, &values);
        };
        self.fill(places.iter(), |place| (&place.name, &place.shape), set)
    }

    /// Loads the adapter's values into parameters that have a name and a shape, by `set`.
    fn fill<'a, P: 'a>(
        &self,
        places: impl Iterator<Item = &'a P>,
        about: impl Fn(&'a P) -> (&'a str, &'a [usize]),
        mut set: impl FnMut(&P, &[f32]),
    ) -> Result<(), Error> {
        let mut found: BTreeMap<String, &str> =
            self.weights.names().map(|name| (current(name, self.family), name)).collect();
        // Lengths of rows are part of the weights already.
        found.retain(|name, _| !self.is_dora || !ENDINGS[2..].iter().any(|ending| name.ends_with(ending)));
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
fn current(name: &str, family: &Family) -> String {
    match name.strip_prefix(PREFIX) {
        Some(rest) => format!("{PREFIX}{}", (family.names.newer)(rest)),
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
    write_whole(&folder.join(CONFIG), config_text(config, base).as_bytes())
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    garden_files::replace(path, bytes).map_err(|error| Error::file(path, error))
}
