//! What `bench` found, for the terminal and for scripts.

use garden_device::{Purpose, Stage};
use garden_memory::{Bytes, counted, grouped};
use garden_train::Recompute;
use serde_json::{Map, Value, json};

use super::{Measured, Opened, RANK, WARM_UP};

/// Everything as text; the answer is the first line.
pub fn text(measured: &Measured) -> String {
    let mut text = format!("{}\n{}", headline(measured), subject(measured));
    for warning in &measured.warnings {
        text += &format!("warning: {warning}\n");
    }
    text += &format!("\n{}\n", stages(measured));
    for (name, words) in [
        ("arithmetic", arithmetic(measured)),
        ("memory", memory(measured)),
        ("host", host(measured)),
        ("start", start(measured)),
        ("loss", loss(measured)),
    ] {
        text += &format!("{name:<12}{words}\n");
    }
    text + &operations(measured)
}

fn headline(measured: &Measured) -> String {
    let rate = grouped(tokens_per_second(measured).round() as usize);
    let share = match (&measured.device, measured.peak()) {
        (Opened::Cuda(cuda), Some(peak)) => {
            let share = 100.0 * measured.flop_per_second() / peak;
            format!(": {share:.0} % of the peak of the {}", cuda.card().name)
        }
        (Opened::Cuda(cuda), None) => format!(" on the {}", cuda.card().name),
        (Opened::Cpu(cpu), _) => format!(" on {} of the CPU", counted(cpu.threads(), "thread")),
    };
    format!("{} ms per micro-step, {rate} tokens/s{share}", milliseconds(measured.micro_step_seconds()))
}

/// What was measured.
fn subject(measured: &Measured) -> String {
    let (arguments, work) = (measured.arguments, &measured.work);
    let weights = if arguments.load_in_4bit { "NF4" } else { "bf16" };
    let where_ = if arguments.vision { "decoder and vision tower" } else { "decoder" };
    let recompute = match arguments.recompute {
        Recompute::Layer => "each layer recomputed",
        Recompute::None => "nothing recomputed",
    };
    let image = match work.pixels() {
        Some((width, height)) => format!("{} image tokens ({width} x {height} pixels) and ", work.image_tokens),
        None => String::new(),
    };
    let layers = match is_part(measured) {
        true => format!(
            "only {} of {} decoder layers and {} of {} vision blocks\n",
            work.config.text.layers.len(),
            arguments.shape.config.text.layers.len(),
            work.config.vision.depth,
            arguments.shape.config.vision.depth
        ),
        false => String::new(),
    };
    format!(
        "{}, random {weights} weights, LoRA of rank {RANK} on the {where_}, {recompute}\n{layers}{} of {image}{} text tokens, {} of them trained; \
         {} per step, {} after {WARM_UP} of warm-up\n",
        arguments.shape.name,
        counted(work.rows, "row"),
        work.text_tokens,
        work.trained() / work.rows,
        counted(arguments.gradient_accumulation as usize, "micro-step"),
        counted(arguments.steps as usize, "step"),
    )
}

/// A stage in a table and in JSON.
fn word(stage: Stage) -> &'static str {
    // The only other inputs are images.
    if stage == Stage::Encode { "vision" } else { stage.name() }
}

fn is_part(measured: &Measured) -> bool {
    measured.work.config != measured.arguments.shape.config
}

fn stages(measured: &Measured) -> String {
    let (step, micro_steps) = (measured.median(), measured.micro_steps());
    let mut text = format!("{:<12}{:>9}  {:>5}\n", "micro-step", "ms", "share");
    for stage in Stage::ALL {
        let seconds = step.stages.seconds(stage);
        let share = format!("{:.0} %", 100.0 * seconds / step.seconds);
        let note = match stage {
            Stage::Batch => "  assembling it and copying it to the device",
            Stage::Update => &format!("  {} ms once per step", milliseconds(seconds)),
            _ => "",
        };
        text += &format!("  {:<10}{:>9}  {share:>5}{note}\n", word(stage), milliseconds(seconds / micro_steps));
    }
    let (fastest, slowest) = measured.extremes();
    let [fastest, slowest] = [fastest, slowest].map(|seconds| milliseconds(seconds / micro_steps));
    let all = milliseconds(measured.micro_step_seconds());
    text + &format!("  {:<10}{all:>9}  {:>5}  {fastest} to {slowest}\n", "all", "100 %")
}

/// Where the time of one micro-step and an update went, operation by operation.
fn operations(measured: &Measured) -> String {
    let all: f64 = measured.operations.iter().map(|operation| operation.seconds).sum();
    if measured.operations.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:>9}  {:>5}  {:>5}  {:>8}  operations of one micro-step and an update, timed one by one\n",
        "ms", "share", "times", "us each"
    );
    for operation in &measured.operations {
        let share = format!("{:.1} %", 100.0 * operation.seconds / all);
        let each = 1e6 * operation.seconds / operation.count as f64;
        let (seconds, count) = (milliseconds(operation.seconds), operation.count);
        text += &format!("{seconds:>9}  {share:>5}  {count:>5}  {each:>8.1}  {}\n", operation.name);
    }
    text + &format!("{:>9}  all\n", milliseconds(all))
}

