//! Memory does not depend on the number of rows, measured in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use garden_data::{Ahead, Dataset, Error, Order, Prefetch, Record};
use garden_testing::alone;

const ROWS: usize = 600;
const PICTURE: usize = 230_000;
const AHEAD_BYTES: usize = 4 << 20;
const MIB: usize = 1 << 20;

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A file of about 180 MB: each row has 0.3 MB of base64.
fn write_rows(path: &Path) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for row in 0..ROWS {
        let mut line = format!(
            r#"{{"prompt": "What is in picture {row}?", "response": "Picture {row}.", "image": "data:image/jpeg;base64,"#
        );
        let body = (0..PICTURE / 3 * 4).map(|place| digits[(place * 7 + row * 13 + place / 97) % 64] as char);
        line.extend(body);
        writeln!(line, r#""}}"#).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn two_shuffled_epochs_with_prefetch_stay_flat() {
    alone("memory::two_shuffled_epochs_with_prefetch_stay_flat", read_two_epochs);
}

fn read_two_epochs() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rows-{}.jsonl", std::process::id()));
    let _removed = Removed(path.clone());
    write_rows(&path);
    let dataset = Arc::new(Dataset::open(&path).unwrap());
    assert_eq!(dataset.len(), ROWS);
    let opened = resident();
    let order = Order::new(ROWS, 42);
    let size = |row: &Result<Record, Error>| row.as_ref().map_or(0, Record::bytes);
    let reader = dataset.clone();
    let ahead = Ahead { threads: 2, bytes: AHEAD_BYTES };
    let rows = Prefetch::new(ahead, order.rows_from(0).take(2 * ROWS), move |index| reader.read(index), size);
    let (mut warm, mut most) = (0, 0);
    for (position, record) in rows.enumerate() {
        let (record, row) = (record.unwrap(), order.at((position / ROWS) as u64, position % ROWS));
        assert!(record.place.ends_with(&format!(":{}", row + 1)));
        assert_eq!(record.pictures[0].data.len(), PICTURE / 3 * 3);
        if position == 50 {
            warm = resident();
        }
        if position % 50 == 0 {
            most = most.max(resident());
        }
    }
    println_figures(opened, warm, most);
    assert!(most.saturating_sub(warm) < 16 * MIB, "after 50 rows {} MiB, later {} MiB", warm / MIB, most / MIB);
    assert!(
        most.saturating_sub(opened) < 16 * MIB + AHEAD_BYTES,
        "opened {} MiB, later {} MiB",
        opened / MIB,
        most / MIB
    );
}

#[allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]
fn println_figures(opened: usize, warm: usize, most: usize) {
    println!("resident: opened {:.1}, after 50 rows {:.1}, most {:.1} MiB", mib(opened), mib(warm), mib(most));
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / MIB as f64
}
