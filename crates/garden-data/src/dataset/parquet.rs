//! Parquet tables as written by Hugging Face: pictures as structs of bytes and path, conversations as lists of structs.
//!
//! Hand-written because training needs little of the format (plain values and dictionaries, four compression codecs), and because readers for
//! analytics hold whole pages: a table of photographs often has a row group in one page, a hundred megabytes. Here values are
//! skipped or read as a stream, with a few hundred kilobytes per column whatever the page size.

mod data_page;
mod footer;
mod rows;
mod snappy;
mod thrift;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::calls::Nulls;
use super::conversation::{LoneText, Row};
use super::field_names::FieldNames;
use super::picture::Beside;
use super::reach::Reach;
use super::stored::Stored;
use super::suspect::{Around, looks_like};
use super::value::Value;
use crate::error::Error;
use footer::{Footer, Wanted};
use rows::GroupReader;

/// Idle readers kept for all files of a dataset together; sequential reads continue with them.
const KEPT: usize = 8;

/// Rows in which columns with names that say nothing are looked at: what their values are shows in the first ones.
const LOOKED_AT: u64 = 16;

/// Whether a file starts like Parquet.
pub(crate) fn is_parquet(beginning: &[u8]) -> bool {
    beginning.starts_with(footer::MAGIC)
}

/// Readers waiting for the next row of their row group.
pub(crate) type Readers = Arc<Mutex<VecDeque<IdleReader>>>;

/// A reader in the middle of a row group.
pub(crate) struct IdleReader {
    file: usize,
    group: usize,
    /// The next row at its position.
    next: u64,
    reader: GroupReader,
}

impl std::fmt::Debug for IdleReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdleReader({}, {})", self.file, self.group)
    }
}

/// A table of rows.
#[derive(Debug)]
pub(crate) struct Parquet {
    stored: Stored,
    footer: Footer,
    rows: usize,
    /// Index of the file in its dataset.
    number: usize,
    readers: Readers,
    reach: Arc<Reach>,
}

impl Parquet {
    /// Reads the file's metadata.
    pub(crate) fn open(
        path: &Path,
        number: usize,
        readers: &Readers,
        reach: &Arc<Reach>,
        names: &FieldNames,
    ) -> Result<Parquet, Error> {
        let stored = Stored::new(path)?;
        let also = telling_columns(&stored, names)?;
        let footer = Footer::read(&stored, &stored.open()?, Wanted::Meant(names, &also))?;
        let rows = footer.groups.last().map_or(0, |group| group.first_row + group.rows);
        let rows = usize::try_from(rows).map_err(|_| Error::dataset(path, format!("says that it has {rows} rows")))?;
        Ok(Parquet { stored, footer, rows, number, readers: readers.clone(), reach: reach.clone() })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Takes its readers from those of another dataset with so many files, which it comes behind.
    pub(crate) fn join(&mut self, readers: &Readers, files: usize) {
        self.readers = readers.clone();
        self.number += files;
    }

    pub(crate) fn place(&self, index: usize) -> String {
        format!("{}:{}", self.stored.path.display(), index + 1)
    }

    /// Reads a row and converts it with `make`.
    pub(crate) fn read<T>(&self, index: usize, make: impl FnOnce(Row<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let place = self.place(index);
        let value = self.value(&place, index as u64)?;
        let folder = self.stored.path.parent().unwrap_or(Path::new(""));
        let (beside, lone_text) = (Beside::Folder { folder, reach: &self.reach }, LoneText::Caption);
        // Values are moved, not copied: the pictures make up nearly all of them.
        let (nulls, unread) = (Nulls::Fillers, self.footer.unread.as_slice());
        make(Row { place: &place, value, beside, lone_text, nulls, bytes: 0, unread })
    }

    fn value(&self, place: &str, index: u64) -> Result<Value<'static>, Error> {
        let number = self.footer.groups.partition_point(|group| group.first_row + group.rows <= index);
        let group = &self.footer.groups[number];
        let mut reader = match self.kept(number, index) {
            Some(reader) => reader,
            None => GroupReader::new(&Arc::new(self.stored.open()?), &self.footer, group),
        };
        let value = reader
            .read(&self.footer, index - group.first_row)
            .map_err(|(column, error)| Error::row_field(place, &column, format!("cannot be read: {error}")))?;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.push_back(IdleReader { file: self.number, group: number, next: index + 1, reader });
        if readers.len() > KEPT {
            readers.pop_front();
        }
        Ok(value)
    }

    /// An idle reader in this row group: the one with the least to skip. One that is past the row is taken only if no more readers fit: another thread
    /// may continue with it, and then both would read the earlier rows again.
    fn kept(&self, group: usize, index: u64) -> Option<GroupReader> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let here = readers.iter().enumerate().filter(|(_, kept)| kept.file == self.number && kept.group == group);
        let (place, nearest) = here.max_by_key(|(_, kept)| (kept.next <= index, kept.next))?;
        if nearest.next > index && readers.len() < KEPT {
            return None;
        }
        readers.remove(place).map(|kept| kept.reader)
    }
}

