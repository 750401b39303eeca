//! The times of a file, decided from all rows: which number of a date is the day, whether `09:00` are hours or minutes,
//! on which day a clock stands, and whether the file begins with its newest row.

use garden_memory::{EventKind, Sample, Trace, elapsed};

use super::moment::{Form, Order};
use super::written::{DAY_S, date_of, days_since_1970};
use crate::series::Series;

/// The longest year, for dates without one.
const YEAR_S: f64 = 366.0 * DAY_S;
/// An hour and the 24 of a day where `09:00` was read as minutes and seconds.
const SHORT_DAY: f64 = 24.0 * 60.0;
/// The share of changes that go back in a file whose newest row comes first.
const BACKWARDS: f64 = 0.9;
/// Fewer changes do not show a direction.
const FEWEST_CHANGES: usize = 3;

/// A clock below this has just begun.
const FRESH_S: f64 = 60.0;
/// A clock nearer than this to the end of the day may be followed by midnight.
const NEAR_END_S: f64 = 3600.0;

/// The forms of the times seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    clock: bool,
    short_clock: bool,
    yearless: bool,
    day_first: bool,
    month_first: bool,
    unclear_order: bool,
}

impl Times {
    /// Takes in the form of a time.
    pub(crate) fn saw(&mut self, form: Form) {
        match form {
            Form::Exact => {}
            Form::Clock => self.clock = true,
            Form::ShortClock => self.short_clock = true,
            Form::Yearless => self.yearless = true,
            Form::DayMonth(Order::DayFirst) => self.day_first = true,
            Form::DayMonth(Order::MonthFirst) => self.month_first = true,
            Form::DayMonth(Order::Unclear) => self.unclear_order = true,
        }
    }

    /// Decides what the times mean and puts the samples in order; returns notes.
    pub(crate) fn settle(self, series: &mut [Series]) -> Vec<String> {
        let mut notes = Vec::new();
        // Beside clocks of three parts, `59:58` is time that has passed, before the first hour is full.
        let hours = self.short_clock && !self.clock && are_hours(series);
        if let Some(example) = first_time(series).filter(|_| self.short_clock && !self.clock) {
            notes.push(short_clock_note(example, hours));
            if hours {
                series.iter_mut().for_each(|one| change_times(one, |time_s| Some(60.0 * time_s)));
            }
        }
        notes.extend(self.settle_order(series));
        let highest = all_times(series).fold(0.0, f64::max);
        let period = match () {
            // A clock that shows 24 hours and more counts from the start.
            _ if (hours || self.clock) && !self.yearless && highest < DAY_S => Some(DAY_S),
            _ if self.yearless => Some(YEAR_S),
            _ => None,
        };
        for one in series {
            if begins_with_newest(one, period) {
                one.reverse();
                one.note("the newest sample comes first in the file: judged in the order of time");
            }
            if let Some(period) = period {
                unroll(one, period);
            }
            forget_unset_clock(one);
            sort_shuffled(one);
            gap_of(one).into_iter().for_each(|note| one.note(note));
        }
        notes
    }

    /// Decides which number of dates such as `03/02/2025` is the day.
    fn settle_order(self, series: &mut [Series]) -> Option<String> {
        match (self.day_first, self.month_first, self.unclear_order) {
            (true, true, _) => {
                series.iter_mut().for_each(|one| change_times(one, |_| None));
                Some("times are ignored: some dates have the day first and others the month".to_string())
            }
            (true, false, true) => {
                series.iter_mut().for_each(|one| change_times(one, |time_s| Some(day_first(time_s))));
                None
            }
            (false, false, true) => {
                let travelled = |place: fn(f64) -> f64| series.iter().map(|one| distance(one, place)).sum::<f64>();
                let (month, day) = (travelled(|time_s| time_s), travelled(day_first));
                if day < month {
                    series.iter_mut().for_each(|one| change_times(one, |time_s| Some(day_first(time_s))));
                }
                let (is, isn_t) = if day < month { ("day", "month") } else { ("month", "day") };
                (day != month)
                    .then(|| format!("dates are read with the {is} first: with the {isn_t} first they would jump"))
            }
            _ => None,
        }
    }
}

fn all_times(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(times_of)
}

fn times_of(series: &Series) -> impl Iterator<Item = f64> {
    (0..series.trace.len()).filter_map(|index| series.trace.time_s(index))
}

