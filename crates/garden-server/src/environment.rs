//! The environment of jobs: a list of names instead of all that the server was started with, which may hold secrets of others.

use std::ffi::OsString;

use garden_files::Allowance;

use crate::Server;

/// What programs need to find themselves, their libraries, a GPU and a place for temporary files.
const NAMES: [&str; 29] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "RUST_BACKTRACE",
    "OMP_NUM_THREADS",
    "MODEL_GARDEN_CUDA",
];
/// How more of them begin.
const BEGINNINGS: [&str; 3] = ["LC_", "NVIDIA_", "NCCL_"];

/// Variables of ours that processes of jobs get, those that the operator named, and where it is told how much they may write.
pub(crate) fn of_jobs(server: &Server) -> Vec<(OsString, OsString)> {
    let more = &server.settings.pass_env;
    let is_named = |name: &str| {
        NAMES.contains(&name)
            || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
            || more.iter().any(|known| known == name)
    };
    let named = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_named));
    named.chain([(Allowance::VARIABLE.into(), server.disk.allowance().into())]).collect()
}
