//! Holds the error rates that `docs/diagnose.md` states, on the population that it describes.
//!
//! Each healthy run is looked at ten times as it grows; one `leak` at any look is an error. Each leaking run is looked at
//! once, at its end: `growing` misses the leak but says so, any other verdict misses it silently. `GARDEN_SEED` picks another
//! draw, `GARDEN_RUNS` another number of runs per kind.

#![allow(clippy::print_stdout, reason = "the seed and the rates by kind are part of the result")]

use crate::population::{
    EXTRA, HEALTHY, HEALTHY_SERVICES, Kind, LEAKING_SERVICES, LEAKS, LONG, Random, Run, draw, runs, without_passes,
};
use garden_memory::{Activity, Bytes, Diagnosis, Quantity, Question, RunFacts, Verdict, diagnose, verdict};

const LOOKS: usize = 10;

/// The drawn runs of a kind.
fn drawn(kind: Kind) -> impl Iterator<Item = (u64, Run)> {
    let seed = garden_testing::seed();
    (0..runs()).map(move |run| {
        let mut random = Random(seed.wrapping_mul(1_000_003) ^ (kind as u64) << 32 ^ run);
        (run, draw(kind, &mut random))
    })
}

fn say_seed() {
    println!(
        "seed {}, {} runs of each kind; set GARDEN_SEED and GARDEN_RUNS for others",
        garden_testing::seed(),
        runs()
    );
}

fn verdict_of(run: &Run) -> Verdict {
    verdict(&run.trace(run.samples.len()), &Question::default())
}

fn whole(run: &Run) -> Diagnosis {
    diagnose(&run.trace(run.samples.len()), &Question::default())
}

fn is_ever_a_leak(run: &Run, question: &Question) -> bool {
    (1..=LOOKS).any(|look| verdict(&run.trace(run.samples.len() * look / LOOKS), question) == Verdict::Leak)
}

/// No kind of healthy run may be called a leak more often than this, whatever the mean.
const CAP: f64 = 0.02;

/// The cap with what chance adds to it in so many runs: two and a half standard deviations.
fn cap() -> f64 {
    CAP + 2.5 * (CAP * (1.0 - CAP) / runs() as f64).sqrt()
}

#[test]
fn healthy_runs_are_called_leaks_in_less_than_one_per_cent() {
    say_seed();
    let rate = |&kind: &Kind| {
        let wrong = drawn(kind).filter(|(_, run)| is_ever_a_leak(run, &Question::default()));
        let wrong: Vec<u64> = wrong.map(|(number, _)| number).collect();
        println!("{kind:?}: {:.4} {wrong:?}", wrong.len() as f64 / runs() as f64);
        let share = wrong.len() as f64 / runs() as f64;
        assert!(share < cap(), "{kind:?}: {share}");
        share
    };
    let mean = HEALTHY.iter().map(rate).sum::<f64>() / HEALTHY.len() as f64;
    println!("all: {mean:.4}");
    assert!(mean < 0.01, "{mean}");
}

/// Kinds that are as near to a leak as healthy growth comes: capacities whose content slows down, rounds, fills of nearly two passes.
#[test]
fn what_is_nearly_a_leak_is_seldom_called_one() {
    say_seed();
    for kind in [Kind::SlowingCapacity].into_iter().chain(EXTRA) {
        let wrong = drawn(kind).filter(|(_, run)| is_ever_a_leak(run, &Question::default())).count();
        let share = wrong as f64 / runs() as f64;
        println!("{kind:?}: {share:.4}");
        assert!(share < cap(), "{kind:?}: {share}");
    }
}

