//! How long reading and judging a trace takes, for a small and a large one: cost grows linearly with the samples.

#![allow(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use garden_memory::{Question, RunFacts, diagnose};
use garden_trace::{ReadOptions, Writer, read};

/// A fill of the first half with noise, as a CSV with six columns.
fn csv(samples: usize) -> String {
    let mut text = String::from("step,time_s,rss_mb,anon_mb,file_mb,shmem_mb,label\n");
    let mut state = 1_u64;
    for step in 0..samples {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let noise = (state >> 40) as f64 / (1 << 24) as f64 * 20.0;
        let anon = 1000.0 + 5000.0 * (2.0 * step as f64 / samples as f64).min(1.0) + noise;
        writeln!(text, "{step},{:.3},{:.3},{anon:.3},100.000,0.000,train", step as f64 * 0.5, anon + 100.0)
            .expect("writing to a string cannot fail");
    }
    text
}

fn log(samples: usize) -> String {
    let mut text = String::new();
    for step in 0..samples {
        let memory = 5000 + (step * 12000 / samples) as u64;
        writeln!(text, "Step {step}: 6529 tensors (CPU: 330, GPU: 6199), RAM: {memory} MB")
            .expect("writing to a string cannot fail");
    }
    text
}

/// The same samples in our own format.
fn own(csv: &str) -> Vec<u8> {
    let trace = read(csv.as_bytes(), &ReadOptions::default()).expect("the table is readable").trace;
    let mut writer = Writer::new(Vec::new());
    writer.header(&RunFacts::default(), &[]).expect("memory is writable");
    for index in 0..trace.len() {
        writer.sample(&trace.sample(index), &[]).expect("memory is writable");
    }
    writer.into_inner()
}

fn read_and_judge(bytes: &[u8], samples: usize) {
    let trace = read(bytes, &ReadOptions::default()).expect("the trace is readable").trace;
    let facts = RunFacts { steps_per_epoch: Some(samples as u64 / 2), ..RunFacts::default() };
    black_box(diagnose(&trace, &Question { facts, ..Question::default() }));
}

/// The median, least and most of so many times, after one that warms up.
fn times(rounds: usize, work: impl Fn()) -> [Duration; 3] {
    work();
    let mut took: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed()
        })
        .collect();
    took.sort();
    [took[rounds / 2], took[0], took[rounds - 1]]
}

fn main() {
    for (samples, rounds) in [(1_000, 1_000), (1_000_000, 11)] {
        let table = csv(samples);
        let inputs = [("csv", table.clone().into_bytes()), ("own", own(&table)), ("log", log(samples).into_bytes())];
        for (name, bytes) in inputs {
            let [median, least, most] = times(rounds, || read_and_judge(&bytes, samples));
            let per_second = samples as f64 / median.as_secs_f64() / 1e6;
            println!(
                "{name}, {samples:>7} samples: {median:>9.2?} ({least:.2?} to {most:.2?}), {per_second:.2} million a second"
            );
        }
    }
}
