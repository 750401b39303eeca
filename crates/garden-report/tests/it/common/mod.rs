//! Diagnoses made by hand, modelled on the production runs, and the reports around them.

#![allow(dead_code, reason = "each test file uses some of them")]

use garden_memory::*;
use garden_report::{Report, Series};

pub const M: f64 = MIB as f64;

/// RSS of run 2 in MiB, every 10 steps.
const RUN2: [u64; 24] = [
    5434, 7017, 8721, 10375, 12000, 13757, 15559, 17412, 17658, 17693, 17694, 17694, 17437, 17437, 17437, 17378, 17378,
    17229, 17229, 17051, 17052, 17041, 17033, 17032,
];
/// RSS of run 1 in MiB, every 10 steps.
const RUN1: [u64; 7] = [5552, 7159, 8851, 10515, 12227, 13919, 15736];

/// What a report borrows.
pub struct Case {
    pub diagnosis: Diagnosis,
    pub title: &'static str,
    pub memory: Series,
    pub counts: Vec<Series>,
    pub origin: Vec<(String, String)>,
    pub facts: RunFacts,
    pub command: Option<&'static str>,
}

impl Case {
    pub fn report(&self) -> Report<'_> {
        Report {
            diagnosis: &self.diagnosis,
            title: self.title.to_string(),
            memory: self.memory.clone(),
            counts: self.counts.clone(),
            charts: Vec::new(),
            samples: None,
            sections: Vec::new(),
            origin: &self.origin,
            facts: &self.facts,
            command: self.command.map(str::to_string),
            version: "0.1.0",
        }
    }
}

/// A diagnosis that says nothing.
pub fn blank() -> Diagnosis {
    Diagnosis {
        verdict: Verdict::Insufficient,
        mechanism: Mechanism::None,
        confidence: None,
        summary: String::new(),
        likelihood: None,
        growth: Growth::default(),
        knee: None,
        level: None,
        forecast: Forecast::default(),
        headroom: None,
        sensitivity: None,
        clock: Clock::Step,
        phases: Vec::new(),
        causes: Vec::new(),
        ruled_out: Vec::new(),
        suspect: None,
        next_command: None,
        claims: Vec::new(),
        evidence: Vec::new(),
        advice: Vec::new(),
        processes: Vec::new(),
        parts: Vec::new(),
        series: Vec::new(),
        stability: None,
        input: Input::default(),
    }
}

pub fn series(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { name: name.to_string(), points: points.into_iter().collect() }
}

fn every_ten(values: &[u64]) -> Vec<(f64, f64)> {
    values.iter().enumerate().map(|(index, &mib)| (10.0 * (index as f64 + 1.0), mib as f64 * M)).collect()
}

fn story_facts(limit: Option<Bytes>) -> RunFacts {
    RunFacts {
        examples: Some(663),
        batch_size: Some(2),
        gradient_accumulation: Some(4),
        memory_limit: limit,
        ..RunFacts::default()
    }
}

fn csv(samples: usize) -> Input {
    Input {
        format: "csv".into(),
        samples,
        column: Some("rss_mb".into()),
        judged: None,
        unit: Some("MiB".into()),
        skipped: 0,
        notes: Vec::new(),
    }
}

fn mib(amount: f64) -> u64 {
    (amount * M) as u64
}

fn phase(kind: PhaseKind, places: (f64, f64), levels: (f64, f64), rate: (f64, f64, f64)) -> Phase {
    Phase {
        kind,
        from: places.0,
        to: places.1,
        start_bytes: mib(levels.0),
        end_bytes: mib(levels.1),
        rate: rate.0 * M,
        low: rate.1 * M,
        high: rate.2 * M,
    }
}

fn cause(id: &'static str, title: &'static str, score: f64, fix: &'static str) -> Cause {
    Cause { id, title, score, supporting: Vec::new(), against: Vec::new(), fix }
}

