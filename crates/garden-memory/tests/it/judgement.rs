//! Properties that hold for any trace: no panic, no nonsense numbers, and the same verdict in other units.

#![allow(clippy::print_stdout, reason = "a seed that fails must be known")]

use crate::population::{HEALTHY, LEAKS, Random, Run, draw};
use garden_memory::{
    Activity, Bytes, Diagnosis, EventKind, GIB, ProcessTrack, Quantity, Question, RunFacts, Sample, Stability, Trace,
    Verdict, diagnose,
};

fn trace_of(values: impl IntoIterator<Item = (f64, u64)>) -> Trace {
    let mut trace = Trace::default();
    for (step, rss) in values {
        let mut sample = Sample::default();
        sample.step = Some(step);
        sample.set(Quantity::Rss, rss);
        trace.push(&sample);
    }
    trace
}

fn verdict(trace: &Trace) -> Verdict {
    diagnose(trace, &Question::default()).verdict
}

/// A trace of anything: extreme values, times going backwards, gaps, restarts, events in odd places.
fn nonsense(random: &mut Random) -> (Trace, Question) {
    let mut trace = Trace::default();
    let count = (random.scale(1.0, 400.0) - 1.0) as usize;
    let quantities: Vec<Quantity> = Quantity::ALL.into_iter().filter(|_| random.chance(0.3)).collect();
    for _ in 0..count {
        let mut sample = Sample::default();
        sample.step =
            random.chance(0.8).then(|| random.scale(1e-3, 1e12) * if random.chance(0.1) { -1.0 } else { 1.0 });
        sample.time_s = random.chance(0.5).then(|| random.scale(1e-9, 1e15));
        sample.activity = if random.chance(0.1) { Activity::Eval } else { Activity::Train };
        for &quantity in &quantities {
            let value = match random.bits() % 5 {
                0 => 0,
                1 => u64::MAX,
                2 => random.bits(),
                _ => random.scale(1.0, 1e12) as u64,
            };
            sample.set(quantity, value);
        }
        trace.push(&sample);
        if random.chance(0.05) {
            let kinds = [EventKind::EvalStart, EventKind::EvalEnd, EventKind::Checkpoint, EventKind::Restart];
            trace.push_event(kinds[(random.bits() % 4) as usize], random.chance(0.5).then(|| random.normal()), None);
        }
    }
    let huge = |random: &mut Random| random.chance(0.5).then(|| random.scale(1.0, 1e18) as u64);
    let facts = RunFacts {
        examples: huge(random),
        batch_size: huge(random),
        gradient_accumulation: huge(random),
        steps_per_epoch: huge(random),
        total_steps: huge(random),
        memory_limit: huge(random).map(Bytes),
    };
    let stability = random.chance(0.3).then(|| Stability {
        from: random.normal() * 100.0,
        to: random.chance(0.5).then(|| random.normal() * 100.0),
        max_variation: random.chance(0.5).then(|| Bytes(random.bits())),
        max_growth: random.chance(0.5).then(|| Bytes(random.bits())),
    });
    (trace, Question { facts, stability, ..Question::default() })
}

fn assert_sane(diagnosis: &Diagnosis) {
    let finite = |value: Option<f64>| value.is_none_or(f64::is_finite);
    let growth = diagnosis.growth;
    assert!(finite(growth.bytes_per_step) && finite(growth.low) && finite(growth.high));
    assert!(diagnosis.confidence.is_none_or(|confidence| (0.0..=1.0).contains(&confidence)));
    assert!(diagnosis.causes.iter().all(|cause| (0.0..=1.0).contains(&cause.score)));
    assert_eq!(diagnosis.verdict == Verdict::Insufficient, diagnosis.level.is_none());
    assert!(!diagnosis.summary.is_empty());
}

#[test]
fn nothing_makes_it_panic() {
    let first = garden_testing::seed();
    for seed in first..first + 3000 {
        println!("seed {seed}");
        let (trace, question) = nonsense(&mut Random(seed));
        assert_sane(&diagnose(&trace, &question));
    }
}

