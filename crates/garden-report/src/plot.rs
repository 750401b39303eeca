//! The content of a report's charts: memory over the clock with knee, limit, restarts and forecast, and the counts.
//!
//! Drawing is left to `braille.rs`, labelling the axes to `scale.rs`.

use garden_memory::{Bytes, Clock, Part, PhaseKind, Verdict};

use crate::braille::{Chart, Upright, draw};
use crate::clean::clean;
use crate::format::{ClockWords, knee_place, whole};
use crate::illustrate::FEW_COUNTS;
use crate::scale::{Measure, Scale, clock_labels, time_format};
use crate::wrap::{shorten, width};
use crate::{Report, Series};

/// Most labels beneath a chart that do not touch.
const MOST_LABELS: usize = 9;
const MEMORY_ROWS: usize = 14;
const COUNT_ROWS: usize = 5;
const MOST_COLUMNS: usize = 84;
/// A limit or forecast further above the data than this would squeeze the data into the lower half of the chart.
const HEADROOM: f64 = 1.6;
/// Noise on a level is not magnified: the chart shows at least this share of the level.
const LEAST_SPAN: f64 = 0.1;
/// The vertical axis begins at zero unless the lowest value is above this share of the highest.
const ZERO_BASE: f64 = 0.6;
/// A count that varies by less than this share is a line of text, not a chart.
const CONSTANT: f64 = 0.001;
/// Most that a forecast adds to the right of the axis, as a share of the recorded range.
const MOST_AHEAD: f64 = 0.6;
/// Places and values beyond these are damage in the file; with them, everything else would be a flat line.
pub(crate) const MOST_PLACE: f64 = 1e15;
const MOST_VALUE: f64 = 1e21;
/// Most columns of a name from a file in a heading.
pub(crate) const NAME_COLUMNS: usize = 40;

/// A drawn chart with its heading and remarks.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// The heading of the chart.
    pub heading: String,
    /// The drawn lines.
    pub lines: Vec<String>,
    /// Remarks beneath the chart.
    pub notes: Vec<String>,
}

/// A chart before its width is known.
struct Draft {
    heading: String,
    chart: Chart,
    notes: Vec<String>,
}

/// The charts of a report, each of at most `most` columns: the memory, then the first count that varies.
pub(crate) fn pictures(report: &Report, most: usize) -> Vec<Picture> {
    let Some(plot) = Plot::new(report) else { return Vec::new() };
    let varying = report.counts.iter().find(|series| is_drawn(series));
    let drafts: Vec<Draft> =
        [Some(plot.memory()), varying.map(|series| plot.count(series))].into_iter().flatten().collect();
    // The charts are stacked, so they share the width of their labels.
    let labels = drafts.iter().flat_map(|draft| &draft.chart.scale.labels);
    let gutter = labels.map(|label| width(&label.1)).max().unwrap_or(0).min(most / 2);
    drafts.into_iter().map(|draft| draft.finish(gutter, most)).collect()
}

/// One sentence for each count that no chart shows: `tensors: 6529, constant`.
pub(crate) fn count_sentences(report: &Report) -> Vec<String> {
    let has_charts = usable_points(&report.memory).next().is_some();
    let drawn = report.counts.iter().position(|series| has_charts && is_drawn(series));
    let others = report.counts.iter().enumerate().filter(|(index, _)| Some(*index) != drawn);
    others.filter_map(|(_, series)| count_sentence(series)).collect()
}

fn count_sentence(series: &Series) -> Option<String> {
    let points = usable(series);
    let (low, high) = extremes(points.iter().map(|point| point.1))?;
    let (first, last) = (points.first()?.1, points.last()?.1);
    let values = match (first == last, low == high) {
        (_, true) if points.len() == 2 => format!("{}, counted twice", whole(first)),
        (_, true) => format!("{}, constant", whole(first)),
        (true, _) => format!("{} at both ends, {} to {} between", whole(first), whole(low), whole(high)),
        _ => format!("{} at first, {} at the end", whole(first), whole(last)),
    };
    Some(format!("{}: {values}", name_of(series)))
}

