//! A day of watching, on a simulated clock: the memory of the monitor, and the trace that it leaves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::process::Command;
use std::time::Duration;

use garden_guard::{Recorder, Watch};
use garden_memory::{EventKind, Quantity, RunFacts};
use garden_probe::Sampler;
use garden_testing::alone;
use garden_trace::{ReadOptions, read_path};

const DAY: u32 = 86_400;

/// Anonymous memory of this process: its code and libraries are a test's, not the monitor's.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_day_at_one_sample_a_second_takes_no_more_memory_than_an_hour() {
    alone("day::a_day_at_one_sample_a_second_takes_no_more_memory_than_an_hour", watch_a_day);
}

fn watch_a_day() {
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("day.jsonl");
    let sampler = Sampler::of(sleeper.id()).unwrap();
    let recorder = Recorder::create(&path, RunFacts::default(), &[]).unwrap();
    let mut watch = Watch::new(sampler, recorder, None);
    let (mut after_an_hour, mut most) = (0, 0);
    for second in 0..DAY {
        // The clock is moved on instead of waited for.
        watch.pass_time(Duration::from_secs(1));
        watch.hear_output(format!("Step {second}: loss 0.1 on line {second}\n").as_bytes()).unwrap();
        if second % 600 == 0 {
            watch.event(EventKind::Checkpoint).unwrap();
            watch.judge_now(&RunFacts::default());
            watch.take_news();
            most = most.max(anonymous());
        }
        assert!(watch.sample().unwrap());
        if second == 3600 {
            after_an_hour = anonymous();
        }
    }
    let end = anonymous();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(end < after_an_hour + (1 << 20), "{after_an_hour} bytes after an hour, {end} after a day");
    assert!(most < 8 << 20, "at most {most} bytes");
    let read = read_path(&path, &ReadOptions::default()).unwrap();
    assert_eq!((read.trace.len(), read.input.skipped, read.trace.events.len()), (DAY as usize, 0, 144));
    assert!(read.trace.value(DAY as usize - 1, Quantity::Rss).unwrap() > 0);
    let time = |sample: u32| read.trace.time_s(sample as usize).unwrap();
    assert!(time(DAY - 1) - time(0) >= f64::from(DAY - 1), "{} to {}", time(0), time(DAY - 1));
}
