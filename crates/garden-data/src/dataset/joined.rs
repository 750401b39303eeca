//! Several datasets as one, row behind row, and of each of them so many rows at most.
//!
//! Joined datasets are exactly what one file with all their rows would be. A bound on rows takes a sample: the first rows of an order that the seed
//! decides, so more rows of the same dataset contain the fewer. They stay in stored order, and the others are never read. A sample costs 4 bytes per row.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::field_names::FieldNames;
use super::{Dataset, ImagePaths, Order, Shard};
use crate::error::Error;

/// Keeps samples apart from the orders of epochs, which the same seed decides.
const SAMPLE: u64 = 0x7361_6d70_6c65_6421;
/// Keeps the samples of several datasets apart: files that belong together line by line shall not lose the same lines.
const PLACE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A dataset to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// A file, a folder, or the name of a dataset in the hub's local cache.
    pub path: PathBuf,
    /// Its split: `train`, `validation` or `test`.
    pub split: String,
    /// Rows to draw at most; all of them without.
    pub most: Option<usize>,
}

/// What a dataset contributes to a joined one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// As it was given.
    pub path: PathBuf,
    /// Rows of its files.
    pub stored: usize,
    /// Rows taken of these.
    pub rows: usize,
}

impl Dataset {
    /// Opens datasets as one, in this order. `seed` decides which rows are drawn where there is a bound.
    pub fn open_all(
        sources: &[Source],
        paths: Option<ImagePaths>,
        names: &FieldNames,
        seed: u64,
    ) -> Result<Dataset, Error> {
        let mut joined: Option<Dataset> = None;
        for (place, source) in sources.iter().enumerate() {
            let mut next = Dataset::open_named(&source.path, &source.split, paths, names)?;
            next.draw(source.most, seed ^ SAMPLE ^ PLACE.wrapping_mul(place as u64));
            joined = Some(match joined {
                None => next,
                Some(joined) => joined.followed_by(next)?,
            });
        }
        joined.ok_or_else(|| Error::dataset(Path::new(""), "no dataset is given"))
    }

    /// What each dataset contributes; one, unless several were joined.
    pub fn portions(&self) -> &[Portion] {
        &self.portions
    }

    /// Leaves so many rows at most.
    fn draw(&mut self, most: Option<usize>, seed: u64) {
        let stored = self.stored();
        let Some(most) = most.filter(|most| *most < stored) else { return };
        let order = Order::new(stored, seed);
        let mut drawn: Vec<u32> = (0..most).map(|position| order.at(0, position) as u32).collect();
        drawn.sort_unstable();
        self.portions.iter_mut().for_each(|portion| portion.rows = most);
        self.drawn = Some(drawn);
    }

    fn followed_by(mut self, mut next: Dataset) -> Result<Dataset, Error> {
        self.refuse_same_files(&next)?;
        let stored = self.stored();
        if self.drawn.is_some() || next.drawn.is_some() {
            let rows = |dataset: &Dataset, from: usize| -> Vec<u32> {
                let all = || (0..dataset.stored() as u32).collect();
                dataset.drawn.clone().unwrap_or_else(all).iter().map(|row| row + from as u32).collect()
            };
            self.drawn = Some([rows(&self, 0), rows(&next, stored)].concat());
        }
        self.share_readers(&mut next);
        self.ends.extend(next.ends.iter().map(|end| stored + end));
        self.shards.extend(next.shards);
        self.files.extend(next.files);
        self.portions.extend(next.portions);
        Ok(self)
    }

    /// Readers of tables hold memory: as many as one dataset keeps are kept for all of them together.
    fn share_readers(&self, next: &mut Dataset) {
        let readers = self.shards.iter().find_map(|shard| match shard {
            Shard::Parquet(table) => Some(table.readers()),
            _ => None,
        });
        for shard in &mut next.shards {
            if let (Shard::Parquet(table), Some(readers)) = (shard, readers) {
                table.join(readers, self.shards.len());
            }
        }
    }

    /// The same rows twice are a mistake more often than not, and there are weights for those who want them.
    fn refuse_same_files(&self, next: &Dataset) -> Result<(), Error> {
        let place = |file: &PathBuf| file.canonicalize().unwrap_or_else(|_| file.clone());
        let known: BTreeMap<PathBuf, &PathBuf> = self.files.iter().map(|file| (place(file), file)).collect();
        let Some(file) = next.files.iter().find(|file| known.contains_key(&place(file))) else { return Ok(()) };
        let path = &next.portions[0].path;
        Err(Error::dataset(path, format!("is given twice: `{}` is already part of the training data", file.display()))
            .with_hint("omit one of them; to see its rows more often than others, use `--dataset-weights`"))
    }
}

/// What other tools take for several datasets or for a sample, where a name is no file.
pub(super) fn hint(name: &str) -> Option<String> {
    let exists = |path: &str| !path.is_empty() && PathBuf::from(path).exists();
    match name.rsplit_once('#') {
        Some((path, count)) if exists(path) && count.parse::<usize>().is_ok() => {
            return Some(format!("use `--dataset {path}` with `--max-samples {count}`"));
        }
        _ => {}
    }
    let paths: Vec<&str> = name.split([',', ' ']).filter(|path| !path.is_empty()).collect();
    (paths.len() > 1 && paths.iter().all(|path| exists(path))).then(|| {
        let flags: Vec<String> = paths.iter().map(|path| format!("--dataset {path}")).collect();
        format!("pass each dataset by itself: `{}`", flags.join(" "))
    })
}
