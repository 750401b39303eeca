//! Workarounds tried on a loop, as a page: a sentence about each, all in one table, and one chart.

use garden_memory::{Bytes, Comparison, Effect, Points, TimeEffect, format_between, format_change};
use serde::Serialize;

use crate::chart::{Axis, Chart, Curve, Role, Size, Tone, Unit};
use crate::comparison::{base, extent, header, rate, seconds, value_at};
use crate::json_text;
use crate::page::{News, Page};
use crate::sections::{Block, Field, section};
use garden_memory::counted;

/// A workaround, and the runs with it compared to the runs without.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Its name.
    pub name: String,
    /// Its effect.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// The result for scripts.
#[derive(Serialize)]
struct Answer<'a> {
    summary: &'a str,
    #[serde(rename = "loop")]
    title: &'a str,
    workarounds: &'a [Tried],
}

/// The page of an audit.
pub fn audit(
    title: &str,
    tried: &[Tried],
    origin: &[(String, String)],
    command: Option<String>,
    version: &str,
) -> Page {
    let (word, news) = answer(tried);
    let summary = summary(tried);
    let sections = [
        section("Workarounds", vec![Block::Bullets(tried.iter().map(sentence).collect())]),
        section("Differences", vec![Block::Table(header(["workaround", "growth", "step", "peak"]), rows(tried))]),
        section("Method", vec![Block::Bullets(method(tried))]),
    ];
    let mut notes: Vec<String> = tried.iter().flat_map(|one| one.comparison.notes.clone()).collect();
    notes.sort();
    notes.dedup();
    let json = json_text(&Answer { summary: &summary, title, workarounds: tried });
    Page {
        subject: "Audit".into(),
        title: title.into(),
        word: word.into(),
        news,
        numbers: numbers(tried),
        sections: sections.into_iter().flatten().collect(),
        charts: chart(tried).into_iter().collect(),
        environment: origin.to_vec(),
        notes,
        json,
        command,
        version: version.into(),
        summary,
    }
}

fn helps(one: &Tried) -> bool {
    matches!(one.comparison.effect, Effect::Ends | Effect::Less)
}

fn answer(tried: &[Tried]) -> (&'static str, News) {
    let any = |effect: Effect| tried.iter().any(|one| one.comparison.effect == effect);
    match () {
        () if tried.iter().any(helps) => ("helps", News::Good),
        () if any(Effect::Insufficient) => ("insufficient", News::Unknown),
        () if any(Effect::Unclear) => ("unclear", News::Unknown),
        () => ("useless", News::Bad),
    }
}

/// Which workarounds change the growth, which cost time for nothing, and which are undecided.
fn summary(tried: &[Tried]) -> String {
    let named = |wanted: &dyn Fn(&Tried) -> bool| {
        tried.iter().filter(|one| wanted(one)).map(|one| one.name.as_str()).collect::<Vec<_>>()
    };
    let is = |effect: Effect| move |one: &Tried| one.comparison.effect == effect;
    let costs = |one: &Tried| one.comparison.step_time.as_ref().is_some_and(|time| time.effect == TimeEffect::Costs);
    let groups = [
        ("ends the growth", "end the growth", named(&is(Effect::Ends))),
        ("slows the growth down", "slow the growth down", named(&is(Effect::Less))),
        ("adds growth", "add growth", named(&is(Effect::More))),
        (
            "costs time and has no effect on growth",
            "cost time and have no effect on growth",
            named(&|one| is(Effect::None)(one) && costs(one)),
        ),
        ("has no effect on growth", "have no effect on growth", named(&|one| is(Effect::None)(one) && !costs(one))),
        ("cannot be told from noise", "cannot be told from noise", named(&is(Effect::Unclear))),
        ("has too little data", "have too little data", named(&is(Effect::Insufficient))),
    ];
    let phrase = |(one, many, names): (&str, &str, Vec<&str>)| {
        (!names.is_empty()).then(|| format!("{} {}", listed(&names), if names.len() == 1 { one } else { many }))
    };
    let phrases: Vec<String> = groups.into_iter().filter_map(phrase).collect();
    // The sentence begins with a name, which is not capitalised.
    phrases.join("; ") + "."
}

/// Names in a sentence: `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.join(""),
    }
}