#[test]
fn the_verdict_does_not_change_with_a_constant_offset() {
    let first = garden_testing::seed();
    for kind in HEALTHY.into_iter().chain(LEAKS) {
        for seed in first..first + 10 {
            let run = draw(kind, &mut Random(seed));
            let shifted = |offset: u64| {
                let mut samples = run.samples.clone();
                for sample in &mut samples {
                    sample.set(Quantity::Rss, sample.get(Quantity::Rss).unwrap() + offset);
                }
                let moved = Run {
                    facts: run.facts.clone(),
                    samples,
                    restart: run.restart,
                    floor: None,
                    memory: None,
                    end: None,
                    over: None,
                };
                verdict(&moved.trace(moved.samples.len()))
            };
            // What counts as start-up or as worth a call is measured against the level, so growths at the border of
            // that may change their name between flat and the rest; a leak never does.
            let (here, there) = (shifted(0), shifted(GIB / 4));
            let is_border = here == Verdict::Flat || there == Verdict::Flat;
            assert!(
                here == there || (is_border && here != Verdict::Leak && there != Verdict::Leak),
                "{kind:?} {seed}: {here:?}, {there:?}"
            );
        }
    }
}

#[test]
fn few_samples_are_insufficient_and_five_are_not() {
    for count in 0..5 {
        assert_eq!(verdict(&trace_of((0..count).map(|i| (i as f64, GIB)))), Verdict::Insufficient, "{count}");
    }
    assert_eq!(verdict(&trace_of((0..5).map(|i| (i as f64, GIB)))), Verdict::Flat);
}

#[test]
fn growth_of_file_pages_is_never_a_leak() {
    let mut trace = Trace::default();
    for step in 0..400_u64 {
        let mut sample = Sample::default();
        sample.step = Some(step as f64);
        sample.set(Quantity::Anon, GIB);
        sample.set(Quantity::File, step << 20);
        sample.set(Quantity::Rss, GIB + (step << 20));
        trace.push(&sample);
    }
    let facts = RunFacts { steps_per_epoch: Some(40), ..RunFacts::default() };
    let found = diagnose(&trace, &Question { facts, ..Question::default() });
    assert_eq!((found.verdict, found.mechanism.name()), (Verdict::Growing, "file_pages"));
    assert!(!found.is_bad_news());
}

#[test]
fn pages_that_turn_private_are_copy_on_write() {
    let mut trace = Trace::default();
    for step in 0..300_u64 {
        let copied = step.min(100) << 22;
        let mut sample = Sample::default();
        sample.step = Some(step as f64);
        sample.set(Quantity::Rss, GIB + copied);
        sample.set(Quantity::Private, copied);
        sample.set(Quantity::Shared, GIB - copied);
        trace.push(&sample);
    }
    let found = diagnose(&trace, &Question::default());
    assert_eq!((found.verdict, found.mechanism.name()), (Verdict::Settled, "copy_on_write"));
    assert_eq!(found.causes[0].id, "worker_copy_on_write");
}

#[test]
fn the_last_process_decides_and_each_is_judged() {
    let leaking = (0..200).map(|i| (i as f64, GIB + (i << 21)));
    let flat = (0..200).map(|i| (i as f64, GIB + (i % 7)));
    let mut trace = trace_of(leaking.chain(flat));
    trace.facts.steps_per_epoch = Some(20);
    let found = diagnose(&trace, &Question::default());
    let verdicts: Vec<Verdict> = found.parts.iter().map(|part| part.verdict).collect();
    assert_eq!((found.verdict, verdicts), (Verdict::Flat, vec![Verdict::Leak, Verdict::Flat]));
}

#[test]
fn samples_that_come_late_are_left_out_and_counted() {
    let steps = [0.0, 1.0, 2.0, 3.0, 1.5, 4.0, 5.0, 6.0, 7.0];
    let found = diagnose(&trace_of(steps.map(|step| (step, GIB))), &Question::default());
    assert_eq!((found.verdict, found.input.skipped, found.parts.len()), (Verdict::Flat, 1, 0));
}

