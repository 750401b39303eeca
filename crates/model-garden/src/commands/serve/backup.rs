//! `model-garden serve backup` and `restore`.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use garden_memory::Bytes;
use garden_server::backup::{BackedUp, BackupError};

use super::usual_folder;
use crate::cli;
use crate::commands::Outcome;
use crate::failure::Failure;
use crate::printer::Printer;

/// Stands for standard output and input.
const PIPE: &str = "-";

/// Writes a backup.
pub fn backup(arguments: &cli::ServeBackup, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = arguments.data_dir.clone().map_or_else(usual_folder, Ok)?;
    let backed = if arguments.file == Path::new(PIPE) {
        garden_server::backup::backup(&folder, io::stdout().lock()).map_err(|error| failure(&error))?
    } else {
        to_file(&folder, &arguments.file)?
    };
    let missing = match backed.missing {
        0 => String::new(),
        count => format!("; {count} files were deleted meanwhile"),
    };
    printer.say(&format!("backed up {}: {}{missing}", words(&backed), arguments.file.display()));
    Ok(Outcome::Fine)
}

/// Rows, models and records of clients are nobody else's business in a backup, either.
const OWNER_ONLY: u32 = 0o600;

/// The file is there as a whole or not at all.
fn to_file(folder: &Path, file: &Path) -> Result<BackedUp, Failure> {
    let draft = garden_files::draft_of(file);
    let of_file = |error: io::Error| Failure::new(format!("cannot write `{}`", file.display()), &error, None);
    // What an earlier process of this number has left would keep its mode.
    drop(fs::remove_file(&draft));
    let write = || -> Result<BackedUp, Failure> {
        let opened = File::options().write(true).create_new(true).mode(OWNER_ONLY).open(&draft);
        let mut out = BufWriter::new(opened.map_err(of_file)?);
        let backed = garden_server::backup::backup(folder, &mut out).map_err(|error| failure(&error))?;
        out.flush().map_err(of_file)?;
        out.get_ref().sync_all().map_err(of_file)?;
        fs::rename(&draft, file).map_err(of_file)?;
        Ok(backed)
    };
    write().inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// Puts a backup back.
pub fn restore(arguments: &cli::ServeBackup, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = arguments.data_dir.clone().map_or_else(usual_folder, Ok)?;
    let restored = if arguments.file == Path::new(PIPE) {
        garden_server::backup::restore(io::stdin().lock(), &folder)
    } else {
        let file = File::open(&arguments.file);
        let file =
            file.map_err(|error| Failure::new(format!("cannot read `{}`", arguments.file.display()), &error, None))?;
        garden_server::backup::restore(BufReader::new(file), &folder)
    };
    let restored = restored.map_err(|error| failure(&error))?;
    printer.say(&format!("restored {} to {}", words(&restored), folder.display()));
    Ok(Outcome::Fine)
}

fn words(done: &BackedUp) -> String {
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!("{} and {} ({})", count(done.jobs, "job"), count(done.files, "file"), Bytes(done.bytes))
}

fn failure(error: &BackupError) -> Failure {
    let hint = match error {
        BackupError::Folder(..) => {
            Some("--data-dir names the server's folder: its own for a backup, a new or empty one to restore".into())
        }
        BackupError::Changed(_) => Some("try again: a job went back to an earlier checkpoint in that moment".into()),
        _ => None,
    };
    Failure { what: error.to_string(), causes: Vec::new(), hint }
}
