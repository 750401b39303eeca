//! A chart in words: for readers who cannot see it, and where it is not drawn.

use garden_memory::{Bytes, Clock};

use crate::chart::{AxisKind, Chart, Mark, Shape, Unit};
use crate::format::{ClockWords, TimeUnit, whole};

use super::blocks::table_html;
use super::escape::escape;

/// Most marks of one kind listed one by one; beyond that, only their number.
const MOST_MARKS: usize = 6;

/// A chart as sentences and a table.
pub(super) fn alternative(chart: &Chart) -> String {
    let places = Places::of(chart);
    let rows: Vec<Vec<String>> =
        chart.curves.iter().filter_map(|curve| row(chart, &curve.values, &curve.name, &places)).collect();
    let header = ["", "first", "lowest", "highest", "last"].map(String::from);
    let sentences: String =
        sentences(chart, &places).iter().map(|sentence| format!("<li>{}</li>", escape(sentence))).collect();
    format!(
        "<details class=\"alternative\" open><summary>In words</summary>{}<ul>{sentences}</ul></details>",
        table_html("numeric", &header, &rows)
    )
}

/// A curve's first, lowest, highest and last value, with their places.
fn row(chart: &Chart, values: &[f64], name: &str, places: &Places) -> Option<Vec<String>> {
    let known = || chart.places.iter().zip(values).filter(|(_, value)| value.is_finite());
    let told = |(place, value): (&f64, &f64)| format!("{} at {}", amount(*value, chart.unit), places.write(*place));
    let (first, last) = (known().next()?, known().next_back()?);
    let lowest = known().min_by(|a, b| a.1.total_cmp(b.1))?;
    // Of several, the first.
    let highest = known().rev().max_by(|a, b| a.1.total_cmp(b.1))?;
    Some(vec![name.to_string(), told(first), told(lowest), told(highest), told(last)])
}

fn sentences(chart: &Chart, places: &Places) -> Vec<String> {
    let mut sentences =
        vec![format!("Horizontal: {}, {}.", chart.axis.name, places.range(chart.axis.from, chart.axis.to))];
    sentences.extend(
        chart.levels.iter().map(|level| format!("{}: {}.", capital(&level.name), amount(level.value, chart.unit))),
    );
    sentences.extend(
        chart.bands.iter().map(|band| format!("{}: {}.", capital(&band.name), places.range(band.from, band.to))),
    );
    for outlook in &chart.outlooks {
        if let Some((place, low, middle, high)) = outlook.points.last() {
            let [low, middle, high] = [low, middle, high].map(|value| amount(*value, chart.unit));
            let name = capital(&outlook.name);
            sentences.push(format!("{name}: {middle} at {} ({low} to {high}).", places.write(*place)));
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for mark in &chart.marks {
        if !names.contains(&mark.name.as_str()) {
            names.push(&mark.name);
        }
    }
    sentences.extend(names.into_iter().map(|name| mark_sentence(chart, name, places)));
    if chart.samples > 0 {
        sentences.push(format!(
            "Drawn from {} of {} samples: the lowest and the highest of each stretch.",
            chart.places.len(),
            chart.samples
        ));
    }
    sentences
}

fn mark_sentence(chart: &Chart, name: &str, places: &Places) -> String {
    let marks: Vec<&Mark> = chart.marks.iter().filter(|mark| mark.name == name).collect();
    let told = |mark: &&Mark| match mark.stretch {
        Some((from, to)) if mark.shape == Shape::Bar && from < to => places.range(from, to),
        Some((from, to)) if from < to => format!("{} ({})", places.write(mark.at), places.range(from, to)),
        _ => places.write(mark.at),
    };
    let first: Vec<String> = marks.iter().take(MOST_MARKS).map(told).collect();
    let more = marks.len().saturating_sub(MOST_MARKS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}: {}{more}.", capital(name), first.join(", "))
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// A value in its unit.
fn amount(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => Bytes::from_f64(value).to_string(),
        Unit::Count => whole(value),
        Unit::Number if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e7) => format!("{value:.3e}"),
        Unit::Number => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_string(),
        Unit::Percent => format!("{:.1} %", 100.0 * value),
        Unit::Seconds => format!("{value:.3} s"),
    }
}

/// The format of a chart's places.
enum Places {
    /// As times.
    Times(ClockWords),
    /// As whole numbers, since the axis is long enough.
    Whole,
    /// As numbers.
    Numbers,
}

/// An axis longer than this has whole numbers: nobody looks for step 82.94.
const LONG: f64 = 20.0;

impl Places {
    fn of(chart: &Chart) -> Places {
        let unit = TimeUnit::fitting(chart.axis.to);
        match chart.axis.kind {
            AxisKind::Time => Places::Times(ClockWords { clock: Clock::Time, zero: 0.0, unit }),
            AxisKind::Number if chart.axis.to - chart.axis.from > LONG => Places::Whole,
            AxisKind::Number => Places::Numbers,
        }
    }

    fn write(&self, place: f64) -> String {
        match self {
            Places::Times(words) => words.number(place),
            Places::Whole => whole(place),
            Places::Numbers => amount((place * 100.0).round() / 100.0, Unit::Number),
        }
    }

    fn range(&self, from: f64, to: f64) -> String {
        format!("{} to {}", self.write(from), self.write(to))
    }
}
