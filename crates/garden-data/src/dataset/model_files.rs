//! What a folder is that was passed as a model, by the names of its files: what is no model is told what it is and what to do with it.

use std::collections::BTreeSet;
use std::path::Path;

use garden_input::{Family, download_hint, supported};
use serde_json::Value;

use super::file::{LARGEST_SETTINGS, read};
use crate::error::Error;

/// Refuses a folder that is something else than a model.
pub(super) fn check(folder: &Path) -> Result<(), Error> {
    let names = names(folder)?;
    let has = |name: &str| names.contains(name);
    let ends = |ending: &str| names.iter().any(|name| name.ends_with(ending));
    let refused = |problem: &str, hint: String| {
        Err(Error::Folder { path: folder.to_path_buf(), problem: problem.into(), hint: Some(hint) })
    };
    if names.is_empty() {
        return refused("is empty", download_hint().to_string());
    }
    if has("adapter_config.json") {
        return match has("config.json") {
            false => refused("is an adapter, not a model", adapter_hint(folder)),
            true => refused(
                "has a model and an adapter (`adapter_config.json`), which transformers would apply to it",
                "move the adapter's files to a folder of their own and pass that as --adapter, or delete them"
                    .to_string(),
            ),
        };
    }
    if let Some(kind) =
        json(&folder.join("config.json"))["model_type"].as_str().filter(|kind| Family::find(kind).is_none())
    {
        return refused(
            &format!("is a model of the type `{kind}` (`model_type` in config.json), which is not supported"),
            supported().to_string(),
        );
    }
    let is_run = has("recipe.toml") || names.iter().any(|name| name.starts_with("checkpoint-"));
    if is_run && !has("config.json") {
        let hint = "pass the base model; an adapter of the run goes to --adapter, as `OUT` or `OUT/checkpoint-N`. \
                    A run that trains all weights (--full) has its model in the folder once it has ended";
        return refused("is the output folder of a training run without a model", hint.to_string());
    }
    if ends(".gguf") && !ends(".safetensors") {
        return refused(
            "has weights as GGUF, which cannot be trained",
            format!("use the original weights as *.safetensors: {}", download_hint()),
        );
    }
    let is_pickled =
        |name: &&String| name.starts_with("pytorch_model") || name.ends_with(".pth") || name.ends_with(".pt");
    match names.iter().find(is_pickled) {
        Some(name) if !ends(".safetensors") => refused(
            &format!("has weights only as `{name}`; only *.safetensors are read"),
            "transformers converts them: `AutoModelForImageTextToText.from_pretrained(DIR, dtype=\"auto\").save_pretrained(NEW)`; \
             copy the other files to NEW"
                .to_string(),
        ),
        _ => Ok(()),
    }
}

/// The names of all files and folders but hidden ones.
fn names(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::file(folder, error))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| !name.starts_with('.')).collect())
}

/// The JSON in a file; null if there is none.
fn json(path: &Path) -> Value {
    let text = read(path, LARGEST_SETTINGS).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// What to do with an adapter: it names its base.
fn adapter_hint(folder: &Path) -> String {
    let config = json(&folder.join("adapter_config.json"));
    let base = config["base_model_name_or_path"].as_str().filter(|name| !name.is_empty());
    format!(
        "pass the folder as --adapter, and as --model its base, {}",
        base.map_or("the model that it was trained on".into(), |base| format!("`{base}`"))
    )
}
