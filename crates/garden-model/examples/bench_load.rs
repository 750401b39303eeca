//! Loads a checkpoint with its linears packed into 4 bits, and prints how long that took and what it held at most.
//!
//!     cargo run --release -p garden-model --example bench_load -- FOLDER [threads]

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring, which prints what it measured")]

use garden_input::FAMILIES;
use std::path::Path;
use std::time::Instant;

use garden_device::{Cpu, Device, Purpose};
use garden_model::{
    Checkpoint, Config, FourBit, GradientCheckpointing, Limits, LoraConfig, Model, Storage, Targets, Training,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(&words[0]);
    let threads = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(2);
    let mut cpu = Cpu::new(threads);
    let at_start = resident("VmRSS");
    let begin = Instant::now();
    let config = Config::read(&folder.join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let largest = checkpoint.names().map(|name| checkpoint.tensor(name).unwrap().bytes.len()).max().unwrap();
    let stored: usize = checkpoint.names().map(|name| checkpoint.tensor(name).unwrap().bytes.len()).sum();
    let lora = LoraConfig { rank: 1, alpha: 1.0, targets: Targets::decoder(FAMILIES[0]), ..LoraConfig::default() };
    let limits = Limits { tokens: 1, rows: 1, targets: 1, patches: 0, images: 0, longest: 1 };
    let storage = Storage { four_bit: Some(FourBit::default()), has_8bit_moments: true };
    let training = Training::Lora(lora);
    Model::build(&mut cpu, &config, &checkpoint, &training, GradientCheckpointing::PerLayer, &storage, limits).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    let (peak, planned) = (resident("VmHWM") - at_start, cpu.plan().total());
    let is_packed = |label: &str| label.contains(".layers.") && label.contains("_proj.weight");
    let packed_bytes: usize = {
        let packed = cpu.plan().buffers.iter().filter(|buffer| buffer.purpose == Purpose::Weights);
        packed.filter(|buffer| is_packed(&buffer.label)).map(|buffer| buffer.bytes).sum()
    };
    let packed_names = checkpoint.names().filter(|name| is_packed(name));
    let packed_values: usize =
        packed_names.map(|name| checkpoint.tensor(name).unwrap().shape.iter().product::<usize>()).sum();
    let told = serde_json::json!({
        "bits_per_packed_weight": 8.0 * packed_bytes as f64 / packed_values as f64,
        "checkpoint_bytes": stored,
        "largest_tensor_bytes": largest,
        "weights_bytes": cpu.plan().bytes(Purpose::Weights),
        "planned_bytes": planned,
        "peak_above_start_bytes": peak,
        "allowed_bytes": planned + 2 * largest,
        "over_plan_in_largest_tensors": (peak as f64 - planned as f64) / largest as f64,
        "seconds": seconds,
        "threads": cpu.threads(),
    });
    println!("{told:#}");
}

fn resident(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or("0");
    line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(0) << 10
}
