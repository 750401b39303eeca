//! Samples of a forked tree whose memory is known by bounds only: a bound is no measurement, and the judge does not take it for one.

use garden_memory::{Diagnosis, MIB, Quantity, Question, Sample, Trace, Verdict, diagnose};

/// A sample at a step; `most` is what anonymous memory is at most where it is not known.
fn sample(step: u64, anon_mib: u64, most_mib: Option<u64>) -> Sample {
    let mut sample = Sample::default();
    sample.step = Some(step as f64);
    sample.set(Quantity::Anon, most_mib.unwrap_or(anon_mib) * MIB);
    sample.set(Quantity::Rss, (most_mib.unwrap_or(anon_mib) + 40) * MIB);
    if most_mib.is_some() {
        sample.set(Quantity::AnonLeast, anon_mib * MIB);
    }
    sample
}

fn judge(samples: impl IntoIterator<Item = Sample>) -> (Trace, Diagnosis) {
    let mut trace = Trace::default();
    samples.into_iter().for_each(|sample| trace.push(&sample));
    let diagnosis = diagnose(&trace, &Question::default());
    (trace, diagnosis)
}

#[test]
fn bounds_are_known_for_what_they_are() {
    let (trace, _) = judge([sample(0, 500, None), sample(1, 500, Some(800))]);
    assert_eq!((trace.is_bound(0), trace.is_bound(1)), (false, true));
    let least = |quantity| trace.at_least(1, quantity).map(|bytes| bytes / MIB);
    assert_eq!((least(Quantity::Anon), least(Quantity::Rss), least(Quantity::Shmem)), (Some(500), Some(540), None));
    let bound = trace.sample(1);
    assert!(bound.is_bound());
    assert_eq!((bound.held() / MIB, bound.held_at_most() / MIB), (500, 800));
}

#[test]
fn a_flat_run_whose_processes_fork_now_and_then_stays_flat() {
    // After each fork the bound rises further above what is held.
    let bound = |step: u64| (step % 20 < 4).then_some(1000 + 10 * step);
    let (_, found) = judge((0..200).map(|step| sample(step, 1000, bound(step))));
    assert_eq!(found.verdict, Verdict::Flat, "{}", found.summary);
    let note = found.input.notes.iter().find(|note| note.contains("only bounds of"));
    assert!(note.is_some_and(|note| note.starts_with("40 of 200 samples left out")), "{:?}", found.input.notes);
}

#[test]
fn a_tree_that_is_never_measured_is_judged_by_how_its_bounds_move() {
    let (_, found) = judge((0..200).map(|step| sample(step, 1000, Some(1000 + 37 * (step * 7919 % 31)))));
    assert_eq!(found.verdict, Verdict::Flat, "{}", found.summary);
    let note = found.input.notes.iter().find(|note| note.contains("only bounds of"));
    assert!(
        note.is_some_and(|note| note.starts_with("200 of 200 samples estimated from the change of their bounds")),
        "{:?}",
        found.input.notes
    );
    let (_, leaking) = judge((0..200).map(|step| sample(step, 1000 + 5 * step, Some(9000))));
    assert!(matches!(leaking.verdict, Verdict::Leak | Verdict::Growing), "{}", leaking.summary);
}

/// A page walk brings the bounds together, and children that end part them again: neither is memory that came or went.
#[test]
fn what_is_learnt_about_a_tree_is_not_what_it_does() {
    let bounds = |step: u64, grown: u64| match step {
        0..40 => sample(step, 150 + grown, Some(500 + grown)),
        40..180 => sample(step, 225 + grown, Some(235 + grown)),
        _ => sample(step, 60 + grown, Some(235 + grown)),
    };
    let (_, flat) = judge((0..200).map(|step| bounds(step, 0)));
    assert_eq!(flat.verdict, Verdict::Flat, "{}", flat.summary);
    let (_, growing) = judge((0..200).map(|step| bounds(step, step)));
    assert_eq!(growing.verdict, Verdict::Growing, "{}", growing.summary);
    let rate = growing.growth.bytes_per_step.unwrap_or(0.0) / MIB as f64;
    assert!((0.9..1.1).contains(&rate), "{rate} MiB per step: {}", growing.summary);
}
