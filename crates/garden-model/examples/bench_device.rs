//! Times training steps of a checkpoint's shape on a processor or a GPU, with rows of one image each, and prints JSON.
//!
//!     cargo run --release -p garden-model --example bench_device -- FOLDER [--device cuda|cpu] [--threads N] [--steps N] [--recompute] [--load-in-4bit]
//!         [--batch-size 2] [--side 64] [--text-tokens 256] [--layers N]
//!
//! An image has `side` x `side` patches. `--layers` leaves out all but the first layers of decoder and vision tower.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring, which prints what it measured")]

use std::path::Path;
use std::time::Instant;

use garden_device::{Cpu, Cuda, Device, Planner, Purpose};
use garden_model::{
    Batch, Checkpoint, Config, FourBit, GradientCheckpointing, Images, Limits, LoraConfig, Model, Optimizer, Row,
    Storage, Targets, Training,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    let value = |name: &str| words.iter().position(|word| word == name).and_then(|place| words.get(place + 1));
    let number = |name: &str, default: usize| value(name).and_then(|word| word.parse().ok()).unwrap_or(default);
    let folder = Path::new(&words[0]);
    let begin = Instant::now();
    let mut config = Config::read(&folder.join("config.json")).unwrap();
    config.text.layers = number("--layers", config.text.layers).min(config.text.layers);
    config.vision.depth = number("--layers", config.vision.depth).min(config.vision.depth);
    let checkpoint = Checkpoint::open(folder).unwrap();
    let batch = batch(&config, number("--batch-size", 2), number("--side", 64), number("--text-tokens", 256));
    let lora =
        LoraConfig { rank: 16, alpha: 32.0, is_rank_stabilised: false, dropout: 0.0, targets: Targets::decoder() };
    let training = Training::Lora(lora);
    let checkpointing = match has("--recompute") {
        true => GradientCheckpointing::PerLayer,
        false => GradientCheckpointing::Off,
    };
    let four_bit =
        has("--load-in-4bit").then(|| FourBit { is_double: true, kept: vec!["visual".into(), "lm_head".into()] });
    let storage = Storage { four_bit, ..Storage::default() };
    let mut memory_before = None;
    let mut device: Box<dyn Device> = match value("--device").map_or("cuda", String::as_str) {
        "cpu" => Box::new(Cpu::new(number("--threads", 0))),
        _ => {
            let cuda = Cuda::open(0).unwrap_or_else(|unavailable| panic!("{unavailable}; {}", unavailable.hint));
            memory_before = Some(cuda.memory().unwrap().0);
            Box::new(cuda)
        }
    };
    let is_cuda = memory_before.is_some();
    let limits = Limits::of(&batch);
    let mut planner = Planner::like(device.profile());
    Model::build(&mut planner, &config, &checkpoint, &training, checkpointing, &storage, limits).unwrap();
    let planned = planner.plan().total();
    device.prepare(planned).unwrap();
    let mut model =
        Model::build(&mut *device, &config, &checkpoint, &training, checkpointing, &storage, limits).unwrap();
    for (index, parameter) in model.parameters().to_vec().iter().enumerate() {
        // A as it is drawn for training; B is small instead of zero, so that all gradients are something.
        let values: Vec<f32> = (0..parameter.shape.iter().product::<usize>())
            .map(|place| 0.01 * (((place * 7919 + index * 104_729) as f32) * 0.618_034).sin())
            .collect();
        model.set(&mut *device, parameter, &values);
    }
    device.finish().unwrap();
    let loaded = begin.elapsed().as_secs_f64();
    let (steps, warm_up, optimizer) = (number("--steps", 10), 3, Optimizer::default());
    let (mut seconds, mut updates, mut losses, mut first) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for step in 0..warm_up + steps {
        let start = Instant::now();
        model.begin_step(&mut *device);
        model.learn(&mut *device, &batch, 1.0 / batch.targets() as f32, 0).unwrap();
        device.finish().unwrap();
        seconds.push(start.elapsed().as_secs_f64());
        let update = Instant::now();
        model.update(&mut *device, &optimizer, 1e-4, 1.0, true);
        losses.push(model.step_result(&mut *device).unwrap().loss);
        updates.push(update.elapsed().as_secs_f64());
        if step == 0 {
            first = begin.elapsed().as_secs_f64();
        }
    }
    let median = |values: &[f64]| {
        let mut sorted = values[warm_up..].to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let plan: serde_json::Map<String, serde_json::Value> =
        Purpose::ALL.iter().map(|purpose| (purpose.name().to_string(), device.plan().bytes(*purpose).into())).collect();
    let measured = memory_before.map(|before| {
        // Another handle asks, so that the device need not be told apart from others here.
        let free = Cuda::open(0).unwrap().memory().unwrap().0;
        before.saturating_sub(free)
    });
    println!(
        "{:#}",
        serde_json::json!({
            "device": if is_cuda { "cuda" } else { "cpu" },
            "tokens": batch.tokens(),
            "patches": batch.patches(),
            "micro_step_ms": 1e3 * median(&seconds),
            "update_ms": 1e3 * median(&updates),
            "tokens_per_second": batch.tokens() as f64 / median(&seconds),
            "micro_steps_ms": seconds.iter().map(|seconds| 1e3 * seconds).collect::<Vec<f64>>(),
            "losses": losses,
            "planned_bytes": planned,
            "measured_bytes": measured,
            "plan": plan,
            "resident_bytes": resident("VmRSS"),
            "peak_resident_bytes": resident("VmHWM"),
            "page_faults": faults(),
            "loaded_seconds": loaded,
            "start_to_first_step_seconds": first,
        })
    );
}

fn batch(config: &Config, rows: usize, side: usize, text: usize) -> Batch {
    let (patches, merged) = (side * side, side * side / config.vision.merged());
    let row = |index: usize| {
        let mut tokens = vec![config.image_token; merged];
        tokens.extend((0..text).map(|place| 1000 + ((place * 31 + index * 7) % 20_000) as i32));
        let labels =
            tokens.iter().enumerate().map(|(place, token)| if place > merged + text / 2 { *token } else { -100 });
        Row { labels: labels.collect(), tokens }
    };
    let values = patches * rows * config.vision.patch_values();
    let pixels = (0..values).map(|place| ((place as f32) * 0.618_034).sin()).collect();
    let images = Images { pixels, grids: vec![[1, side, side]; rows] };
    Batch::new(config, &(0..rows).map(row).collect::<Vec<Row>>(), images).unwrap()
}

fn resident(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or("0");
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Pages that were given so far without reading a file.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}
