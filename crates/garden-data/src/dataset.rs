//! Datasets: an index of row positions, and access to one row at a time.
//!
//! Opening reads each file once from front to back and keeps 16 bytes per row. Rows stay in their files, with their pictures compressed; reading a row
//! holds only that row. Memory therefore depends on the number of rows through the index alone, and not on their size.
//! Errors in a row surface when it is read; whether they end a run is up to the caller.

pub(crate) mod base64;
mod calls;
pub(crate) mod conversation;
mod convert;
pub(crate) mod field_names;
pub(crate) mod file;
mod folder;
pub(crate) mod free;
mod hub;
mod joined;
mod json_file;
mod model_files;
mod order;
mod parquet;
mod picture;
mod prefetch;
mod reach;
pub(crate) mod record;
mod stored;
mod suspect;
mod tar;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use conversation::unnumbered;
pub use hub::{cache as hub_cache, model_folder};
pub use joined::{Portion, Source};
pub use order::Order;
pub use prefetch::{Ahead, Prefetch};
pub use reach::ImagePaths;

use crate::dataset::record::Record;
use crate::error::Error;
use crate::example::outline::Outline;
use conversation::{LoneText, Row};
use field_names::FieldNames;
use json_file::JsonFile;
use parquet::{Parquet, Readers};
use reach::Reach;
use stored::Span;
use tar::Tar;

/// The default split.
const TRAIN: &str = "train";
/// Bytes needed to recognise a file: a tar header.
const BEGINNING: u64 = 512;

/// Rows of one or more files.
#[derive(Debug)]
pub struct Dataset {
    shards: Vec<Shard>,
    /// The cumulative number of rows, shard by shard.
    ends: Vec<usize>,
    /// The files, as they were found.
    files: Vec<PathBuf>,
    /// The datasets that it was joined from; one, unless several were.
    portions: Vec<Portion>,
    /// The rows of the files that are its rows, ascending, where not all are.
    drawn: Option<Vec<u32>>,
    /// What the user says about fields.
    names: FieldNames,
    /// The split that was asked for.
    split: Split,
}

/// What rows are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    Train,
    Other,
}

/// A file of rows.
#[derive(Debug)]
enum Shard {
    Json(JsonFile),
    Tar(Tar),
    Parquet(Parquet),
}

impl Dataset {
    /// Opens a file, the training split of a folder, or a dataset of the hub's local cache (`owner/name`).
    pub fn open(path: &Path) -> Result<Dataset, Error> {
        Dataset::open_split(path, TRAIN)
    }

    /// Opens another split: `train`, `validation` or `test`. A single file counts as the requested split, whatever its name.
    pub fn open_split(path: &Path, split: &str) -> Result<Dataset, Error> {
        Dataset::open_with(path, split, None)
    }

    /// Opens a split, with a rule for the picture files that its rows may name. By default rows of a file or folder may name any file,
    /// and rows of a hub dataset only files that came with it.
    pub fn open_with(path: &Path, split: &str, paths: Option<ImagePaths>) -> Result<Dataset, Error> {
        Dataset::open_named(path, split, paths, &FieldNames::default())
    }

    /// Opens a split whose fields mean what `names` says.
    pub fn open_named(
        path: &Path,
        split: &str,
        paths: Option<ImagePaths>,
        names: &FieldNames,
    ) -> Result<Dataset, Error> {
        let mut dataset = Dataset::find(path, split, paths, names)?;
        dataset.split = if split == TRAIN { Split::Train } else { Split::Other };
        Ok(dataset)
    }

    /// Finds the files of a split, and opens them.
    fn find(path: &Path, split: &str, paths: Option<ImagePaths>, names: &FieldNames) -> Result<Dataset, Error> {
        let own = paths.unwrap_or(ImagePaths::Anywhere);
        if path.is_dir() {
            return Dataset::of_files(path, &folder::files(path, split)?, own, path, names);
        }
        let name = path.to_string_lossy();
        if path.exists() {
            return Dataset::of_files(path, &[path.to_path_buf()], own, path.parent().unwrap_or(Path::new("")), names);
        }
        if let Some((scheme, _)) = name.split_once("://") {
            let problem = format!("is a remote URL (`{scheme}`)");
            return Err(
                Error::dataset(path, problem).with_hint("nothing is downloaded: fetch it first and pass its path")
            );
        }
        if !hub::is_name(&name) {
            let error = Error::dataset(path, "no such file or folder");
            return Err(match joined::hint(&name) {
                Some(hint) => error.with_hint(hint),
                None => error,
            });
        }
        let no_cache = || Error::dataset(path, "no such file or folder, and no hub cache, as HOME is not set");
        let snapshot = hub::snapshot(&hub::cache().ok_or_else(no_cache)?, hub::Thing::Dataset, &name)?;
        // Files of a snapshot are links into another folder of the same repository.
        let repository = snapshot.ancestors().nth(2).unwrap_or(&snapshot);
        let paths = paths.unwrap_or(ImagePaths::Inside);
        Dataset::of_files(path, &folder::files(&snapshot, split)?, paths, repository, names)
    }

