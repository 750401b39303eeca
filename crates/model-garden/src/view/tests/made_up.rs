//! Made-up runs to look at, judged by the real judge.

use std::path::Path;
use std::time::Duration;

use garden_memory::{Bytes, Diagnosis, GIB, MIB, Quantity, Question, RunFacts, Sample, Trace, diagnose};

use crate::view::{Machine, Picture, Point, ProcessRow};

/// A run and everything around it that a picture borrows.
pub struct MadeUp {
    pub title: String,
    pub history: Vec<Point>,
    pub facts: RunFacts,
    pub diagnosis: Option<Diagnosis>,
    pub processes: Vec<ProcessRow>,
    pub machine: Machine,
    pub guard: Option<String>,
    pub output: Vec<String>,
    pub failed: u64,
    pub late: u64,
}

impl MadeUp {
    pub fn picture(&self) -> Picture<'_> {
        let last = self.history.last();
        Picture {
            title: &self.title,
            elapsed: Duration::try_from_secs_f64(last.map_or(0.0, |last| last.time_s)).unwrap_or_default(),
            step: last.and_then(|last| last.step),
            total_steps: self.facts.total_steps,
            history: &self.history,
            peak: self.history.iter().map(Point::resident).max().unwrap_or(0),
            limit: self.facts.memory_limit.map(|limit| limit.0),
            diagnosis: self.diagnosis.as_ref(),
            processes: &self.processes,
            machine: self.machine,
            guard: self.guard.as_deref(),
            output: &self.output,
            quit: "stop watching",
            failed: self.failed,
            late: self.late,
            trace: Path::new("model-garden-1760000000.jsonl"),
            interval: Duration::from_secs(1),
        }
    }

    /// The judge's opinion of the history.
    pub fn judged(mut self) -> MadeUp {
        let mut trace = Trace::default();
        trace.facts = self.facts.clone();
        for point in &self.history {
            let mut sample = Sample::default();
            (sample.step, sample.time_s) = (point.step, Some(point.time_s));
            sample.set(Quantity::Rss, point.resident());
            sample.set(Quantity::Anon, point.anon);
            sample.set(Quantity::File, point.file);
            sample.set(Quantity::Shmem, point.shmem);
            sample.set(Quantity::Swap, point.swap);
            trace.push(&sample);
        }
        self.diagnosis = Some(diagnose(&trace, &Question::default()));
        self
    }
}

fn mib(amount: f64) -> u64 {
    Bytes::from_f64(amount * MIB as f64).0
}

/// Noise that is the same every time, from -1 to 1.
fn noise(n: usize) -> f64 {
    let mixed = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f64 / (1u64 << 23) as f64 - 1.0
}

/// A history of `count` samples, one every `seconds`; `anon` and `file` give MiB by step.
fn history(
    count: usize,
    seconds: f64,
    step: impl Fn(f64) -> Option<f64>,
    anon: impl Fn(f64) -> f64,
    file: impl Fn(f64) -> f64,
) -> Vec<Point> {
    let point = |n: usize| {
        let time_s = n as f64 * seconds;
        let step = step(time_s);
        let place = step.unwrap_or(time_s);
        let anon = mib(anon(place) + 12.0 * noise(n));
        Point {
            time_s,
            anon,
            file: mib(file(place)),
            shmem: mib(192.0 + 16.0 * noise(n + 7)),
            swap: 0,
            step,
            anon_least: None,
        }
    };
    (0..count).map(point).collect()
}

fn process(pid: u32, depth: usize, role: &str, command: &str, own_mib: f64, growth_mib: f64) -> ProcessRow {
    ProcessRow {
        pid,
        parent: pid - 1,
        depth,
        name: command.split(' ').next().unwrap_or_default().to_string(),
        role: role.to_string(),
        command: command.to_string(),
        own: mib(own_mib),
        rss: mib(own_mib + 400.0),
        growth: (growth_mib * MIB as f64) as i64,
        gpu: (role == "training").then_some(mib(14_500.0)),
    }
}

