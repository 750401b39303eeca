//! A comparison of runs as a page: the answer, both sides in numbers, each run, and one chart with all curves.

use std::borrow::Cow;

use garden_memory::{
    Basis, Bytes, Clock, ComparedRun, Comparison, Effect, Interval, LevelContrast, format_between, format_change,
    short_time, time_unit,
};

use crate::chart::{Axis, AxisKind, Band, Base, Chart, Curve, Mood, Role, Size, Tone, Unit};
use crate::format::{ClockWords, rate_per, rate_per_minute};
use crate::json_text;
use crate::page::{News, Page};
use crate::sections::{Block, Field, Section, section};

/// A line begins at zero unless its lowest value is above this share of the highest.
const ZERO_BASE: f64 = 0.6;

/// The page of a comparison; `title` says what was compared.
pub fn comparison(comparison: &Comparison, title: &str, command: Option<String>, version: &str) -> Page {
    let (word, news) = match comparison.effect {
        Effect::None => ("same", News::Open),
        Effect::Ends => ("ends", News::Good),
        Effect::Less => ("less", News::Good),
        Effect::More => ("more", News::Bad),
        Effect::Unclear => ("unclear", News::Unknown),
        Effect::Insufficient => ("insufficient", News::Unknown),
    };
    let sections = [
        section("Runs", vec![Block::Table(runs_header(), runs(comparison))]),
        section("What to do", vec![Block::Paragraph(advice(comparison))]),
        section("Method", vec![Block::Bullets(method(comparison))]),
    ];
    Page {
        subject: "Comparison".into(),
        title: title.into(),
        word: word.into(),
        news,
        summary: comparison.summary.clone(),
        numbers: numbers(comparison),
        sections: sections.into_iter().flatten().collect::<Vec<Section>>(),
        charts: chart(comparison).into_iter().collect(),
        environment: environment(comparison),
        notes: comparison.notes.clone(),
        json: json_text(comparison),
        command,
        version: version.into(),
    }
}