fn name_of(series: &Series) -> String {
    shorten(&clean(&series.name), NAME_COLUMNS)
}

/// The points of a series that can be drawn.
pub(crate) fn usable(series: &Series) -> Vec<(f64, f64)> {
    usable_points(series).collect()
}

fn usable_points(series: &Series) -> impl Iterator<Item = (f64, f64)> {
    // Comparisons with NaN are false, so this drops NaN too.
    let sane = |&(x, y): &(f64, f64)| x.abs() < MOST_PLACE && y.abs() < MOST_VALUE;
    series.points.iter().copied().filter(sane)
}

fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Whether a count gets a chart: it varies, and was counted often enough for a line. Nobody saw what was between two counts.
fn is_drawn(series: &Series) -> bool {
    usable_points(series).nth(FEW_COUNTS).is_some() && varies(series)
}

fn varies(series: &Series) -> bool {
    let range = extremes(usable_points(series).map(|point| point.1));
    range.is_some_and(|(low, high)| high - low > CONSTANT * high.abs())
}

/// Whether the processes of a restarted run count the same steps again, so that they cannot share one axis.
pub(crate) fn overlap(parts: &[Part]) -> bool {
    parts.windows(2).any(|pair| pair[1].from < (pair[0].from + pair[0].to) / 2.0)
}

/// The data to draw, and its range.
pub(crate) struct Plot<'a> {
    report: &'a Report<'a>,
    /// The format of places.
    pub words: ClockWords,
    points: Vec<(f64, f64)>,
    /// Where later processes of a restarted run begin.
    restarts: Vec<f64>,
    /// Where the horizontal axis begins.
    pub from: f64,
    /// Where it ends, with room for the forecast.
    pub to: f64,
}

impl<'a> Plot<'a> {
    /// `None` if there is nothing to draw.
    pub fn new(report: &'a Report<'a>) -> Option<Self> {
        let mut points = usable(&report.memory);
        let mut restarts = report.diagnosis.parts.iter().skip(1).map(|part| part.from).collect();
        if overlap(&report.diagnosis.parts) {
            let last_start = points.windows(2).rposition(|pair| pair[1].0 < pair[0].0).map_or(0, |before| before + 1);
            (points, restarts) = (points.split_off(last_start), Vec::new());
        }
        let (first, last) = extremes(points.iter().map(|point| point.0))?;
        let words = ClockWords::new(report);
        // An axis that nearly begins at zero begins there.
        let from = if first > 0.0 && first < 0.15 * last { 0.0 } else { first };
        let mut plot = Plot { report, words, points, restarts, from, to: last };
        plot.to = plot.end_with_forecast(last);
        if plot.to - plot.from < 1e-9 * plot.to.abs().max(1.0) {
            plot.to = plot.from + plot.from.abs().max(1.0) * 1e-6 + 1.0;
        }
        Some(plot)
    }

    /// Where the horizontal axis ends: after the last sample there is room for the forecast.
    fn end_with_forecast(&self, last: f64) -> f64 {
        if self.rate_ahead().is_none() {
            return last;
        }
        let forecast = &self.report.diagnosis.forecast;
        let steps = [
            forecast.decided_by_step,
            forecast.if_bounded.and_then(|plateau| plateau.step),
            forecast.if_unbounded.and_then(|end| end.step),
        ];
        let furthest = last + MOST_AHEAD * (last - self.from);
        let known = steps.into_iter().flatten().filter(|&step| self.words.clock == Clock::Step && step < furthest);
        let least = last + 0.2 * (last - self.from);
        known.map(|step| step + 0.1 * (last - self.from)).fold(least, f64::max).min(furthest)
    }

