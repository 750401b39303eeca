//! NF4 weights: which linears are quantised, their format in checkpoints of bitsandbytes and transformers, and quantisation in pieces.

use garden_input::Family;
use std::ops::Range;

use garden_device::{Dtype, nf4};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::network::role::{Declared, Kind, Part, Role};

/// Values quantised at a time: whole blocks, and little memory.
pub(crate) const PIECE: usize = 1 << 16;
/// Values that a thread quantises between synchronisations: some milliseconds of work, so the cost of starting a thread is negligible.
const SHARE: usize = 16 * PIECE;
/// Maximum number of threads: their memory is part of the plan, and more would only wait for memory bandwidth.
const MOST_THREADS: usize = 16;

/// Peak bytes held by quantisation besides the tensor: values, codes and scales of each thread's share.
pub fn packing_bytes() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    cores * (PIECE * 4 + SHARE / 2 + SHARE / 64 * 4)
}

/// Suffix of a quantised weight's quantisation state.
pub(crate) const STATE: &str = "quant_state.bitsandbytes__nf4";
const OTHER_STATE: &str = "quant_state.bitsandbytes__fp4";

/// NF4 settings for weights stored in 16 or 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FourBit {
    /// Double quantisation: block scales in 8 bits instead of 32.
    pub is_double: bool,
    /// Modules that are not quantised, such as `model.visual`: parts of names between dots. `None` for all but the decoder's linears.
    pub kept: Option<Vec<String>>,
}

impl Default for FourBit {
    /// Double quantisation of the decoder's linears. Embeddings, norms and biases never are.
    fn default() -> FourBit {
        FourBit { is_double: true, kept: None }
    }
}

impl FourBit {
    /// Whether the matrix of the module with this newer name is quantised.
    pub(crate) fn packs(&self, module: &str, role: Role) -> bool {
        match &self.kept {
            None => role.is_packed(),
            Some(kept) => {
                let is_kept = |kept: &String| format!(".{module}.").contains(&format!(".{kept}."));
                matches!(role.kind, Kind::Linear | Kind::Head) && !kept.iter().any(is_kept)
            }
        }
    }

    /// The modules of a model that are not quantised, by names that other programs understand: the first ones that all linears outside of the decoder have in
    /// common, and the head, which may be the embedding.
    pub(crate) fn kept_of(&self, tensors: &[Declared], family: &Family) -> Vec<String> {
        if let Some(kept) = &self.kept {
            return kept.clone();
        }
        let others = tensors.iter().filter(|tensor| tensor.role.part != Part::Decoder);
        let mut names = others.filter_map(|tensor| Some(tensor.linear()?.split('.').collect::<Vec<&str>>()));
        let common = names.next().map(|first| {
            names.fold(first, |common, name| {
                common.into_iter().zip(name).take_while(|(one, other)| one == other).map(|(one, _)| one).collect()
            })
        });
        let head = family.names.head.trim_end_matches(".weight");
        common.map(|common| common.join(".")).into_iter().chain([head.to_string()]).collect()
    }
}

/// An NF4 weight in a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Packed<'a> {
    /// Two codes per byte.
    pub codes: Tensor<'a>,
    pub scales: PackedScales<'a>,
    /// The original dtype.
    pub packed_from: Dtype,
}

#[derive(Clone, Debug)]
pub(crate) enum PackedScales<'a> {
    Plain(Tensor<'a>),
    Double { codes: Tensor<'a>, scales: Tensor<'a>, offset: f32 },
}

