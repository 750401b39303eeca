//! Times training steps on a folder that testdata/reference/bench_torch.py has saved, and prints the same JSON as it does.
//!
//!     cargo run --release -p garden-model --example bench_steps -- FOLDER [threads] [steps] [warm-up] [recompute]

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring, which prints what it measured")]

#[path = "../tests/it/case/mod.rs"]
mod case;

use std::path::Path;
use std::time::Instant;

use case::Case;
use garden_device::{Cpu, Device, Purpose};
use garden_model::GradientCheckpointing;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| words.get(place).and_then(|word| word.parse().ok()).unwrap_or(default);
    let (threads, steps, warm_up) = (number(1, 2), number(2, 10), number(3, 3));
    let recompute = if words.get(4).is_some_and(|word| word == "recompute") {
        GradientCheckpointing::PerLayer
    } else {
        GradientCheckpointing::Off
    };
    let at_start = resident("VmRSS");
    let case = Case::read(Path::new(&words[0]));
    let mut cpu = Cpu::new(threads);
    let mut model = case.build(&mut cpu, recompute);
    let (batch, optimizer) = (&case.batches[0], case.optimizer());
    let rate = case.numbers("training", "learning_rates")[0] as f32;
    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..warm_up + steps {
        let begin = Instant::now();
        model.begin_step(&mut cpu);
        model.learn(&mut cpu, batch, 1.0 / batch.targets() as f32, 0).unwrap();
        model.update(&mut cpu, &optimizer, rate, 1.0, true);
        let all = model.losses(&mut cpu, batch).unwrap();
        losses.push(all.iter().sum::<f32>() / all.len() as f32);
        seconds.push(begin.elapsed().as_secs_f64());
    }
    let timed = &seconds[warm_up..];
    let mut sorted = timed.to_vec();
    sorted.sort_by(f64::total_cmp);
    let plan: serde_json::Map<String, serde_json::Value> =
        Purpose::ALL.iter().map(|purpose| (purpose.name().to_string(), cpu.plan().bytes(*purpose).into())).collect();
    let told = serde_json::json!({
        "program": "model-garden",
        "threads": cpu.threads(),
        "tokens_per_step": batch.tokens(),
        "median_step_seconds": sorted[sorted.len() / 2],
        "step_seconds": timed,
        "losses": losses,
        "peak_above_start_bytes": resident("VmHWM") - at_start,
        "planned_bytes": cpu.plan().total(),
        "plan": plan,
    });
    println!("{told:#}");
}

fn resident(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or("0");
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}