/// A row of which nothing is known yet: what may be harmless beside other fields is read, and judged there.
const UNKNOWN: Around = Around { shows: false, is_pair: true };

/// Columns that look like something to learn from by their values alone, such as the paths of pictures. A column that cannot be read is none.
fn telling_columns(stored: &Stored, names: &FieldNames) -> Result<Vec<String>, Error> {
    let file = Arc::new(stored.open()?);
    let others = Footer::read(stored, &file, Wanted::Others(names))?;
    let Some(group) = others.groups.iter().find(|group| group.rows > 0) else { return Ok(Vec::new()) };
    let mut telling: Vec<String> = Vec::new();
    let mut reader = GroupReader::new(&file, &others, group);
    for row in 0..group.rows.min(LOOKED_AT) {
        for (name, value) in reader.read_each(&others, row) {
            if !telling.contains(&name) && looks_like(&name, &value, UNKNOWN).is_some() {
                telling.push(name);
            }
        }
    }
    Ok(telling)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{FieldNames, Parquet, Readers};
    use crate::dataset::Split;
    use crate::error::Error;
    use crate::template::Message;

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/data/datasets").join(name)
    }

    fn open(name: &str) -> Parquet {
        Parquet::open(
            &testdata(name),
            0,
            &Readers::default(),
            &std::sync::Arc::new(super::Reach::Anywhere),
            &FieldNames::default(),
        )
        .unwrap()
    }

    /// Rows of `pages.parquet` alternate between two pictures.
    fn is_right(table: &Parquet, row: usize) -> bool {
        let picture = std::fs::read(testdata(["pictures/gate.jpg", "pictures/receipt.png"][row % 2])).unwrap();
        let record = table.read(row, |row| row.into_record(&FieldNames::default(), Split::Train)).unwrap();
        let question = Message::with_images("user", 1, &format!("Row {row}?"));
        record.pictures[0].data == picture
            && record.messages == [question, Message::text("assistant", &format!("Row {row}."))]
    }

    #[test]
    fn rows_over_pages_and_groups_in_any_order() {
        let table = open("parquet/pages.parquet");
        assert_eq!(table.len(), 40);
        assert!((0..40).all(|row| is_right(&table, row)));
        assert!((0..40).rev().all(|row| is_right(&table, row)));
        assert!((0..200).map(|step| step * 17 % 40).all(|row| is_right(&table, row)));
    }

    #[test]
    fn every_compression_is_read_as_a_stream() {
        for name in ["snappy", "zstd", "gzip", "plain"] {
            let table = open(&format!("parquet/{name}.parquet"));
            for row in [0, 1, 2, 1, 0] {
                let record = table
                    .read(row, |row| row.into_record(&FieldNames::default(), Split::Train))
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(record.pictures.len(), [1, 2, 0][row], "{name}");
                assert!(
                    record
                        .pictures
                        .iter()
                        .all(|picture| picture.data.starts_with(b"\xff\xd8") || picture.data.starts_with(b"\x89PNG"))
                );
            }
        }
    }

    #[test]
    fn broken_bytes_are_errors_and_never_a_panic() {
        let whole = std::fs::read(testdata("parquet/snappy.parquet")).unwrap();
        let path = std::env::temp_dir().join(format!("garden-parquet-{}", std::process::id()));
        let mut errors = 0;
        for place in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x55;
            std::fs::write(&path, &bytes).unwrap();
            let read: Result<Vec<()>, Error> = Parquet::open(
                &path,
                0,
                &Readers::default(),
                &std::sync::Arc::new(super::Reach::Anywhere),
                &FieldNames::default(),
            )
            .and_then(|table| {
                (0..table.len().min(5))
                    .map(|row| table.read(row, |row| row.into_record(&FieldNames::default(), Split::Train)).map(drop))
                    .collect()
            });
            errors += usize::from(read.is_err());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(errors > 50, "{errors}");
    }
}