/// Run 2 with all facts: everything that a settled diagnosis can say.
pub fn run2() -> Case {
    let causes = vec![
        Cause {
            supporting: vec![
                "the growth ends with the first epoch (step 83)".into(),
                "21.4 MiB per example is a decoded photograph of 5.6 megapixels at 4 bytes per pixel".into(),
            ],
            against: vec!["an inference from size and timing: anonymous memory was not recorded separately".into()],
            ..cause(
                "decoded_images_kept",
                "decoded images kept per example",
                0.86,
                "decode on access and drop the pixels: keep bytes in the list, open images in `__getitem__` or with `with_transform`",
            )
        },
        cause("prefetch_buffer", "shuffle or prefetch buffer filling", 0.05, "make the buffer smaller"),
        cause("glibc_arenas", "glibc arenas and fragmentation", 0.03, "set `MALLOC_ARENA_MAX=2`"),
        cause("cudnn_plans", "cuDNN plan cache per convolution shape", 0.02, "limit the cache"),
        cause("arrow_pool", "Arrow memory pool retention", 0.01, "release unused memory"),
        cause("bpe_cache", "tokenizer cache", 0.004, "clear it"),
    ];
    let diagnosis = Diagnosis {
        verdict: Verdict::Settled,
        mechanism: Mechanism::EpochFill,
        confidence: Some(0.97),
        summary: "Memory grew by 171 MiB per step until the first epoch ended at step 83 and has not grown since: a \
                  bounded fill of 21.4 MiB per example, not a leak."
            .into(),
        growth: Growth {
            bytes_per_step: Some(171.1 * M),
            low: Some(168.7 * M),
            high: Some(173.4 * M),
            bytes_per_second: None,
            bytes_per_example: Some(21.4 * M),
        },
        knee: Some(Knee { step: Some(83.0), low: 80.0, high: 90.0, time_s: None }),
        level: Some(Level { bytes: mib(17032.0), low: mib(17005.0), high: mib(17120.0) }),
        forecast: Forecast { limit_bytes: Some(32 * GIB), ..Forecast::default() },
        phases: vec![
            phase(PhaseKind::Growth, (10.0, 83.0), (5434.0, 17620.0), (171.1, 168.7, 173.4)),
            phase(PhaseKind::Plateau, (83.0, 120.0), (17658.0, 17694.0), (0.3, -0.1, 0.9)),
            phase(PhaseKind::Fall, (120.0, 240.0), (17694.0, 17032.0), (-5.6, -6.3, -4.4)),
        ],
        causes,
        ruled_out: vec![RuledOut {
            id: "tensor_leak",
            title: "tensors kept by the training loop",
            reason: "the number of live tensors is constant while the memory grows (6529 from step 10 to 80)".into(),
        }],
        evidence: vec![
            Evidence::number(
                "the growth stops at step 83 (80 to 90); one epoch is 663 / (2 x 4) = 83 steps",
                83.0,
                "step",
            ),
            Evidence::words("157 further steps, nearly two epochs over the same examples, added nothing"),
            Evidence::words(
                "ten times the images would need about 139 GiB: the fill is bounded by the dataset, not by a pool",
            ),
        ],
        advice: vec![
            "Nothing will be killed: the level is 16.6 GiB and the limit 32.0 GiB.".into(),
            "Before the dataset grows, decode images on access; this run would then need about 4 GiB.".into(),
            "To confirm, process 50 different examples twice: growth in the first pass only is this fill.".into(),
        ],
        stability: Some(StabilityCheck {
            passed: false,
            after_step: 90.0,
            until_step: None,
            max_variation_bytes: Some(mib(500.0)),
            variation_bytes: Some(mib(662.0)),
            max_growth_bytes: None,
            growth_bytes: Some(mib(36.0)),
            text: "after step 90 the memory varies by 662 MiB, more than the 500 MiB that were allowed".into(),
        }),
        input: csv(24),
        ..blank()
    };
    let count = |name: &str, before: f64, after: f64| {
        series(name, (1..=24).map(|n| (10.0 * f64::from(n), if n < 9 { before } else { after })))
    };
    Case {
        diagnosis,
        title: "run2.csv",
        memory: series("rss_mb", every_ten(&RUN2)),
        counts: vec![
            count("tensors", 6529.0, 7070.0),
            count("tensors_cpu", 330.0, 355.0),
            count("tensors_gpu", 6199.0, 6715.0),
        ],
        origin: vec![("host".into(), "workstation-3".into()), ("torch".into(), "2.4.0+cu121".into())],
        facts: story_facts(Some(Bytes(32 * GIB))),
        command: Some("model-garden diagnose run2.csv --examples 663 --batch-size 2 --gradient-accumulation 4"),
    }
}

/// Run 1, stopped at step 70: still growing, both ways open.
pub fn run1() -> Case {
    let diagnosis = Diagnosis {
        verdict: Verdict::Growing,
        mechanism: Mechanism::Linear,
        confidence: Some(0.9),
        summary: "Memory grows by 169 MiB per step, and nothing yet tells a leak from a fill that ends with the first \
                  epoch; step 91 will."
            .into(),
        likelihood: Some(Likelihood { leak: 0.31, bounded: 0.69 }),
        growth: Growth {
            bytes_per_step: Some(169.4 * M),
            low: Some(166.0 * M),
            high: Some(172.0 * M),
            bytes_per_second: Some(28.2 * M),
            bytes_per_example: Some(21.2 * M),
        },
        level: Some(Level { bytes: mib(15736.0), low: mib(15640.0), high: mib(15830.0) }),
        forecast: Forecast {
            decided_by_step: Some(91.0),
            if_bounded: Some(Plateau { step: Some(83.0), bytes: mib(17940.0), low: mib(17700.0), high: mib(18200.0) }),
            if_unbounded: Some(Exhaustion { step: Some(170.6), low: 168.0, high: Some(173.0), time_s: Some(604.0) }),
            limit_bytes: Some(32 * GIB),
        },
        phases: vec![phase(PhaseKind::Growth, (10.0, 70.0), (5552.0, 15736.0), (169.4, 166.0, 172.0))],
        evidence: vec![Evidence::words("the growth is steady over 7 samples, all within the first epoch of 83 steps")],
        advice: vec![
            "Wait for step 91, or process 50 different examples twice: growth in both passes is a leak.".into(),
        ],
        input: csv(7),
        ..blank()
    };
    Case {
        diagnosis,
        title: "run1.csv",
        memory: series("rss_mb", every_ten(&RUN1)),
        counts: vec![series("tensors", (1..=7).map(|n| (10.0 * f64::from(n), 6529.0)))],
        origin: Vec::new(),
        facts: story_facts(Some(Bytes(32 * GIB))),
        command: None,
    }
}