impl<'a> Packed<'a> {
    /// The weight `[rows, columns]` of this name, if it is NF4.
    pub fn read(
        checkpoint: &'a Checkpoint,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<Packed<'a>>, Error> {
        if checkpoint.has(&format!("{name}.{OTHER_STATE}")) {
            let path = checkpoint.path();
            return Err(Error::tensor(path, name, "is packed as fp4; only nf4 is supported"));
        }
        let state_name = format!("{name}.{STATE}");
        if !checkpoint.has(&state_name) {
            return Ok(None);
        }
        let stored = checkpoint.any(&state_name)?;
        let wrong = |problem: String| Error::tensor(stored.path, &state_name, problem);
        let state: Value = serde_json::from_slice(stored.bytes).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let says = |field: &str, expected: Value| match state.get(field) {
            Some(value) if *value == expected => Ok(()),
            value => {
                let there = value.map_or("nothing".into(), Value::to_string);
                Err(wrong(format!("says {field} {there}; expected {expected}")))
            }
        };
        says("quant_type", "nf4".into())?;
        says("blocksize", nf4::BLOCK.into())?;
        says("shape", vec![rows, columns].into())?;
        let packed_from = match state.get("dtype").and_then(Value::as_str) {
            Some("float32") => Dtype::F32,
            Some("bfloat16") => Dtype::Bf16,
            Some("float16") => Dtype::F16,
            other => return Err(wrong(format!("says dtype {other:?}; expected float32, bfloat16 or float16"))),
        };
        let values = rows * columns;
        let part = |name: String, dtype: Dtype, length: usize| -> Result<Tensor<'a>, Error> {
            let tensor = checkpoint.any(&name)?;
            let there: usize = tensor.shape.iter().product();
            match tensor.dtype == dtype && there == length {
                true => Ok(tensor),
                false => {
                    let problem = format!("has {there} values of {:?}; expected {length} of {dtype:?}", tensor.dtype);
                    Err(Error::tensor(tensor.path, name, problem))
                }
            }
        };
        let codes = part(name.to_string(), Dtype::U8, nf4::packed_length(values))?;
        let map = part(format!("{name}.quant_map"), Dtype::F32, nf4::CODES.len())?;
        if map.values() != nf4::CODES {
            return Err(Error::tensor(map.path, format!("{name}.quant_map"), "is not the nf4 map"));
        }
        let blocks = nf4::blocks(values);
        let scales_name = format!("{name}.absmax");
        let scales = match state.get("nested_blocksize") {
            None => PackedScales::Plain(part(scales_name, Dtype::F32, blocks)?),
            Some(_) => {
                let nested = garden_device::dynamic_8bit::BLOCK;
                says("nested_blocksize", nested.into())?;
                let offset = state.get("nested_offset").and_then(Value::as_f64);
                let offset = offset.ok_or_else(|| wrong("has no nested_offset".into()))? as f32;
                let map_name = format!("{name}.nested_quant_map");
                let map = part(map_name.clone(), Dtype::F32, 256)?;
                if map.values() != garden_device::dynamic_8bit::Map::signed().values {
                    return Err(Error::tensor(map.path, map_name, "is not the dynamic map of bitsandbytes"));
                }
                PackedScales::Double {
                    codes: part(scales_name, Dtype::U8, blocks)?,
                    scales: part(format!("{name}.nested_absmax"), Dtype::F32, blocks.div_ceil(nested))?,
                    offset,
                }
            }
        };
        let (PackedScales::Plain(wide) | PackedScales::Double { scales: wide, .. }) = &scales;
        if let Some(place) = wide.not_finite() {
            return Err(Error::tensor(
                wide.path,
                format!("{name}.absmax"),
                format!("has a value that is not finite at {place}"),
            ));
        }
        Ok(Some(Packed { codes, scales, packed_from }))
    }

    /// The weight of this name and its shape `[out, in]`, if it is NF4.
    pub fn find(checkpoint: &'a Checkpoint, name: &str) -> Result<Option<([usize; 2], Packed<'a>)>, Error> {
        let state_name = format!("{name}.{STATE}");
        let mut shape = [0, 0];
        if checkpoint.has(&state_name) {
            let stored = checkpoint.any(&state_name)?;
            let state: Value = serde_json::from_slice(stored.bytes).unwrap_or_default();
            let given: Vec<usize> = state["shape"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| Some(one.as_u64()? as usize))
                .collect();
            let wrong = |_| Error::tensor(stored.path, &state_name, "has no shape of two numbers");
            shape = given.try_into().map_err(wrong)?;
        }
        Ok(Packed::read(checkpoint, name, shape[0], shape[1])?.map(|packed| (shape, packed)))
    }

    /// The scales of all blocks.
    pub fn all_scales(&self) -> Vec<f32> {
        match &self.scales {
            PackedScales::Plain(scales) => scales.values(),
            PackedScales::Double { codes, scales, offset } => {
                let values = scales.values();
                nf4::Scales::Double(codes.bytes, &values, *offset).all(codes.bytes.len()).into_owned()
            }
        }
    }

    /// Lets the kernel drop the pages of the file.
    pub fn forget(&self) {
        self.codes.forget();
        match &self.scales {
            PackedScales::Plain(scales) => scales.forget(),
            PackedScales::Double { codes, scales, .. } => {
                codes.forget();
                scales.forget();
            }
        }
    }
}

