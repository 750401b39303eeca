//! Tests of `policy.rs`.

use super::*;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 1000 * MIB;
const RULES: Rules = Rules { stop_at: 0.9, interval_s: 1.0 };

/// A run whose memory follows `held` in MiB over seconds, one step every two seconds, until it is stopped or over; gives
/// the moment and the reason.
fn first_stop(held: impl Fn(f64) -> f64, outlook: Outlook, pace: &mut Pace) -> Option<(f64, u64, Reason)> {
    for second in 0..2000 {
        let time_s = f64::from(second);
        if second % 2 == 0 {
            pace.step(time_s / 2.0 + 1.0, time_s);
        }
        let moment = Moment::new(time_s, (held(time_s) * MIB as f64) as u64, LIMIT);
        pace.sample(moment, RULES.interval_s);
        if let Some(reason) = decide(moment, pace, RULES, || outlook) {
            return Some((time_s, moment.held / MIB, reason));
        }
    }
    None
}

/// What is known after a save on a level that does not rise.
fn known_save(seconds: f64, rise: u64) -> Pace {
    let mut pace = Pace::default();
    (0..4).for_each(|second| pace.sample(Moment::new(f64::from(second), 100 * MIB, LIMIT), 1.0));
    pace.save(Cost { seconds, rise, rise_s: seconds }, 100 * MIB);
    pace.restart();
    pace
}

#[test]
fn a_leak_is_stopped_while_a_step_and_a_save_still_fit() {
    // Nothing is known about saving, so what --stop-at leaves is kept free: 100 MiB. A step adds 4 MiB.
    let (_, held, reason) = first_stop(|t| 200.0 + 2.0 * t, Outlook::Open, &mut Pace::default()).unwrap();
    assert!((880..900).contains(&held), "{held} {reason:?}");
    // A save that took 50 MiB and 20 s was seen: 62 MiB on top, and the growth of 25 s.
    let mut pace = known_save(20.0, 50 * MIB);
    let (_, held, reason) = first_stop(|t| 200.0 + 2.0 * t, Outlook::Open, &mut pace).unwrap();
    assert!((850..880).contains(&held), "{held} {reason:?}");
}

#[test]
fn faster_growth_is_stopped_earlier() {
    let stop = |rate: f64| first_stop(move |t| 100.0 + rate * t, Outlook::Open, &mut Pace::default()).unwrap().1;
    assert!(stop(40.0) < stop(10.0) && stop(10.0) < stop(1.0));
    // Even then the next step and the reserve fit.
    assert!(stop(40.0) + 2 * 40 + 100 <= 1000, "{}", stop(40.0));
}

#[test]
fn a_plateau_a_sawtooth_and_spikes_below_the_limit_are_left_alone() {
    let fill = |t: f64| 200.0 + 3.0 * t.min(200.0);
    assert_eq!(first_stop(fill, Outlook::Bounded(805 * MIB), &mut Pace::default()), None);
    let saw = |t: f64| 500.0 + 20.0 * (t % 20.0);
    assert_eq!(first_stop(saw, Outlook::Bounded(890 * MIB), &mut Pace::default()), None);
    // Settled above the share of --stop-at, but below the last line, and no longer rising.
    let high = |t: f64| 600.0 + 40.0 * t.min(8.5);
    assert_eq!(first_stop(high, Outlook::Bounded(945 * MIB), &mut Pace::default()), None);
}

#[test]
fn an_evaluation_that_gives_its_memory_back_is_no_growth() {
    // 300 MiB more for three seconds in every twenty; the judge has no opinion.
    let evaluated = |t: f64| if t % 20.0 >= 17.0 { 850.0 } else { 550.0 };
    assert_eq!(first_stop(evaluated, Outlook::Open, &mut Pace::default()), None);
    // The first one comes soon, and lasts as long as all that was seen before.
    let soon = |t: f64| if t % 9.0 >= 4.0 { 700.0 } else { 400.0 };
    assert_eq!(first_stop(soon, Outlook::Open, &mut Pace::default()), None);
    // One jump that stays may be the only one.
    let jump = |t: f64| if t < 100.0 { 300.0 } else { 700.0 };
    assert_eq!(first_stop(jump, Outlook::Open, &mut Pace::default()), None);
}

#[test]
fn jumps_that_come_again_are_expected_again() {
    // 150 MiB every twenty seconds: 850 is the last level that leaves room.
    let jumps = |t: f64| 250.0 + 150.0 * (t / 20.0).floor();
    let (_, held, reason) = first_stop(jumps, Outlook::Open, &mut Pace::default()).unwrap();
    assert!(held <= 850, "{held} {reason:?}");
}

#[test]
fn a_run_that_was_called_settled_and_grows_again_is_stopped() {
    let late = |t: f64| if t < 500.0 { 400.0 } else { 400.0 + 5.0 * (t - 500.0) };
    let (_, held, _) = first_stop(late, Outlook::Bounded(410 * MIB), &mut Pace::default()).unwrap();
    assert!(held < 920, "{held}");
}

#[test]
fn loading_a_model_is_no_growth() {
    let mut pace = Pace::default();
    for second in 0..8 {
        let moment = Moment::new(f64::from(second), 100 * u64::from(second as u32) * MIB, LIMIT);
        pace.sample(moment, 1.0);
        assert_eq!(decide(moment, &pace, RULES, || Outlook::Open), None, "{second}");
    }
    let stuffed = Moment::new(9.0, 985 * MIB, LIMIT);
    assert!(matches!(decide(stuffed, &pace, RULES, || Outlook::Open), Some(Reason::LastLine { .. })));
}

