//! Comparisons of runs whose difference is known.

use super::*;
use crate::trace::{Activity, EventKind, Sample};

const M: f64 = MIB as f64;

/// A fixed ripple between 0 and 1 that stands in for noise, different for each run.
fn ripple(step: usize, run: usize) -> f64 {
    ((step * 7919 + run * 104_729) % 97) as f64 / 97.0
}

/// A run with the given memory in MiB and seconds of each step.
fn run_of(steps: usize, memory: impl Fn(usize) -> f64, seconds: impl Fn(usize) -> f64) -> Trace {
    let mut trace = Trace::default();
    let mut time = 0.0;
    for step in 0..steps {
        time += seconds(step);
        let mut sample = Sample::default();
        (sample.step, sample.time_s) = (Some(step as f64), Some(time));
        sample.set(Quantity::Anon, (memory(step) * M) as u64);
        trace.push(&sample);
    }
    trace
}

fn growing(rate: f64, noise: f64, run: usize, seconds: f64) -> Trace {
    run_of(
        120,
        |step| 500.0 + rate * step as f64 + noise * ripple(step, run),
        |step| seconds * (1.0 + 0.02 * ripple(step, run + 7)),
    )
}

fn told(before: &[Trace], after: &[Trace]) -> Comparison {
    fn runs(traces: &[Trace]) -> Vec<Run<'_>> {
        traces.iter().map(|trace| Run { name: "run", trace }).collect()
    }
    compare(&runs(before), &runs(after), &CompareQuestion::default())
}

fn pair(before: Trace, after: Trace) -> Comparison {
    told(&[before], &[after])
}

#[track_caller]
fn check(comparison: &Comparison, effect: Effect, summary: &str) {
    assert_eq!((comparison.effect, comparison.summary.as_str()), (effect, summary), "{comparison:#?}");
}

#[test]
fn the_same_growth_at_a_cost_is_no_effect() {
    let comparison = pair(growing(20.0, 4.0, 1, 0.1), growing(20.0, 4.0, 2, 0.103));
    check(
        &comparison,
        Effect::None,
        "No effect on growth (-11.0 to +17.3 KiB per step), costs 3.0 % of step time (2.9 to 3.1).",
    );
    assert_eq!(comparison.advice, "remove it");
}

#[test]
fn half_the_growth_is_called_so() {
    let comparison = pair(growing(20.0, 4.0, 1, 0.1), growing(10.0, 4.0, 2, 0.1));
    assert!(comparison.summary.starts_with("Halves the growth (-10.0 to -10.0 MiB per step)"), "{comparison:#?}");
    let comparison = pair(growing(20.0, 4.0, 1, 0.1), growing(17.0, 4.0, 2, 0.1));
    assert!(comparison.summary.starts_with("Cuts the growth by 15 %"), "{comparison:#?}");
    let comparison = pair(growing(20.0, 4.0, 1, 0.1), growing(40.0, 4.0, 2, 0.1));
    assert!(comparison.summary.starts_with("Doubles the growth"), "{comparison:#?}");
    let comparison = pair(growing(0.0, 1.0, 1, 0.1), growing(2.0, 1.0, 2, 0.1));
    assert!(comparison.summary.starts_with("Adds growth of +2.00 MiB per step"), "{comparison:#?}");
    assert_eq!((comparison.effect, comparison.advice.as_str()), (Effect::More, "remove it"));
}

#[test]
fn growth_that_ends_and_steps_that_save_time_are_worth_keeping() {
    let comparison = pair(growing(20.0, 1.0, 1, 0.1), growing(0.0, 1.0, 2, 0.09));
    assert_eq!(comparison.effect, Effect::Ends, "{comparison:#?}");
    assert!(comparison.summary.starts_with("Ends the growth of +20.0 MiB per step"), "{comparison:#?}");
    assert!(comparison.summary.contains("saves 10 % of step time"), "{comparison:#?}");
    assert_eq!(comparison.advice, "keep it");
}

/// The interval holds both no effect and one as large as the growth itself.
#[test]
fn noise_is_not_passed_off_as_no_effect() {
    let slow = |step: usize, run: usize| 40.0 * (step as f64 / 9.0 + run as f64).sin();
    let noisy = |run: usize| run_of(60, move |step| 500.0 + step as f64 + slow(step, run), |_| 0.1);
    let comparison = pair(noisy(1), noisy(3));
    assert_eq!(comparison.effect, Effect::Unclear, "{comparison:#?}");
    assert!(
        comparison.summary.starts_with("Too noisy to tell: the difference in growth may be anything from"),
        "{comparison:#?}"
    );
}

