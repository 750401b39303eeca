//! The record of an audit: a folder with the traces of runs with and without workarounds, and a manifest that says which is which.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Error, ReadOptions, ReadTrace, read_path};

/// The manifest: which trace is of which kind.
const MANIFEST: &str = "audit.json";
/// The manifest's version.
const VERSION: u64 = 1;

/// The runs of an audit.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    /// The loop that was run.
    pub title: String,
    /// The command line that reproduces the runs, if there is one.
    pub command: Option<String>,
    /// Steps of each run before the counted ones.
    pub warm_up: u64,
    /// Where the record comes from (versions, how processes were started), as name and value.
    pub origin: Vec<(String, String)>,
    /// The runs without any workaround.
    pub baseline: Vec<NamedTrace>,
    /// The name of each workaround and the runs with it.
    pub workarounds: Vec<(String, Vec<NamedTrace>)>,
}

/// A trace and the name of its file.
pub type NamedTrace = (String, ReadTrace);

#[derive(Deserialize)]
struct Manifest {
    model_garden_audit: u64,
    #[serde(default, rename = "loop")]
    title: String,
    command: Option<String>,
    warm_up: u64,
    #[serde(default)]
    origin: serde_json::Map<String, serde_json::Value>,
    baseline: Vec<PathBuf>,
    workarounds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    name: String,
    traces: Vec<PathBuf>,
}

/// Reads the record of an audit in a folder.
pub fn read_audit(folder: &Path) -> Result<AuditRecord, Error> {
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).map_err(|source| Error::Open { path: path.clone(), source })?;
    let wrong = |problem: String| Error::Record { path: path.clone(), problem };
    let manifest: Manifest = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if manifest.model_garden_audit != VERSION {
        return Err(wrong(format!("it has version {}; this program reads {VERSION}", manifest.model_garden_audit)));
    }
    let read =
        |names: Vec<PathBuf>| names.iter().map(|name| read_one(folder, name, &path)).collect::<Result<Vec<_>, _>>();
    let workarounds = manifest.workarounds.into_iter();
    let workarounds: Result<Vec<_>, Error> = workarounds.map(|kind| Ok((kind.name, read(kind.traces)?))).collect();
    let origin = manifest.origin.into_iter();
    Ok(AuditRecord {
        title: manifest.title,
        command: manifest.command,
        warm_up: manifest.warm_up,
        origin: origin.filter_map(|(name, value)| Some((name, value.as_str()?.to_string()))).collect(),
        baseline: read(manifest.baseline)?,
        workarounds: workarounds?,
    })
}

fn read_one(folder: &Path, name: &Path, manifest: &Path) -> Result<NamedTrace, Error> {
    // A record is one folder: its traces cannot lie elsewhere.
    if name.components().count() != 1 || name.file_name().is_none() {
        let problem = format!("`{}` is not a file in the same folder", name.display());
        return Err(Error::Record { path: manifest.to_path_buf(), problem });
    }
    let trace = read_path(&folder.join(name), &ReadOptions::default())?;
    Ok((name.to_string_lossy().into_owned(), trace))
}