    fn of_files(
        path: &Path,
        files: &[PathBuf],
        paths: ImagePaths,
        folder: &Path,
        names: &FieldNames,
    ) -> Result<Dataset, Error> {
        let readers = Readers::default();
        let reach = Arc::new(Reach::new(paths, folder).map_err(|error| Error::file(folder, error))?);
        let open = |(number, file): (usize, &PathBuf)| Shard::open(file, number, &readers, &reach, names);
        let shards = files.iter().enumerate().map(open).collect::<Result<Vec<Shard>, Error>>()?;
        let ends: Vec<usize> = shards
            .iter()
            .scan(0, |rows, shard| {
                *rows += shard.len();
                Some(*rows)
            })
            .collect();
        match ends.last() {
            None | Some(0) => Err(Error::dataset(path, "has no rows")),
            Some(rows) => {
                let portions = vec![Portion { path: path.to_path_buf(), stored: *rows, rows: *rows }];
                Ok(Dataset {
                    shards,
                    ends,
                    files: files.to_vec(),
                    portions,
                    drawn: None,
                    names: names.clone(),
                    split: Split::Other,
                })
            }
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.drawn.as_ref().map_or_else(|| self.stored(), Vec::len)
    }

    /// Number of rows in the files.
    fn stored(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are no rows. An open dataset always has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.shards.len()
    }

    /// Reads a row. The index is less than the length.
    pub fn read(&self, index: usize) -> Result<Record, Error> {
        let (shard, row) = self.locate(index);
        shard.read(row, |row| row.into_record(&self.names, self.split))
    }

    /// Reads a row, and only the headers of its pictures: enough to know their sizes. A picture with more than `max_pixels` is an error.
    pub fn outline(&self, index: usize, max_pixels: u64) -> Result<Outline, Error> {
        let (shard, row) = self.locate(index);
        shard.read(row, |row| row.into_outline(&self.names, self.split, max_pixels))
    }

    /// Size of the index in bytes.
    pub fn index_bytes(&self) -> usize {
        let of = |shard: &Shard| if matches!(shard, Shard::Parquet(_)) { 0 } else { shard.len() * size_of::<Span>() };
        self.shards.iter().map(of).sum::<usize>() + self.drawn.as_ref().map_or(0, |rows| size_of_val(rows.as_slice()))
    }

    /// The position of a row, without reading it: `train.jsonl:17`, or the row number in archives and tables.
    pub fn place(&self, index: usize) -> String {
        let (shard, row) = self.locate(index);
        match shard {
            Shard::Json(file) => file.place(row),
            Shard::Tar(file) => file.place(row),
            Shard::Parquet(file) => file.place(row),
        }
    }

    fn locate(&self, index: usize) -> (&Shard, usize) {
        assert!(index < self.len(), "row {index} of a dataset of {}", self.len());
        let index = self.drawn.as_ref().map_or(index, |rows| rows[index] as usize);
        let shard = self.ends.partition_point(|end| *end <= index);
        let before = if shard == 0 { 0 } else { self.ends[shard - 1] };
        (&self.shards[shard], index - before)
    }
}

impl Shard {
    /// Recognises a file by its content.
    fn open(
        path: &Path,
        number: usize,
        readers: &Readers,
        reach: &Arc<Reach>,
        names: &FieldNames,
    ) -> Result<Shard, Error> {
        let beginning = stored::beginning(path, BEGINNING)?;
        let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&beginning).trim_ascii_start();
        if parquet::is_parquet(&beginning) {
            return Ok(Shard::Parquet(Parquet::open(path, number, readers, reach, names)?));
        }
        if tar::is_tar(&beginning) {
            return Ok(Shard::Tar(Tar::open(path)?));
        }
        if beginning.is_empty() {
            return Err(Error::dataset(path, "is empty"));
        }
        if text.is_empty() || text.starts_with(b"{") || text.starts_with(b"[") {
            let of_pictures = path.file_name().is_some_and(|name| name == "metadata.jsonl");
            let lone_text = if of_pictures { LoneText::Caption } else { LoneText::Question };
            return Ok(Shard::Json(JsonFile::open(path, lone_text, reach)?));
        }
        Err(unknown(path, &beginning))
    }

    fn len(&self) -> usize {
        match self {
            Shard::Json(file) => file.len(),
            Shard::Tar(file) => file.len(),
            Shard::Parquet(file) => file.len(),
        }
    }

    fn read<T>(&self, row: usize, make: impl FnOnce(Row<'_>) -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Shard::Json(file) => file.read(row, make),
            Shard::Tar(file) => file.read(row, make),
            Shard::Parquet(file) => file.read(row, make),
        }
    }
}

/// The error for a file that is not a dataset: says what it seems to be.
fn unknown(path: &Path, beginning: &[u8]) -> Error {
    let error = Error::dataset(path, "is not JSON Lines, a JSON array, parquet or a tar archive");
    if let Some(hint) = convert::of_table(path, beginning) {
        return error.with_hint(hint);
    }
    match beginning {
        [0x1f, 0x8b, ..] => error.with_hint(
            "it is compressed with gzip: `gunzip` it first, as compressed files cannot be read from the middle",
        ),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => error.with_hint("it is compressed with zstd: decompress it first"),
        [b'P', b'K', ..] => error.with_hint("it is a zip archive: unpack it first"),
        [b'A', b'R', b'R', b'O', b'W', ..] | [0xff, 0xff, 0xff, 0xff, ..] => {
            error.with_hint("it is an Arrow file: convert it with `Dataset.from_file(..).to_parquet(..)`")
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => error.with_hint("it is UTF-16: save it as UTF-8"),
        _ if beginning.starts_with(b"version https://git-lfs") => {
            error.with_hint("it is a Git LFS pointer and not the file itself: fetch that with `git lfs pull`")
        }
        _ if crate::image::is_picture(beginning) => {
            error.with_hint("it is a picture: a dataset names its pictures, as in `{\"image\": \"a.jpg\", \"prompt\": ..., \"response\": ...}`")
        }
        _ => {
            let start: String = String::from_utf8_lossy(beginning).chars().take(20).collect();
            error.with_hint(format!("it begins with {start:?}; each line must be a row such as `{{\"prompt\": ..., \"response\": ...}}`"))
        }
    }
}
