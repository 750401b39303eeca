//! Merges an adapter into a checkpoint and writes the result: W + scale B A in f32, with DoRA's lengths of rows, rounded once, a piece of a tensor at a time.
//!
//! PEFT's `merge_and_unload` does the same if the adapter is f32, the default; with `safe_merge`, or with an adapter in 16 bits, it
//! rounds the product to 16 bits before adding it and then rounds the sum again.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use garden_device::{Dtype, Planner, nf4};
use serde_json::Value;

use crate::checkpoint::adapter::{Adapter, Pair};
use crate::checkpoint::nf4_checkpoint::{self, Packed};
use crate::checkpoint::safetensors_writer::{
    Place, Shard, copy_others, name_dtype, read_config, write_config, write_index,
};
use crate::checkpoint::sum::{PIECE, Sum, piece, scale_rows};
use crate::checkpoint::{Checkpoint, Tensor, not_finite};
use crate::engine::{Engine, EngineLimits};
use crate::error::Error;
use crate::network::declared;
use crate::network::role::Declared;
use garden_input::Config;

/// Merge settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeSettings {
    /// The new dtype; `None` keeps each tensor's dtype, and restores a 4-bit weight's original one.
    pub dtype: Option<Dtype>,
    /// Maximum bytes per file, unless one tensor is larger.
    pub shard_bytes: u64,
    /// How to handle 4-bit weights.
    pub packed: PackedBase,
    /// Threads; 0 for all cores.
    pub threads: usize,
}

/// How to handle 4-bit weights when merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedBase {
    /// Refuse: merging onto the original weights is better.
    Refuse,
    /// Dequantise.
    Unpack,
}

/// Summary of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Weights with an adapter merged in.
    pub merged: usize,
    /// 4-bit weights dequantised.
    pub unpacked: usize,
    /// All tensors.
    pub tensors: usize,
    /// Weight files.
    pub shards: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// The source of a tensor's values.
#[derive(Clone, Debug)]
enum Source<'a> {
    Plain(Tensor<'a>),
    Packed(Packed<'a>),
}

/// A tensor of the new checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    /// The name in the file, as transformers would save it again.
    pub name: &'a str,
    /// The newer name.
    pub newer: &'a str,
    pub shape: Vec<usize>,
    /// The new dtype.
    pub dtype: Dtype,
    source: Source<'a>,
    pub pair: Option<Pair<'a>>,
}

/// A validated merge, before anything is written.
#[derive(Debug)]
pub struct Merge<'a> {
    base: &'a Checkpoint,
    config: Value,
    settings: MergeSettings,
    pub(crate) items: Vec<Item<'a>>,
}