/// A creep that no diagnosis would call growth is still reported where it is sure, in runs as short as an experiment's.
#[test]
fn a_small_growth_that_is_sure_is_told() {
    let comparison = pair(growing(0.0, 0.1, 1, 0.1), growing(0.2, 0.1, 2, 0.1));
    assert_eq!(comparison.effect, Effect::More, "{comparison:#?}");
    let comparison = pair(growing(0.2, 0.1, 1, 0.1), growing(0.0, 0.1, 2, 0.1));
    assert_eq!(comparison.effect, Effect::Ends, "{comparison:#?}");
}

/// The story's run against one that decodes images on access: compared where the first grew.
#[test]
fn a_fill_is_compared_where_it_fills() {
    let fill = run_of(240, |step| 3000.0 + 170.0 * step.min(83) as f64 + 9.0 * ripple(step, 1), |_| 2.0);
    let lazy = run_of(240, |step| 3000.0 + 9.0 * ripple(step, 2), |_| 2.0);
    let comparison = pair(fill, lazy);
    assert_eq!(comparison.effect, Effect::Ends, "{comparison:#?}");
    assert!(comparison.to.is_some_and(|to| (80.0..90.0).contains(&to)), "{comparison:#?}");
    let growth = comparison.growth.unwrap();
    assert!((growth.before.value / M - 170.0).abs() < 2.0, "{growth:#?}");
    assert_eq!((comparison.before[0].verdict, comparison.after[0].verdict), (Verdict::Settled, Verdict::Flat));
}

/// Decoding on access costs time, and what is left may creep: the advice is not to go back to what held ten times as much.
#[test]
fn the_fix_for_a_fill_is_not_advised_against() {
    let fill = || run_of(240, |step| 3000.0 + 170.0 * step.min(83) as f64 + 9.0 * ripple(step, 1), |_| 2.0);
    for creep in [0.0, 0.05, 0.2, 0.5] {
        let lazy = run_of(240, |step| 900.0 + creep * step as f64 + 0.3 * ripple(step, 2), |_| 2.6);
        for from in [None, Some(100.0)] {
            let question = CompareQuestion { from, ..CompareQuestion::default() };
            let (before, after) = (fill(), lazy.clone());
            let run = |name, trace| Run { name, trace };
            let comparison = compare(&[run("before", &before)], &[run("after", &after)], &question);
            let advice = comparison.advice.as_str();
            assert!(
                advice.contains("keep it") || advice.contains("it helps"),
                "{creep} {from:?}: {}: {advice}",
                comparison.summary
            );
        }
    }
}

/// A cache that fills up at some step, and a leak of the same rate: no line fits both, so they are compared where the cache is full.
#[test]
fn a_leak_and_a_bounded_cache_are_told_apart() {
    for (steps, rate, noise) in [(120, 2.0, 0.0), (200, 2.0, 0.0), (200, 1.0, 0.1), (400, 5.0, 1.0), (1000, 0.2, 0.5)] {
        for share in [0.15, 0.3, 0.5, 0.7, 0.8] {
            let full = (share * steps as f64) as usize;
            let wavy = |step: usize, run: usize| noise * ripple(step, run);
            let leak = |run| run_of(steps, |step| 500.0 + rate * step as f64 + wavy(step, run), |_| 0.1);
            let cache = |run| run_of(steps, |step| 500.0 + rate * step.min(full) as f64 + wavy(step, run), |_| 0.1);
            let about = format!("{steps} steps, {rate} MiB each, full after {full}");
            let ends = pair(leak(1), cache(2));
            assert_eq!(ends.effect, Effect::Ends, "{about}: {}", ends.summary);
            assert!(ends.notes.iter().any(|note| note.contains("grows until step")), "{about}: {:?}", ends.notes);
            let growth = ends.growth.unwrap();
            assert!((growth.before.value / M / rate - 1.0).abs() < 0.05, "{about}: {growth:#?}");
            assert!(growth.after.value.abs() < 0.05 * rate * M, "{about}: {growth:#?}");
            let more = pair(cache(2), leak(1));
            assert_eq!(more.effect, Effect::More, "{about}: {}", more.summary);
            if noise > 0.0 {
                let several = told(&[leak(1), leak(2), leak(3)], &[cache(4), cache(5), cache(6)]);
                assert_eq!(several.effect, Effect::Ends, "{about}: {}", several.summary);
            }
        }
    }
}

/// Of two caches of the same rate, the smaller fills up earlier: a difference in level, not in growth.
#[test]
fn caches_of_two_sizes_are_compared_where_both_fill() {
    let cache = |full: usize, run: usize| {
        run_of(240, move |step| 500.0 + 3.0 * step.min(full) as f64 + 0.3 * ripple(step, run), |_| 0.1)
    };
    let comparison = pair(cache(160, 1), cache(80, 2));
    assert_eq!(comparison.effect, Effect::None, "{}", comparison.summary);
    assert!(comparison.summary.contains("the peak is 240 MiB lower"), "{}", comparison.summary);
}

