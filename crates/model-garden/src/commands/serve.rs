//! `model-garden serve`: jobs, files and models behind the API that clients already speak.

mod backup;
pub mod job;
pub mod tool;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use garden_server::store::StoreError;
use garden_server::{Error, FolderError, KEYS_VARIABLE as KEYS, Settings, serve};
use garden_train::DeviceChoice;

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Shorter keys can be guessed.
const SHORTEST_KEY: usize = 16;

/// How the allocator of the C library gives memory back: it would otherwise keep what a burst of requests took, in an arena for each of a server's threads.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_TRIM_THRESHOLD_", "262144"), ("MALLOC_MMAP_THRESHOLD_", "131072")];

/// Runs the command.
pub fn run(arguments: &cli::Serve) -> Result<Outcome, Failure> {
    // The server's threads speak, too.
    let printer = Arc::new(Printer::new());
    match &arguments.action {
        Some(cli::ServeAction::Backup(what)) => return backup::backup(what, &printer),
        Some(cli::ServeAction::Restore(what)) => return backup::restore(what, &printer),
        None => {}
    }
    // It reads these at the start of a process only. Where that cannot be done again, the server is as it was.
    if std::env::var_os(ALLOCATOR[0].0).is_none() {
        drop(garden_guard::begin_anew(&ALLOCATOR));
    }
    let program = garden_guard::own_program()
        .map_err(|error| Failure::new("cannot find this program's executable", &error, None))?;
    for folder in arguments.models.iter().chain(&arguments.datasets) {
        if !folder.is_dir() {
            return Err(Failure {
                what: format!("`{}` is not a folder", folder.display()),
                causes: Vec::new(),
                hint: Some("pass folders that exist as --models and --datasets".into()),
            });
        }
    }
    let teller = Arc::clone(&printer);
    let settings = Settings {
        host: arguments.host,
        port: arguments.port,
        data_dir: arguments.data_dir.clone().map_or_else(usual_folder, Ok)?,
        models: arguments.models.clone(),
        datasets: arguments.datasets.clone(),
        aliases: arguments.alias.iter().cloned().collect(),
        allowed_hosts: arguments.allow_host.clone(),
        keys: keys(arguments.api_key_file.as_deref())?,
        fetch: (arguments.fetch_images || !arguments.fetch_images_from.is_empty())
            .then(|| arguments.fetch_images_from.clone()),
        allow_commands: arguments.allow_commands,
        slots: arguments.slots.into(),
        device: match arguments.device.as_str() {
            "cpu" => DeviceChoice::Cpu,
            "cuda" => DeviceChoice::Cuda,
            _ => DeviceChoice::Auto,
        },
        memory_limit: arguments.memory_limit,
        max_file_bytes: arguments.max_file_size.0,
        quota_bytes: arguments.quota.0,
        keep: arguments.keep,
        pass_env: arguments.pass_env.clone(),
        sets_unknown_aside: arguments.set_unknown_aside,
        rate: arguments.rate_limit,
        patience: arguments.patience,
        program: program.to_path_buf(),
        say: Box::new(move |words| teller.say(&format!("model-garden: {words}"))),
    };
    let (folder, has_keys, has_models) =
        (settings.data_dir.display().to_string(), !settings.keys.is_empty(), !settings.models.is_empty());
    let ready = |address| {
        let key = if has_keys { "an API key is needed" } else { "no API key is needed" };
        printer.say(&format!("serving on http://{address}/v1 ({key}); files and jobs: {folder}"));
        if !has_models {
            printer.say("no base models are known: jobs need --models DIR");
        }
    };
    serve(settings, ready).map_err(|error| {
        let hint = match &error {
            Error::NoKey(_) => Some(format!("pass --api-key-file FILE, or set {KEYS}")),
            Error::Listen(..) => Some("choose another --port, or 0 for any that is free".into()),
            Error::Folder(folder, FolderError::Foreign(_)) => {
                Some(format!("pass a folder that is empty or new, such as --data-dir {}", folder.join("garden").display()))
            }
            Error::Folder(_, FolderError::NoDatabase) => Some(
                "put its `garden.db` back, with the `garden.db-wal` beside it: without a clean end of the server, all of it may be in there. Results are in `jobs/ID/out` also without the database; a server for new jobs gets a new --data-dir. Nothing was touched"
                    .into(),
            ),
            Error::Folder(folder, FolderError::KnowsLess { .. }) => Some(format!(
                "put back the newest `garden.db` that you have (with `garden.db-wal`, if there is one), or start with --set-unknown-aside, which moves what is not known to `{}`; no job and no file was touched",
                folder.join("unknown").display()
            )),
            Error::Models(_) => Some("rename a folder or a link, or change --models or --alias".into()),
            Error::Folder(_, FolderError::Newer(_)) => Some("use that version, or another --data-dir".into()),
            Error::Folder(_, FolderError::NoLinks(_)) => {
                Some("choose a --data-dir that is on one file system with hard links, with all folders in it".into())
            }
            Error::Database(_, StoreError::Newer(_)) => Some("use that version, or another --data-dir".into()),
            Error::Database(_, StoreError::Damaged(_)) => Some(
                "copy the newest `garden.db` that you have again, as a whole, with the `garden.db-wal` that belongs to it and no other; or put back the newest backup (serve restore) into a new folder. No job and no file was touched"
                    .into(),
            ),
            Error::Database(..) => {
                Some("put back the newest backup (serve restore) into a new folder, or choose another --data-dir".into())
            }
            Error::Folder(..) => Some("choose another --data-dir".into()),
            Error::Threads(_) => None,
        };
        Failure { what: error.to_string(), causes: Vec::new(), hint }
    })?;
    printer.say("the server has ended; jobs that run go on, and a server that is started again finds them");
    Ok(Outcome::Fine)
}

/// Where data of programs belongs.
fn usual_folder() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("XDG_DATA_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    let home =
        std::env::var_os("HOME").filter(|value| !value.is_empty()).map(|home| Path::new(&home).join(".local/share"));
    named.or(home).map(|folder| folder.join("model-garden/server")).ok_or_else(|| Failure {
        what: "no folder for the server's data is known".into(),
        causes: Vec::new(),
        hint: Some("pass --data-dir DIR".into()),
    })
}

/// The keys of a file and of the environment.
fn keys(file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let mut keys: Vec<String> = Vec::new();
    if let Some(path) = file {
        let what = || format!("cannot read the API keys in `{}`", path.display());
        let text = garden_files::read_settings(path).map_err(|error| Failure::new(what(), &error, None))?;
        keys.extend(
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_string),
        );
        if keys.is_empty() {
            let hint = Some("write one key a line; lines that begin with # are comments".into());
            return Err(Failure { what: format!("`{}` has no API key", path.display()), causes: Vec::new(), hint });
        }
    }
    if let Ok(text) = std::env::var(KEYS) {
        keys.extend(text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_string));
    }
    match keys.iter().any(|key| key.len() < SHORTEST_KEY) {
        true => Err(Failure {
            what: format!("an API key has fewer than {SHORTEST_KEY} letters"),
            causes: Vec::new(),
            hint: Some("make one with: head -c 24 /dev/urandom | base64".into()),
        }),
        false => Ok(keys),
    }
}