pub(crate) fn header<const N: usize>(names: [&'static str; N]) -> Vec<Cow<'static, str>> {
    names.map(Cow::from).to_vec()
}

/// A rate with its interval, in a familiar unit.
pub(crate) fn rate(clock: Clock, rate: Interval) -> String {
    let Interval { value, low, high } = rate;
    let text = match clock {
        Clock::Time => rate_per_minute(value, Some(low), Some(high)),
        clock => rate_per(value, Some(low), Some(high), clock.unit()),
    };
    text.unwrap_or_default()
}

pub(crate) fn seconds(time: Interval) -> String {
    let (unit, factor, digits) = time_unit(time.value);
    let [value, low, high] = [time.value, time.low, time.high].map(|seconds| format!("{:.digits$}", factor * seconds));
    format!("{value} {unit} (95 %: {low} to {high})")
}

fn numbers(comparison: &Comparison) -> Vec<Field> {
    let mut fields: Vec<(&'static str, String)> = Vec::new();
    if let Some(growth) = &comparison.growth {
        let rates =
            [("growth before", growth.before), ("growth after", growth.after), ("difference", growth.difference)];
        fields.extend(rates.map(|(name, value)| (name, rate(comparison.clock, value))));
    }
    if let Some(time) = &comparison.step_time {
        let share = |ratio: f64| format!("{:+.1}", 100.0 * (ratio - 1.0));
        let Interval { value, low, high } = time.ratio;
        let change = format!("{} % (95 %: {} to {})", share(value), share(low), share(high));
        fields.push(("step before", seconds(time.before)));
        fields.push(("step after", seconds(time.after)));
        let typical = time.typical.1 / time.typical.0;
        let typical = if typical.is_finite() { format!("; median step {} %", share(typical)) } else { String::new() };
        fields.push(("step time", format!("{change}{typical}")));
    }
    for (name, level) in [("peak", &comparison.highest), ("final level", &comparison.last)] {
        fields.extend(level.as_ref().map(|level| (name, level_words(level))));
    }
    fields.into_iter().map(|(name, text)| (name.into(), text)).collect()
}

pub(crate) fn level_words(level: &LevelContrast) -> String {
    let [before, after] = [level.before, level.after].map(Bytes::from_f64);
    let interval = level.low.zip(level.high).map(|(low, high)| format!(" (95 %: {})", format_between(low, high)));
    format!("{before} before, {after} after: {}{}", format_change(level.difference), interval.unwrap_or_default())
}

fn runs_header() -> Vec<Cow<'static, str>> {
    header(["", "run", "verdict", "samples", "growth", "step time", "peak"])
}

fn runs(comparison: &Comparison) -> Vec<Vec<String>> {
    let row = |side: &'static str, run: &ComparedRun| {
        vec![
            side.to_string(),
            run.name.clone(),
            run.verdict.name().to_string(),
            run.samples.to_string(),
            run.growth.map(|growth| plain_rate(comparison.clock, growth.value)).unwrap_or_default(),
            run.step_time.map(|time| short_time(time.value)).unwrap_or_default(),
            run.highest.map(|bytes| Bytes::from_f64(bytes).to_string()).unwrap_or_default(),
        ]
    };
    let before = comparison.before.iter().map(|run| row("before", run));
    before.chain(comparison.after.iter().map(|run| row("after", run))).collect()
}

fn plain_rate(clock: Clock, value: f64) -> String {
    let text = match clock {
        Clock::Time => rate_per_minute(value, None, None),
        clock => rate_per(value, None, None, clock.unit()),
    };
    text.unwrap_or_default()
}

fn advice(comparison: &Comparison) -> String {
    match comparison.effect {
        Effect::Unclear | Effect::Insufficient => format!("To find out: {}.", comparison.advice),
        _ => format!("About the change: {}.", comparison.advice),
    }
}

fn method(comparison: &Comparison) -> Vec<String> {
    if comparison.growth.is_none() {
        return Vec::new();
    }
    let stretch = comparison.from.zip(comparison.to).map(|(from, to)| {
        let words = ClockWords::over(comparison.clock, 0.0, [from, to].into_iter());
        format!("Growth is the slope of the lows over {}.", words.stretch(from, to))
    });
    let margin = comparison.growth.as_ref().map(|growth| {
        let within = plain_rate(comparison.clock, growth.matters).trim_start_matches('+').to_string();
        format!("Differences within {within} count as no effect.")
    });
    let basis = match comparison.basis {
        Basis::Within => {
            "Intervals are 95 %, from the autocorrelated noise within each run. They leave out how much runs of the \
             same kind differ: repeat both to include it (--before, --after)."
        }
        Basis::Replicates => "Intervals are 95 %, from the spread of runs of the same kind (Welch's t).",
    };
    stretch.into_iter().chain(margin).chain([basis.to_string()]).collect()
}

fn environment(comparison: &Comparison) -> Vec<(String, String)> {
    let names = |runs: &[ComparedRun]| runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    vec![("before".into(), names(&comparison.before)), ("after".into(), names(&comparison.after))]
}

/// All runs in one chart, aligned as they were compared.
fn chart(comparison: &Comparison) -> Option<Chart> {
    let mut places: Vec<f64> = comparison.curves.iter().flatten().flatten().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let is_single = comparison.before.len() == 1 && comparison.after.len() == 1;
    let [before, after] = &comparison.curves;
    let runs = before.iter().enumerate().map(|run| ("before", Tone::Muted, run));
    let runs = runs.chain(after.iter().enumerate().map(|run| ("after", Tone::Next, run)));
    let curves: Vec<Curve> = runs
        .map(|(side, tone, (number, points))| Curve {
            name: if is_single { side.to_string() } else { format!("{side} {}", number + 1) },
            role: Role::Line,
            // With many runs, each kind has a colour; with two, each run has its own.
            tone: if is_single { Tone::Next } else { tone },
            values: places.iter().map(|&place| value_at(points, place)).collect(),
        })
        .collect();
    let (low, high) = extent(&curves)?;
    let (name, kind) = match comparison.clock {
        Clock::Time => ("time", AxisKind::Time),
        clock => (clock.unit(), AxisKind::Number),
    };
    let compared = comparison.from.zip(comparison.to);
    let band = compared.map(|(from, to)| Band { name: "compared".into(), mood: Mood::Calm, from, to });
    Some(Chart {
        title: "Memory before and after".into(),
        note: "Straight lines connect the samples of a run.".into(),
        unit: Unit::Bytes,
        axis: Axis { name: name.into(), kind, ..Axis::default() },
        size: Size::Large,
        base: base(low, high),
        bands: band.into_iter().collect(),
        places,
        curves,
        ..Chart::default()
    })
}

/// The lowest and the highest value of some curves; `None` if they have none.
pub(crate) fn extent(curves: &[Curve]) -> Option<(f64, f64)> {
    let known = curves.iter().flat_map(|curve| &curve.values).copied().filter(|value| value.is_finite());
    let (low, high) = known.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    low.is_finite().then_some((low, high))
}

/// Where the vertical axis of lines between these values begins.
pub(crate) fn base(low: f64, high: f64) -> Base {
    if low > ZERO_BASE * high { Base::Fitted } else { Base::Zero }
}

/// A run's memory at a place, interpolated between its samples; NaN beyond them.
pub(crate) fn value_at(points: &[(f64, f64)], place: f64) -> f64 {
    let after = points.partition_point(|point| point.0 < place);
    match (after.checked_sub(1).and_then(|before| points.get(before)), points.get(after)) {
        (_, Some(point)) if point.0 == place => point.1,
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (place - a.0) / (b.0 - a.0),
        _ => f64::NAN,
    }
}