impl<'a> Merge<'a> {
    /// Checks that every part of an adapter matches a checkpoint, and plans the output.
    pub fn plan(base: &'a Checkpoint, adapter: &'a Adapter, settings: MergeSettings) -> Result<Merge<'a>, Error> {
        let config = read_config(base.path())?;
        if let (Some(name), PackedBase::Refuse) = (base.packed_weight(), settings.packed) {
            return Err(Error::tensor(base.path(), name, "has 4 bits: merge onto the original checkpoint"));
        }
        let model = Config::read(&base.path().join("config.json"))?;
        fits(base, adapter, &model)?;
        let (mut pairs, mut saved) = (adapter.pairs()?, adapter.saved()?);
        let tensors = declared(&model)?;
        let known: BTreeMap<&str, &Declared> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut items = Vec::new();
        for (path, stored) in base.files()? {
            for stored in stored {
                let newer = stored.newer;
                if nf4_checkpoint::is_part(newer) {
                    continue;
                }
                let (shape, was, source) = match Packed::find(base, newer)? {
                    Some((shape, packed)) => (shape.to_vec(), packed.packed_from, Source::Packed(packed)),
                    None => (stored.tensor.shape.to_vec(), stored.tensor.dtype, Source::Plain(stored.tensor)),
                };
                if was == Dtype::U8 {
                    return Err(Error::tensor(path, stored.name, "is U8; expected F32, BF16 or F16"));
                }
                let source = match saved.remove(newer) {
                    Some(tensor) => Source::Plain(tensor),
                    None => source,
                };
                let pair = newer.strip_suffix(".weight").and_then(|module| pairs.remove(module));
                // A tied head is the embedding, and is not saved separately.
                if model.is_tied && newer == model.family.names.head && pair.is_none() {
                    continue;
                }
                let shape = known.get(newer).map_or(shape.clone(), |known| known.written(&shape));
                items.push(Item {
                    name: stored.name,
                    newer,
                    shape,
                    dtype: settings.dtype.unwrap_or(was),
                    source,
                    pair,
                });
            }
        }
        match pairs.into_keys().map(|module| format!("{module}.weight")).chain(saved.into_keys()).next() {
            Some(name) => Err(Error::tensor(base.path(), name, "is missing, but the adapter has it")),
            None => Ok(Merge { base, config, settings, items }),
        }
    }

    /// Bytes of all tensors to be written.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes() as u64).sum()
    }

    /// Number of matrices whose values are rounded: merged ones, and ones with a narrower dtype.
    pub(crate) fn rounded(&self) -> usize {
        let is_rounded = |item: &&Item<'_>| item.shape.len() > 1 && !item.is_copied() && item.dtype != Dtype::F32;
        self.items.iter().filter(is_rounded).count()
    }

    /// The least precise dtype of rounded tensors.
    pub(crate) fn coarsest(&self) -> Dtype {
        let rounded = self.items.iter().filter(|item| !item.is_copied()).map(|item| item.dtype);
        rounded
            .max_by_key(|dtype| [Dtype::F32, Dtype::F16, Dtype::Bf16].iter().position(|one| one == dtype))
            .unwrap_or(Dtype::F32)
    }

    /// Writes everything into the new folder `to`; on failure nothing is left. `progress` gets tensors done and their total, and may stop the merge.
    pub fn write(
        &self,
        to: &Path,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        fs::create_dir(to).map_err(|error| Error::file(to, error))?;
        let written = self.write_files(to, progress);
        if written.is_err() {
            // The folder is new, so it holds nothing but an incomplete checkpoint. The first error is the one to report.
            drop(fs::remove_dir_all(to));
        }
        written
    }

    fn write_files(
        &self,
        to: &Path,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        copy_others(self.base.path(), to)?;
        let mut arithmetic = Arithmetic::new(self)?;
        let shards = self.shards();
        let (mut report, mut weight_map) = (MergeReport::default(), BTreeMap::new());
        for (number, items) in shards.iter().enumerate() {
            let file = match shards.len() {
                1 => "model.safetensors".to_string(),
                count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            let places = items.iter().map(|item| Place::new(item.name.into(), item.dtype, item.shape.clone()));
            let shard = Shard::create(&to.join(&file), places.collect())?;
            for item in *items {
                if progress(report.tensors, self.items.len()).is_break() {
                    return Err(Error::Stopped);
                }
                item.write(&shard, &mut arithmetic)?;
                report.tensors += 1;
                report.merged += usize::from(item.pair.is_some());
                report.unpacked += usize::from(matches!(item.source, Source::Packed(_)));
                report.bytes += item.bytes() as u64;
                weight_map.insert(item.name.to_string(), file.clone());
            }
            shard.finish()?;
        }
        report.shards = shards.len();
        if shards.len() > 1 {
            write_index(to, report.bytes, &weight_map)?;
        }
        write_config(to, &self.new_config())?;
        Ok(report)
    }

    /// The tensors of each file: as many as fit, in order.
    fn shards(&self) -> Vec<&[Item<'a>]> {
        let (mut shards, mut begin, mut bytes) = (Vec::new(), 0, 0);
        for (index, item) in self.items.iter().enumerate() {
            if index > begin && bytes + item.bytes() as u64 > self.settings.shard_bytes {
                shards.push(&self.items[begin..index]);
                (begin, bytes) = (index, 0);
            }
            bytes += item.bytes() as u64;
        }
        shards.push(&self.items[begin..]);
        shards
    }

    /// The most common dtype of the new values.
    fn usual_dtype(&self) -> Dtype {
        let values = |dtype: Dtype| {
            let items = self.items.iter().filter(move |item| item.dtype == dtype);
            items.map(Item::length).sum::<usize>()
        };
        [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().max_by_key(|dtype| values(*dtype)).unwrap_or(Dtype::F32)
    }

    /// The base's configuration with the new dtype, and without quantisation.
    fn new_config(&self) -> Value {
        let mut config = self.config.clone();
        if let Some(fields) = config.as_object_mut() {
            fields.remove("quantization_config");
        }
        name_dtype(&mut config, self.usual_dtype());
        config
    }
}

/// Checks that every tensor and every part of the adapter fits, by building the model without computing anything.
fn fits(base: &Checkpoint, adapter: &Adapter, config: &Config) -> Result<(), Error> {
    let limits = EngineLimits { rows: 1, context: 1, patches: 0 };
    Engine::build(&mut Planner::for_cpu(1), config, base, Some(adapter), None, limits).map(drop)
}

impl Item<'_> {
    pub fn length(&self) -> usize {
        self.shape.iter().product()
    }

    /// Values per row; a tensor of one dimension is one row.
    pub fn columns(&self) -> usize {
        self.length() / if self.shape.len() > 1 { self.shape[0].max(1) } else { 1 }
    }

    fn bytes(&self) -> usize {
        self.length() * self.dtype.size()
    }

    /// Whether its bytes stay unchanged.
    fn is_copied(&self) -> bool {
        self.pair.is_none() && matches!(self.source, Source::Plain(tensor) if tensor.dtype == self.dtype)
    }

    /// A reader of the base's values as f32.
    pub fn reader(&self) -> Reader<'_> {
        let scales = match &self.source {
            Source::Plain(_) => Vec::new(),
            Source::Packed(packed) => packed.all_scales(),
        };
        Reader { source: &self.source, scales }
    }

    fn write(&self, shard: &Shard, arithmetic: &mut Arithmetic) -> Result<(), Error> {
        let (reader, length, size) = (self.reader(), self.length(), self.dtype.size());
        let step = if self.pair.is_some() { piece(self.columns()) } else { PIECE };
        if let Some(pair) = &self.pair {
            arithmetic.sum.take(pair);
        }
        for first in (0..length).step_by(step) {
            let part = first..(first + step).min(length);
            let bytes = match (&self.source, self.is_copied()) {
                (Source::Plain(tensor), true) => &tensor.bytes[part.start * size..part.end * size],
                _ => arithmetic.make(self, &reader, part.clone())?,
            };
            if let Some(place) = not_finite(self.dtype, bytes) {
                let mut value = [0.0];
                reader.read(part.start + place, &mut value);
                return Err(Error::not_written(reader.path(), self.name, self.dtype, part.start + place, value[0]));
            }
            shard.write_at(self.name, part.start * size, bytes)?;
            reader.forget(part);
        }
        Ok(())
    }
}

