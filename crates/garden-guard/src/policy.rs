//! When to stop a run: as late as is safe, and never without need. Pure: numbers in, a decision out.
//!
//! A program that is told to stop finishes its step and then saves. So it must be told while memory still has room for what
//! can come until then: the growth of one step and of the time that saving takes, and the memory that saving needs on top.
//! The growth is not extrapolated from a fit but taken from what was seen: the largest rise over a stretch of that length that
//! has come twice in the recent past, with a margin. Only rises that lasted count: an evaluation that took memory and gave it
//! back is no growth, and one jump alone may be the only one. The judge has the last word: a run that has settled, or whose
//! growth ends below the limit, is left alone for as long as its memory is where it has been before.
//!
//! A cache that fills up and a leak look the same until the cache is full. So a run that was stopped once is let closer to the
//! limit by its next start, where margins would stop it again and again: see [`Standing`].

use std::collections::VecDeque;

use garden_memory::{Bytes, Diagnosis, Mechanism, Verdict};

/// Margin on the rise that was seen: the next step may be larger than the largest of the recent ones.
const RISE_MARGIN: f64 = 1.25;
/// Margin on the longest recent step, and on the time and memory of the dearest save.
const COST_MARGIN: f64 = 1.25;
/// Steps whose durations are remembered.
const STEPS_REMEMBERED: usize = 16;
/// How many times the length of the forecast counts as the recent past.
const RECENT: f64 = 20.0;
/// The recent past is never shorter than this many samples.
const FEWEST_RECENT: usize = 8;
/// Places kept of the recent past; more would not change the largest rise by much.
const RESOLUTION: f64 = 64.0;
/// Share of the limit at which even a run that has settled is stopped: the next garbage collection may come too late.
pub const LAST_LINE: f64 = 0.98;
/// Saves whose time and memory are remembered: what saving cost while the program warmed up is forgotten.
const SAVES_REMEMBERED: usize = 8;
/// Below this share of the limit no checkpoint is called the last one that fits, unless the growth is known not to end: the
/// rise from one checkpoint to the next is a guess from one or two intervals, and a cache may be full before the next. Four
/// fifths of the limit that was asked for, of which pages of files in a fence can take a little off.
const GUESSED_FROM: f64 = 0.82;
/// Samples that must be there before growth is told from what a save takes.
const FEWEST_TO_TELL_GROWTH: usize = 3;
/// A highest level that has not risen by more than this share of the limit in the recent past is an old one.
const OLD_HIGH: f64 = 0.005;

/// The run at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Seconds since the watching began.
    pub time_s: f64,
    /// What the tree holds and the kernel cannot take back: anonymous, shared and swapped memory.
    pub held: u64,
    /// What the tree may hold before something is killed.
    pub limit: u64,
    /// What it may hold whatever is known about it.
    pub last_line: u64,
}

impl Moment {
    /// A moment with the usual last line.
    pub fn new(time_s: f64, held: u64, limit: u64) -> Moment {
        Moment { time_s, held, limit, last_line: (LAST_LINE * limit as f64) as u64 }
    }
}

/// What earlier starts of the same program have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It was never stopped.
    #[default]
    New,
    /// It was stopped once. It may have been about to settle, so it is let as close to the limit as one more step and a save
    /// need, without margins, and past its periodic checkpoints.
    OnTrial,
    /// It was stopped again, or has come to the limit: it outgrows it.
    Outgrows,
}

/// What a save was seen to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// From its first file to its last change, in seconds.
    pub seconds: f64,
    /// How far memory rose to its highest level meanwhile.
    pub rise: u64,
    /// The time of that rise, in seconds: it begins at the last sample before the save.
    pub rise_s: f64,
}

/// What is known about how fast the run moves and what saving costs.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    recent: VecDeque<(f64, u64)>,
    steps: VecDeque<f64>,
    last_step: Option<(f64, f64)>,
    has_begun: bool,
    /// Whether something was saved since the last step: then its duration is not that of a step.
    has_saved_since: bool,
    /// The last saves: their seconds, and the memory that they took beyond the growth of that time, if that is known.
    saves: VecDeque<(f64, Option<u64>)>,
    /// Longest time from being asked to save to the first file.
    reaction_s: Option<f64>,
    /// What was held at the last checkpoint, or when training began.
    held_at_save: Option<u64>,
    /// Rises from one checkpoint to the next: the last one, and the one before it.
    gaps: (Option<u64>, Option<u64>),
    standing: Standing,
}

impl Pace {
    /// Begins with another process: its memory and steps are new, what saving costs is known.
    pub fn restart(&mut self) {
        *self = Pace {
            saves: std::mem::take(&mut self.saves),
            reaction_s: self.reaction_s,
            standing: self.standing,
            ..Pace::default()
        };
    }

