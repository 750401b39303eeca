//! The charts of an experiment: memory over the examples seen, for the chains, for the pieces alone, and for loader workers.

use garden_report::{Axis, Band, Chart, Curve, Level, LevelKind, Mood, Size, Tone, Unit};

use crate::experiment::{Experiment, How, Run, Visit, WorkersHeld};
use crate::finding::{Finding, StageFinding};
use crate::growth::{floor, given_out, held};

/// A curve shows the bytes allocated by `malloc` where they account for the growth, up to this share of it and chance: free memory kept for the
/// next batch is not in them. Elsewhere it shows resident memory.
const UNACCOUNTED: f64 = 0.1;
/// Below this many times the growth that may be chance, that level is drawn too, so that nothing looks like growth because of the scale.
const CLOSE_TO_CHANCE: f64 = 4.0;

/// The charts; the one with the growth that matters most is first and large.
pub(crate) fn charts(experiment: &Experiment, finding: &Finding) -> Vec<Chart> {
    let of =
        |how: How| experiment.runs.iter().filter(|run| run.how == how && !run.visits.is_empty()).collect::<Vec<&Run>>();
    let note = "Memory in use after each batch, above the level after the warm-up.";
    let chains = chart(experiment, finding, "Adding one piece at a time", note, &of(How::Chain));
    let alone = chart(experiment, finding, "Pieces alone", "Fed copies from another process.", &of(How::Alone));
    let workers = workers_chart(experiment, &of(How::Workers));
    let is_about_workers = finding.growths.first().is_some_and(|growth| growth.begins_with == "workers");
    let order = if is_about_workers { [workers, chains, alone] } else { [chains, alone, workers] };
    let mut charts: Vec<Chart> = order.into_iter().flatten().collect();
    if let Some(first) = charts.first_mut() {
        first.size = Size::Large;
    }
    charts
}

fn chart(experiment: &Experiment, finding: &Finding, title: &str, note: &str, runs: &[&Run]) -> Option<Chart> {
    let longest = runs.iter().max_by_key(|run| run.visits.len())?;
    let length = longest.examples.unwrap_or(experiment.examples);
    let shown = passes_shown(finding, runs);
    let visits = longest.visits.iter().filter(|visit| visit.number <= shown);
    let places: Vec<f64> = visits.map(|visit| place(length, visit.number, visit.examples)).collect();
    let curve = |run: &&Run| {
        let level = level(run);
        let value = |index| run.visits.get(index).and_then(&level).map_or(f64::NAN, |bytes| bytes.max(0) as f64);
        let values = (0..places.len()).map(value).collect();
        // It coincides with the curve of the run that causes its growth.
        let tone = if of(finding, run).is_some_and(StageFinding::adds_nothing) { Tone::Muted } else { Tone::Next };
        Curve { name: run.name.clone(), values, tone, ..Curve::default() }
    };
    let curves = runs.iter().map(curve).collect();
    Some(frame(length, title, note, places, curves))
}

/// The passes of the runs that grew: cheap runs make many more, which would squeeze the growth into a corner.
fn passes_shown(finding: &Finding, runs: &[&Run]) -> u64 {
    let last = |run: &&&Run| run.visits.iter().map(|visit| visit.number).max();
    let grew = |run: &&&Run| of(finding, run).is_some_and(|stage| stage.kind.is_growth());
    let most = runs.iter().filter(grew).filter_map(|run| last(&run)).max();
    most.map_or(u64::MAX, |most| most.max(2))
}

fn of<'a>(finding: &'a Finding, run: &Run) -> Option<&'a StageFinding> {
    finding.stages.iter().find(|stage| stage.name == run.name)
}

/// Memory in use after a batch, above the level after the warm-up.
fn level(run: &Run) -> impl Fn(&Visit) -> Option<i64> {
    let base = run.base;
    let grown = held(run).first().copied().unwrap_or(0);
    let is_accounted = given_out(run).is_some_and(|given| {
        (grown - given) as f64 <= floor(run.examples.unwrap_or(0)).max(UNACCOUNTED * grown as f64)
    });
    move |visit| match base?.allocated.zip(visit.allocated) {
        Some((before, now)) if is_accounted => Some(now - before),
        _ => Some(visit.held - base?.held),
    }
}

/// The memory of loader workers, in all and private.
fn workers_chart(experiment: &Experiment, runs: &[&Run]) -> Option<Chart> {
    let run = runs.first()?;
    let base = run.base?.workers?;
    let length = run.examples.unwrap_or(experiment.examples);
    let visits: Vec<&Visit> = run.visits.iter().filter(|visit| visit.workers.is_some()).collect();
    let places: Vec<f64> = visits.iter().map(|visit| place(length, visit.number, visit.examples)).collect();
    let curve = |name: &str, tone, of: fn(WorkersHeld) -> i64| {
        let value = |visit: &&Visit| visit.workers.map_or(f64::NAN, |workers| (of(workers) - of(base)).max(0) as f64);
        Curve { name: name.into(), values: visits.iter().map(value).collect(), tone, ..Curve::default() }
    };
    let curves = vec![
        curve("private pages", Tone::Next, |workers| workers.private),
        curve("allocated", Tone::Muted, |workers| workers.held),
    ];
    let note =
        "Growth since the warm-up. Pages turn private when a worker touches them; allocated memory is its own growth.";
    Some(frame(length, "Loader workers", note, places, curves))
}

fn place(length: u64, pass: u64, examples: u64) -> f64 {
    pass.saturating_sub(1) as f64 * length as f64 + examples as f64
}

fn frame(length: u64, title: &str, note: &str, places: Vec<f64>, curves: Vec<Curve>) -> Chart {
    let end = places.last().copied().unwrap_or(0.0);
    let first = length.max(1) as f64;
    let band = |name: &str, mood, from: f64, to: f64| Band { name: name.into(), mood, from, to };
    let mut bands = vec![band("first pass", Mood::Rising, 0.0, first.min(end))];
    bands.extend((end > first).then(|| band("same examples again", Mood::Calm, first, end)));
    let highest = curves.iter().flat_map(|curve| &curve.values).copied().fold(0.0, f64::max);
    let chance = floor(length);
    let levels = (highest < CLOSE_TO_CHANCE * chance).then(|| Level {
        name: "may be chance".into(),
        value: chance,
        kind: LevelKind::default(),
    });
    Chart {
        title: title.into(),
        note: note.into(),
        unit: Unit::Bytes,
        axis: Axis { name: "examples seen".into(), from: 0.0, to: end, ..Axis::default() },
        places,
        curves,
        bands,
        levels: levels.into_iter().collect(),
        ..Chart::default()
    }
}