fn first_time(series: &[Series]) -> Option<f64> {
    all_times(series).next()
}

/// Whether clocks of two parts show hours and minutes: they stay within a day, and do not count up from zero.
fn are_hours(series: &[Series]) -> bool {
    let within_a_day = all_times(series).all(|time_s| time_s < SHORT_DAY && time_s.fract() == 0.0);
    let counts_up = series.iter().all(|one| {
        let pairs = times_of(one).zip(times_of(one).skip(1));
        times_of(one).next().is_none_or(|first| first < 60.0) && pairs.fold(true, |rises, (a, b)| rises && a < b)
    });
    within_a_day && !counts_up
}

fn short_clock_note(example: f64, hours: bool) -> String {
    let (first, second) = ((example / 60.0) as u64, example as u64 % 60);
    let meaning = if hours { "hours and minutes" } else { "minutes and seconds" };
    format!("times such as `{first:02}:{second:02}` are read as {meaning}")
}

fn change_times(series: &mut Series, change: impl Fn(f64) -> Option<f64>) {
    series.rebuild(|_, sample: &mut Sample| {
        sample.time_s = sample.time_s.and_then(&change);
        true
    });
}

/// The time of a date whose first number is the day, though it was read as the month.
fn day_first(time_s: f64) -> f64 {
    let days = (time_s / DAY_S).floor();
    let (year, month, day) = date_of(days as i64);
    // A day above 12 was never taken for a month.
    if day > 12 { time_s } else { days_since_1970(year, day, month) as f64 * DAY_S + (time_s - days * DAY_S) }
}

/// How far apart neighbouring samples are, added up.
fn distance(series: &Series, place: fn(f64) -> f64) -> f64 {
    times_of(series).zip(times_of(series).skip(1)).map(|(a, b)| (place(b) - place(a)).abs()).sum()
}

/// Whether steps, or else times, go back from nearly every sample to the next.
fn begins_with_newest(series: &Series, period: Option<f64>) -> bool {
    let trace = &series.trace;
    let has_steps = (0..trace.len()).any(|index| trace.step(index).is_some());
    let place = |index: usize| if has_steps { trace.step(index) } else { trace.time_s(index) };
    let period = period.filter(|_| !has_steps).unwrap_or(f64::INFINITY);
    let (mut back, mut changes) = (0, 0);
    for index in 1..trace.len() {
        let (Some(before), Some(now)) = (place(index - 1), place(index)) else { continue };
        // Over midnight a clock that goes back jumps forward.
        let change = match now - before {
            change if change > period / 2.0 => change - period,
            change if change < -period / 2.0 => change + period,
            change => change,
        };
        changes += usize::from(change != 0.0);
        back += usize::from(change < 0.0);
        // Nearly all files are soon seen to go forward.
        if changes - back > 1000 && back == 0 {
            return false;
        }
    }
    changes >= FEWEST_CHANGES && back as f64 >= BACKWARDS * changes as f64
}

/// A gap is this many times the usual interval, and takes at least as many seconds: longer than evaluations and checkpoints.
const GAP_INTERVALS: f64 = 60.0;
const SHORTEST_GAP_S: f64 = 1800.0;
/// The share of intervals that are like the usual one where samples are regular, and how far they may be from it.
const REGULAR: f64 = 0.9;
const LIKE_USUAL: f64 = 0.5;

/// The note on the only gap between regular samples: a clock that jumped, or a pause, in which nothing was measured.
fn gap_of(series: &Series) -> Option<String> {
    let times: Vec<(usize, f64)> =
        (0..series.trace.len()).filter_map(|index| Some((index, series.trace.time_s(index)?))).collect();
    let intervals = || times.windows(2).map(|pair| (pair[1].0, pair[1].1 - pair[0].1));
    let mut sorted: Vec<f64> = intervals().map(|(_, interval)| interval).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let usual = *sorted.get(sorted.len() / 2)?;
    let is_gap = |interval: f64| interval >= SHORTEST_GAP_S && interval > GAP_INTERVALS * usual;
    let regular = intervals().filter(|(_, interval)| (interval - usual).abs() <= LIKE_USUAL * usual).count();
    let mut gaps = intervals().filter(|(_, interval)| is_gap(*interval));
    let (before, gap) = gaps.next().filter(|_| usual > 0.0 && regular as f64 >= REGULAR * sorted.len() as f64)?;
    gaps.next().is_none().then(|| {
        format!(
            "the clock jumps by {} before sample {}: a pause, or a clock that was set; nothing is known of the time between",
            elapsed(gap),
            before + 1
        )
    })
}

