//! What is to come, as lines to the right of the present: the growth that never ends, and the growth that does.

use garden_memory::{Bytes, Clock, Diagnosis, Mechanism, PhaseKind, Verdict};

use super::Picture;
use super::palette::Ink;
use garden_report::terminal::ClockWords;

/// The future takes at least this much of the chart, as a share of the past.
const LEAST_AHEAD: f64 = 0.3;
/// What happens further ahead than this is told in words: showing it would leave too little room for the past.
const MOST_AHEAD: f64 = 0.85;
/// How far behind the place where something happens the chart ends, as a share of what is ahead.
const ROOM_BEHIND: f64 = 1.15;

/// One way of going on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Course {
    /// Places and bytes, in the order of the places.
    pub points: Vec<(f64, f64)>,
    /// What it is drawn with.
    pub ink: Ink,
    /// What is written beside it.
    pub label: String,
}

/// The ways of going on, and where the chart ends for them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outlook {
    /// The ways of going on.
    pub courses: Vec<Course>,
    /// The end of the horizontal axis.
    pub to: f64,
}

/// How places of an axis up to `longest` are written; times count from the beginning of the watching.
pub(super) fn words_of(axis: Clock, longest: f64) -> ClockWords {
    ClockWords::over(axis, 0.0, std::iter::once(longest))
}

/// The last place of the chart's past, in both units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    /// What the axis counts: steps or time.
    pub axis: Clock,
    /// The place on the axis.
    pub place: f64,
    /// The step, if known.
    pub step: Option<f64>,
}

impl Present {
    /// The place on the axis at which a step will be reached.
    fn place_of(self, step: f64, diagnosis: &Diagnosis) -> Option<f64> {
        match self.axis {
            Clock::Step => Some(step),
            Clock::Time | Clock::Sample => {
                let growth = diagnosis.growth;
                let seconds_per_step = growth.bytes_per_step? / growth.bytes_per_second?;
                Some(self.place + (step - self.step?) * seconds_per_step).filter(|place| place.is_finite())
            }
        }
    }
}

/// The outlook from the present, if memory grows; `past` is the length of what the chart shows already.
pub(super) fn outlook(picture: &Picture, present: Present, past: f64) -> Option<Outlook> {
    let diagnosis = picture.diagnosis?;
    let rate = rate_ahead(diagnosis, present.axis)?;
    let now = present.place;
    let level = level_now(diagnosis, present, rate)?;
    let plateau = diagnosis.forecast.if_bounded.and_then(|plateau| {
        let place = present.place_of(plateau.step?, diagnosis)?;
        (place > now).then_some((place, plateau.bytes as f64))
    });
    let limit = picture.limit.map(|limit| limit as f64);
    let end =
        end_place(diagnosis, present).or(limit.map(|limit| now + (limit - level) / rate)).filter(|&end| end > now);
    let ahead = [plateau.map(|plateau| plateau.0), end].into_iter().flatten().map(|place| place - now);
    let seen = ahead.filter(|&ahead| ahead <= MOST_AHEAD * past).fold(0.0, f64::max);
    let mut to = now + (seen * ROOM_BEHIND).max(LEAST_AHEAD * past);
    // What would happen after the run is over does not matter.
    let run_end = picture.total_steps.and_then(|steps| present.place_of(steps as f64, diagnosis));
    if let Some(run_end) = run_end {
        to = to.min(run_end);
    }
    if to - now < 1e-6 * past.max(1e-6) {
        return None;
    }
    let told = |place: f64| {
        let arrow = if place > to { " →" } else { "" };
        format!("{}{arrow}", words_of(present.axis, to.max(place)).bare(place))
    };
    let endless = (diagnosis.mechanism != Mechanism::FilePages).then(|| {
        let label = end.map_or("if unbounded".to_string(), |end| format!("limit at {}", told(end)));
        // The line ends at the limit, or else leaves the chart.
        let far = end.zip(limit).filter(|(_, limit)| *limit > level).unwrap_or((to, level + rate * (to - now)));
        let points = vec![(now, level), far];
        Course { points, ink: Ink::Unbounded, label }
    });
    let bounded = plateau.map(|(place, bytes)| {
        // Before the plateau comes into sight the two courses are the same line, which is drawn once.
        let is_seen = place <= to || endless.is_none();
        let points = if is_seen { vec![(now, level), (place, bytes), (to.max(place), bytes)] } else { Vec::new() };
        let label = format!("bounded: {} at {}", Bytes::from_f64(bytes), told(place));
        Course { points, ink: Ink::Bounded, label }
    });
    Some(Outlook { courses: endless.into_iter().chain(bounded).collect(), to })
}

/// Where the diagnosis sees the limit reached.
fn end_place(diagnosis: &Diagnosis, present: Present) -> Option<f64> {
    let end = diagnosis.forecast.if_unbounded?;
    match present.axis {
        Clock::Step => end.step,
        Clock::Time | Clock::Sample => end.time_s.map(|seconds| present.place + seconds),
    }
}

/// The growth per unit of the axis that goes on, if one does.
fn rate_ahead(diagnosis: &Diagnosis, axis: Clock) -> Option<f64> {
    let goes_on = match diagnosis.verdict {
        Verdict::Leak => true,
        // A growth that may have stopped already is not continued.
        Verdict::Growing => diagnosis.knee.is_none() || growth_phase(diagnosis).is_some(),
        _ => false,
    };
    let rate = match axis {
        Clock::Step => diagnosis.growth.bytes_per_step,
        Clock::Time | Clock::Sample => diagnosis.growth.bytes_per_second,
    };
    rate.filter(|&rate| goes_on && rate.is_finite() && rate > 0.0)
}

fn growth_phase(diagnosis: &Diagnosis) -> Option<garden_memory::Phase> {
    diagnosis.phases.last().copied().filter(|phase| phase.kind == PhaseKind::Growth)
}

/// The level from which the growth goes on: the floor that the diagnosis found, carried on to the present.
fn level_now(diagnosis: &Diagnosis, present: Present, rate: f64) -> Option<f64> {
    let phase = growth_phase(diagnosis).filter(|_| diagnosis.clock == present.axis);
    let carried = phase.map(|phase| phase.end_bytes as f64 + rate * (present.place - phase.to).max(0.0));
    carried.or(diagnosis.level.map(|level| level.bytes as f64))
}
