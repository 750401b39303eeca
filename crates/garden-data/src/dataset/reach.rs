//! Which files rows may name as pictures.
//!
//! A row is a text from somewhere, and a path in it is read with the rights of whoever trains: `/home/me/passport.jpg` would become part of previews, reports and
//! a model. Whoever gives a file or a folder of their own usually wrote the paths, too, and absolute ones are common, so those are followed. Rows
//! that came by name from the hub, or that a server reads for others, have no business outside of their folder.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Which files rows may name as pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePaths {
    /// Those in the dataset's folder, wherever links in it lead.
    Inside,
    /// Any that can be read.
    Anywhere,
}

/// How far paths reach.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// Into this folder, without links in its path.
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

    /// The folder that a path leads out of.
    pub(crate) fn left_by(&self, path: &Path) -> Option<&Path> {
        match self {
            Reach::Anywhere => None,
            // What does not exist is told so only if it would lie inside: its existence is nobody's business either.
            Reach::Inside(folder) => match path.canonicalize() {
                Ok(path) => (!path.starts_with(folder)).then_some(folder),
                Err(_) => (!plainly_inside(path, folder)).then_some(folder),
            },
        }
    }
}

/// Whether a path that does not exist would lie in a folder: it has no `..`, and what exists of it is there.
fn plainly_inside(path: &Path, folder: &Path) -> bool {
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let existing = path.ancestors().skip(1).find_map(|parent| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        parent.canonicalize().ok()
    });
    !goes_up && existing.is_some_and(|parent| parent.starts_with(folder))
}