/// Growth that has outlasted a leak's two passes, and has ended: what counts is each look from its end on. A plateau shows once it is a
/// tenth of the growth long, and one and a half times as long as a rest.
#[test]
fn growth_that_has_ended_is_seldom_called_a_leak() {
    say_seed();
    let mut wrong = Vec::new();
    for kind in LONG {
        let (mut ever, mut after, mut late) = (0, 0, 0);
        let mut numbers = Vec::new();
        for (number, run) in drawn(kind) {
            let end = run.end.unwrap_or(0.0);
            let leaks: Vec<f64> = (1..=LOOKS)
                .map(|look| run.samples.len() * look / LOOKS)
                // Before a restart it is another run.
                .filter(|&count| run.restart.is_none_or(|at| count > at))
                .filter(|&count| verdict(&run.trace(count), &Question::default()) == Verdict::Leak)
                .map(|count| run.samples[count - 1].step.unwrap_or(0.0))
                .collect();
            ever += u64::from(!leaks.is_empty());
            after += u64::from(leaks.iter().any(|&now| now > end));
            let is_late = run.over.is_some_and(|over| leaks.iter().any(|&now| now > over));
            late += u64::from(is_late);
            numbers.extend(is_late.then_some(number));
        }
        let share = |count: u64| count as f64 / runs() as f64;
        println!(
            "{kind:?}: a leak at any look {:.4}, after its end {:.4}, after a plateau {:.4} {numbers:?}",
            share(ever),
            share(after),
            share(late)
        );
        wrong.push((kind, share(late)));
    }
    let most = |kind: Kind| cap() + if kind == Kind::ManyRounds { 0.0 } else { NOT_SEEN };
    assert!(wrong.iter().all(|&(kind, share)| share < most(kind)), "{wrong:?}");
}

/// A ramp and a population that doubles show their end last: what keeps them from getting worse, and not the cap that they should have. In draws of four
/// seeds 2.3 to 3.8 % of ramps and 5.8 to 10.8 % of populations were still called a leak.
const NOT_SEEN: f64 = 0.09;

/// A leak that has paused and gone on before is not called settled in its next pause.
#[test]
fn a_leak_that_pauses_is_seldom_called_settled() {
    say_seed();
    let pausing = missed(Kind::PausingLeak);
    assert!(pausing.silently < 0.05, "{}", pausing.silently);
}

/// What became of the leaks of a kind, as shares.
struct Missed {
    kind: Kind,
    /// Not called a leak.
    all: f64,
    /// Called neither a leak nor growing.
    silently: f64,
    /// Runs that grow by ten standard deviations of their residuals, and those of them that were missed silently.
    clear: (u64, u64),
}

fn missed(kind: Kind) -> Missed {
    let (mut all, mut silently, mut clear) = (0, 0, (0, 0));
    let mut numbers = Vec::new();
    for (number, run) in drawn(kind) {
        let verdict = verdict_of(&run);
        let is_silent = !matches!(verdict, Verdict::Leak | Verdict::Growing);
        all += u64::from(verdict != Verdict::Leak);
        silently += u64::from(is_silent);
        if growth_in_deviations(&run) >= 10.0 {
            clear = (clear.0 + 1, clear.1 + u64::from(is_silent));
        }
        if is_silent {
            numbers.push(number);
        }
    }
    let share = |count: u64| count as f64 / runs() as f64;
    println!("{kind:?}: missed {:.4}, silently {:.4} {numbers:?}, clear {clear:?}", share(all), share(silently));
    Missed { kind, all: share(all), silently: share(silently), clear }
}

/// The rise of a straight line through the training samples, in standard deviations of the residuals.
fn growth_in_deviations(run: &Run) -> f64 {
    let from = run.restart.unwrap_or(0);
    let training = run.samples[from..].iter().filter(|sample| sample.activity == Activity::Train);
    let points: Vec<(f64, f64)> =
        training.filter_map(|sample| Some((sample.step?, sample.get(Quantity::Rss)? as f64))).collect();
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let slope = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum::<f64>() / spread;
    let error: f64 = points.iter().map(|p| (p.1 - my - slope * (p.0 - mx)).powi(2)).sum();
    slope * (points[points.len() - 1].0 - points[0].0) / (error / n).sqrt()
}

