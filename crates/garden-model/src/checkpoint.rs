//! Checkpoints: memory-mapped safetensors files; or shapes alone, enough for a plan, optionally with random values.

pub(crate) mod adapter;
pub(crate) mod adapter_config;
pub(crate) mod drawn;
pub(crate) mod files;
pub(crate) mod full;
pub(crate) mod layout;
pub(crate) mod mapped;
pub(crate) mod merge;
pub(crate) mod nf4_checkpoint;
pub(crate) mod quantise;
pub(crate) mod safetensors_writer;
pub(crate) mod samples;
pub(crate) mod sum;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use garden_device::Dtype;
use memmap2::{Mmap, UncheckedAdvice};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::checkpoint::drawn::{Drawn, Sheet};
use crate::checkpoint::files::{no_tensors, weight_files};
use crate::checkpoint::mapped::{Watched, watch};
use crate::error::Error;
use crate::network::declared;
use crate::network::role::Declared;
use garden_files::open;
use garden_input::{Config, Family};

/// The kernel brings pages around a page of a file that is touched, if its cache has them: 64 KiB, unless `fault_around_bytes` says otherwise.
const BROUGHT_ALONG: usize = 64 << 10;

/// The files of a checkpoint and the location of each tensor.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    files: Vec<MappedFile>,
    /// Backing of random values.
    sheet: Option<Sheet>,
    tensors: BTreeMap<String, Place>,
    /// Whether it has every tensor that is asked for, in its shape.
    is_declaring: bool,
}

/// A mapped file.
#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: Mmap,
    /// Dropped before the file is closed.
    _watched: Watched,
    file: File,
}

#[derive(Debug)]
struct Place {
    /// The name in the file.
    name: String,
    values: Values,
    dtype: FileDtype,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

/// Location of a tensor's values.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Shape only.
    Nowhere,
    /// In the file with this index.
    File(usize),
    /// On the sheet of random values.
    Drawn(Drawn),
}

