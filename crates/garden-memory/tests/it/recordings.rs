//! Vagueness is no way out: how many looks at the recordings of real programs are decided, and how soon the truth is said.
//!
//! Each recording of `testdata/traces` is looked at ten times as it grows. The files are so plain that a few lines read them here.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the shares are the result, and a test that cannot go on must fail"
)]

use std::path::{Path, PathBuf};

use garden_memory::{Activity, MIB, Quantity, Question, RunFacts, Sample, Trace, Verdict, verdict};

const LOOKS: usize = 10;

struct Recording {
    truth: String,
    facts: RunFacts,
    samples: Vec<Sample>,
}

impl Recording {
    fn read(label: &Path) -> Recording {
        let text = std::fs::read_to_string(label).unwrap();
        let after = |key: &str| Some(text.split_once(&format!("\"{key}\":"))?.1.trim_start());
        let number = |key: &str| after(key)?.split([',', '\n', '}']).next()?.trim().parse::<u64>().ok();
        let truth = after("verdict").unwrap().trim_start_matches('"').split('"').next().unwrap().to_string();
        let facts = RunFacts {
            steps_per_epoch: number("steps_per_epoch").filter(|_| number("examples").is_none()),
            examples: number("examples"),
            batch_size: number("batch_size"),
            gradient_accumulation: number("gradient_accumulation"),
            ..RunFacts::default()
        };
        let table = std::fs::read_to_string(label.with_extension("csv")).unwrap();
        Recording { truth, facts, samples: table.lines().skip(1).map(sample).collect() }
    }

    /// The verdict at each look.
    fn looks(&self) -> Vec<Verdict> {
        let look = |number: usize| {
            let mut trace = Trace::default();
            trace.facts = self.facts.clone();
            self.samples[..self.samples.len() * number / LOOKS].iter().for_each(|sample| trace.push(sample));
            verdict(&trace, &Question::default())
        };
        (1..=LOOKS).map(look).collect()
    }
}

/// A row of `step,time_s,rss_mb,anon_mb,file_mb,shmem_mb,label`.
fn sample(row: &str) -> Sample {
    let cells: Vec<&str> = row.trim().split(',').collect();
    let number = |at: usize| cells[at].parse::<f64>().unwrap();
    let mut sample = Sample::default();
    (sample.step, sample.time_s) = (Some(number(0)), Some(number(1)));
    for (at, quantity) in [(2, Quantity::Rss), (3, Quantity::Anon), (4, Quantity::File), (5, Quantity::Shmem)] {
        sample.set(quantity, (number(at) * MIB as f64).round() as u64);
    }
    sample.activity = if cells[6] == "eval" { Activity::Eval } else { Activity::Train };
    sample
}

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut labels: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    labels.sort();
    labels
}

#[test]
fn most_looks_at_real_programs_are_decided() {
    let (mut all, mut decided, mut true_ones, mut alarms, mut right) = (0, 0, 0, 0, 0);
    let mut firsts = Vec::new();
    for path in recordings() {
        let recording = Recording::read(&path);
        let looks = recording.looks();
        all += looks.len();
        let is_decided = |look: &&Verdict| !matches!(look, Verdict::Growing | Verdict::Insufficient);
        let is_true = |look: &&Verdict| (**look == Verdict::Leak) == (recording.truth == "leak");
        decided += looks.iter().filter(is_decided).count();
        true_ones += looks.iter().filter(is_decided).filter(is_true).count();
        alarms += usize::from(recording.truth != "leak" && looks.contains(&Verdict::Leak));
        let is_right = |look: &Verdict| look.name() == recording.truth;
        right += usize::from(looks.last().is_some_and(is_right));
        firsts.push(looks.iter().position(is_right).map_or(LOOKS, |at| at) + 1);
        println!("{} {}: {looks:?}", path.file_stem().unwrap().to_string_lossy(), recording.truth);
    }
    firsts.sort_unstable();
    let median = firsts[firsts.len() / 2];
    println!(
        "{decided} of {all} looks decided, {true_ones} of them in agreement with the truth, {right} right at the end, the truth first said at look {median}, {alarms} false alarms"
    );
    assert_eq!(alarms, 0);
    assert!(decided * 100 >= all * 65 && median <= 4, "{decided} of {all}, look {median}");
}

/// A pool that grew once in fifty steps until step 300, and then not for 150.
#[test]
fn a_pool_that_has_stopped_growing_is_no_leak() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/sentences/pool-by-rounds.log");
    let mut trace = Trace::default();
    for line in std::fs::read_to_string(log).unwrap().lines() {
        let number =
            |key: &str| line.split_once(key).unwrap().1.split_whitespace().next().unwrap().parse::<f64>().unwrap();
        let mut sample = Sample::default();
        sample.step = Some(number("step "));
        sample.set(Quantity::Rss, (number("RAM: ") * MIB as f64) as u64);
        trace.push(&sample);
    }
    trace.facts.steps_per_epoch = Some(50);
    let found = garden_memory::diagnose(&trace, &Question::default());
    assert_ne!(found.verdict, Verdict::Leak, "{}", found.summary);
}
