//! Reads pictures from memory into patches, as often as it is told, and says how long that took: our side of `bench/pictures.py`.
//!
//! usage: pictures MAX_PIXELS FILE...
//!
//! Each line of the input is a way (`patches`: file to patches; `steps`: the same by way of pixels; `decode`: file to pixels; `write`: pixels
//! to patches), a number of threads, and how often to go through all files. It is answered with the seconds and the most memory that the
//! process has held so far, in bytes. `save PATH` writes the patches of the first file instead, as 32 bit floats.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking, and prints")]

use garden_input::FAMILIES;
use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use garden_data::{ImageSettings, MAX_PIXELS, Patcher, Picture, picture_size};

/// What one thread keeps from one picture to the next.
struct Worker {
    patcher: Patcher,
    picture: Picture,
    patches: Vec<f32>,
}

impl Worker {
    fn new(settings: &ImageSettings) -> Worker {
        Worker { patcher: Patcher::new(settings.clone()), picture: Picture::default(), patches: Vec::new() }
    }

    fn work(&mut self, way: &str, name: &str, data: &[u8]) {
        let settings = self.patcher.settings();
        let (width, height) = picture_size(name, data, MAX_PIXELS).unwrap();
        let grid = settings.grid(width, height).unwrap();
        let values = grid.iter().product::<usize>() * settings.patch_values();
        if self.patches.len() < values {
            self.patches.resize(values, 0.0);
        }
        let patches = &mut self.patches[..values];
        if way == "patches" {
            self.patcher.decode(name, data, MAX_PIXELS, grid, patches).unwrap();
            return;
        }
        if way != "write" || (self.picture.width, self.picture.height) != (width, height) {
            self.picture.decode(name, data, MAX_PIXELS).unwrap();
        }
        if way != "decode" {
            self.patcher.write(&self.picture, grid, patches);
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let max_pixels = arguments.next().unwrap().parse().unwrap();
    let settings = ImageSettings { max_pixels, ..ImageSettings::of(&FAMILIES[0].images) };
    let files: Vec<(String, Vec<u8>)> = arguments.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    let mut workers = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        if let Some(path) = line.strip_prefix("save ") {
            let mut worker = Worker::new(&settings);
            worker.work("patches", &files[0].0, &files[0].1);
            let bytes: Vec<u8> = worker.patches.iter().flat_map(|value| value.to_le_bytes()).collect();
            std::fs::write(path, bytes).unwrap();
            println!("0 0");
            continue;
        }
        let [way, threads, rounds] = line.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        let (threads, rounds): (usize, usize) = (threads.parse().unwrap(), rounds.parse().unwrap());
        workers.resize_with(threads, || Worker::new(&settings));
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| {
                    while let number = next.fetch_add(1, Ordering::Relaxed)
                        && number < files.len() * rounds
                    {
                        let (name, data) = &files[number % files.len()];
                        worker.work(way, name, data);
                    }
                });
            }
        });
        println!("{} {}", start.elapsed().as_secs_f64(), peak_bytes());
    }
}

/// The most memory that was resident, or 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| 1024 * kib)
}