/// Whether a tensor is part of a weight's quantisation state, not a weight.
pub(crate) fn is_part(name: &str) -> bool {
    const PARTS: [&str; 4] = ["absmax", "quant_map", "nested_absmax", "nested_quant_map"];
    let part = name.rsplit_once(".weight.").map_or("", |(_, part)| part);
    PARTS.contains(&part) || part.starts_with("quant_state.")
}

/// Quantises a tensor piece by piece on all cores: passes the bytes on in order and returns the scales of all blocks.
pub(crate) fn pack<E>(tensor: &Tensor<'_>, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<Vec<f32>, E> {
    let length: usize = tensor.shape.iter().product();
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let mut shares = vec![Share::default(); cores.min(length.div_ceil(SHARE))];
    let mut scales = Vec::with_capacity(nf4::blocks(length));
    for first in (0..length).step_by(shares.len().max(1) * SHARE) {
        let is_alone = shares.len() == 1;
        std::thread::scope(|scope| {
            for (share, begin) in shares.iter_mut().zip((first..).step_by(SHARE)) {
                let part = begin.min(length)..(begin + SHARE).min(length);
                // A single share is not worth a thread.
                match is_alone {
                    true => share.pack(tensor, part),
                    false => drop(scope.spawn(|| share.pack(tensor, part))),
                }
            }
        });
        for share in shares.iter().filter(|share| !share.packed.is_empty()) {
            take(&share.packed)?;
            scales.extend(&share.scales);
        }
    }
    Ok(scales)
}

/// The work of one thread at a time.
#[derive(Clone, Default)]
struct Share {
    values: Vec<f32>,
    packed: Vec<u8>,
    scales: Vec<f32>,
}

impl Share {
    fn pack(&mut self, tensor: &Tensor<'_>, part: Range<usize>) {
        self.packed.clear();
        self.scales.clear();
        for first in part.clone().step_by(PIECE) {
            self.values.resize(PIECE.min(part.end - first), 0.0);
            tensor.widen(first, &mut self.values);
            nf4::pack(&self.values, &mut self.packed, &mut self.scales);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;
    use garden_input::FAMILIES;

    #[test]
    fn shares_of_threads_come_in_their_order() {
        let checkpoint = Checkpoint::random(&Preset::find("qwen2.5-vl-3b").unwrap().config(), 1).unwrap();
        // More than one round on a few cores, and a shorter last share.
        for name in ["model.language_model.layers.0.mlp.down_proj.weight", "model.visual.patch_embed.proj.weight"] {
            let tensor = checkpoint.tensor(name).unwrap();
            let mut packed = Vec::new();
            let scales = pack(&tensor, |bytes| {
                packed.extend_from_slice(bytes);
                Ok::<(), ()>(())
            });
            let (mut expected, mut expected_scales) = (Vec::new(), Vec::new());
            nf4::pack(&tensor.values(), &mut expected, &mut expected_scales);
            assert!(packed == expected && scales.unwrap() == expected_scales, "{name}");
        }
    }

    #[test]
    fn what_is_kept() {
        let role = |part, kind| Role { part, kind };
        let [decoder, tower] = [Part::Decoder, Part::Tower].map(|part| role(part, Kind::Linear));
        let head = role(Part::Decoder, Kind::Head);
        let default = FourBit::default();
        assert!(default.packs("model.language_model.layers.0.mlp.up_proj", decoder));
        assert!(!default.packs("model.visual.blocks.0.attn.qkv", tower) && !default.packs("lm_head", head));
        let some = FourBit { kept: Some(vec!["visual.blocks.1".into(), "down_proj".into()]), ..default };
        assert!(!some.packs("model.visual.blocks.1.attn.qkv", tower));
        assert!(some.packs("model.visual.blocks.11.attn.qkv", tower) && some.packs("lm_head", head));
        assert!(!some.packs("model.language_model.layers.0.mlp.down_proj", decoder));
        assert!(!some.packs("model.visual.patch_embed.proj", role(Part::Tower, Kind::Convolution)));
    }

    #[test]
    fn modules_that_are_kept_have_the_names_that_transformers_knows() {
        let tensors = crate::network::declared(&garden_input::Config::tiny()).unwrap();
        assert_eq!(FourBit::default().kept_of(&tensors, FAMILIES[0]), ["model.visual", "lm_head"]);
    }
}