/// Reads values of a tensor as f32, whatever its dtype.
pub(crate) struct Reader<'a> {
    source: &'a Source<'a>,
    /// Block scales of a 4-bit tensor.
    scales: Vec<f32>,
}

impl Reader<'_> {
    pub fn read(&self, first: usize, to: &mut [f32]) {
        match self.source {
            Source::Plain(tensor) => tensor.widen(first, to),
            Source::Packed(packed) => nf4::unpack(packed.codes.bytes, nf4::Scales::Plain(&self.scales), first, to),
        }
    }

    pub fn forget(&self, values: Range<usize>) {
        match self.source {
            Source::Plain(tensor) => {
                tensor.forget_part(values.start * tensor.dtype.size()..values.end * tensor.dtype.size());
            }
            Source::Packed(packed) => packed.forget(),
        }
    }

    fn path(&self) -> &Path {
        match self.source {
            Source::Plain(tensor) => tensor.path,
            Source::Packed(packed) => packed.codes.path,
        }
    }
}

/// Computes new values of one piece at a time.
struct Arithmetic {
    sum: Sum,
    wide: Vec<f32>,
    bytes: Vec<u8>,
}

impl Arithmetic {
    fn new(merge: &Merge<'_>) -> Result<Arithmetic, Error> {
        let pairs = merge.items.iter().filter_map(|item| item.pair.as_ref());
        let sum = Sum::for_pairs(merge.settings.threads, pairs)?;
        Ok(Arithmetic { sum, wide: Vec::new(), bytes: Vec::new() })
    }

    /// A range of the new tensor's values.
    fn make(&mut self, item: &Item<'_>, reader: &Reader<'_>, part: Range<usize>) -> Result<&[u8], Error> {
        self.wide.resize(part.len(), 0.0);
        reader.read(part.start, &mut self.wide);
        if let Some(pair) = &item.pair {
            let first = part.start / item.columns();
            self.sum.add(pair, first, &mut self.wide)?;
            let factors = self.sum.factors(first, &self.wide, item.columns());
            scale_rows(&mut self.wide, &factors);
        }
        self.bytes.resize(part.len() * item.dtype.size(), 0);
        item.dtype.narrow(&self.wide, &mut self.bytes);
        Ok(&self.bytes)
    }
}
