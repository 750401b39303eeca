//! Event files as TensorBoard reads them: scalars and texts, appended record by record.
//!
//! A file is a row of TFRecords: length (u64), its checksum, a protobuf `Event`, its checksum; all little-endian, checksums CRC-32C turned by 15 bits plus a
//! constant. The few fields that are needed are written by hand, in the numbers of TensorFlow's `event.proto`, `summary.proto` and `tensor.proto`. TensorBoard
//! shows all files of a folder as one run, so a run that is resumed opens another file there; nothing is ever changed that was written. Images are left out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crc32c::crc32c;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Opens a new file in a folder, which is made if it is missing. TensorBoard sorts files of a run by the time in their names.
    pub fn create(folder: &Path, wall_time: SystemTime, host: &str) -> io::Result<EventFile> {
        fs::create_dir_all(folder)?;
        let seconds = since_epoch(wall_time).as_secs();
        // A host's name is one part of a file's name.
        let host: String = host.chars().map(|one| if one == '/' || one.is_control() { '-' } else { one }).collect();
        let name = format!("events.out.tfevents.{seconds:010}.{host}.{}", std::process::id());
        let mut options = OpenOptions::new();
        options.append(true).create_new(true);
        // Two files within a second get a number; a file of another run is never continued.
        for number in 0..1000 {
            let path = folder.join(if number == 0 { name.clone() } else { format!("{name}.{number}") });
            match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => {
                    let mut events = EventFile { path, file: opened? };
                    let mut event = Message::default();
                    event.double(1, since_epoch(wall_time).as_secs_f64());
                    event.bytes(3, b"brain.Event:2");
                    events.append(&event)?;
                    return Ok(events);
                }
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, format!("`{name}` and a thousand like it already exist")))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a number.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f32) -> io::Result<()> {
        let mut entry = Message::default();
        entry.bytes(1, tag.as_bytes());
        entry.float(2, value);
        self.summary(step, &entry)
    }

    /// Appends a text, which TensorBoard shows as Markdown.
    pub fn text(&mut self, step: u64, tag: &str, markdown: &str) -> io::Result<()> {
        let mut plugin = Message::default();
        plugin.bytes(1, b"text");
        let mut metadata = Message::default();
        metadata.message(1, &plugin);
        let mut size = Message::default();
        size.number(1, 1);
        let mut shape = Message::default();
        shape.message(2, &size);
        let mut tensor = Message::default();
        // DT_STRING.
        tensor.number(1, 7);
        tensor.message(2, &shape);
        tensor.bytes(8, markdown.as_bytes());
        let mut entry = Message::default();
        entry.bytes(1, tag.as_bytes());
        entry.message(8, &tensor);
        entry.message(9, &metadata);
        self.summary(step, &entry)
    }

    fn summary(&mut self, step: u64, entry: &Message) -> io::Result<()> {
        let mut summary = Message::default();
        summary.message(1, entry);
        let mut event = Message::default();
        event.double(1, since_epoch(SystemTime::now()).as_secs_f64());
        event.number(2, step);
        event.message(5, &summary);
        self.append(&event)
    }

    /// One write for each record: a reader, or what is left after a crash, has whole records but perhaps for the last.
    fn append(&mut self, event: &Message) -> io::Result<()> {
        let length = (event.0.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(&event.0);
        record.extend(masked(crc32c(&event.0)).to_le_bytes());
        self.file.write_all(&record)?;
        self.file.flush()
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A protobuf message.
#[derive(Clone, Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field's number and how its value is written.
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }
}

/// A checksum as records have it: that of data with checksums inside would be degenerate.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_varints() {
        let mut message = Message::default();
        message.number(1, 300);
        message.number(16, 0);
        assert_eq!(message.0, [0x08, 0xac, 0x02, 0x80, 0x01, 0x00]);
    }
}