    /// Takes in that it was stopped with a checkpoint.
    pub fn stopped(&mut self) {
        self.standing = if self.standing == Standing::New { Standing::OnTrial } else { Standing::Outgrows };
    }

    /// Takes in that it came to the limit.
    pub fn outgrew(&mut self) {
        self.standing = Standing::Outgrows;
    }

    /// Takes in a sample that was not taken during a save.
    pub fn sample(&mut self, moment: Moment, interval_s: f64) {
        if self.has_begun() {
            self.held_at_save.get_or_insert(moment.held);
        }
        let horizon = self.horizon_s(interval_s);
        match self.recent.back_mut() {
            // Closer places than the resolution become one, which keeps the higher level.
            Some((time, held)) if moment.time_s - *time < horizon / RESOLUTION => *held = moment.held.max(*held),
            _ => self.recent.push_back((moment.time_s, moment.held)),
        }
        let oldest = moment.time_s - RECENT * horizon;
        while self.recent.len() > FEWEST_RECENT && self.recent.front().is_some_and(|(time, _)| *time < oldest) {
            self.recent.pop_front();
        }
    }

    /// Takes in that a step was told at this time.
    pub fn step(&mut self, step: f64, time_s: f64) {
        if let Some((before, at)) = self.last_step {
            let done = step - before;
            // What is printed between two steps tells the same step again.
            if done == 0.0 {
                return;
            }
            if done > 0.0 && !std::mem::take(&mut self.has_saved_since) {
                if self.steps.len() == STEPS_REMEMBERED {
                    self.steps.pop_front();
                }
                self.steps.push_back((time_s - at) / done.max(1.0));
            }
        }
        self.begin();
        self.last_step = Some((step, time_s));
    }

    /// Training has begun: what was loaded before says nothing about the growth from step to step.
    pub fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.recent.clear();
        }
    }

    /// Something is being saved.
    pub fn saving(&mut self) {
        self.has_saved_since = true;
    }

    /// Takes in what a save cost, and what is held after it.
    pub fn save(&mut self, cost: Cost, held: u64) {
        // What would have been added in that time anyway is growth. Before there are samples of that, all of it could be.
        let is_known = self.recent.len() >= FEWEST_TO_TELL_GROWTH;
        let bytes = is_known.then(|| cost.rise.saturating_sub(self.growth_over(cost.rise_s) as u64));
        self.begin();
        self.has_saved_since = true;
        if self.saves.len() == SAVES_REMEMBERED {
            self.saves.pop_front();
        }
        self.saves.push_back((cost.seconds, bytes));
        if let Some(before) = self.held_at_save.replace(held) {
            self.gaps = (Some(held.saturating_sub(before)), self.gaps.0);
        }
    }

    /// Takes in how long the program took to begin to save once it was asked to.
    pub fn reaction(&mut self, seconds: f64) {
        self.reaction_s = Some(self.reaction_s.unwrap_or(0.0).max(seconds));
    }

    /// Whether training has begun: steps are told, or a checkpoint was saved.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Seconds until a limit is reached at the pace of the recent past; `None` without growth.
    pub fn time_to(&self, limit: u64, moment: Moment) -> Option<f64> {
        let seconds = self.step_s().unwrap_or(0.0).max(1.0);
        let rate = self.lasting_rise(seconds) / seconds;
        (rate > 0.0).then(|| limit.saturating_sub(moment.held) as f64 / rate)
    }

    /// The longest of the recent steps, in seconds.
    pub fn step_s(&self) -> Option<f64> {
        self.steps.iter().copied().reduce(f64::max)
    }

    /// How long it can take until a program that is told to stop now has saved.
    fn horizon_s(&self, interval_s: f64) -> f64 {
        // A program that looks at its flag only every few steps takes longer than one step.
        let reaction = self.step_s().unwrap_or(0.0).max(self.reaction_s.unwrap_or(0.0));
        let save_s = self.saves.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
        interval_s + self.with_margin(COST_MARGIN, reaction + save_s)
    }

    /// A figure with its margin; on trial there is none.
    fn with_margin(&self, margin: f64, figure: f64) -> f64 {
        if self.standing == Standing::OnTrial { figure } else { margin * figure }
    }

    /// The rise until the next checkpoint: that since the last one, or where that was less than before, halfway to what it was.
    fn gap(&self) -> Option<f64> {
        let last = self.gaps.0? as f64;
        Some(self.gaps.1.map_or(last, |before| last.max((last + before as f64) / 2.0)))
    }

    /// What is added in so many seconds outside saves.
    fn growth_over(&self, seconds: f64) -> f64 {
        let ends = self.recent.front().zip(self.recent.back());
        let mean =
            ends.map_or(
                0.0,
                |(&(from, low), &(to, high))| {
                    if to > from { high.saturating_sub(low) as f64 * seconds / (to - from) } else { 0.0 }
                },
            );
        self.lasting_rise(seconds).max(mean)
    }

    /// The largest rise over a stretch of so many seconds that has come twice in the recent past; from shorter stretches where
    /// less was seen.
    fn lasting_rise(&self, seconds: f64) -> f64 {
        let Some((&(from, _), &(to, _))) = self.recent.front().zip(self.recent.back()) else { return 0.0 };
        // A third, since stretches begin and end at samples: of halves the second would not fit.
        let length = seconds.min((to - from) / 3.0);
        if length <= 0.0 {
            return 0.0;
        }
        // What is given back later is no growth: each place counts with the lowest level from there on.
        let mut floor: Vec<(f64, f64)> = self.recent.iter().map(|&(time, held)| (time, held as f64)).collect();
        for index in (1..floor.len()).rev() {
            floor[index - 1].1 = floor[index - 1].1.min(floor[index].1);
        }
        // Stretches that do not overlap, from the present back, each reaching back as far as it must to be long enough.
        let (mut largest, mut second, mut end) = (0.0_f64, 0.0_f64, floor.len() - 1);
        while let Some(begin) = (0..end).rev().find(|&index| floor[end].0 - floor[index].0 >= length) {
            let rise = floor[end].1 - floor[begin].1;
            (largest, second) = if rise > largest { (rise, largest) } else { (largest, second.max(rise)) };
            end = begin;
        }
        second * seconds / length
    }

    /// Whether the highest level of the recent past is an old one.
    fn is_old_high(&self, limit: u64) -> bool {
        let half = self.recent.len() / 2;
        let highest =
            |range: std::ops::Range<usize>| self.recent.range(range).map(|(_, held)| *held).max().unwrap_or(0);
        let (before, since) = (highest(0..half), highest(half..self.recent.len()));
        self.recent.len() >= FEWEST_RECENT && since.saturating_sub(before) as f64 <= OLD_HIGH * limit as f64
    }
}

