//! Event files read back by a small reader of their format.
//!
//! With GARDEN_TENSORBOARD (a Python interpreter that has the package `tensorboard`) TensorBoard's own reader takes them too.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and tells what it skipped"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use garden_train::EventFile;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tensorboard-{name}-{}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    folder
}

/// CRC-32C, bit by bit: another way than that of the code under test.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for byte in bytes {
        for bit in 0..8 {
            let is_set = (sum ^ u32::from(byte >> bit)) & 1 == 1;
            sum = sum >> 1 ^ if is_set { 0x82f6_3b78 } else { 0 };
        }
    }
    !sum
}

fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let masked = |bytes: &[u8]| ((checksum(bytes) >> 15) | (checksum(bytes) << 17)).wrapping_add(0xa282_ead8);
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(number(8), masked(&rest[..8]));
        all.push(&rest[12..12 + length]);
        assert_eq!(number(12 + length), masked(&rest[12..12 + length]));
        rest = &rest[16 + length..];
    }
    all
}

/// The fields of a message: numbers as they are, fixed ones as bits, others as bytes.
fn fields(mut bytes: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut all = BTreeMap::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            kind => {
                let length = match kind {
                    1 => 8,
                    2 => varint(&mut bytes) as usize,
                    5 => 4,
                    other => panic!("no such kind of field: {other}"),
                };
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                value.to_vec()
            }
        };
        assert!(all.insert(key >> 3, value).is_none(), "field {} is there twice", key >> 3);
    }
    all
}

#[test]
fn what_is_written_is_read_back() {
    let folder = folder("own");
    let time = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
    let mut file = EventFile::create(&folder, time, "some/host").unwrap();
    file.scalar(0, "train/loss", 2.5).unwrap();
    file.scalar(300, "train/loss", f32::NAN).unwrap();
    file.text(300, "sample", "**Grüße**\n").unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(name, format!("events.out.tfevents.1700000000.some-host.{}", std::process::id()));
    let bytes = fs::read(file.path()).unwrap();
    let records: Vec<_> = records(&bytes).into_iter().map(fields).collect();
    assert_eq!(records.len(), 4);
    assert_eq!(records[0][&1], 1_700_000_000.5_f64.to_le_bytes());
    assert_eq!(records[0][&3], b"brain.Event:2");
    let entry = |record: usize| fields(&fields(&records[record][&5])[&1]);
    assert_eq!((&records[1][&2][..], &entry(1)[&1][..]), (&[0; 8][..], &b"train/loss"[..]));
    assert_eq!(entry(1)[&2], 2.5_f32.to_le_bytes());
    assert_eq!(records[2][&2], 300_u64.to_le_bytes());
    assert!(f32::from_le_bytes(entry(2)[&2][..].try_into().unwrap()).is_nan());
    let (tensor, metadata) = (fields(&entry(3)[&8]), fields(&entry(3)[&9]));
    assert_eq!((&tensor[&1][..], &tensor[&8][..]), (&7_u64.to_le_bytes()[..], "**Grüße**\n".as_bytes()));
    assert_eq!(fields(&fields(&tensor[&2])[&2])[&1], 1_u64.to_le_bytes());
    assert_eq!(fields(&metadata[&1])[&1], b"text");
    // A run that goes on opens another file, also within the same second, and leaves the first alone.
    let other = EventFile::create(&folder, time, "some/host").unwrap();
    assert_ne!(other.path(), file.path());
    assert_eq!(fs::read(file.path()).unwrap(), bytes);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_written_is_an_error() {
    assert!(EventFile::create(Path::new("/proc/no-such-folder"), UNIX_EPOCH, "host").is_err());
}

#[test]
fn tensorboard_reads_it() {
    let Some(python) = std::env::var_os("GARDEN_TENSORBOARD") else {
        garden_testing::skip("GARDEN_TENSORBOARD names no interpreter with the package tensorboard");
        return;
    };
    let folder = folder("theirs");
    let mut file = EventFile::create(&folder, UNIX_EPOCH + Duration::from_secs(1_700_000_000), "host").unwrap();
    for step in 0..3 {
        file.scalar(step, "train/loss", 2.0 - step as f32 / 2.0).unwrap();
    }
    file.text(2, "sample", "**hello**").unwrap();
    let mut resumed = EventFile::create(&folder, UNIX_EPOCH + Duration::from_secs(1_700_000_100), "host").unwrap();
    resumed.scalar(3, "train/loss", 0.25).unwrap();
    let script = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print([(event.step, event.value) for event in events.Scalars('train/loss')])
print([(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors('sample')])
print(events.SummaryMetadata('sample').plugin_data.plugin_name)
";
    let done = Command::new(python).args(["-c", script]).arg(&folder).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert_eq!(
        text,
        "[(0, 2.0), (1, 1.5), (2, 1.0), (3, 0.25)]\n[(2, '**hello**')]\ntext\n",
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    fs::remove_dir_all(&folder).unwrap();
}
