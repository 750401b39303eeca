//! The files of a checkpoint or an adapter: which ones are read, as transformers does, and what is wrong with those that cannot be.

use std::fs;
use std::path::{Path, PathBuf};

use garden_files::{is_lfs_pointer, read_settings};
use serde_json::Value;

use crate::checkpoint::safetensors_writer::INDEX;
use crate::error::Error;

/// The weights of a model in one file.
pub(crate) const SINGLE: &str = "model.safetensors";

const LFS: &str = "run `git lfs install` and `git lfs pull` in the folder, or download the model with `hf download`";
const DOWNLOAD_AGAIN: &str =
    "the download or copy is not complete: run it again (`hf download` fetches only what is missing)";
const ADAPTER: &str =
    "an adapter folder has adapter_config.json and adapter_model.safetensors, as PEFT and this program save them";

/// The files with a model's weights: `model.safetensors`, which in transformers comes before an index beside it, else those that
/// `model.safetensors.index.json` names.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
    if single.exists() {
        return Ok(vec![single]);
    }
    if !index.exists() {
        let problem = format!("has no weights: neither `{SINGLE}` nor `{INDEX}`");
        return Err(Error::broken(folder, problem).advised(DOWNLOAD_AGAIN));
    }
    let files = shards(folder, &index)?;
    let missing: Vec<&PathBuf> = files.iter().filter(|file| !file.exists()).collect();
    match missing.first() {
        Some(first) => {
            let problem =
                format!("is named by `{INDEX}`, but missing ({} of {} files are)", missing.len(), files.len());
            Err(Error::broken(first, problem).advised(DOWNLOAD_AGAIN))
        }
        None => Ok(files),
    }
}

/// A file with weights that are not read, since another one comes first.
pub fn unread_weights(folder: &Path) -> Option<String> {
    let is_beside = folder.join(SINGLE).exists() && folder.join(INDEX).exists();
    is_beside.then(|| {
        format!("the weights are those of `{SINGLE}`; the files of `{INDEX}` are not read, as in transformers")
    })
}

fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, Error> {
    let text = read_settings(index).map_err(|error| Error::file(index, error))?;
    if is_lfs_pointer(text.as_bytes()) {
        return Err(pointer(index));
    }
    let value: Value =
        serde_json::from_str(&text).map_err(|error| Error::broken(index, format!("not JSON: {error}")))?;
    let map = value
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::field(index, "weight_map", "is missing"))?;
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Why the bytes of a file are no tensors.
pub(crate) fn no_tensors(path: &Path, bytes: &[u8], error: &safetensors::SafeTensorError) -> Error {
    if is_lfs_pointer(bytes) {
        return pointer(path);
    }
    let cut = |problem: String| Error::broken(path, format!("is cut off: {problem}")).advised(DOWNLOAD_AGAIN);
    let length = bytes.len();
    match header(bytes) {
        _ if length < 8 => cut(format!("it has {length} bytes")),
        Some(None) => cut(format!("it ends within its header, after {length} bytes")),
        Some(Some(header)) if whole_length(header).is_some_and(|whole| whole > length) => {
            cut(format!("it has {length} of {} bytes", whole_length(header).unwrap_or(0)))
        }
        _ => Error::broken(path, format!("not a safetensors file: {error}")),
    }
}

/// The text of a header, or nothing where that is cut off; `None` if the first bytes tell no possible length of one.
fn header(bytes: &[u8]) -> Option<Option<&[u8]>> {
    const LONGEST: u64 = 100 << 20;
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (length <= LONGEST).then(|| bytes.get(8..8 + length as usize))
}

/// How long a file with this header is.
fn whole_length(header: &[u8]) -> Option<usize> {
    let tensors: Value = serde_json::from_slice(header).ok()?;
    let ends = tensors.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    Some(8 + header.len() + ends.max().unwrap_or(0) as usize)
}

fn pointer(path: &Path) -> Error {
    Error::broken(path, "is a Git LFS pointer: the file itself was not fetched").advised(LFS)
}

/// Refuses a folder that is no adapter with what it is instead.
pub(crate) fn check_adapter_folder(folder: &Path) -> Result<(), Error> {
    let has = |name: &str| folder.join(name).exists();
    let refused = |problem: &str, hint: String| Err(Error::broken(folder, problem).advised(hint));
    match () {
        () if !folder.exists() => refused("no such folder", ADAPTER.to_string()),
        () if has("adapter_config.json") && !has("adapter_model.safetensors") && has("adapter_model.bin") => refused(
            "has its weights only as `adapter_model.bin`; only adapter_model.safetensors is read",
            "load and save the adapter with PEFT once: it writes safetensors".to_string(),
        ),
        () if has("adapter_config.json") => Ok(()),
        () if has("config.json") => {
            refused("is a model, not an adapter", "pass the folder as --model, without --adapter".to_string())
        }
        () => match newest_checkpoint(folder) {
            Some(name) => refused(
                "is the output folder of a training run without a result",
                format!("pass a checkpoint, such as `{}`, or resume the run to its end", folder.join(name).display()),
            ),
            None => refused("is not an adapter: it has no adapter_config.json", ADAPTER.to_string()),
        },
    }
}

fn newest_checkpoint(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let step = |name: &String| name.strip_prefix("checkpoint-")?.parse::<usize>().ok();
    names.filter(|name| step(name).is_some()).max_by_key(step)
}