#[test]
fn evaluations_are_judged_apart() {
    let mut trace = Trace::default();
    for step in 0..400_u64 {
        let mut sample = Sample::default();
        sample.step = Some(step as f64);
        let is_eval = step % 50 == 49;
        sample.activity = if is_eval { Activity::Eval } else { Activity::Train };
        sample.set(Quantity::Rss, GIB + if is_eval { step << 22 } else { 0 });
        trace.push(&sample);
    }
    assert_eq!(verdict(&trace), Verdict::Flat);
}

#[test]
fn stability_is_asserted_on_what_was_seen() {
    let values = |step: u64| (step as f64, GIB + if step < 50 { step << 22 } else { (step % 3) << 20 });
    let ask = |last: u64, bound: u64| {
        let stability = Stability { from: 60.0, to: None, max_variation: Some(Bytes(bound << 20)), max_growth: None };
        let question = Question { stability: Some(stability), ..Question::default() };
        diagnose(&trace_of((0..=last).map(values)), &question).stability.unwrap()
    };
    assert!(ask(100, 2).passed);
    assert!(!ask(100, 1).passed);
    // Too short to say so: five samples, but not a quarter of the way on.
    let short = ask(66, 500);
    assert_eq!((short.passed, short.variation_bytes), (false, None));
}

#[test]
fn memory_may_fall_where_growth_is_bounded_and_only_a_window_counts() {
    // Flat to step 60, then 1 MiB less with each step, and 40 MiB more from step 90 on.
    let values =
        |step: u64| (step as f64, GIB - (step.saturating_sub(60) << 20) + if step < 90 { 0 } else { 40 << 20 });
    let ask = |from: f64, to: Option<f64>, variation: Option<u64>, growth: Option<u64>| {
        let bound = |mib: Option<u64>| mib.map(|mib| Bytes(mib << 20));
        let stability = Stability { from, to, max_variation: bound(variation), max_growth: bound(growth) };
        let question = Question { stability: Some(stability), ..Question::default() };
        diagnose(&trace_of((10..=120).map(values)), &question).stability.unwrap()
    };
    // The rise counts from the lowest level before it, not from the beginning.
    let found = ask(60.0, None, None, Some(39));
    assert_eq!((found.passed, found.growth_bytes), (true, Some(39 << 20)), "{}", found.text);
    assert!(!ask(60.0, None, None, Some(38)).passed && !ask(60.0, None, Some(19), Some(39)).passed);
    assert!(ask(20.0, Some(60.0), Some(0), Some(0)).passed && ask(60.0, Some(89.0), Some(29), Some(0)).passed);
    // A window that the trace does not cover, or with too few samples, cannot pass.
    for (from, to) in [(100.0, 121.0), (9.0, 50.0), (60.0, 61.0), (70.0, 60.0)] {
        let found = ask(from, Some(to), Some(1000), None);
        assert_eq!((found.passed, found.variation_bytes), (false, None), "{from} to {to}: {}", found.text);
    }
}

#[test]
fn a_trace_that_begins_late_has_its_first_pass_before_it() {
    let ask = |steps: u64| {
        let mut trace = trace_of((0..steps).map(|i| ((5000 + i) as f64, GIB + (i << 22) + ((i * 7919 % 13) << 18))));
        trace.facts.steps_per_epoch = Some(50);
        diagnose(&trace, &Question::default())
    };
    let early = ask(40);
    assert_eq!((early.verdict, early.forecast.if_bounded.unwrap().step), (Verdict::Growing, Some(5050.0)));
    assert_eq!(ask(160).verdict, Verdict::Leak);
    // Growth that goes on after a whole pass is not a cache of examples, wherever the steps began.
    let is_ruled_out = |found: &Diagnosis| found.ruled_out.iter().any(|cause| cause.id == "decoded_images_kept");
    assert!(!is_ruled_out(&early) && is_ruled_out(&ask(80)));
}

