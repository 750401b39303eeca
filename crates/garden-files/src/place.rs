//! Where paths lead: by links, `..` and other names of the same folder.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Whether two paths lead to the same file or folder.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let [Ok(one), Ok(other)] = [one, other].map(fs::metadata) else { return false };
    identity(&one) == identity(&other)
}

/// Whether a path, which need not exist yet, leads to a folder or below it.
pub fn lies_in(path: &Path, folder: &Path) -> bool {
    real(path).ancestors().any(|place| is_same(place, folder))
}

/// The path without links and `..`, as far as it exists; the rest is what it will be once somebody makes it.
pub fn real(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut place = PathBuf::new();
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => {
                place.push(part);
                place = fs::canonicalize(&place).unwrap_or(place);
            }
        }
    }
    place
}

/// What a file or folder is on this machine, under whichever name, also where it is mounted twice.
fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_known_by_all_of_its_names() {
        let folder = std::env::temp_dir().join(format!("garden-place-{}", std::process::id()));
        let (model, beside) = (folder.join("model"), folder.join("beside"));
        fs::create_dir_all(&model).unwrap();
        fs::create_dir_all(&beside).unwrap();
        symlink("model", folder.join("link")).unwrap();
        symlink(&folder, beside.join("up")).unwrap();
        for inside in [
            "model",
            "model/",
            "model/new/one",
            "link",
            "link/new",
            "beside/../model",
            "new/../model/x",
            "beside/up/link/.",
            "link/new/../y",
        ] {
            assert!(lies_in(&folder.join(inside), &model), "{inside}");
        }
        for outside in ["", "beside", "model2", "model/..", "link/../new", "new/model", "model/new/../../z"] {
            assert!(!lies_in(&folder.join(outside), &model), "{outside}");
        }
        assert!(is_same(&folder.join("link/../model"), &model) && !is_same(&folder.join("new"), &folder.join("new")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