/// The images of a dataset are decoded one by one and kept; half an epoch has passed.
pub fn growing() -> MadeUp {
    let facts = RunFacts {
        examples: Some(663),
        batch_size: Some(2),
        gradient_accumulation: Some(4),
        total_steps: Some(249),
        memory_limit: Some(Bytes(32 * GIB)),
        ..RunFacts::default()
    };
    let history = history(
        344,
        1.0,
        |time| Some((time / 7.4).floor() + 1.0),
        |step| 3400.0 + 184.0 * step,
        |step| 1400.0 - 4.0 * step,
    );
    let mut processes = vec![
        process(4710, 0, "wrapper", "uv run train.py", 38.0, 0.0),
        process(4711, 1, "training", "python3 train.py --model Qwen/Qwen2.5-VL-3B-Instruct --bf16", 10_900.0, 7_520.0),
        process(4790, 2, "logger", "wandb-core --port-filename /tmp/tmp1", 96.0, 3.2),
    ];
    processes.extend((0..4).map(|n| process(4801 + n, 2, "worker", "python3 train.py", 210.0 + f64::from(n), 1.5)));
    MadeUp {
        title: "uv run train.py --model Qwen/Qwen2.5-VL-3B-Instruct".into(),
        history,
        facts,
        diagnosis: None,
        processes,
        machine: Machine {
            available: Some(mib(17_900.0)),
            group_used: Some(mib(13_100.0)),
            group_limit: Some(32 * GIB),
            pressure: Some(12),
            dev_shm: Some(mib(192.0)),
            gpu_used: Some(mib(15_300.0)),
        },
        guard: Some("saves a checkpoint and stops the run at 29.4 GiB, in about 14 minutes if it never ends".into()),
        output: [
            "Loading checkpoint shards: 100%|██████████| 2/2 [00:03<00:00,  1.62s/it]",
            "trainable params: 18,576,384 || all params: 3,773,199,360 || trainable%: 0.4923",
            "{'loss': 1.4312, 'grad_norm': 0.8123, 'learning_rate': 0.00018, 'epoch': 0.36}",
            "{'loss': 1.2207, 'grad_norm': 0.7713, 'learning_rate': 0.00017, 'epoch': 0.48}",
            " 18%|█▊        | 46/249 [05:38<24:52,  7.35s/it]",
        ]
        .map(String::from)
        .to_vec(),
        failed: 0,
        late: 2,
    }
    .judged()
}

/// A warm-up that ended, watched by the clock, without a limit.
pub fn settled() -> MadeUp {
    MadeUp {
        title: "python3 finetune.py".into(),
        history: history(
            400,
            2.0,
            |_| None,
            |time| 900.0 + 6.0 * time.min(240.0),
            |time| 300.0 + 40.0 * (time / 90.0).sin(),
        ),
        facts: RunFacts::default(),
        processes: vec![process(912, 0, "training", "python3 finetune.py", 2340.0, 1440.0)],
        machine: Machine { available: Some(54 * GIB), ..Machine::default() },
        guard: None,
        output: Vec::new(),
        failed: 3,
        late: 0,
        ..growing()
    }
    .judged()
}

/// Unbounded growth that is close to the limit, with many workers.
pub fn leaking() -> MadeUp {
    let mut run = MadeUp {
        title: "torchrun --nproc-per-node 2 pretrain.py".into(),
        history: history(
            512,
            3.0,
            |time| Some((time / 2.0).floor()),
            |step| 2200.0 + 15.5 * step,
            |step| 2100.0 + 300.0 * (step / 31.0).sin(),
        ),
        facts: RunFacts {
            steps_per_epoch: Some(120),
            total_steps: Some(5000),
            memory_limit: Some(Bytes(16 * GIB)),
            ..RunFacts::default()
        },
        guard: None,
        failed: 0,
        late: 0,
        ..growing()
    };
    run.processes.extend((0..14).map(|n| process(5000 + n, 2, "worker", "python3 pretrain.py", 120.0, 0.0)));
    run.judged()
}

/// Nothing has been sampled yet.
pub fn empty() -> MadeUp {
    MadeUp {
        title: "sleep 1000".into(),
        history: Vec::new(),
        facts: RunFacts::default(),
        diagnosis: None,
        processes: Vec::new(),
        machine: Machine::default(),
        guard: None,
        output: Vec::new(),
        failed: 0,
        late: 0,
    }
}
