//! When to stop a run: as late as is safe, and never without need. Pure: numbers in, a decision out.
//!
//! A program that is told to stop finishes its step and then saves. So it must be told while memory still has room for what
//! can come until then: the growth of one step and of the time that saving takes, and the memory that saving needs on top.
//! The growth is not extrapolated from a fit but taken from what was seen: the largest rise over any stretch of that
//! length in the recent past, with a margin. The judge has the last word: a run that has settled, or whose growth ends below
//! the limit, is left alone for as long as its memory is where it has been before.

use std::collections::VecDeque;

use garden_memory::{Bytes, Diagnosis, Mechanism, Verdict};

/// Margin on the rise that was seen: the next step may be larger than the largest of the recent ones.
const RISE_MARGIN: f64 = 1.25;
/// Margin on the longest recent step, and on the time and memory of the dearest save.
const COST_MARGIN: f64 = 1.25;
/// Steps whose durations are remembered.
const STEPS_REMEMBERED: usize = 16;
/// How many times the length of the forecast counts as the recent past.
const RECENT: f64 = 10.0;
/// The recent past is never shorter than this many samples.
const FEWEST_RECENT: usize = 8;
/// Places kept of the recent past; more would not change the largest rise by much.
const RESOLUTION: f64 = 64.0;
/// Share of the limit at which even a run that has settled is stopped: the next garbage collection may come too late.
pub const LAST_LINE: f64 = 0.98;
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
}

/// What is known about how fast the run moves and what saving costs.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    recent: VecDeque<(f64, u64)>,
    steps: VecDeque<f64>,
    last_step: Option<(f64, f64)>,
    has_saved: bool,
    /// Longest save, in seconds.
    save_s: Option<f64>,
    /// Most memory that a save took on top.
    save_bytes: Option<u64>,
    /// Longest time from being asked to save to the first file.
    reaction_s: Option<f64>,
    /// What was held at the last checkpoint, or when training began.
    held_at_save: Option<u64>,
    /// Largest rise from one checkpoint to the next.
    gap_bytes: Option<u64>,
}

impl Pace {
    /// Begins with another process: its memory and steps are new, what saving costs is known.
    pub fn restart(&mut self) {
        *self = Pace {
            save_s: self.save_s,
            save_bytes: self.save_bytes,
            reaction_s: self.reaction_s,
            gap_bytes: self.gap_bytes,
            ..Pace::default()
        };
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
            if done > 0.0 {
                if self.steps.len() == STEPS_REMEMBERED {
                    self.steps.pop_front();
                }
                self.steps.push_back((time_s - at) / done.max(1.0));
            }
        } else {
            // What was loaded before the first step says nothing about the growth from step to step.
            self.recent.clear();
        }
        self.last_step = Some((step, time_s));
    }

    /// Takes in what a save cost, and what is held after it.
    pub fn save(&mut self, seconds: f64, bytes: u64, held: u64) {
        self.has_saved = true;
        self.save_s = Some(self.save_s.unwrap_or(0.0).max(seconds));
        self.save_bytes = Some(self.save_bytes.unwrap_or(0).max(bytes));
        if let Some(before) = self.held_at_save.replace(held) {
            self.gap_bytes = Some(self.gap_bytes.unwrap_or(0).max(held.saturating_sub(before)));
        }
    }

    /// Takes in how long the program took to begin to save once it was asked to.
    pub fn reaction(&mut self, seconds: f64) {
        self.reaction_s = Some(self.reaction_s.unwrap_or(0.0).max(seconds));
    }

    /// Whether training has begun: steps are told, or a checkpoint was saved.
    pub fn has_begun(&self) -> bool {
        self.last_step.is_some() || self.has_saved
    }

    /// Seconds until a limit is reached at the pace of the recent past; `None` without growth.
    pub fn time_to(&self, limit: u64, moment: Moment) -> Option<f64> {
        let seconds = self.step_s().unwrap_or(0.0).max(1.0);
        let rate = self.largest_rise(seconds) / seconds;
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
        interval_s + COST_MARGIN * (reaction + self.save_s.unwrap_or(0.0))
    }

    /// The largest rise over any stretch of so many seconds in the recent past; longer stretches than were seen are drawn out.
    fn largest_rise(&self, seconds: f64) -> f64 {
        let mut largest = 0.0_f64;
        let mut low: VecDeque<(f64, u64)> = VecDeque::new();
        for &(time, held) in &self.recent {
            // The lowest level within the stretch that ends here: levels below which nothing lower follows.
            while low.front().is_some_and(|(earlier, _)| time - earlier > seconds) && low.len() > 1 {
                low.pop_front();
            }
            if let Some(&(earlier, level)) = low.front() {
                let rise = held as f64 - level as f64;
                let passed = time - earlier;
                let scale = if passed > seconds { seconds / passed } else { 1.0 };
                largest = largest.max(rise * scale);
            }
            while low.back().is_some_and(|(_, level)| *level >= held) {
                low.pop_back();
            }
            low.push_back((time, held));
        }
        let seen = match (self.recent.front(), self.recent.back()) {
            (Some((from, _)), Some((to, _))) => to - from,
            _ => return 0.0,
        };
        if seen > 0.0 && seen < seconds { largest * (seconds / seen) } else { largest }
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
    /// Seconds between samples.
    pub interval_s: f64,
}