/// One workaround: its effect, its cost, and the advice.
fn sentence(one: &Tried) -> String {
    let comparison = &one.comparison;
    let summary = comparison.summary.trim_end_matches('.');
    let mut letters = summary.chars();
    let lower = letters.next().map(|first| first.to_lowercase().chain(letters).collect::<String>()).unwrap_or_default();
    format!("{}: {lower}: {}", one.name, comparison.advice)
}

fn numbers(tried: &[Tried]) -> Vec<Field> {
    let Some(comparison) = tried.first().map(|one| &one.comparison) else { return Vec::new() };
    let growth = comparison.growth.as_ref().map(|growth| rate(comparison.clock, growth.before));
    let step = comparison.step_time.as_ref().map(|time| seconds(time.before));
    let highest = comparison.highest.as_ref().map(|level| Bytes::from_f64(level.before).to_string());
    let fields = [("baseline growth", growth), ("baseline step", step), ("baseline peak", highest)];
    fields.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect()
}

fn rows(tried: &[Tried]) -> Vec<Vec<String>> {
    let row = |one: &Tried| {
        let comparison = &one.comparison;
        let growth = comparison.growth.as_ref().map(|growth| {
            let unit = comparison.clock.unit();
            format!("{} per {unit}", format_between(growth.difference.low, growth.difference.high))
        });
        let step = comparison
            .step_time
            .as_ref()
            .map(|time| format!("{:+.1} to {:+.1} %", 100.0 * (time.ratio.low - 1.0), 100.0 * (time.ratio.high - 1.0)));
        let highest = comparison.highest.as_ref().map(|level| match level.low.zip(level.high) {
            Some((low, high)) => format_between(low, high),
            None => format_change(level.difference),
        });
        [vec![one.name.clone()], [growth, step, highest].map(Option::unwrap_or_default).to_vec()].concat()
    };
    tried.iter().map(row).collect()
}

fn method(tried: &[Tried]) -> Vec<String> {
    let Some(comparison) = tried.first().map(|one| &one.comparison) else { return Vec::new() };
    let runs = comparison.before.len();
    let mut method = vec![format!(
        "Each kind ran {} in its own process, taking turns; memory includes child processes.",
        if runs == 1 { "once".to_string() } else { counted(runs, "time") }
    )];
    let stretch = comparison
        .from
        .zip(comparison.to)
        .map(|(from, to)| format!("Growth is compared over steps {from:.0} to {to:.0}."));
    method.extend(stretch);
    method.push("The table shows differences from the baseline (no workaround) as 95 % intervals, from the spread of runs of the same kind (Welch's t).".into());
    method
}

/// Runs of one kind.
struct Kind<'a> {
    name: &'a str,
    runs: &'a [Points],
}

impl Kind<'_> {
    /// The mean memory of its runs.
    fn mean(&self, place: f64) -> f64 {
        self.runs.iter().map(|points| value_at(points, place)).sum::<f64>() / self.runs.len().max(1) as f64
    }
}

/// The mean of the runs of each kind, in one chart.
fn chart(tried: &[Tried]) -> Option<Chart> {
    let first = &tried.first()?.comparison;
    let baseline = Kind { name: "baseline", runs: &first.curves[0] };
    let others = tried.iter().map(|one| Kind { name: &one.name, runs: &one.comparison.curves[1] });
    let kinds: Vec<Kind> = std::iter::once(baseline).chain(others).collect();
    let mut places: Vec<f64> = kinds.iter().flat_map(|kind| kind.runs).flatten().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let curve = |(number, kind): (usize, &Kind)| Curve {
        name: kind.name.to_string(),
        role: Role::Line,
        tone: if number == 0 { Tone::Strong } else { Tone::Next },
        values: places.iter().map(|&place| kind.mean(place)).collect(),
    };
    let curves: Vec<Curve> = kinds.iter().enumerate().map(curve).collect();
    let (low, high) = extent(&curves)?;
    Some(Chart {
        title: "Memory with and without workarounds".into(),
        note: "Mean of the runs of each kind.".into(),
        unit: Unit::Bytes,
        axis: Axis { name: first.clock.unit().into(), ..Axis::default() },
        size: Size::Large,
        base: base(low, high),
        places,
        curves,
        ..Chart::default()
    })
}