/// A run that saves every `every` seconds and cannot be asked to; what it holds at the checkpoints after which it is stopped,
/// one for each start, until it has run for `seconds` or was started five times.
fn stops_after_saves(held: impl Fn(f64) -> f64, every: u32, seconds: u32, save: Cost) -> Vec<u64> {
    let (mut pace, mut stops) = (Pace::default(), Vec::new());
    'starts: for _ in 0..5 {
        pace.restart();
        for second in 0..seconds {
            let time_s = f64::from(second);
            pace.step(time_s + 1.0, time_s);
            let moment = Moment::new(time_s, (held(time_s) * MIB as f64) as u64, LIMIT);
            pace.sample(moment, 1.0);
            if moment.held >= moment.last_line {
                pace.outgrew();
                continue 'starts;
            }
            if second % every == every - 1 {
                pace.save(save, moment.held);
                if is_last_chance(moment, &pace, RULES, || Outlook::Open).is_some() {
                    stops.push(moment.held / MIB);
                    pace.stopped();
                    continue 'starts;
                }
            }
        }
        break;
    }
    stops
}

const TINY_SAVE: Cost = Cost { seconds: 0.01, rise: 0, rise_s: 0.0 };

#[test]
fn the_last_periodic_checkpoint_that_fits_is_the_last() {
    // 5 MiB per second; a checkpoint every 20 s, which takes 30 MiB for a moment: at 895 the next one would not fit.
    let save = Cost { seconds: 0.5, rise: 30 * MIB, rise_s: 0.5 };
    let leak = |t: f64| 100.0 + 5.0 * t;
    let stops = stops_after_saves(leak, 20, 400, save);
    // One start was on trial and came to the limit; the others were stopped in time.
    assert_eq!(stops, [895, 895, 895, 895], "{stops:?}");
}

#[test]
fn a_cache_that_fits_is_stopped_at_most_once_and_not_below_four_fifths() {
    for peak in [600.0, 720.0, 800.0, 870.0, 920.0, 950.0] {
        for every in [1, 2, 5, 10, 20] {
            for fill_s in [15.0, 40.0, 100.0] {
                let cache = |t: f64| 100.0 + (peak - 100.0) * (t / fill_s).min(1.0);
                let stops = stops_after_saves(cache, every, 300, TINY_SAVE);
                let is_well = stops.len() <= 1 && stops.iter().all(|stop| *stop >= 800);
                assert!(is_well, "peak {peak}, every {every} s, full after {fill_s} s: {stops:?}");
            }
        }
    }
}

#[test]
fn after_the_first_interval_only_recent_ones_count() {
    // 400 MiB until the first checkpoint, then 10 MiB from one to the next, to 820.
    let warm_up = |t: f64| if t < 20.0 { 300.0 + 20.0 * t } else { 700.0 + 0.5 * (t - 20.0).min(240.0) };
    assert_eq!(stops_after_saves(warm_up, 20, 300, TINY_SAVE), [0; 0]);
}

#[test]
fn growth_during_a_save_is_no_cost_of_it() {
    let mut pace = Pace::default();
    pace.step(1.0, 0.0);
    for second in 0..20 {
        pace.sample(Moment::new(f64::from(second), (100 + 45 * second as u64) * MIB, LIMIT), 1.0);
    }
    // Two seconds of growth lay between the sample before the save and its end.
    pace.save(Cost { seconds: 0.01, rise: 90 * MIB, rise_s: 2.0 }, 955 * MIB);
    assert!(saving(&pace, RULES, LIMIT) < 21 * MIB);
    // What it took beyond that is.
    pace.save(Cost { seconds: 0.01, rise: 190 * MIB, rise_s: 2.0 }, 955 * MIB);
    assert_eq!(saving(&pace, RULES, LIMIT), 125 * MIB);
    // And it is forgotten once it has not come again for a while.
    (0..SAVES_REMEMBERED).for_each(|_| pace.save(TINY_SAVE, 955 * MIB));
    assert!(saving(&pace, RULES, LIMIT) < 21 * MIB);
}

#[test]
fn a_run_that_can_save_is_let_closer_once_and_only_once() {
    let mut pace = known_save(0.1, 0);
    let mut stop = || {
        pace.restart();
        let held = first_stop(|t| 100.0 + 5.0 * t, Outlook::Open, &mut pace).unwrap().1;
        pace.stopped();
        held
    };
    let (first, trial, third, fourth) = (stop(), stop(), stop(), stop());
    assert!((890..=900).contains(&first) && trial > 955 && trial + 2 * 5 + 20 <= 1000, "{first} {trial}");
    assert_eq!((third, fourth), (first, first));
}

#[test]
fn the_time_to_the_limit_is_known_after_half_a_second() {
    // Samples with each step of 50 ms, which adds 3 of 68 MiB, so that the limit is ten steps away.
    let mut pace = Pace::default();
    let moment = |step: u32| Moment::new(0.05 * f64::from(step), (8 + 3 * u64::from(step)) * MIB, 68 * MIB);
    for step in 1..=10 {
        pace.step(f64::from(step), moment(step).time_s);
        pace.sample(moment(step), 1.0);
    }
    let left = pace.time_to(68 * MIB, moment(10)).unwrap();
    assert!((0.45..0.55).contains(&left), "{left}");
}

#[test]
fn a_slow_answer_is_remembered() {
    let mut slow = Pace::default();
    slow.reaction(60.0);
    let held = |pace: &mut Pace| first_stop(|t| 200.0 + 2.0 * t, Outlook::Open, pace).unwrap().1;
    assert!(held(&mut slow) + 100 < held(&mut Pace::default()));
}