/// What `--stop-at` and the interval say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Share of the limit that is not exceeded, unless the judge knows that it is safe.
    pub stop_at: f64,
    /// Seconds until the next sample.
    pub interval_s: f64,
}

/// Why a run is stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// What comes until it has saved might not fit.
    Forecast {
        /// What the tree holds.
        held: u64,
        /// What may come until it has saved.
        rise: u64,
        /// What saving may take on top.
        saving: u64,
        /// What it may hold.
        limit: u64,
    },
    /// The next periodic checkpoint might not fit.
    Gap {
        /// What the tree holds.
        held: u64,
        /// What may come until then.
        rise: u64,
        /// What saving may take on top.
        saving: u64,
        /// What it may hold.
        limit: u64,
    },
    /// The fixed share of the limit is reached.
    Share {
        /// What the tree holds.
        held: u64,
        /// What it may hold.
        limit: u64,
    },
    /// The program has told that one more step might not fit.
    Told {
        /// What the tree holds.
        held: u64,
        /// What it may hold.
        limit: u64,
    },
    /// There is hardly anything left.
    LastLine {
        /// What the tree holds.
        held: u64,
        /// What it may hold.
        limit: u64,
    },
}

impl Reason {
    /// The reason in one sentence.
    pub fn words(&self) -> String {
        match *self {
            Reason::Forecast { held, rise, saving, limit } => format!(
                "{} in use; up to {} more until it has saved, and {} for saving, might not fit into {}",
                Bytes(held),
                Bytes(rise),
                Bytes(saving),
                Bytes(limit)
            ),
            Reason::Gap { held, rise, saving, limit } => format!(
                "{} in use; up to {} more until the next checkpoint, and {} for saving it, might not fit into {}",
                Bytes(held),
                Bytes(rise),
                Bytes(saving),
                Bytes(limit)
            ),
            Reason::Share { held, limit } => {
                format!("{} in use, {:.0} % of {}, and still rising", Bytes(held), share(held, limit), Bytes(limit))
            }
            Reason::Told { held, limit } => {
                format!("{} in use, and one more step might not fit into {}", Bytes(held), Bytes(limit))
            }
            Reason::LastLine { held, limit } => {
                format!(
                    "{} in use, {:.0} % of {}: almost nothing is left",
                    Bytes(held),
                    share(held, limit),
                    Bytes(limit)
                )
            }
        }
    }
}

fn share(held: u64, limit: u64) -> f64 {
    100.0 * held as f64 / limit.max(1) as f64
}