/// Times of a clock that counts from 1970 and was set are later than this, in 2001; those of one that was not lie before 1973.
const SET_S: f64 = 1e9;
const UNSET_S: f64 = 1e8;

/// Leaves out the times of the first samples where a machine's clock was not set yet: they would lie decades before the others.
fn forget_unset_clock(series: &mut Series) {
    let unset = times_of(series).take_while(|time_s| *time_s < UNSET_S).count();
    let set = times_of(series).skip(unset).filter(|time_s| *time_s > SET_S).count();
    let has_others = unset + set < times_of(series).count();
    if unset == 0 || has_others || set <= unset {
        return;
    }
    change_times(series, |time_s| Some(time_s).filter(|time_s| *time_s > SET_S));
    let (times, are) = if unset == 1 { ("time", "is") } else { ("times", "are") };
    series.note(format!("{unset} {times} near 1970 {are} ignored: the clock was not set yet"));
}

/// The share of samples that lie before the one above them where lines were shuffled: about half of them do.
const SHUFFLED: f64 = 0.25;
/// Fewer samples that go back are no shuffling.
const FEWEST_FALLS: usize = 10;
/// Where counters begin anew, most samples that go back return to the lowest tenth of the places.
const BEGINNING: f64 = 0.1;

/// Sorts samples whose lines were shuffled, where several share a step or time; each place once is left to the judge.
///
/// Steps that begin anew with each epoch, and runs that follow each other, go back too: but to where they began, or with times
/// that go on.
fn sort_shuffled(series: &mut Series) {
    let trace = &series.trace;
    if trace.events.iter().any(|event| event.kind == EventKind::Restart) {
        return;
    }
    let all = |place: fn(&Trace, usize) -> Option<f64>| {
        (0..trace.len()).map(|index| place(trace, index)).collect::<Option<Vec<f64>>>()
    };
    let (times, steps) = (all(Trace::time_s), all(Trace::step));
    let (places, unit) = match (times, steps) {
        (Some(times), _) if is_shuffled(&times) => (times, "time"),
        (None, Some(steps)) if is_shuffled(&steps) => (steps, "step"),
        _ => return,
    };
    let judged = |index: usize| trace.step(index).or(trace.time_s(index));
    let mut known: Vec<f64> = (0..trace.len()).filter_map(judged).collect();
    known.sort_by(f64::total_cmp);
    if known.windows(2).all(|pair| pair[0] < pair[1]) {
        return;
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    series.reorder(&order);
    series.note(format!("the samples are in no order: sorted by {unit}"));
}

/// Whether about half of the places lie before the one above them, all over the range.
fn is_shuffled(places: &[f64]) -> bool {
    let falls: Vec<f64> = places.windows(2).filter(|pair| pair[1] < pair[0]).map(|pair| pair[1]).collect();
    if falls.len() < FEWEST_FALLS || (falls.len() as f64) < SHUFFLED * places.len() as f64 {
        return false;
    }
    let lowest = places.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let begins = falls.iter().filter(|&&place| place - lowest <= BEGINNING * (highest - lowest)).count();
    2 * begins < falls.len()
}

/// Makes a clock run on past midnight, or a date without a year past New Year's Eve.
fn unroll(series: &mut Series, period: f64) {
    let falls = times_of(series).zip(times_of(series).skip(1)).any(|(before, now)| before - now > period / 2.0);
    if !falls {
        return;
    }
    let counts_from_zero = times_of(series).next().is_some_and(|first| first < FRESH_S);
    let (mut passed, mut last) = (0.0, None);
    series.rebuild(|_, sample| {
        if let Some(time_s) = sample.time_s {
            // Less than half a period back is a clock that was set, or lines out of order.
            let falls = last.is_some_and(|last: f64| last - time_s > period / 2.0);
            // A clock that began at zero and long before midnight does so again belongs to a new run.
            let is_fresh = counts_from_zero && time_s < FRESH_S && last.is_some_and(|last| last < period - NEAR_END_S);
            if falls && !is_fresh {
                passed += period;
            }
            last = Some(time_s);
            sample.time_s = Some(passed + time_s);
        }
        true
    });
}