/// The backing of a tensor's pages.
#[derive(Clone, Copy, Debug)]
enum Pages<'a> {
    None,
    File(&'a Mmap),
    Sheet(&'a Sheet),
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The tensor's file.
    pub path: &'a Path,
    /// The dtype.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: &'a [usize],
    /// The values in row-major order; empty in a checkpoint of shapes.
    pub bytes: &'a [u8],
    pages: Pages<'a>,
    begin: usize,
}

/// A tensor under its name in the file.
pub(crate) struct Stored<'a> {
    pub name: &'a str,
    /// Its newer name.
    pub newer: &'a str,
    pub tensor: Tensor<'a>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, else the files listed in `model.safetensors.index.json`.
    pub fn open(folder: &Path) -> Result<Checkpoint, Error> {
        let paths = weight_files(folder)?;
        let (mut checkpoint, newer) = (Checkpoint::without_files(folder), Family::of_folder(folder).names.newer);
        for path in paths {
            checkpoint.add(&path, newer)?;
        }
        Ok(checkpoint)
    }

    /// Opens one file.
    pub fn open_file(path: &Path) -> Result<Checkpoint, Error> {
        let mut checkpoint = Checkpoint::without_files(path);
        checkpoint.add(path, str::to_string)?;
        Ok(checkpoint)
    }

    /// A checkpoint without files: all tensors of a model with this configuration, in one dtype, without values. A model can be built from it on
    /// a device that does not compute, such as a planner.
    pub fn of_shapes(config: &Config, dtype: Dtype) -> Result<Checkpoint, Error> {
        let file_dtype = match dtype {
            Dtype::F32 => FileDtype::F32,
            Dtype::Bf16 => FileDtype::BF16,
            Dtype::F16 => FileDtype::F16,
            Dtype::I32 => FileDtype::I32,
            Dtype::U8 => FileDtype::U8,
        };
        let place = |Declared { name, shape, .. }: Declared| {
            (name.clone(), Place { name, values: Values::Nowhere, dtype: file_dtype, shape, begin: 0, end: 0 })
        };
        let tensors = declared(config)?.into_iter().map(place).collect();
        Ok(Checkpoint { tensors, ..Checkpoint::without_files(Path::new("shapes of a model")) })
    }

    fn without_files(folder: &Path) -> Checkpoint {
        let (folder, tensors) = (folder.to_path_buf(), BTreeMap::new());
        Checkpoint { folder, files: Vec::new(), sheet: None, tensors, is_declaring: false }
    }

    /// A checkpoint that has whatever is asked of it: building a model from it tells all names and shapes of its tensors.
    pub(crate) fn declaring() -> Checkpoint {
        Checkpoint { is_declaring: true, ..Checkpoint::without_files(Path::new("any tensors")) }
    }

    /// A checkpoint without files, with random bf16 values: matrices initialised as for training, norms of 1 and biases of 0. The same seed
    /// gives the same values. They repeat after some million, so they take little memory whatever the size of the model.
    pub fn random(config: &Config, seed: u64) -> Result<Checkpoint, Error> {
        let mut checkpoint = Checkpoint::of_shapes(config, Dtype::Bf16)?;
        checkpoint.folder = PathBuf::from("random weights");
        let tensors = declared(config)?;
        let bytes = |tensor: &Declared| tensor.shape.iter().product::<usize>() * Dtype::Bf16.size();
        let most = |is_vector: bool| {
            let some = tensors.iter().filter(|tensor| is_vector == (tensor.role.drawn() != Drawn::Noise));
            some.map(bytes).max().unwrap_or(0)
        };
        let sheet = Sheet::draw(most(false), most(true), seed);
        let sheet = sheet.map_err(|error| Error::file(&checkpoint.folder, error))?;
        for tensor in &tensors {
            let Some(place) = checkpoint.tensors.get_mut(&tensor.name) else { continue };
            let drawn = tensor.role.drawn();
            (place.begin, place.values) = (sheet.place(drawn, &tensor.name, seed), Values::Drawn(drawn));
            place.end = place.begin + bytes(tensor);
        }
        checkpoint.sheet = Some(sheet);
        Ok(checkpoint)
    }

    /// Adds the tensors of a file, under their newer names.
    fn add(&mut self, path: &Path, newer: fn(&str) -> String) -> Result<(), Error> {
        let (file, _) = open(path).map_err(|error| Error::file(path, error))?;
        // SAFETY: the file is only read. Truncating it while a tensor of it is being read ends this program (`mapped.rs`); a file truncated before is
        // refused (`is_there`).
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::file(path, error))?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| no_tensors(path, &map, &error))?;
        let start = header + 8;
        for (name, info) in metadata.tensors() {
            let (begin, end) = (start + info.data_offsets.0, start + info.data_offsets.1);
            if end > map.len() {
                let problem = format!("ends at byte {end}, but the file has {}: it is truncated", map.len());
                return Err(Error::tensor(path, name, problem));
            }
            let key = newer(&name);
            let (values, shape) = (Values::File(self.files.len()), info.shape.clone());
            self.tensors.insert(key, Place { name, values, dtype: info.dtype, shape, begin, end });
        }
        let _watched = watch(path, &file, map.len() as u64);
        self.files.push(MappedFile { path: path.to_path_buf(), map, _watched, file });
        Ok(())
    }

    /// The tensors of each file, in order, under their names in the file.
    pub(crate) fn files(&self) -> Result<Vec<(&Path, Vec<Stored<'_>>)>, Error> {
        let mut files: Vec<(&Path, Vec<Stored<'_>>)> =
            self.files.iter().map(|file| (file.path.as_path(), Vec::new())).collect();
        for (name, place) in &self.tensors {
            let Values::File(file) = place.values else { continue };
            files[file].1.push(Stored { name: &place.name, newer: name, tensor: self.any(name)? });
        }
        files.iter_mut().for_each(|file| file.1.sort_by_key(|stored| stored.tensor.begin));
        Ok(files)
    }

    /// Number of values in all tensors: the parameters of an unquantised model.
    pub fn parameters(&self) -> usize {
        self.tensors.values().map(|place| place.shape.iter().product::<usize>()).sum()
    }

    /// The name of a tensor in its file, given its newer name.
    pub(crate) fn stored_name(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|place| place.name.as_str())
    }

    /// The floating-point dtype of most values.
    pub(crate) fn usual_dtype(&self) -> Dtype {
        let values = |wanted: FileDtype| {
            let places = self.tensors.values().filter(move |place| place.dtype == wanted);
            places.map(|place| place.shape.iter().product::<usize>()).sum::<usize>()
        };
        let dtypes = [(FileDtype::F32, Dtype::F32), (FileDtype::F16, Dtype::F16), (FileDtype::BF16, Dtype::Bf16)];
        dtypes.into_iter().max_by_key(|(dtype, _)| values(*dtype)).map_or(Dtype::F32, |(_, dtype)| dtype)
    }

    /// Bytes of a tensor as stored, or as it would be stored.
    pub fn stored_bytes(&self, name: &str) -> usize {
        let values = |place: &Place| place.shape.iter().product::<usize>();
        self.tensors.get(name).map_or(0, |place| values(place) * place.dtype.bitsize() / 8)
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The newer names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The first 4-bit weight, if there is one.
    pub fn packed_weight(&self) -> Option<&str> {
        self.names().find_map(|name| name.split_once(".quant_state.bitsandbytes__").map(|(weight, _)| weight))
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A floating-point tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let tensor = self.any(name)?;
        match tensor.dtype {
            Dtype::U8 => Err(Error::tensor(tensor.path, name, "is U8; expected F32, BF16 or F16")),
            _ => Ok(tensor),
        }
    }

    /// A floating-point or byte tensor.
    pub(crate) fn any(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let place = self.tensors.get(name).ok_or_else(|| Error::tensor(&self.folder, name, "is missing"))?;
        let path = self.path_of(place);
        let dtype = match place.dtype {
            FileDtype::F32 => Dtype::F32,
            FileDtype::BF16 => Dtype::Bf16,
            FileDtype::F16 => Dtype::F16,
            FileDtype::U8 => Dtype::U8,
            other => return Err(Error::tensor(path, name, format!("is {other:?}; expected F32, BF16 or F16"))),
        };
        self.is_there(place)?;
        let (bytes, pages) = self.bytes_of(place);
        Ok(Tensor { path, dtype, shape: &place.shape, bytes, pages, begin: place.begin })
    }

    fn path_of(&self, place: &Place) -> &Path {
        match place.values {
            Values::File(file) => &self.files[file].path,
            _ => &self.folder,
        }
    }

    /// Refuses a tensor whose file was truncated since it was opened: reading the missing pages would end this program.
    fn is_there(&self, place: &Place) -> Result<(), Error> {
        let Values::File(file) = place.values else { return Ok(()) };
        let MappedFile { path, file, .. } = &self.files[file];
        let length = file.metadata().map_err(|error| Error::file(path, error))?.len();
        if (place.end as u64) <= length {
            return Ok(());
        }
        let problem =
            format!("ends at byte {}, but the file now has {length}: it was truncated while in use", place.end);
        Err(Error::tensor(path, &place.name, problem))
    }

    fn bytes_of(&self, place: &Place) -> (&[u8], Pages<'_>) {
        let part = place.begin..place.end;
        match (place.values, &self.sheet) {
            (Values::File(file), _) => (&self.files[file].map[part], Pages::File(&self.files[file].map)),
            (Values::Drawn(Drawn::Noise), Some(sheet)) => (&sheet.bytes(Drawn::Noise)[part], Pages::Sheet(sheet)),
            (Values::Drawn(vector), Some(sheet)) => (&sheet.bytes(vector)[part], Pages::None),
            _ => (&[], Pages::None),
        }
    }

    /// A tensor of 64-bit or 32-bit integers.
    pub fn whole_numbers(&self, name: &str) -> Result<Vec<i64>, Error> {
        let place = self.tensors.get(name).ok_or_else(|| Error::tensor(&self.folder, name, "is missing"))?;
        let path = self.path_of(place);
        self.is_there(place)?;
        let bytes = self.bytes_of(place).0;
        match place.dtype {
            FileDtype::I64 => Ok(bytes
                .chunks_exact(8)
                .map(|eight| i64::from_le_bytes(eight.try_into().unwrap_or_default()))
                .collect()),
            FileDtype::I32 => {
                let wide = |four: &[u8]| i64::from(i32::from_le_bytes(four.try_into().unwrap_or_default()));
                Ok(bytes.chunks_exact(4).map(wide).collect())
            }
            other => Err(Error::tensor(path, name, format!("is {other:?}; expected I64 or I32"))),
        }
    }

    /// Refuses weights that mean something else than their configuration says, as transformers would read them.
    pub(crate) fn check(&self, config: &Config) -> Result<(), Error> {
        if config.is_quantised && !self.files.is_empty() && self.packed_weight().is_none() {
            let path = self.folder.join("config.json");
            let problem = "is there, but the weights are not quantised: transformers would quantise them while loading";
            let hint = "remove the field from config.json; --load-in-4bit packs the weights while loading";
            return Err(Error::field(&path, "quantization_config", problem).advised(hint));
        }
        let names = &config.family.names;
        if !config.is_tied || !self.has(names.head) || !self.has(names.embedding) {
            return Ok(());
        }
        let (head, embedding) = (self.any(names.head)?, self.any(names.embedding)?);
        let is_equal = (head.dtype, head.shape, head.bytes) == (embedding.dtype, embedding.shape, embedding.bytes);
        head.forget();
        embedding.forget();
        if is_equal {
            return Ok(());
        }
        let problem =
            "differs from the embedding, though `tie_word_embeddings` in config.json says that they are the same";
        let hint = "set every `tie_word_embeddings` in config.json to false to use this head, as transformers does; \
                    or save the model without it";
        Err(Error::tensor(head.path, names.head, problem).advised(hint))
    }

    /// A tensor of this shape; trailing dimensions may be merged (the patch embedding's convolution is a matrix in some files).
    pub(crate) fn shaped(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, Error> {
        if self.is_declaring {
            let (path, dtype, pages) = (self.folder.as_path(), Dtype::F32, Pages::None);
            return Ok(Tensor { path, dtype, shape: &[], bytes: &[], pages, begin: 0 });
        }
        let tensor = self.tensor(name)?;
        let is_same = tensor.shape == shape
            || (shape.len() >= 2
                && tensor.shape.first() == shape.first()
                && tensor.shape.iter().product::<usize>() == shape.iter().product::<usize>());
        if !is_same {
            return Err(Error::tensor(
                tensor.path,
                name,
                format!("has the shape {:?}; the configuration says {shape:?}", tensor.shape),
            ));
        }
        Ok(tensor)
    }
}

impl Tensor<'_> {
    /// The values as f32.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.bytes.len() / self.dtype.size()];
        self.widen(0, &mut values);
        values
    }

    /// Values as f32, starting at index `first`.
    pub(crate) fn widen(&self, first: usize, to: &mut [f32]) {
        let size = self.dtype.size();
        self.dtype.widen(&self.bytes[first * size..][..to.len() * size], to);
    }

    /// Lets the kernel drop the pages of the file; they are read again if needed.
    pub fn forget(&self) {
        self.forget_part(0..self.bytes.len());
    }

    /// Drops the pages of a byte range, and those around it that the kernel brought along; neighbours on them are read again, too.
    pub(crate) fn forget_part(&self, part: Range<usize>) {
        let begin = self.begin + part.start;
        match self.pages {
            Pages::None => {}
            Pages::File(map) => {
                let first = begin.saturating_sub(BROUGHT_ALONG);
                let end = (begin + part.len() + BROUGHT_ALONG).min(map.len());
                // SAFETY: the mapping is of a file and only read, so the same bytes come back.
                let told = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first) };
                // If the kernel ignores the advice it keeps the pages, which is harmless.
                drop(told);
            }
            Pages::Sheet(sheet) => sheet.forget(begin..begin + part.len()),
        }
    }

    /// Whether it has values; a checkpoint of shapes has none.
    pub(crate) fn has_values(&self) -> bool {
        self.bytes.len() == self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Index of the first NaN or infinite value, if there is one.
    pub(crate) fn not_finite(&self) -> Option<usize> {
        not_finite(self.dtype, self.bytes)
    }
}