fn arithmetic(measured: &Measured) -> String {
    let flop = measured.work.flop(measured.arguments.vision);
    // One unit for all of them.
    let (unit, name) = if flop.needed < 1e12 { (1e9, "GFLOP") } else { (1e12, "TFLOP") };
    let written = |flop: f64| format!("{:.1}", flop / unit);
    let peak = measured.peak().map_or_else(String::new, |peak| format!(" of {:.0}", peak / unit));
    let again = match measured.arguments.recompute {
        Recompute::None => String::new(),
        Recompute::Layer => {
            let (all, rate) = (flop.needed + flop.again, measured.flop_per_second() * (1.0 + flop.again / flop.needed));
            let share = measured.peak().map_or_else(String::new, |peak| format!(", {:.0} %", 100.0 * rate / peak));
            format!("; {} with a second forward pass{share}", written(all))
        }
    };
    let rate = written(measured.flop_per_second());
    format!("{} {name} per micro-step, {rate} {name}/s{peak}{again}", written(flop.needed))
}

fn memory(measured: &Measured) -> String {
    let planned = measured.planned.total() as u64;
    let Some(gpu) = measured.gpu else { return format!("{} planned", Bytes(planned)) };
    let off = 100.0 * (gpu.own_bytes as f64 / planned as f64 - 1.0);
    let driver = gpu.with_driver_bytes.map_or_else(String::new, |all| format!(", {} with the driver's", Bytes(all)));
    format!("{} planned, {} measured ({off:+.1} %){driver}", Bytes(planned), Bytes(gpu.own_bytes))
}

fn host(measured: &Measured) -> String {
    format!("{} resident, {} at peak", Bytes(measured.host.rss), Bytes(measured.host.peak))
}

fn start(measured: &Measured) -> String {
    let (first, loaded) = (measured.first_step_seconds, measured.loaded_seconds);
    format!("{first:.1} s to the end of the first step, {loaded:.1} s of it for the weights")
}

fn loss(measured: &Measured) -> String {
    let ends = measured.losses.first().zip(measured.losses.last());
    ends.map_or_else(String::new, |(first, last)| format!("{first:.4} to {last:.4}"))
}

fn tokens_per_second(measured: &Measured) -> f64 {
    measured.work.tokens() as f64 / measured.micro_step_seconds()
}

/// With as many digits as are worth something.
fn milliseconds(seconds: f64) -> String {
    match 1e3 * seconds {
        small if small < 10.0 => format!("{small:.2}"),
        long if long < 1000.0 => format!("{long:.1}"),
        long => grouped(long.round() as usize),
    }
}

/// Everything as JSON; docs/benchmarks.md describes the fields.
pub fn json(measured: &Measured) -> Value {
    let (arguments, work, step) = (measured.arguments, &measured.work, measured.median());
    let per_micro_step = |seconds: f64| 1e3 * seconds / measured.micro_steps();
    let stages: Map<String, Value> = Stage::ALL
        .iter()
        .map(|stage| (word(*stage).into(), per_micro_step(step.stages.seconds(*stage)).into()))
        .collect();
    let plan: Map<String, Value> =
        Purpose::ALL.iter().map(|purpose| (purpose.name().into(), measured.planned.bytes(*purpose).into())).collect();
    let (device, card, threads) = match &measured.device {
        Opened::Cpu(cpu) => ("cpu", None, Some(cpu.threads())),
        Opened::Cuda(cuda) => ("cuda", Some(cuda.card().name.clone()), None),
    };
    let flop = work.flop(arguments.vision);
    json!({
        "shape": arguments.shape.name,
        "device": device,
        "card": card,
        "threads": threads,
        "load_in_4bit": arguments.load_in_4bit,
        "recompute": arguments.recompute,
        "trains_vision": arguments.vision,
        "layers": {
            "decoder": work.config.text.layers.len(),
            "vision": work.config.vision.depth,
            "is_part": is_part(measured),
        },
        "micro_step": {
            "rows": work.rows,
            "tokens": work.tokens(),
            "trained_tokens": work.trained(),
            "patches": work.patches(),
        },
        "gradient_accumulation": arguments.gradient_accumulation,
        "warm_up_steps": WARM_UP,
        "micro_step_ms": per_micro_step(step.seconds),
        "fastest_micro_step_ms": per_micro_step(measured.extremes().0),
        "slowest_micro_step_ms": per_micro_step(measured.extremes().1),
        "stages_ms": stages,
        "update_ms": 1e3 * step.stages.seconds(Stage::Update),
        "tokens_per_second": tokens_per_second(measured),
        "flop": flop.needed,
        "flop_made_again": match arguments.recompute {
            Recompute::Layer => flop.again,
            Recompute::None => 0.0,
        },
        "flop_per_second": measured.flop_per_second(),
        "peak_flop_per_second": measured.peak(),
        "share_of_peak": measured.peak().map(|peak| measured.flop_per_second() / peak),
        "memory": {
            "planned_bytes": measured.planned.total(),
            "held_bytes": measured.device.plan().total(),
            "measured_bytes": measured.gpu.map(|gpu| gpu.own_bytes),
            "measured_with_driver_bytes": measured.gpu.and_then(|gpu| gpu.with_driver_bytes),
            "plan": plan,
        },
        "host": {"resident_bytes": measured.host.rss, "peak_resident_bytes": measured.host.peak},
        "start": {"loaded_seconds": measured.loaded_seconds, "first_step_seconds": measured.first_step_seconds},
        "steps_ms": measured.steps.iter().map(|step| 1e3 * step.seconds).collect::<Vec<f64>>(),
        "losses": measured.losses,
        "operations": measured.operations.iter().map(|operation| json!({"name": operation.name, "count": operation.count, "ms": 1e3 * operation.seconds})).collect::<Vec<_>>(),
        "warnings": measured.warnings,
    })
}