/// What the judge says about the way to the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outlook {
    /// The growth is over, or ends at this level at most.
    Bounded(u64),
    /// It may go on.
    Open,
    /// It goes on: no bounded explanation is left.
    Leak,
}

impl Outlook {
    /// Reads a diagnosis.
    pub fn of(diagnosis: &Diagnosis) -> Outlook {
        let level = diagnosis.level.map(|level| level.high);
        match diagnosis.verdict {
            Verdict::Flat | Verdict::Sawtooth | Verdict::Settled => level.map_or(Outlook::Open, Outlook::Bounded),
            // The kernel takes pages of files back by itself.
            Verdict::Growing if diagnosis.mechanism == Mechanism::FilePages => {
                level.map_or(Outlook::Open, Outlook::Bounded)
            }
            Verdict::Growing => match (diagnosis.forecast.if_bounded, diagnosis.likelihood) {
                // A plateau is only relied upon where it is likelier than not.
                (Some(plateau), Some(odds)) if odds.bounded > 0.5 => Outlook::Bounded(plateau.high),
                _ => Outlook::Open,
            },
            Verdict::Leak => Outlook::Leak,
            Verdict::Insufficient => Outlook::Open,
        }
    }
}

/// Whether there is hardly anything left.
pub fn at_last_line(moment: Moment) -> Option<Reason> {
    let Moment { held, limit, last_line, .. } = moment;
    (held >= last_line).then_some(Reason::LastLine { held, limit })
}

/// Decides whether the program must be told to stop now. The judge is only asked when it matters.
pub fn decide(moment: Moment, pace: &Pace, rules: Rules, judge: impl FnOnce() -> Outlook) -> Option<Reason> {
    let Moment { held, limit, .. } = moment;
    if let Some(reason) = at_last_line(moment) {
        return Some(reason);
    }
    // While a model is loaded nothing can be saved, and the growth says nothing about the training.
    if !pace.has_begun() {
        return None;
    }
    let saving = saving(pace, rules, limit);
    let rise = pace.lasting_rise(pace.horizon_s(rules.interval_s));
    let rise = pace.with_margin(RISE_MARGIN, rise) as u64;
    // On trial the forecast alone counts, once there are samples for one.
    let has_share = pace.standing != Standing::OnTrial || pace.recent.len() < FEWEST_RECENT;
    let reason = if has_share && held as f64 >= rules.stop_at * limit as f64 {
        Reason::Share { held, limit }
    } else if held.saturating_add(rise).saturating_add(saving) >= limit {
        Reason::Forecast { held, rise, saving, limit }
    } else {
        return None;
    };
    (!pace.is_safe(moment, judge())).then_some(reason)
}

/// Decides, just after a checkpoint, whether the next one might come too late.
pub fn is_last_chance(moment: Moment, pace: &Pace, rules: Rules, judge: impl FnOnce() -> Outlook) -> Option<Reason> {
    let Moment { held, limit, .. } = moment;
    let saving = saving(pace, rules, limit);
    // What came from the last checkpoint to this one, and a step more: checkpoints are not exactly on the beat.
    let step = pace.lasting_rise(rules.interval_s + pace.step_s().unwrap_or(0.0));
    let rise = (RISE_MARGIN * (pace.gap()? + step)) as u64;
    if held.saturating_add(rise).saturating_add(saving) < limit {
        return None;
    }
    let outlook = judge();
    let is_sure = pace.standing == Standing::Outgrows || outlook == Outlook::Leak;
    let may_guess = pace.standing == Standing::New && held as f64 >= GUESSED_FROM * limit as f64;
    ((is_sure || may_guess) && !pace.is_safe(moment, outlook)).then_some(Reason::Gap { held, rise, saving, limit })
}

/// What a save needs: as measured, or until then what `--stop-at` leaves.
fn saving(pace: &Pace, rules: Rules, limit: u64) -> u64 {
    let assumed = (1.0 - rules.stop_at) * limit as f64;
    let least = (1.0 - LAST_LINE) * limit as f64;
    let measured = pace.saves.iter().filter_map(|(_, bytes)| *bytes).max();
    measured.map_or(assumed, |bytes| least.max(pace.with_margin(COST_MARGIN, bytes as f64))) as u64
}

impl Pace {
    /// Whether the growth is known to end below the limit, and what is held now fits that: within it, or no new high.
    fn is_safe(&self, moment: Moment, outlook: Outlook) -> bool {
        let Moment { held, limit, .. } = moment;
        match outlook {
            Outlook::Bounded(level) => {
                (level.max(held) as f64) < LAST_LINE * limit as f64 && (held <= level || self.is_old_high(limit))
            }
            Outlook::Open | Outlook::Leak => false,
        }
    }
}

#[cfg(test)]
mod tests;