/// Why a run is stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// One more step and a save might not fit.
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
                "{} are held; one more step may add {} and saving {}, which might not fit into {}",
                Bytes(held),
                Bytes(rise),
                Bytes(saving),
                Bytes(limit)
            ),
            Reason::Gap { held, rise, saving, limit } => format!(
                "{} are held; until the next checkpoint {} may be added, and saving it may take {}, which might not fit into {}",
                Bytes(held),
                Bytes(rise),
                Bytes(saving),
                Bytes(limit)
            ),
            Reason::Share { held, limit } => {
                format!("{} are held, {:.0} % of {}, and still rising", Bytes(held), share(held, limit), Bytes(limit))
            }
            Reason::LastLine { held, limit } => {
                format!(
                    "{} are held, {:.0} % of {}: hardly anything is left",
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
            Verdict::Leak | Verdict::Insufficient => Outlook::Open,
        }
    }
}

/// Decides whether the program must be told to stop now. The judge is only asked when it matters.
pub fn decide(moment: Moment, pace: &Pace, rules: Rules, judge: impl FnOnce() -> Outlook) -> Option<Reason> {
    let Moment { held, limit, .. } = moment;
    let reached = |share: f64| held as f64 >= share * limit as f64;
    if reached(LAST_LINE) {
        return Some(Reason::LastLine { held, limit });
    }
    // While a model is loaded nothing can be saved, and the growth says nothing about the training.
    if !pace.has_begun() {
        return None;
    }
    let saving = saving(pace, rules, limit);
    let rise = (RISE_MARGIN * pace.largest_rise(pace.horizon_s(rules.interval_s))) as u64;
    let reason = if reached(rules.stop_at) {
        Reason::Share { held, limit }
    } else if held.saturating_add(rise).saturating_add(saving) >= limit {
        Reason::Forecast { held, rise, saving, limit }
    } else {
        return None;
    };
    let is_safe = match judge() {
        Outlook::Bounded(level) => {
            (level.max(held) as f64) < LAST_LINE * limit as f64 && pace.is_bounded(held, level, limit)
        }
        Outlook::Open => false,
    };
    (!is_safe).then_some(reason)
}

/// Decides, just after a checkpoint, whether the next one might come too late.
pub fn is_last_chance(moment: Moment, pace: &Pace, rules: Rules, judge: impl FnOnce() -> Outlook) -> Option<Reason> {
    let Moment { held, limit, .. } = moment;
    let saving = saving(pace, rules, limit);
    // What came from the last checkpoint to this one, and a step more: checkpoints are not exactly on the beat.
    let step = pace.largest_rise(rules.interval_s + pace.step_s().unwrap_or(0.0));
    let rise = (RISE_MARGIN * (pace.gap_bytes? as f64 + step)) as u64;
    if held.saturating_add(rise).saturating_add(saving) < limit {
        return None;
    }
    match judge() {
        Outlook::Bounded(level) if (level.max(held) as f64) < LAST_LINE * limit as f64 => None,
        _ => Some(Reason::Gap { held, rise, saving, limit }),
    }
}

/// What a save needs: as measured, or until then what `--stop-at` leaves.
fn saving(pace: &Pace, rules: Rules, limit: u64) -> u64 {
    let assumed = (1.0 - rules.stop_at) * limit as f64;
    let least = (1.0 - LAST_LINE) * limit as f64;
    pace.save_bytes.map_or(assumed, |bytes| least.max(COST_MARGIN * bytes as f64)) as u64
}

impl Pace {
    /// Whether what is held now fits a bounded outlook: within it, and not a new high of the last moments.
    fn is_bounded(&self, held: u64, level: u64, limit: u64) -> bool {
        held <= level || self.is_old_high(limit)
    }
}
