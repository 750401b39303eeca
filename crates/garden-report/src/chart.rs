//! Charts as data: what to draw, not how. Every report describes its charts with these types.
//!
//! All curves of a chart share their places on the horizontal axis, so that one cursor reads all of them at a real sample.
//! A value that was not recorded is NaN (`null` in JSON); a gap that must not be bridged is a break.
//! Amounts are never rounded here. `assets/chart.js` draws the JSON of a chart, in a report and on a live page.

use serde::{Serialize, Serializer};

/// A chart: curves over one axis, with marks, levels and bands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// Which of a trace's charts it is, for callers that use only some of them.
    #[serde(skip)]
    pub kind: ChartKind,
    /// The heading.
    pub title: String,
    /// A sentence that helps to read it; may be empty.
    pub note: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The horizontal axis.
    pub axis: Axis,
    /// Its size on the page.
    pub size: Size,
    /// Where the vertical axis begins.
    pub base: Base,
    /// How the vertical axis is divided.
    pub scale: Scale,
    /// Where the curves have values; ascending between two breaks.
    #[serde(serialize_with = "numbers")]
    pub places: Vec<f64>,
    /// Indices of `places` at which a new piece begins, not connected to the one before, such as at a restart.
    pub breaks: Vec<usize>,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Forecasts, with their intervals.
    pub outlooks: Vec<Outlook>,
    /// Shaded stretches of the horizontal axis.
    pub bands: Vec<Band>,
    /// Values with a meaning, such as a limit or a plan.
    pub levels: Vec<Level>,
    /// Moments with a meaning.
    pub marks: Vec<Mark>,
    /// Number of samples before thinning; 0 if none were left out.
    pub samples: usize,
}

/// The kind of a trace's chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChartKind {
    /// The judged memory.
    Memory,
    /// The judged memory of each start, over time.
    Attempts,
    /// GPU memory.
    GpuMemory,
    /// Any other.
    #[default]
    Other,
}

/// The unit of a chart's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Counts.
    Count,
    /// Numbers without a unit, such as a loss.
    #[default]
    Number,
    /// Shares of one, shown as percentages.
    Percent,
    /// Seconds.
    Seconds,
}

/// The horizontal axis of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// The name of the axis, such as `step`.
    pub name: String,
    /// The format of places.
    pub kind: AxisKind,
    /// Where it begins; if both ends are 0, the range is that of the places and outlooks.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// The format of places on a horizontal axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisKind {
    /// As numbers: steps, samples, epochs.
    #[default]
    Number,
    /// As times; places are seconds since the beginning.
    Time,
}

/// The size of a chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Tall, over the whole width.
    Large,
    /// Low, sharing the width with others.
    #[default]
    Small,
}

/// Where a vertical axis begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// At zero, so that heights can be compared.
    #[default]
    Zero,
    /// Near the lowest value, so that small changes of a large level can be seen.
    Fitted,
}

/// How a vertical axis is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The same height for the same difference.
    #[default]
    Linear,
    /// The same height for the same ratio. Values of zero and less are not drawn.
    Logarithmic,
}

/// One curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub role: Role,
    /// How it is coloured.
    pub tone: Tone,
    /// One value for each of the chart's places; NaN where there is none.
    #[serde(serialize_with = "numbers")]
    pub values: Vec<f64>,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A line.
    #[default]
    Line,
    /// A line with the area beneath it.
    Area,
    /// An area on top of the stacked ones before it.
    Stacked,
    /// Points without a line.
    Points,
    /// A line with a dot at each value, for values sparser than other curves'.
    Dotted,
}

/// How a curve is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// The next colour of the palette.
    #[default]
    Next,
    /// Grey, for a less important curve.
    Muted,
    /// The colour of the text, for the most important curve.
    Strong,
}

/// A forecast: a line with an interval around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outlook {
    /// Its name in the legend, such as `if it never ends`.
    pub name: String,
    /// Place, lower end, expected value and upper end, by ascending place.
    pub points: Vec<(f64, f64, f64, f64)>,
}

/// A stretch of the horizontal axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Band {
    /// Its name, such as `growth`.
    pub name: String,
    /// How it is coloured.
    pub mood: Mood,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// How a band is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mood {
    /// All is quiet.
    #[default]
    Calm,
    /// Something rises.
    Rising,
    /// Something falls.
    Falling,
}

/// A value with a meaning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    /// Its name, such as `limit`.
    pub name: String,
    /// The value.
    pub value: f64,
    /// How it is coloured.
    pub kind: LevelKind,
}

/// How a level is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LevelKind {
    /// A limit that must not be crossed.
    #[default]
    Limit,
    /// An expected value.
    Plan,
}

/// A moment with a meaning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mark {
    /// Its name, such as `knee` or `checkpoint`.
    pub name: String,
    /// The text beside it; empty for the name alone.
    pub label: String,
    /// Its place.
    pub at: f64,
    /// The stretch that it covers or may lie in, if more than a moment.
    pub stretch: Option<(f64, f64)>,
    /// How it is drawn.
    pub shape: Shape,
}

/// How a mark is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A strong line over the whole height, with its label.
    Pin,
    /// A faint line over the whole height, with its label where there is room.
    #[default]
    Line,
    /// A diamond at the foot of the chart.
    Diamond,
    /// A dot at the foot of the chart.
    Dot,
    /// A bar at the foot of the chart that shows its stretch.
    Bar,
}

/// A table of samples, already formatted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The content of the table, and what was left out.
    pub note: String,
    /// The heading of each column.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Chart {
    /// The range of the horizontal axis: as stated, or spanning all places and outlooks.
    pub(crate) fn range(&self) -> (f64, f64) {
        if self.axis.from < self.axis.to {
            return (self.axis.from, self.axis.to);
        }
        let ahead = self.outlooks.iter().flat_map(|outlook| outlook.points.iter().map(|point| point.0));
        let places = self.places.iter().copied().chain(ahead).filter(|place| place.is_finite());
        let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low < high { (low, high) } else { (if low.is_finite() { low } else { 0.0 }, high.max(low.min(0.0) + 1.0)) }
    }
}

/// Numbers in as few characters as they need: whole ones without a fraction.
fn numbers<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|&value| Number(value)))
}

struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Whole numbers up to here are exact in JavaScript.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self.0 {
            whole if whole.fract() == 0.0 && whole.abs() < EXACT => serializer.serialize_i64(whole as i64),
            finite if finite.is_finite() => serializer.serialize_f64(finite),
            _ => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_exactly_and_unknown_ones_as_null() {
        let curve = Curve { values: vec![17_859_346_432.0, 0.25, f64::NAN, f64::INFINITY, -0.0], ..Curve::default() };
        let text = serde_json::to_string(&curve).unwrap();
        assert!(text.ends_with(r#""values":[17859346432,0.25,null,null,0]}"#), "{text}");
    }

    #[test]
    fn a_range_is_found_even_where_there_is_nothing() {
        assert_eq!(Chart::default().range(), (0.0, 1.0));
        assert_eq!(Chart { places: vec![5.0], ..Chart::default() }.range(), (5.0, 5.0_f64.max(1.0)));
    }
}
