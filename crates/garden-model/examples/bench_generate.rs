//! Times reading of prompts and generation of tokens on a folder that testdata/reference/bench_torch.py has saved, and prints JSON.
//!
//!     cargo run --release -p garden-model --example bench_generate -- FOLDER [threads] [rows] [new tokens] [prompt tokens]
//!
//! A step reads every weight of decoder and head once, whatever the number of rows, so bytes per second say how near to the memory's speed it is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring, which prints what it measured")]

use garden_input::FAMILIES;
use std::path::Path;
use std::time::Instant;

use garden_device::{Cpu, Device, Plan, Purpose};
use garden_model::{Checkpoint, Config, Engine, EngineLimits, Images, Prompt, Sampling, read_adapter};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| words.get(place).and_then(|word| word.parse().ok()).unwrap_or(default);
    let (threads, rows, new, length) = (number(1, 1), number(2, 1), number(3, 128), number(4, 128));
    let folder = Path::new(&words[0]);
    let config = Config::read(&folder.join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let adapter =
        Some(folder.join("adapter")).filter(|folder| folder.exists()).map(|at| read_adapter(&at, FAMILIES[0]).unwrap());
    let token = |place: usize| 100 + (place * 7) as i32 % 1000;
    let prompt = Prompt { tokens: (0..length).map(token).collect(), images: Images::default() };
    let prompts = vec![prompt; rows];
    let limits = EngineLimits::of(&prompts, new);
    let mut cpu = Cpu::new(threads);
    let mut engine = Engine::build(&mut cpu, &config, &checkpoint, adapter.as_ref(), None, limits).unwrap();
    let sampling = Sampling { max_new_tokens: new, ..Sampling::default() };
    let (mut read, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (begin, mut times) = (Instant::now(), Vec::new());
        engine
            .generate(&mut cpu, prompts.clone(), &sampling, &mut |_| times.push(begin.elapsed().as_secs_f64()))
            .unwrap();
        // Each row's first token comes after its prompt; the others come step by step.
        read.push(times[rows - 1]);
        steps.extend(
            times[rows - 1..]
                .chunks(rows)
                .map(|step| step[0])
                .collect::<Vec<f64>>()
                .windows(2)
                .map(|pair| pair[1] - pair[0]),
        );
    }
    let (read, step, fastest) = (median(&mut read), median(&mut steps), steps[0]);
    let weights = bytes_of_a_step(cpu.plan(), &config);
    let told = serde_json::json!({
        "threads": cpu.threads(),
        "rows": rows,
        "prompt_tokens": length,
        "new_tokens": new,
        "prompt_tokens_per_second": (rows * length) as f64 / read,
        "step_seconds": step,
        "fastest_step_seconds": fastest,
        "tokens_per_second": rows as f64 / step,
        "fastest_tokens_per_second": rows as f64 / fastest,
        "weight_bytes_per_step": weights,
        "weight_gigabytes_per_second": weights as f64 / step / 1e9,
        "fastest_weight_gigabytes_per_second": weights as f64 / fastest / 1e9,
        "cache_bytes": cpu.plan().bytes(Purpose::KvCache),
        "planned_bytes": cpu.plan().total(),
    });
    println!("{told:#}");
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Weights and adapters of the decoder and the head. An embedding that is not the head too is read at one row only.
fn bytes_of_a_step(plan: &Plan, config: &Config) -> usize {
    let is_read = |label: &str| !label.contains("visual.") && (config.is_tied || !label.contains("embed_tokens"));
    let weights = plan.buffers.iter().filter(|buffer| matches!(buffer.purpose, Purpose::Weights | Purpose::Adapters));
    weights.filter(|buffer| is_read(&buffer.label)).map(|buffer| buffer.bytes).sum()
}