#[test]
fn leaks_are_hardly_ever_missed_and_never_silently_where_they_are_clear() {
    say_seed();
    let missed: Vec<Missed> = LEAKS.into_iter().map(missed).collect();
    let steady: Vec<f64> = missed.iter().filter(|one| one.kind.is_steady()).map(|one| one.all).collect();
    let steady_mean = steady.iter().sum::<f64>() / steady.len() as f64;
    let silent_mean = missed.iter().map(|one| one.silently).sum::<f64>() / missed.len() as f64;
    let clear = missed.iter().fold((0, 0), |sum, one| (sum.0 + one.clear.0, sum.1 + one.clear.1));
    println!("steady kinds {steady_mean:.4}, silently {silent_mean:.4}, of the clear ones {clear:?}");
    // What chance adds to one in twenty, as for the cap.
    let count = missed.iter().filter(|one| one.kind.is_steady()).count() * runs() as usize;
    let chance = 2.5 * (0.05 * 0.95 / count as f64).sqrt();
    assert!(steady_mean < 0.05 + chance, "{steady_mean}");
    assert!(silent_mean < 0.02, "{silent_mean}");
    assert!((clear.1 as f64) < 0.01 * clear.0 as f64, "{clear:?}");
}

/// Data without passes: the same shapes over hours, without steps.
#[test]
fn without_passes_long_straight_growth_is_a_leak_and_a_cache_is_not() {
    say_seed();
    let levels =
        |run: &Run| -> Vec<u64> { run.samples.iter().filter_map(|sample| sample.get(Quantity::Rss)).collect() };
    let limit = |run: &Run| levels(run).into_iter().max().unwrap_or(0) * 3 / 2;
    let question = |run: &Run| Question {
        facts: RunFacts { memory_limit: Some(Bytes(limit(run))), ..RunFacts::default() },
        ..Question::default()
    };
    let share = |kind: Kind, is_wrong: &dyn Fn(&Run) -> bool| {
        let wrong = drawn(kind).map(|(_, run)| without_passes(run)).filter(|run| is_wrong(run)).count();
        let share = wrong as f64 / runs() as f64;
        println!("{kind:?} without passes: {share:.4}");
        share
    };
    let false_alarms: f64 =
        HEALTHY_SERVICES.iter().map(|&kind| share(kind, &|run| is_ever_a_leak(run, &question(run)))).sum();
    let mean = false_alarms / HEALTHY_SERVICES.len() as f64;
    assert!(mean < 0.01, "{mean}");
    let silent = |run: &Run| {
        let found = verdict(&run.trace(run.samples.len()), &question(run));
        !matches!(found, Verdict::Leak | Verdict::Growing)
    };
    for kind in LEAKING_SERVICES {
        assert!(share(kind, &silent) < 0.01, "{kind:?}");
    }
    // Only growth that matters beside the limit is a leak by this rule.
    let matters = |run: &Run| {
        let levels = levels(run);
        let range = levels.iter().max().unwrap_or(&0) - levels.iter().min().unwrap_or(&0);
        range * 20 >= limit(run) * 3
    };
    let straight: Vec<Run> = drawn(Kind::LinearLeak).map(|(_, run)| without_passes(run)).filter(matters).collect();
    let found = straight.iter().filter(|run| verdict(&run.trace(run.samples.len()), &question(run)) == Verdict::Leak);
    let found = found.count() as f64 / straight.len() as f64;
    println!("straight growth that matters, called a leak: {found:.4} of {}", straight.len());
    assert!(found > 0.85, "{found}");
}

/// The odds of a growing run are the shares of leaks among such runs.
#[test]
fn odds_are_calibrated() {
    say_seed();
    // By odds in hundredths: the weights of the leaking and of the healthy runs; half of all runs leak.
    let mut found = std::collections::BTreeMap::<u64, (f64, f64)>::new();
    for (kinds, leaks) in [(&HEALTHY[..], false), (&LEAKS[..], true)] {
        for run in kinds.iter().flat_map(|&kind| drawn(kind)).map(|(_, run)| run) {
            for look in 1..=LOOKS {
                let trace = run.trace(run.samples.len() * look / LOOKS);
                // Only growth has odds.
                if verdict(&trace, &Question::default()) != Verdict::Growing {
                    continue;
                }
                let found_now = diagnose(&trace, &Question::default());
                let Some(odds) = found_now.likelihood.filter(|_| run.facts.steps_per_epoch.is_some()) else { continue };
                let entry = found.entry((100.0 * odds.leak).round() as u64).or_default();
                *(if leaks { &mut entry.0 } else { &mut entry.1 }) += 1.0 / kinds.len() as f64;
            }
        }
    }
    for (odds, (leaking, healthy)) in found {
        let share = 100.0 * leaking / (leaking + healthy);
        println!("{odds} %: {share:.1} % of runs (weight {:.1})", leaking + healthy);
        assert!((share - odds as f64).abs() < 6.0, "{odds} %: {share:.1} %");
    }
}

