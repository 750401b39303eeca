//! Charts as data: what is drawn, and nothing about how. Every report describes its charts with these types.
//!
//! All curves of a chart share their places on the horizontal axis, so that one cursor reads all of them at a sample that
//! was really taken. A value that was not recorded is NaN (`null` in JSON); a gap that must not be bridged is a break.
//! Amounts are never rounded here. `assets/chart.js` draws the JSON of a chart, in a report and on a live page.

use serde::{Serialize, Serializer};

/// A chart: curves over one axis, and what stands around them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// Which of a trace's charts it is, for those who take some of them.
    #[serde(skip)]
    pub kind: ChartKind,
    /// What it shows, as a heading.
    pub title: String,
    /// A sentence that helps to read it; may be empty.
    pub note: String,
    /// What the values are.
    pub unit: Unit,
    /// The horizontal axis.
    pub axis: Axis,
    /// How much room it gets.
    pub size: Size,
    /// Where the vertical axis begins.
    pub base: Base,
    /// How the vertical axis is divided.
    pub scale: Scale,
    /// Where the curves have values; ascending between two breaks.
    #[serde(serialize_with = "numbers")]
    pub places: Vec<f64>,
    /// Indices of `places` at which a new piece begins that no line connects to the one before, such as a restart.
    pub breaks: Vec<usize>,
    /// The curves.
    pub curves: Vec<Curve>,
    /// What is expected, with its interval.
    pub outlooks: Vec<Outlook>,
    /// Stretches of the horizontal axis that are shaded.
    pub bands: Vec<Band>,
    /// Values with a meaning, such as a limit or a plan.
    pub levels: Vec<Level>,
    /// Moments with a meaning.
    pub marks: Vec<Mark>,
    /// Samples that there were before some were left out for drawing; 0 if none were.
    pub samples: usize,
}

/// Which of the charts of a trace one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChartKind {
    /// The memory that was judged.
    Memory,
    /// The same of each start, over time.
    Attempts,
    /// Memory of GPUs.
    GpuMemory,
    /// Any other.
    #[default]
    Other,
}

/// What the values of a chart are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Numbers of things.
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
    /// What is counted, such as `step`.
    pub name: String,
    /// How places are written.
    pub kind: AxisKind,
    /// Where it begins; the range of the places and outlooks where both ends are 0.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// How places on a horizontal axis are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisKind {
    /// As numbers: steps, samples, epochs.
    #[default]
    Number,
    /// As times; places are seconds since the beginning.
    Time,
}

/// How much room a chart gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// A high one over the whole width.
    Large,
    /// A low one that shares the width with others.
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
    /// Points that nothing connects.
    Points,
    /// A line with a dot at each value, for the few values between those of other curves.
    Dotted,
}

/// How a curve is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// The next colour of the palette.
    #[default]
    Next,
    /// Grey: it matters less than the others.
    Muted,
    /// The colour of the text: it matters most.
    Strong,
}

/// What is expected: a line with an interval around it.
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
    /// What it was, such as `growth`.
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
    /// What it is, such as `limit`.
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
    /// What must not be crossed.
    #[default]
    Limit,
    /// What is expected.
    Plan,
}

/// A moment with a meaning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mark {
    /// What happened, such as `knee` or `checkpoint`.
    pub name: String,
    /// What to write beside it; empty for the name alone.
    pub label: String,
    /// Where it stands.
    pub at: f64,
    /// The stretch that it takes or may lie in, if that is more than a moment.
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

/// A table of samples, already in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows, and what was left out.
    pub note: String,
    /// The heading of each column.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Chart {
    /// The range of the horizontal axis: as stated, or that of all places and outlooks.
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
