//! Finds and opens the CUDA libraries at run time: CUDA is not needed to build, or to run without a GPU.
//!
//! The driver's library comes with the driver. NVRTC and cuBLASLt come with the CUDA toolkit or with the `nvidia` packages of a Python environment,
//! version 12 or 13; the newest that the driver supports is used.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;

/// Environment variable with a folder of libraries, searched before all others.
pub const FOLDER_VARIABLE: &str = "MODEL_GARDEN_CUDA";

/// Why a GPU cannot be used: one sentence, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing or wrong.
    pub problem: String,
    /// What would help.
    pub hint: String,
    /// Whether there is no GPU at all, rather than an unusable one.
    pub is_absent: bool,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    pub(super) fn new(problem: impl Into<String>, hint: impl Into<String>) -> Unavailable {
        Unavailable { problem: problem.into(), hint: hint.into(), is_absent: false }
    }

    pub(super) fn absent(problem: impl Into<String>, hint: impl Into<String>) -> Unavailable {
        Unavailable { is_absent: true, ..Unavailable::new(problem, hint) }
    }
}

/// Declares functions of a library: a struct of pointers, and their lookup.
macro_rules! functions {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$meta])*
        struct $name {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The functions are code of the library, so it must stay loaded as long as they are used.
            _library: libloading::Library,
        }

        impl $name {
            /// Looks up all functions; the error is the name of the first missing one.
            fn of(library: libloading::Library) -> Result<$name, &'static str> {
                $(
                    // SAFETY: the type is that of the C declaration.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol.as_bytes())
                    }
                    .map_err(|_| $symbol)?;
                )*
                Ok($name { $($field,)* _library: library })
            }
        }
    };
}
pub(super) use functions;

/// Opens a library by name or path.
pub(super) fn open(path: impl AsRef<Path>) -> Option<Library> {
    // SAFETY: libraries of CUDA may be loaded at any time; their initialisers ask nothing of us.
    unsafe { Library::new(path.as_ref().as_os_str()) }.ok()
}

/// Opens NVRTC or cuBLASLt (`name` such as `libnvrtc`) of a major version that the driver supports, at least 12; also returns its path.
pub(super) fn find(name: &str, package: &str, most_major: i32) -> Result<(Library, PathBuf), Unavailable> {
    let folders = folders(package);
    for major in (12..=most_major).rev() {
        let file = format!("{name}.so.{major}");
        for path in folders.iter().map(|folder| folder.join(&file)).filter(|path| path.is_file()) {
            open_builtins(&path);
            if let Some(library) = open(&path) {
                return Ok((library, path));
            }
        }
        // The system loader's search path.
        if let Some(library) = open(&file) {
            return Ok((library, PathBuf::from(file)));
        }
    }
    let newest = if most_major > 12 { format!("12 to {most_major}") } else { "12".to_string() };
    Err(Unavailable::new(
        format!("the CUDA library {name} (version {newest}) was not found"),
        format!(
            "install the CUDA toolkit, or `pip install nvidia-{package}` in the active environment, or set {FOLDER_VARIABLE} to its folder"
        ),
    ))
}

/// NVRTC opens a second library by its bare name, which is only found if it is already loaded.
pub(super) fn open_builtins(nvrtc: &Path) {
    let Some(folder) = nvrtc.parent() else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("libnvrtc-builtins.so")
            && let Some(library) = open(entry.path())
        {
            std::mem::forget(library);
        }
    }
}

/// Folders that may have CUDA libraries, the nearest first.
fn folders(package: &str) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = variable(FOLDER_VARIABLE).into_iter().flat_map(with_subfolders).collect();
    // A Python environment has a folder per package; since version 13 one for all.
    let short = package.trim_start_matches("cuda-").replace('-', "_");
    for environment in [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")].into_iter().flatten() {
        for python in inside(&environment.join("lib"), "python3") {
            let nvidia = python.join("site-packages/nvidia");
            let packages = [nvidia.join(format!("cuda_{short}/lib")), nvidia.join(format!("{short}/lib"))];
            folders.extend(inside(&nvidia, "cu1").into_iter().map(|version| version.join("lib")).chain(packages));
        }
        folders.push(environment.join("lib"));
    }
    for root in [variable("CUDA_HOME"), variable("CUDA_PATH"), Some("/usr/local/cuda".into())].into_iter().flatten() {
        folders.extend(with_subfolders(root));
    }
    for root in inside(Path::new("/usr/local"), "cuda-").into_iter().rev() {
        folders.extend(with_subfolders(root));
    }
    folders.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"].map(PathBuf::from));
    folders
}

fn with_subfolders(root: PathBuf) -> Vec<PathBuf> {
    vec![root.clone(), root.join("lib64"), root.join("lib"), root.join("targets/x86_64-linux/lib")]
}

/// Entries of a folder with this prefix, sorted.
fn inside(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_sentence() {
        let missing = find("libnothing", "cuda-nothing", 13).map(|found| found.1).unwrap_err();
        assert_eq!(missing.problem, "the CUDA library libnothing (version 12 to 13) was not found");
        assert!(missing.hint.contains("pip install nvidia-cuda-nothing"), "{}", missing.hint);
    }
}