    /// The growth per unit of the clock that a forecast continues, if there is one.
    fn rate_ahead(&self) -> Option<f64> {
        let diagnosis = self.report.diagnosis;
        let stated = match diagnosis.clock {
            Clock::Step => diagnosis.growth.bytes_per_step,
            Clock::Time => diagnosis.growth.bytes_per_second,
            Clock::Sample => None,
        };
        let last_phase = diagnosis.phases.last().filter(|phase| phase.kind == PhaseKind::Growth);
        let goes_on = match diagnosis.verdict {
            Verdict::Leak => true,
            // A growth that may have stopped already is not continued in the chart.
            Verdict::Growing => diagnosis.knee.is_none() || last_phase.is_some(),
            _ => false,
        };
        let rate = stated.or(last_phase.map(|phase| phase.rate))?;
        (goes_on && rate.is_finite() && rate > 0.0).then_some(rate)
    }

    /// The place of the last sample.
    pub fn last(&self) -> f64 {
        self.points.last().map_or(self.to, |point| point.0)
    }

    fn memory(&self) -> Draft {
        let forecasts = self.forecasts(self.to);
        let (data_low, data_high) = extremes(self.points.iter().map(|point| point.1)).unwrap_or_default();
        let ahead = forecasts.iter().flatten().map(|point| point.1.min(HEADROOM * data_high));
        let limit = self.report.diagnosis.forecast.limit_bytes.map(Bytes).or(self.report.facts.memory_limit);
        let in_view = limit.filter(|limit| (data_low..=HEADROOM * data_high).contains(&limit.as_f64()));
        let high = ahead.chain(in_view.map(Bytes::as_f64)).fold(data_high, f64::max);
        let levels = in_view.map(|limit| (limit.as_f64(), format!("limit {limit}")));
        // A flat line should look flat: from zero, however little room that leaves for the noise.
        let flat = self.report.diagnosis.verdict == Verdict::Flat && data_low > 0.0;
        let low = if flat { 0.0 } else { data_low };
        let mut chart = self.chart(vertical(low, high, MEMORY_ROWS, Measure::Memory), MEMORY_ROWS);
        chart.lines = self.unbroken(&self.points);
        chart.levels = levels.into_iter().collect();
        chart.dotted = forecasts;
        chart.uprights = self.uprights();
        let notes = self.notes(limit.filter(|_| in_view.is_none()), data_high, &chart.dotted);
        let title = shorten(&clean(&self.report.title), NAME_COLUMNS);
        let names = [title, name_of(&self.report.memory)].into_iter().filter(|name| !name.is_empty());
        let names = names.collect::<Vec<_>>().join(", ");
        let colon = if names.is_empty() { "" } else { ": " };
        let heading = format!("{}{colon}{names}", self.heading("Memory"));
        Draft { heading, chart, notes }
    }

    fn count(&self, series: &Series) -> Draft {
        let points = usable(series);
        let (low, high) = extremes(points.iter().map(|point| point.1)).unwrap_or_default();
        let mut chart = self.chart(vertical(low, high, COUNT_ROWS, Measure::Count), COUNT_ROWS);
        chart.lines = self.unbroken(&points);
        // The marks are named beneath the chart of the memory.
        chart.uprights = self.uprights().into_iter().map(|mark| Upright { label: String::new(), ..mark }).collect();
        Draft { heading: self.heading(&name_of(series)), chart, notes: Vec::new() }
    }

    fn heading(&self, what: &str) -> String {
        let format = time_format(self.words).map(|format| format!(" ({format})")).unwrap_or_default();
        format!("{what} by {}{format}", self.words.name())
    }