/// Index of the first NaN or infinite value, if there is one.
pub(crate) fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    // A value is finite unless all bits of its exponent are set.
    match dtype {
        Dtype::F32 => position(bytes, |four: [u8; 4]| u32::from_le_bytes(four) & 0x7f80_0000 == 0x7f80_0000),
        Dtype::Bf16 => position(bytes, |two: [u8; 2]| u16::from_le_bytes(two) & 0x7f80 == 0x7f80),
        _ => position(bytes, |two: [u8; 2]| u16::from_le_bytes(two) & 0x7c00 == 0x7c00),
    }
}

/// Index of the first wrong value. Chunk by chunk, without early exit inside a chunk: so the loop is vectorised, and gigabytes take
/// no longer than reading them.
fn position<const N: usize>(bytes: &[u8], is_wrong: impl Fn([u8; N]) -> bool) -> Option<usize> {
    const PIECE: usize = 4096;
    let (values, _) = bytes.as_chunks::<N>();
    let has_wrong = |piece: &[[u8; N]]| piece.iter().fold(false, |found, value| found | is_wrong(*value));
    let first = PIECE * values.chunks(PIECE).position(has_wrong)?;
    values[first..].iter().position(|value| is_wrong(*value)).map(|place| first + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_found_wherever_it_is() {
        // Infinity and NaN.
        let cases: [(Dtype, [&[u8]; 2]); 3] = [
            (Dtype::F32, [&[0, 0, 0x80, 0x7f], &[1, 0, 0x80, 0xff]]),
            (Dtype::Bf16, [&[0x80, 0xff], &[0xc0, 0x7f]]),
            (Dtype::F16, [&[0, 0x7c], &[1, 0xfc]]),
        ];
        let values: Vec<f32> = (0..10_000).map(|place| (place as f32 - 5000.0) * 13.0).collect();
        for (dtype, wrong) in cases {
            let mut finite = vec![0; values.len() * dtype.size()];
            dtype.narrow(&values, &mut finite);
            assert_eq!((not_finite(dtype, &finite), not_finite(dtype, &[])), (None, None), "{dtype:?}");
            for (place, wrong) in [0, 4095, 4096, 9999].into_iter().flat_map(|place| wrong.map(|wrong| (place, wrong)))
            {
                let mut bytes = finite.clone();
                for place in [place, 9999] {
                    bytes[place * dtype.size()..][..dtype.size()].copy_from_slice(wrong);
                }
                assert_eq!(not_finite(dtype, &bytes), Some(place), "{dtype:?}");
            }
        }
    }
}