/// Whatever leak is added to a healthy run, a verdict that still reassures names a bound that is no lower.
#[test]
fn a_verdict_knows_what_it_could_not_have_seen() {
    say_seed();
    const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
    let (mut calm, mut wrong) = ([0; 4], [0; 4]);
    for kind in [Kind::Flat, Kind::Spikes, Kind::CappedCache, Kind::EpochFill, Kind::Sawtooth, Kind::WarmUp] {
        for (_, run) in drawn(kind).take(runs() as usize / 6) {
            let Some(rate) = whole(&run).sensitivity.and_then(|most| most.bytes_per_step) else { continue };
            let from = run.samples[run.restart.unwrap_or(0)].step.unwrap_or(0.0);
            for (at, factor) in FACTORS.iter().enumerate() {
                let mut samples = run.samples.clone();
                for sample in &mut samples {
                    let level = sample.get(Quantity::Rss).unwrap_or(0) as f64;
                    let since = (sample.step.unwrap_or(0.0) - from).max(0.0);
                    sample.set(Quantity::Rss, (level + factor * rate * since) as u64);
                }
                let leaking = Run {
                    facts: run.facts.clone(),
                    samples,
                    restart: run.restart,
                    floor: None,
                    memory: None,
                    end: None,
                    over: None,
                };
                let bound = whole(&leaking).sensitivity.and_then(|most| most.bytes_per_step);
                calm[at] += u64::from(bound.is_some());
                wrong[at] += u64::from(bound.is_some_and(|bound| bound < factor * rate));
            }
        }
    }
    println!(
        "of {calm:?} reassuring verdicts on leaks of {FACTORS:?} times the first bound, {wrong:?} name a lower one"
    );
    let (calm, wrong): (u64, u64) = (calm.iter().sum(), wrong.iter().sum());
    assert!((wrong as f64) < 0.025 * calm as f64, "{wrong} of {calm}");
}

/// A verdict is not taken back without a reason: memory that keeps growing gives none. How often a leak that was called one at one of ten
/// looks is called something else at a later one, and how often it is then said that there is no growth at all.
#[test]
fn a_leak_that_goes_on_is_seldom_taken_back() {
    say_seed();
    let (mut called, mut back, mut denied) = (0, 0, 0);
    for kind in LEAKS.into_iter().filter(|kind| kind.is_steady()).chain([Kind::FasterLeak, Kind::WarmUpAndLine]) {
        let (mut of_kind, mut denied_of_kind) = (0, 0);
        for (_, run) in drawn(kind).take(runs() as usize / 2).filter(|(_, run)| run.restart.is_none()) {
            let looks: Vec<Verdict> = (1..=LOOKS)
                .map(|look| verdict(&run.trace(run.samples.len() * look / LOOKS), &Question::default()))
                .collect();
            let Some(first) = looks.iter().position(|&look| look == Verdict::Leak) else { continue };
            called += 1;
            of_kind += u64::from(looks[first..].iter().any(|&look| look != Verdict::Leak));
            let is_denial = |look: &Verdict| !matches!(look, Verdict::Leak | Verdict::Growing);
            denied_of_kind += u64::from(looks[first..].iter().any(is_denial));
        }
        println!("{kind:?}: taken back {of_kind}, denied {denied_of_kind}");
        back += of_kind;
        denied += denied_of_kind;
    }
    println!("of {called} leaks called, {back} taken back, {denied} denied");
    // 0.4 and 0.7 % in two draws.
    assert!((denied as f64) < 0.01 * f64::from(called), "{denied} of {called}");
    assert!((back as f64) < 0.1 * f64::from(called), "{back} of {called}");
}
