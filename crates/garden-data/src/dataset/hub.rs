//! Datasets and models by hub name, found in the local cache of `huggingface_hub`. Nothing is downloaded.

use std::env;
use std::path::{Path, PathBuf};

use garden_input::{Family, download_hint, supported};

use super::model_files;
use crate::error::Error;

/// Whether a text could be a dataset name on the hub: `owner/name`.
pub(crate) fn is_name(text: &str) -> bool {
    let usable = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let Some((owner, name)) = text.split_once('/') else { return false };
    // A mistyped path is more likely than a dataset named like a file.
    let file = [".jsonl", ".json", ".parquet", ".tar"].iter().any(|ending| name.ends_with(ending));
    usable(owner) && usable(name) && !file
}

/// The hub's local cache, as set by the environment; it need not exist.
pub fn cache() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("HF_HUB_CACHE")
        .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(folder("HF_HOME")?.join("hub")))
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| Some(folder("HOME")?.join(".cache/huggingface/hub")))
}

/// Formats of weights that are not read, as names of models have them.
const UNREAD: [&str; 12] =
    ["awq", "gptq", "gguf", "fp8", "int8", "int4", "-8bit", "mlx", "exl2", "onnx", "openvino", "w4a16"];

/// Kind of hub repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Dataset,
    Model,
}

/// The folder of a model: the path itself, or the newest snapshot of the hub model with this name in the local cache. A folder that is seen to be
/// something else is refused.
pub fn model_folder(path: &str) -> Result<PathBuf, Error> {
    let folder = named_folder(path)?;
    model_files::check(&folder)?;
    Ok(folder)
}

fn named_folder(path: &str) -> Result<PathBuf, Error> {
    let given = Path::new(path);
    if given.is_dir() {
        return Ok(given.to_path_buf());
    }
    if given.exists() {
        let hint = "a model folder has config.json, model.safetensors and tokenizer.json";
        return Err(Thing::Model.error(given, "is a file, not a model folder").with_hint(hint));
    }
    if !is_name(path) {
        return Err(Thing::Model.error(given, "no such folder").with_hint(download_hint()));
    }
    let no_cache = || Thing::Model.error(given, "no such folder, and no hub cache, as HOME is not set");
    snapshot(&cache().ok_or_else(no_cache)?, Thing::Model, path)
}

impl Thing {
    /// How to get what is not in the cache; a model only if it can be of a kind that is supported.
    fn download(self, name: &str, option: &str) -> String {
        let lower = name.to_ascii_lowercase();
        let is_read = Family::of_name(name).is_some() && !UNREAD.iter().any(|word| lower.contains(word));
        let is_other = self == Thing::Model && !is_read;
        match is_other {
            true => format!("nothing is downloaded here; {}", supported()),
            false => format!("nothing is downloaded here: run `hf download {option}{name}`"),
        }
    }

    fn error(self, name: &Path, problem: impl Into<String>) -> Error {
        match self {
            Thing::Dataset => Error::dataset(name, problem),
            Thing::Model => Error::Folder { path: name.to_path_buf(), problem: problem.into(), hint: None },
        }
    }
}

/// The newest snapshot in the cache: the one `main` refers to, else the only one.
pub(crate) fn snapshot(cache: &Path, thing: Thing, name: &str) -> Result<PathBuf, Error> {
    let (prefix, option) = match thing {
        Thing::Dataset => ("datasets", "--repo-type dataset "),
        Thing::Model => ("models", ""),
    };
    let folder = cache.join(format!("{prefix}--{}", name.replace('/', "--")));
    let snapshots = folder.join("snapshots");
    if let Ok(revision) = std::fs::read_to_string(folder.join("refs/main")) {
        let path = snapshots.join(revision.trim());
        if path.is_dir() {
            return Ok(path);
        }
    }
    let present: Vec<PathBuf> = std::fs::read_dir(&snapshots)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    match &present[..] {
        [one] => Ok(one.clone()),
        [] => Err(thing
            .error(Path::new(name), format!("no such file or folder, and not in the hub's cache `{}`", cache.display()))
            .with_hint(thing.download(name, option))),
        several => Err(thing
            .error(
                Path::new(name),
                format!("has {} snapshots in `{}` and no `main`", several.len(), snapshots.display()),
            )
            .with_hint("pass the path of one")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{Thing, is_name, snapshot};

    #[test]
    fn the_snapshot_that_main_is() {
        let cache = std::env::temp_dir().join(format!("garden-hub-{}", std::process::id()));
        let folder = cache.join("datasets--owner--name");
        std::fs::create_dir_all(folder.join("snapshots/abc")).unwrap();
        assert_eq!(snapshot(&cache, Thing::Dataset, "owner/name").unwrap(), folder.join("snapshots/abc"));
        std::fs::create_dir_all(folder.join("snapshots/def")).unwrap();
        assert!(snapshot(&cache, Thing::Dataset, "owner/name").unwrap_err().to_string().contains("has 2 snapshots"));
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "def\n").unwrap();
        assert_eq!(snapshot(&cache, Thing::Dataset, "owner/name").unwrap(), folder.join("snapshots/def"));
        assert_eq!(
            snapshot(&cache, Thing::Dataset, "owner/other").unwrap_err().hint().unwrap().matches("hf download").count(),
            1
        );
        std::fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn names() {
        assert!(is_name("HuggingFaceM4/the_cauldron") && is_name("a/b-1.2"));
        assert!(
            !is_name("train.jsonl")
                && !is_name("data/train.jsonl")
                && !is_name("/data/x")
                && !is_name("../x")
                && !is_name("a/b/c")
        );
    }
}
