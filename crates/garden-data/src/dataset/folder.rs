//! Finds the dataset files of a folder: hub snapshots, folders of pictures, folders of shards.
//!
//! File extensions select candidates, since folders are full of other things; content decides what they are. Splits are recognised by words in
//! file and folder names, as in Hugging Face's `datasets`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Levels of subfolders that are searched.
const DEPTH: usize = 3;
const ENDINGS: [&str; 4] = ["jsonl", "json", "parquet", "tar"];
/// Metadata files beside the data.
const ABOUT: [&str; 6] =
    ["dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "config.json", "package.json"];
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The files of a split, sorted by name.
pub(crate) fn files(folder: &Path, split: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    collect(folder, DEPTH, &mut found)?;
    let is_metadata = |path: &PathBuf| path.file_name().is_some_and(|name| name == "metadata.jsonl");
    if found.iter().any(is_metadata) {
        found.retain(is_metadata);
    }
    if found.is_empty() {
        return Err(no_files(folder));
    }
    found.sort();
    let chosen = choose(folder, split, found)?;
    refuse_mixture(folder, &chosen)?;
    Ok(chosen)
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |error| Error::file(folder, error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        if name.starts_with('.') || ABOUT.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            if depth > 0 {
                collect(&path, depth - 1, found)?;
            }
        } else if ENDINGS.contains(&ending) {
            found.push(path);
        }
    }
    Ok(())
}

fn no_files(folder: &Path) -> Error {
    let has = |name: &str| folder.join(name).exists();
    let error = Error::dataset(folder, "has no rows: no .jsonl, .json, .parquet or .tar file");
    if has("state.json") || has("dataset_dict.json") {
        return error
            .with_hint("this is what `save_to_disk` writes; convert it with `dataset.to_parquet(\"train.parquet\")`");
    }
    if has("metadata.csv") {
        return error.with_hint("folders of pictures need `metadata.jsonl`, not `metadata.csv`");
    }
    error.with_hint("a folder of pictures needs a `metadata.jsonl` with `file_name`, `prompt` and `response`")
}

/// Selects the files of a split. If no name mentions a split, all files are training data.
fn choose(folder: &Path, split: &str, found: Vec<PathBuf>) -> Result<Vec<PathBuf>, Error> {
    let split =
        SPLITS.iter().find(|(name, words)| *name == split || words.contains(&split)).map_or(split, |(name, _)| name);
    let splits: BTreeSet<&str> = found.iter().filter_map(|path| split_of(folder, path)).collect();
    let wanted = |path: &PathBuf| split_of(folder, path).unwrap_or("train") == split;
    let chosen: Vec<PathBuf> = found.into_iter().filter(wanted).collect();
    if chosen.is_empty() {
        let splits: Vec<&str> = splits.into_iter().collect();
        let names = if splits.is_empty() { "train".to_string() } else { splits.join(", ") };
        let (path, split) = (folder.to_path_buf(), split.to_string());
        return Err(Error::NoSplit { path, split, hint: format!("there is: {names}") });
    }
    Ok(chosen)
}

/// The split in a file's name, else in the names of its folders.
fn split_of(folder: &Path, path: &Path) -> Option<&'static str> {
    let inside = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().to_lowercase();
    inside.rsplit('/').find_map(|part| {
        part.split(|character: char| !character.is_ascii_alphanumeric())
            .find_map(|word| SPLITS.iter().find(|(_, words)| words.contains(&word)).map(|(name, _)| *name))
    })
}

/// Refuses files of several types or folders: most likely the same rows twice, or several datasets.
fn refuse_mixture(folder: &Path, files: &[PathBuf]) -> Result<(), Error> {
    let kinds: BTreeSet<String> =
        files.iter().map(|path| path.extension().unwrap_or_default().to_string_lossy().to_lowercase()).collect();
    if kinds.len() > 1 {
        let kinds: Vec<String> = kinds.into_iter().map(|kind| format!(".{kind}")).collect();
        return Err(Error::dataset(folder, format!("has several kinds of files: {}", kinds.join(", ")))
            .with_hint("pass the file, or a folder with one kind"));
    }
    let folders: BTreeSet<&Path> = files.iter().filter_map(|path| path.parent()).collect();
    if folders.len() > 1 {
        let names: Vec<String> = folders.iter().take(5).map(|path| format!("`{}`", path.display())).collect();
        return Err(Error::dataset(folder, format!("contains several datasets, in {} folders", folders.len()))
            .with_hint(format!("pass one of them: {}", names.join(", "))));
    }
    Ok(())
}