#[test]
fn steps_that_count_anew_with_each_epoch_are_one_run() {
    let mut trace = trace_of((0..500).map(|i| ((i % 83) as f64, GIB + (i << 22) + ((i * 7919 % 13) << 18))));
    trace.facts.steps_per_epoch = Some(83);
    let found = diagnose(&trace, &Question::default());
    assert_eq!((found.verdict, found.parts.len()), (Verdict::Leak, 0));
}

#[test]
fn a_leak_is_found_again_after_a_release() {
    let value = |i: u64| GIB + i * (10 << 20) - if i >= 250 { 2000 << 20 } else { 0 } + ((i * 7919 % 13) << 18);
    let mut trace = trace_of((0..500).map(|i| (i as f64, value(i))));
    trace.facts.steps_per_epoch = Some(83);
    let found = diagnose(&trace, &Question::default());
    let rate = found.growth.bytes_per_step.unwrap() / (1 << 20) as f64;
    assert!(found.verdict == Verdict::Leak && (9.0..11.0).contains(&rate), "{:?} {rate}", found.verdict);
}

#[test]
fn images_are_not_blamed_for_a_warm_up_that_ends_with_the_epoch() {
    let value = |i: u64| GIB + (3e9 * (1.0 - (-(i as f64) / 40.0).exp())) as u64 + ((i * 7919 % 13) << 20);
    let facts =
        RunFacts { examples: Some(664), batch_size: Some(2), gradient_accumulation: Some(4), ..RunFacts::default() };
    let found = diagnose(&trace_of((0..400).map(|i| (i as f64, value(i)))), &Question { facts, ..Question::default() });
    assert_eq!((found.verdict, found.mechanism.name()), (Verdict::Settled, "warm_up"));
    assert!(found.causes.iter().all(|cause| cause.id != "decoded_images_kept"));
}

#[test]
fn memory_given_back_at_the_end_is_not_part_of_the_run() {
    let mut trace = trace_of((0..120).map(|i| (i as f64, if i < 117 { GIB + (i << 21) } else { GIB / 8 })));
    trace.facts.steps_per_epoch = Some(20);
    assert_eq!(verdict(&trace), Verdict::Flat);
    trace.push_event(EventKind::Exit, None, None);
    assert_eq!(verdict(&trace), Verdict::Leak);
}

#[test]
fn the_process_that_grows_is_named_and_a_shell_that_becomes_it_is_the_same() {
    let track = |pid: u32, name: &str, levels: Vec<(usize, u64)>, gone: Option<usize>| ProcessTrack {
        pid,
        name: name.into(),
        role: if name == "python3" { "training".into() } else { "wrapper".into() },
        levels,
        gone,
        ..ProcessTrack::default()
    };
    let mut trace = Trace::default();
    for step in 0..60_u64 {
        let mut sample = Sample::default();
        (sample.step, sample.time_s) = (Some(step as f64), Some(step as f64));
        sample.set(Quantity::Anon, (100 + 10 * step) << 20);
        trace.push(&sample);
    }
    let rises = (3..60).map(|step| (step, (90 + 10 * step as u64) << 20)).collect();
    trace.processes = vec![
        track(7, "bash", vec![(0, 2 << 20)], Some(3)),
        track(8, "sleep", vec![(0, 10 << 20)], None),
        track(7, "python3", rises, None),
    ];
    let found = diagnose(&trace, &Question::default());
    let names: Vec<(u32, &str)> = found.processes.iter().map(|process| (process.pid, process.name.as_str())).collect();
    assert_eq!(names, [(7, "python3"), (8, "sleep")]);
    assert!(found.processes[0].change() > 500 << 20 && found.processes[1].change() == 0);
    assert!(found.evidence.iter().any(|evidence| evidence.text.contains("`python3` (process 7, training) grew most")));
}
