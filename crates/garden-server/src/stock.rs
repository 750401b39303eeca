//! Stock at the start: what the folder holds beside what the database knows, and deletions that a kill interrupted.

use crate::disk::{Disk, FolderError, Kind, Unknown};
use crate::some_of;
use crate::store::{Store, StoreError};

/// Why stock cannot be taken.
pub(crate) enum Stock {
    Folder(FolderError),
    Store(StoreError),
}

/// Compares what the folder holds with what the database knows: what an operator should know of it, if anything. A database that has seen less than the one before it is refused, since a server
/// that went on with it would look as if nothing were missing.
pub(crate) fn take_stock(disk: &Disk, store: &Store, sets_aside: bool) -> Result<Option<String>, Stock> {
    let unknown = disk.unknown(|kind, id| match kind {
        // What cannot be asked about may be known.
        Kind::File => store.file(id).map_or(true, |found| found.is_some()),
        Kind::Part => store.has_part(id).unwrap_or(true),
        Kind::Job => match store.job(id) {
            Ok(Some(job)) => {
                if job.status.is_final() {
                    disk.forget_rows(id);
                }
                true
            }
            Ok(None) => false,
            // Also one whose record cannot be read.
            Err(_) => store.has_job(id).unwrap_or(true),
        },
    });
    let unknown = unknown.map_err(|error| Stock::Folder(error.into()))?;
    let names: Vec<String> = unknown.iter().map(Unknown::shown).collect();
    let some = some_of(&names, names.len());
    let later = disk.changes().saturating_sub(store.changes().map_err(Stock::Store)?);
    if later > 0 && !sets_aside {
        return Err(Stock::Folder(FolderError::KnowsLess { unknown: names, later }));
    }
    if unknown.is_empty() {
        return Ok(None);
    }
    if sets_aside {
        let aside = disk.set_aside(&unknown).map_err(|error| Stock::Folder(error.into()))?;
        return Ok(Some(format!("moved aside, to `{}`: {some}", aside.display())));
    }
    // A kill leaves one thing at most.
    let is_lost = names.len() > 1 && store.is_empty().map_err(Stock::Store)?;
    if is_lost || unknown.iter().any(|thing| disk.has_worked(thing)) {
        return Err(Stock::Folder(FolderError::KnowsLess { unknown: names, later }));
    }
    Ok(Some(format!(
        "the database does not know {some}; a kill may have left this, and nothing was deleted (--set-unknown-aside moves it to `unknown`)"
    )))
}

/// What a killed server was about to delete, and had put out of sight, is forgotten: it would otherwise be listed without its contents.
pub(crate) fn finish_deletions(disk: &Disk, store: &Store) -> Result<(), Stock> {
    let (files, jobs) = disk.half_deleted().map_err(|error| Stock::Folder(error.into()))?;
    for id in files {
        disk.even_if_full(|| store.delete_file(&id)).map_err(Stock::Store)?;
    }
    for id in jobs {
        let job = store.job(&id).ok().flatten();
        if let Some(file) = job.and_then(|job| job.result_file).and_then(|id| store.file(&id).ok().flatten()) {
            disk.even_if_full(|| store.delete_file(&file.id)).map_err(Stock::Store)?;
            disk.remove(Some(&disk.file(&file)));
        }
        disk.even_if_full(|| store.delete_job(&id)).map_err(Stock::Store)?;
    }
    Ok(())
}
