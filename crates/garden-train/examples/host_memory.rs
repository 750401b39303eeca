//! Measures what a plan's estimates rest on: the program at rest, a tokenizer, threads that compute, and pictures being decoded.
//!
//! usage: `host_memory MODEL [PICTURE...]`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for whoever runs it")]

use std::path::Path;

use garden_data::{Patcher, Processor};
use garden_device::{Cpu, Device, Dtype, Purpose, Reserve, Rows, Weight, Write};

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> i64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// Begins to look for the highest resident memory anew.
fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, pictures @ ..] = &arguments[..] else { panic!("usage: host_memory MODEL [PICTURE...]") };
    println!("at rest: {} KiB anonymous, {} KiB of files", status("RssAnon"), status("RssFile"));
    // Before anything else leaves memory behind that it could use again.
    for threads in [1, 2, 4, 8] {
        compute(threads);
    }
    let before = status("RssAnon");
    reset_peak();
    let processor = Processor::open(Path::new(model)).unwrap();
    let file = std::fs::metadata(Path::new(model).join("tokenizer.json")).unwrap().len();
    let held = status("RssAnon") - before;
    let peak = status("VmHWM") - status("RssFile") - before;
    let factor = held as f64 * 1024.0 / file as f64;
    println!("tokenizer of {file} bytes: {held} KiB held ({factor:.2} of the file), {peak} KiB while it is read");
    pictures.iter().for_each(|path| decode(&processor, path));
}

fn decode(processor: &Processor, path: &str) {
    let data = std::fs::read(path).unwrap();
    let (width, height) = garden_data::picture_size(path, &data, u64::MAX).unwrap();
    let grid = processor.images.grid(width, height).unwrap();
    let mut patches = vec![1.0; grid.iter().product::<usize>() * processor.images.patch_values()];
    let before = status("VmRSS");
    reset_peak();
    let mut patcher = Patcher::new(processor.images.clone());
    patcher.decode(path, &data, u64::MAX, grid, &mut patches).unwrap();
    let (peak, held, pixels) = (status("VmHWM") - before, status("VmRSS") - before, (width * height) as f64);
    let each = peak as f64 * 1024.0 / pixels;
    println!("{path}: {width} x {height}, {peak} KiB at most ({each:.2} bytes a pixel), {held} KiB held");
}

/// Products of the sizes that a layer of the 3B model has, forward and backward.
fn compute(threads: usize) {
    let before = status("RssAnon");
    let (rows, columns, outputs) = (1024, 2048, 11008);
    let mut cpu = Cpu::new(threads);
    let mut buffer =
        |kind, length| cpu.buffer(Purpose::Workspace, "measured", kind, length).unwrap_or_else(|_| panic!("no memory"));
    let weight = Weight::plain(buffer(Dtype::Bf16, outputs * columns), outputs, columns);
    let (x, y) = (buffer(Dtype::F32, rows * columns), buffer(Dtype::F32, rows * outputs));
    let dx = buffer(Dtype::F32, rows * columns);
    cpu.reserve(Reserve { widest: columns, longest: rows, head_size: 128, ..Reserve::default() }).unwrap();
    for _ in 0..3 {
        let [x, y, dx] = [(x, weight.columns), (y, weight.rows), (dx, weight.columns)]
            .map(|(buffer, width)| Rows::dense(buffer, width));
        cpu.matmul(x, &weight, y, rows, 1.0, Write::Set);
        cpu.matmul_backward(y, &weight, dx, rows, 1.0, Write::Set);
    }
    let held = status("RssAnon") - before - (cpu.plan().total() / 1024) as i64;
    println!("{} threads that compute: {held} KiB beyond the plan", cpu.threads());
}
