//! Which files rows may name as pictures.
//!
//! Rows are untrusted text, and a path in one is read with the rights of the person who trains: `/home/me/passport.jpg` would end up in previews, reports and
//! a model. A local file or folder usually has paths written by its owner, often absolute ones, so those are followed. Rows
//! downloaded from the hub, or read by a server for others, must stay inside their folder.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Which files rows may name as pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePaths {
    /// Files in the dataset's folder, after resolving links.
    Inside,
    /// Any readable file.
    Anywhere,
}

/// Resolved bounds on picture paths.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// Files below this folder; its path is canonical.
    Inside(PathBuf),
    Anywhere,
}

impl Reach {
    pub(crate) fn new(paths: ImagePaths, folder: &Path) -> std::io::Result<Reach> {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        match paths {
            ImagePaths::Inside => Ok(Reach::Inside(folder.canonicalize()?)),
            ImagePaths::Anywhere => Ok(Reach::Anywhere),
        }
    }

    /// The folder that a path escapes from, if it does.
    pub(crate) fn left_by(&self, path: &Path) -> Option<&Path> {
        match self {
            Reach::Anywhere => None,
            // A missing file is reported as missing only if it would lie inside: existence is private, too.
            Reach::Inside(folder) => match path.canonicalize() {
                Ok(path) => (!path.starts_with(folder)).then_some(folder),
                Err(_) => (!plainly_inside(path, folder)).then_some(folder),
            },
        }
    }
}

/// Whether a path that does not exist would lie in a folder: it has no `..`, and its existing part is inside.
fn plainly_inside(path: &Path, folder: &Path) -> bool {
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let existing = path.ancestors().skip(1).find_map(|parent| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        parent.canonicalize().ok()
    });
    !goes_up && existing.is_some_and(|parent| parent.starts_with(folder))
}