/// Both warm up along the same curve: noise in each run alone, but it cancels in their difference.
#[test]
fn a_shape_that_both_share_is_no_noise() {
    let warm = |run: usize| {
        run_of(200, move |step| 900.0 - 600.0 * (-(step as f64) / 60.0).exp() + 2.0 * ripple(step, run), |_| 0.1)
    };
    let comparison = pair(warm(1), warm(2));
    assert_eq!(comparison.effect, Effect::None, "{comparison:#?}");
}

/// A collection every few steps leaves the floor as it is and lowers the peaks.
#[test]
fn lower_peaks_on_the_same_floor_are_told() {
    let teeth = |period: usize, run: usize| {
        run_of(300, move |step| 500.0 + 10.0 * (step % period) as f64 + ripple(step, run), |_| 0.1)
    };
    let comparison = pair(teeth(20, 1), teeth(3, 2));
    assert_eq!(comparison.effect, Effect::None, "{comparison:#?}");
    assert!(comparison.summary.contains("the peak is 170 MiB lower"), "{comparison:#?}");
    assert_eq!(comparison.advice, "keep it if the lower level is needed");
}

#[test]
fn several_runs_of_each_kind_speak_for_themselves() {
    let many = |rate: f64, seconds: f64, first: usize| {
        // Runs of the same kind differ by far more than the noise within each of them.
        let run = |n: usize| growing(rate + 0.5 * (n as f64 - 1.0), 0.1, first + n, seconds * (1.0 + 0.01 * n as f64));
        (0..3).map(run).collect::<Vec<_>>()
    };
    let comparison = told(&many(5.0, 0.1, 0), &many(5.0, 0.1, 5));
    assert_eq!((comparison.basis, comparison.effect), (Basis::Replicates, Effect::Unclear), "{comparison:#?}");
    let comparison = told(&many(5.0, 0.1, 0), &many(1.0, 0.15, 5));
    assert_eq!(comparison.effect, Effect::Less, "{comparison:#?}");
    let growth = comparison.growth.unwrap();
    assert!(growth.difference.is_within(5.5 * M) && growth.difference.high > -3.5 * M, "{growth:#?}");
    // One run of each kind with the same difference would give a far narrower interval.
    let single = pair(growing(5.0, 0.1, 0, 0.1), growing(1.0, 0.1, 5, 0.15)).growth.unwrap().difference;
    assert!(single.high - single.low < 0.1 * (growth.difference.high - growth.difference.low), "{single:?}");
}

/// A median would not see it.
#[test]
fn a_cost_that_comes_every_tenth_step_is_a_cost() {
    let usual = |run: usize| move |step: usize| 0.1 * (1.0 + 0.02 * ripple(step, run));
    let tenth = |step: usize| usual(2)(step) * if step % 10 == 9 { 2.0 } else { 1.0 };
    let level = |step: usize| 500.0 + ripple(step, 3);
    let comparison = pair(run_of(400, level, usual(1)), run_of(400, level, tenth));
    let time = comparison.step_time.unwrap();
    assert_eq!(time.effect, TimeEffect::Costs, "{time:#?}");
    assert!(time.ratio.low < 1.1 && 1.1 < time.ratio.high && time.ratio.high < 1.15, "{time:#?}");
    assert!((time.typical.1 / time.typical.0 - 1.0).abs() < 0.01, "{time:#?}");
}

#[test]
fn evaluations_and_checkpoints_are_no_steps() {
    let plain = run_of(100, |step| 500.0 + ripple(step, 1), |step| 0.1 + 0.002 * ripple(step, 4));
    let mut other = Trace::default();
    for index in 0..plain.len() {
        let mut sample = plain.sample(index);
        // From the fiftieth step on everything comes half a minute later: an evaluation took that long.
        sample.time_s = sample.time_s.map(|time| time + if index >= 50 { 30.0 } else { 0.0 });
        if index == 50 {
            let mut evaluation = sample.clone();
            evaluation.activity = Activity::Eval;
            other.push(&evaluation);
        }
        if index == 75 {
            other.push_event(EventKind::Checkpoint, None, None);
        }
        sample.time_s = sample.time_s.map(|time| time + if index >= 75 { 30.0 } else { 0.0 });
        other.push(&sample);
    }
    let time = pair(plain, other).step_time.unwrap();
    assert_eq!(time.effect, TimeEffect::None, "{time:#?}");
}