/// A leak by the clock on the wall, in a run that was restarted once, with a limit just above it.
pub fn leak() -> Case {
    let level = |n: f64| 4000.0 + 0.35 * n + 40.0 * (n / 7.0).sin();
    let points = (0..1200).map(|n| {
        let seconds = 10.0 * f64::from(n);
        let since_start = f64::from(if n < 400 { n } else { n - 400 });
        (1_700_000_000.0 + seconds, level(10.0 * since_start) * M)
    });
    let start = 1_700_000_000.0;
    let part = |from: f64, to: f64, samples, summary: &str| Part {
        from: start + from,
        to: start + to,
        samples,
        verdict: Verdict::Leak,
        mechanism: Mechanism::Linear,
        summary: summary.into(),
        decides: from > 0.0,
    };
    let diagnosis = Diagnosis {
        verdict: Verdict::Leak,
        mechanism: Mechanism::Linear,
        confidence: Some(0.998),
        summary: "Memory grows by 21.0 MiB per minute without end and reaches the limit in about half an hour.".into(),
        growth: Growth {
            bytes_per_second: Some(0.35 * M),
            low: Some(0.34 * M),
            high: Some(0.36 * M),
            ..Growth::default()
        },
        level: Some(Level { bytes: mib(6800.0), low: mib(6750.0), high: mib(6850.0) }),
        forecast: Forecast {
            if_unbounded: Some(Exhaustion { step: None, low: 1890.0, high: None, time_s: Some(1990.0) }),
            limit_bytes: Some(mib(7500.0)),
            ..Forecast::default()
        },
        clock: Clock::Time,
        phases: vec![phase(
            PhaseKind::Growth,
            (start + 4000.0, start + 11_990.0),
            (4000.0, 6796.0),
            (0.35, 0.34, 0.36),
        )],
        evidence: vec![Evidence::words("both processes grow at the same rate from their first sample on")],
        advice: vec!["Save a checkpoint now.".into(), "Bisect with the two-pass test.".into()],
        processes: vec![
            process(4711, "python3", "training", [GIB, 3 * GIB]),
            process(4790, "pt_data_worker", "worker", [210 * MIB, 211 * MIB]),
            process(4710, "uv", "wrapper", [38 * MIB, 38 * MIB]),
        ],
        parts: vec![
            part(0.0, 3990.0, 400, "grows by 20.9 MiB per minute"),
            part(4000.0, 11_990.0, 800, "grows by 21.0 MiB per minute"),
        ],
        input: Input {
            format: "mprof".into(),
            samples: 1200,
            skipped: 2,
            notes: vec!["lines 17 and 901 hold no number".into()],
            ..Input::default()
        },
        ..blank()
    };
    Case {
        diagnosis,
        title: "mprofile_20240101.dat",
        memory: series("MEM", points),
        counts: vec![series("objects", (0..1200).map(|n| (start + 10.0 * f64::from(n), 2.1e6 + 500.0 * f64::from(n))))],
        origin: vec![("command".into(), "python train.py --workers 4 | tee `date`.log".into())],
        facts: RunFacts::default(),
        command: None,
    }
}

/// Nothing but the statement that there is nothing.
pub fn empty() -> Case {
    Case {
        diagnosis: Diagnosis {
            summary: "There is no sample to judge; at least 5 are needed.".into(),
            input: Input { format: "csv".into(), skipped: 3, ..Input::default() },
            ..blank()
        },
        title: "",
        memory: Series::default(),
        counts: Vec::new(),
        origin: Vec::new(),
        facts: RunFacts::default(),
        command: None,
    }
}

fn process(pid: u32, name: &str, role: &str, [from_bytes, to_bytes]: [u64; 2]) -> ProcessChange {
    let (name, role) = (name.to_string(), role.to_string());
    ProcessChange { pid, parent: 1, name, role, command: "python3 train.py".into(), from_bytes, to_bytes }
}
