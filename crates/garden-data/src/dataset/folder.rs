//! Finds the dataset files of a folder: hub snapshots, folders of pictures, folders of shards.
//!
//! File extensions select candidates, since folders are full of other things; content decides what they are. Splits are recognised by words in
//! file and folder names, as in Hugging Face's `datasets`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::convert;
use crate::error::Error;

/// Levels of subfolders that are searched.
const DEPTH: usize = 3;
const ENDINGS: [&str; 4] = ["jsonl", "json", "parquet", "tar"];
/// Endings of pictures.
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];
/// Names of folders with pictures of all kinds.
const OF_PICTURES: [&str; 8] = ["image", "images", "img", "imgs", "pictures", "photos", "jpegimages", "data"];
/// Bytes of a table's first line that are looked at.
const HEADER: u64 = 4096;
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
    refuse_unread(folder, &found)?;
    leave_out_reports(&mut found);
    found.sort();
    let chosen = choose(folder, split, found)?;
    refuse_mixture(folder, &chosen)?;
    Ok(chosen)
}

/// Refuses folders whose rows are in files that are not read, though there are others that are.
fn refuse_unread(folder: &Path, found: &[PathBuf]) -> Result<(), Error> {
    let is_json = |path: &PathBuf| has_ending(path, &["json"]);
    let has_picture = |path: &&PathBuf| {
        is_json(path) && PICTURES.iter().any(|ending| path.with_extension(ending).exists()) && convert::is_row(path)
    };
    if found.iter().any(|path| has_picture(&path)) {
        let command = convert::rows_beside_command(folder);
        return Err(Error::dataset(folder, "has a JSON file beside each picture")
            .with_hint(format!("`{command}` writes them down as rows")));
    }
    let is_metadata = |path: &Path| path.file_name().is_some_and(|name| name == "metadata.csv");
    match find(folder, DEPTH, &is_metadata).filter(|_| found.iter().all(is_json)) {
        Some(table) => Err(has_table(Error::dataset(folder, "has its rows in a `metadata.csv`"), &table)),
        None => Ok(()),
    }
}

/// Adds the command that converts a table in text form.
fn has_table(error: Error, table: &Path) -> Error {
    let beginning = super::stored::beginning(table, HEADER).unwrap_or_default();
    let text = String::from_utf8_lossy(&beginning);
    let command = convert::table_command(table, text.lines().next().unwrap_or_default());
    error.with_hint(format!("`{}` has to be converted: `{command}`", table.display()))
}

/// img2dataset writes a table and statistics about each archive beside it, with no picture in them.
fn leave_out_reports(found: &mut Vec<PathBuf>) {
    let archives: BTreeSet<PathBuf> =
        found.iter().filter(|path| path.extension().is_some_and(|ending| ending == "tar")).cloned().collect();
    let archive_of = |path: &Path| match path.extension()?.to_str()? {
        "parquet" => Some(path.with_extension("tar")),
        "json" => Some(path.with_file_name(format!("{}.tar", path.file_stem()?.to_str()?.strip_suffix("_stats")?))),
        _ => None,
    };
    found.retain(|path| archive_of(path).is_none_or(|archive| !archives.contains(&archive)));
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
    if let Some(table) = find(folder, DEPTH, &|path| has_ending(path, &["csv", "tsv"])) {
        return has_table(error, &table);
    }
    let find_picture = |folder: &Path| find(folder, DEPTH, &|path| has_ending(path, &PICTURES));
    // The rows that are trained, where there are folders for splits.
    let of_training = || SPLITS[0].1.iter().find_map(|name| find_picture(&folder.join(name)));
    let Some(picture) = of_training().or_else(|| find_picture(folder)) else {
        return error.with_hint("pass the folder or the file that has the rows");
    };
    if let Some(beside) = picture.parent().filter(|_| picture.with_extension("txt").exists()) {
        return error.with_hint(format!(
            "do the texts say what the pictures show? `{}` writes that down as rows",
            convert::captions_command(beside)
        ));
    }
    // A folder of pictures for each class, perhaps inside of one for each split; other names say nothing about the pictures in them.
    let says_nothing = |class: &&Path| {
        let name = class.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        OF_PICTURES.contains(&name.as_str()) || SPLITS.iter().any(|(_, words)| words.contains(&name.as_str()))
    };
    let class = picture.parent().filter(|class| !says_nothing(class));
    let classes = class.and_then(Path::parent).filter(|parent| parent.starts_with(folder));
    match classes {
        Some(classes) => error.with_hint(format!(
            "are the names of the subfolders what the pictures show? `{}` writes that down as rows; change its question as you need it",
            convert::classes_command(classes)
        )),
        None => error.with_hint("a folder of pictures needs a `metadata.jsonl` with `file_name`, `prompt` and `response`"),
    }
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.contains(&ending.to_string_lossy().to_lowercase().as_str()))
}

/// The first file of a folder, by name, that is wanted.
fn find(folder: &Path, depth: usize, is_wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let here = entries.iter().find(|path| path.is_file() && is_wanted(path)).cloned();
    let folders = || entries.iter().filter(|path| depth > 0 && path.is_dir());
    here.or_else(|| folders().find_map(|path| find(path, depth - 1, is_wanted)))
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

/// Whether the name of a split is one of those that are there to evaluate.
pub(crate) fn is_for_evaluation(split: &str) -> bool {
    let split = split.to_lowercase();
    SPLITS.iter().any(|(name, words)| *name != "train" && words.contains(&split.as_str()))
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
