//! Trees whose processes fork and copy pages: memory that is not known yet is marked, and the guard decides by what is measured.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use crate::common::{diagnose, has_python, run, scratch, told};
use serde_json::Value;

/// The samples of a trace.
fn samples(trace: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).unwrap();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    records.filter(|record| record["anon"].is_u64()).collect()
}

#[test]
fn memory_that_is_known_by_bounds_is_marked() {
    if !has_python() {
        return;
    }
    let trace = scratch("forked-marked").join("trace.jsonl");
    let trace = trace.to_str().unwrap();
    let program = ["python3", "testdata/programs/forking.py", "one_child_copies_all", "4"];
    let output = run(&[&["monitor", "--plain", "--interval", "20ms", "-o", trace, "--"][..], &program[..]].concat());
    let samples = samples(trace);
    let bounds: Vec<(u64, u64)> =
        samples.iter().filter_map(|sample| Some((sample["anon_least"].as_u64()?, sample["anon"].as_u64()?))).collect();
    assert!(!bounds.is_empty() && bounds.len() < samples.len(), "{} of {}", bounds.len(), samples.len());
    assert!(bounds.iter().all(|(least, most)| least < most), "{bounds:?}");
    let talk = told(&output);
    assert!(talk.contains("anon at most ") && talk.contains(", at least "), "{talk}");
    let notes = diagnose(trace, &[]).0["input"]["notes"].to_string();
    assert!(notes.contains("only bounds of"), "{notes}");
}

/// A parent with 100 MiB and five children; `work` is what each child does eighty times in eight seconds.
fn guarded(name: &str, limit: &str, work: &str) -> (std::process::Output, Vec<Value>) {
    let script = format!(
        "import ctypes, mmap, os, time\n\
         libc, size = ctypes.CDLL(None), 100 << 20\n\
         block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
         for place in range(0, size, 4096): block[place] = 1\n\
         def work(turn):\n    {work}\n\
         for _ in range(5):\n    \
             if os.fork() == 0:\n        \
                 libc.prctl(1, 9)\n        \
                 for turn in range(80):\n            \
                     work(turn)\n            \
                     time.sleep(0.1)\n        \
                 os._exit(0)\n\
         for _ in range(5): os.wait()\n\
         print('finished', flush=True)\n"
    );
    let trace = scratch(name).join("trace.jsonl");
    let trace = trace.to_str().unwrap();
    let flags = ["run", "--plain", "--interval", "200ms", "--memory-limit", limit, "-o", trace];
    let output = run(&[&flags[..], &["--", "python3", "-c", &script]].concat());
    (output, samples(trace))
}

/// Children that copy all of their parent's pages hold 600 MiB in the end, while every process's counters stand still.
#[test]
fn copies_of_shared_pages_are_stopped_at_the_limit() {
    if !has_python() {
        return;
    }
    let work = "for place in range(turn * size // 80, (turn + 1) * size // 80, 4096): block[place] = 2";
    let (output, samples) = guarded("forked-copies", "400MiB", work);
    let talk = told(&output);
    assert!(!talk.contains("finished") && output.status.code() != Some(0), "{talk}");
    let measured =
        samples.iter().filter(|sample| sample["anon_least"].is_null()).filter_map(|sample| sample["anon"].as_u64());
    let highest = measured.max().unwrap() >> 20;
    // A busy machine takes samples late, and the children copy 60 MiB in a second.
    assert!((200..500).contains(&highest), "{highest} MiB: {talk}");
}

/// Children that take 40 MiB and give it back, over and over, never hold more than 300 MiB and 50 of their own, but fault in 4 GiB.
/// What they hold is known by bounds only, and these stay where the truth can be.
#[test]
fn memory_that_comes_and_goes_stops_nothing() {
    if !has_python() {
        return;
    }
    let work = "taken = bytearray(b'x') * (40 << 20)";
    let (output, samples) = guarded("forked-churn", "640MiB", work);
    let talk = told(&output);
    let marked = samples.iter().filter(|sample| sample["anon_least"].is_u64()).count();
    assert!(marked > samples.len() / 2, "{marked} of {} samples are bounds", samples.len());
    assert!(talk.contains("finished") && output.status.code() == Some(0), "{talk}");
}