    fn chart(&self, scale: Scale, rows: usize) -> Chart {
        Chart {
            columns: MOST_COLUMNS,
            rows,
            gutter: 0,
            from: self.from,
            to: self.to,
            labels: clock_labels(self.words, self.from, self.to, MOST_LABELS),
            scale,
            lines: Vec::new(),
            dotted: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// The line through the points, broken where another process begins or the clock goes back.
    fn unbroken(&self, points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        let restarted = |before: f64, after: f64| self.restarts.iter().any(|&at| before < at && at <= after);
        let connected = |a: &(f64, f64), b: &(f64, f64)| b.0 >= a.0 && !restarted(a.0, b.0);
        points.chunk_by(connected).map(<[_]>::to_vec).collect()
    }

    /// The knee, the place of the decision, and the restarts.
    fn uprights(&self) -> Vec<Upright> {
        let at_step = |at: &f64| self.words.clock == Clock::Step && at.is_finite();
        let decided = self.report.diagnosis.forecast.decided_by_step.filter(at_step);
        let named =
            |name: &str, at: f64| Upright { at, glyph: '┊', label: format!("{name} {}", self.words.number(at)) };
        let restart = |&at: &f64| Upright { at, glyph: '╎', label: "restart".to_string() };
        let places = knee_place(self.report).map(|at| named("knee", at));
        let places = places.into_iter().chain(decided.map(|at| named("decided by", at)));
        let inside = |mark: &Upright| (self.from..=self.to).contains(&mark.at);
        places.chain(self.restarts.iter().map(restart)).filter(inside).collect()
    }

    /// The possible continuations up to `end`: unbounded, and to the plateau if one is forecast.
    pub fn forecasts(&self, end: f64) -> Vec<Vec<(f64, f64)>> {
        let (Some(rate), Some(&last)) = (self.rate_ahead(), self.points.last()) else { return Vec::new() };
        let phase = self.report.diagnosis.phases.last().filter(|phase| phase.kind == PhaseKind::Growth);
        let start = phase.map_or(last, |phase| (phase.to, phase.end_bytes as f64));
        let endless = vec![start, (end, start.1 + rate * (end - start.0))];
        let bounded = self.report.diagnosis.forecast.if_bounded.and_then(|plateau| {
            let at = plateau.step.filter(|&step| self.words.clock == Clock::Step && step > start.0)?;
            Some(vec![start, (at, plateau.bytes as f64), (end.max(at), plateau.bytes as f64)])
        });
        [Some(endless), bounded].into_iter().flatten().filter(|line| line.iter().all(|p| p.1.is_finite())).collect()
    }

    fn notes(&self, hidden_limit: Option<Bytes>, top: f64, forecasts: &[Vec<(f64, f64)>]) -> Vec<String> {
        let side = |limit: Bytes| if limit.as_f64() > top { "above" } else { "below" };
        let limit = hidden_limit.map(|limit| format!("limit {limit} is {} the chart", side(limit)));
        let dotted = match forecasts.len() {
            0 => None,
            1 => Some("dotted: growth continued".to_string()),
            _ => Some("dotted: growth if it never ends (upper) and if it ends by itself (lower)".to_string()),
        };
        let parts = &self.report.diagnosis.parts;
        let last_only = overlap(parts).then(|| {
            format!(
                "only the last of {} attempts is drawn: they repeat the same {}s",
                parts.len(),
                self.words.clock.unit()
            )
        });
        [dotted, limit, last_only].into_iter().flatten().collect()
    }
}

impl Draft {
    fn finish(mut self, gutter: usize, most: usize) -> Picture {
        self.chart.gutter = gutter;
        self.chart.columns = MOST_COLUMNS.min(most - gutter - 2);
        Picture { heading: self.heading, lines: draw(&self.chart), notes: self.notes }
    }
}

/// The vertical scale for values from `low` to `high`: from zero where that costs little, and without magnified noise.
fn vertical(low: f64, high: f64, rows: usize, measure: Measure) -> Scale {
    if low >= 0.0 && low < ZERO_BASE * high {
        return Scale::fit(0.0, high, rows, measure);
    }
    let least = (LEAST_SPAN * high.abs()).max(1.0);
    let margin = ((least - (high - low)) / 2.0).max(0.0);
    let bottom = if low >= 0.0 { (low - margin).max(0.0) } else { low - margin };
    Scale::fit(bottom, high + margin, rows, measure)
}