#[test]
fn runs_that_cannot_be_compared_say_why() {
    let short = pair(growing(1.0, 0.1, 1, 0.1), run_of(3, |_| 500.0, |_| 0.1));
    check(&short, Effect::Insufficient, "Not enough data to compare: `run` has 3 samples.");
    assert!(short.growth.is_none() && short.step_time.is_none());
    let nothing = compare(&[], &[], &CompareQuestion::default());
    assert_eq!(nothing.effect, Effect::Insufficient);
    let late = CompareQuestion { from: Some(1e9), ..CompareQuestion::default() };
    let (one, other) = (growing(1.0, 0.1, 1, 0.1), growing(1.0, 0.1, 2, 0.1));
    let runs = |trace| [Run { name: "run", trace }];
    assert_eq!(compare(&runs(&one), &runs(&other), &late).effect, Effect::Insufficient);
}

#[test]
fn traces_of_different_kinds_meet_on_what_they_share() {
    let with_steps = growing(6.0, 0.5, 1, 1.0);
    let mut without = Trace::default();
    for index in 0..with_steps.len() {
        let known = with_steps.sample(index);
        let mut sample = Sample::default();
        sample.time_s = known.time_s.map(|time| time + 1.7e9);
        sample.set(Quantity::Rss, known.get(Quantity::Anon).unwrap() + (50 << 20));
        without.push(&sample);
    }
    let mut with_total = Trace::default();
    for index in 0..with_steps.len() {
        let mut sample = with_steps.sample(index);
        sample.set(Quantity::Rss, sample.get(Quantity::Anon).unwrap() + (9 << 20));
        with_total.push(&sample);
    }
    let comparison = pair(with_total, without);
    assert_eq!((comparison.clock, comparison.effect), (Clock::Time, Effect::None), "{comparison:#?}");
    assert!(comparison.summary.ends_with("KiB per minute)."), "{comparison:#?}");
    assert_eq!(comparison.notes.len(), 2, "{:#?}", comparison.notes);
}

/// One was resumed at step 5000; the other began at 0.
#[test]
fn runs_at_different_steps_are_laid_side_by_side() {
    let one = growing(6.0, 0.5, 1, 1.0);
    let mut resumed = Trace::default();
    for index in 0..one.len() {
        let mut sample = one.sample(index);
        sample.step = sample.step.map(|step| step + 5000.0);
        resumed.push(&sample);
    }
    let comparison = pair(one, resumed);
    assert_eq!(comparison.effect, Effect::None, "{comparison:#?}");
    assert!(comparison.notes[0].contains("from the start of each trace"), "{:#?}", comparison.notes);
}

/// Memory recorded in whole MiB hides movements of up to one.
#[test]
fn coarse_numbers_are_not_taken_for_exact_ones() {
    let coarse = |_: usize| run_of(100, |_| 512.0, |_| 0.1);
    let growth = pair(coarse(1), coarse(2)).growth.unwrap();
    assert!(growth.difference.high * 100.0 > 0.5 * M, "{growth:#?}");
}

/// A pipeline fails where memory needs more, in either way, and never where it needs less.
#[test]
fn more_is_faster_growth_or_a_higher_level_and_never_a_lower_one() {
    let at = |level: f64, rate: f64, run: usize| {
        run_of(240, move |step| level + rate * step as f64 + 0.3 * ripple(step, run), |_| 1.0)
    };
    let fill = || run_of(240, |step| 924.0 + 42.0 * step.min(83) as f64 + 0.3 * ripple(step, 1), |_| 1.0);
    for (name, before, after, more) in [
        ("the same", at(900.0, 0.0, 1), at(900.0, 0.0, 2), false),
        ("grows", at(900.0, 0.0, 1), at(900.0, 0.5, 2), true),
        ("grows more", at(900.0, 0.5, 1), at(900.0, 1.0, 2), true),
        ("grows less", at(900.0, 1.0, 1), at(900.0, 0.5, 2), false),
        ("stands higher", at(900.0, 0.0, 1), at(4300.0, 0.0, 2), true),
        ("stands lower", at(4300.0, 0.0, 1), at(924.0, 0.0, 2), false),
        ("stands lower and creeps", fill(), at(924.0, 0.2, 2), false),
        ("stands a little lower and soon higher", at(1000.0, 0.0, 1), at(900.0, 2.0, 2), true),
    ] {
        let comparison = pair(before, after);
        assert_eq!(comparison.needs_more, more, "{name}: {:?} {}", comparison.effect, comparison.summary);
    }
    // It grows from a level that is lower by more than that adds for a long time, compared where both stand still or creep.
    let (before, after) = (fill(), at(924.0, 0.2, 2));
    let question = CompareQuestion { from: Some(100.0), ..CompareQuestion::default() };
    let run = |name, trace| Run { name, trace };
    let late = compare(&[run("before", &before)], &[run("after", &after)], &question);
    assert_eq!((late.effect, late.needs_more), (Effect::More, false), "{}", late.summary);
}
