//! Reads a dataset in order and shuffled, and prints what that takes: `cargo run -p garden-data --example read_dataset -- PATH`.

#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::path::Path;
use std::time::Instant;

use garden_data::{Dataset, Error, Order};

/// The most memory that this process ever had, as `/proc` says it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap_or("unknown").trim().to_string()
}

fn read(dataset: &Dataset, name: &str, order: Order) -> Result<(), Error> {
    let started = Instant::now();
    let mut bytes = 0;
    for index in order.rows_from(0).take(dataset.len()) {
        bytes += dataset.read(index)?.bytes();
    }
    let each = started.elapsed() / dataset.len() as u32;
    println!("{name}: {each:?} a row, {bytes} bytes, peak {}", peak());
    Ok(())
}

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "testdata/data/datasets/chat.jsonl".to_string());
    let started = Instant::now();
    let dataset = Dataset::open(Path::new(&path))?;
    println!("opened: {} rows, {:?}, peak {}", dataset.len(), started.elapsed(), peak());
    read(&dataset, "in order", Order::stored(dataset.len()))?;
    read(&dataset, "shuffled", Order::new(dataset.len(), 1))
}
