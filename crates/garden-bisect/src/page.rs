//! The finding as a page: the stages as a table, the holders of memory, attempts to free it, and the charts.

use std::borrow::Cow;

use garden_memory::format_change;
use garden_report::{Block, Field, News, Page, Section, json_text};

use crate::charts::charts;
use crate::experiment::{Experiment, Holders, How, Run};
use crate::finding::{Finding, Growth, Kind, StageFinding};
use crate::phrasing::{bytes, is_all_that_is_shared, passes};

/// Most rows in each list of holders.
const MOST_ROWS: usize = 5;

/// The finding in words and charts.
pub fn page(experiment: &Experiment, finding: &Finding, command: Option<String>, version: &str) -> Page {
    let sections = [Some(stages(experiment, finding)), gives_back(finding), holds(experiment, finding), to_do(finding)];
    Page {
        subject: "Bisect".into(),
        title: title(experiment),
        word: finding.verdict.name().replace('_', " ").to_uppercase(),
        news: news(finding),
        summary: finding.summary.clone(),
        numbers: numbers(experiment, finding),
        sections: sections.into_iter().flatten().collect(),
        charts: charts(experiment, finding),
        environment: environment(experiment),
        notes: finding.notes.clone(),
        json: json_text(finding),
        command,
        version: version.to_string(),
    }
}

fn title(experiment: &Experiment) -> String {
    let pieces = || experiment.pieces.iter().map(|piece| piece.name.as_str()).collect::<Vec<_>>().join(" + ");
    experiment.target.clone().unwrap_or_else(pieces)
}

/// The news of a finding; a cache is bad news only if it does not fit.
pub(crate) fn news(finding: &Finding) -> News {
    match finding.verdict {
        Kind::Leak => News::Bad,
        Kind::Cache if !finding.fits() => News::Bad,
        Kind::Cache | Kind::Undecided | Kind::Garbage => News::Open,
        Kind::Copies | Kind::FullCache | Kind::WarmUp | Kind::FilePages | Kind::Flat => News::Good,
        Kind::Failed => News::Unknown,
    }
}

fn numbers(experiment: &Experiment, finding: &Finding) -> Vec<Field> {
    let Some(growth) = finding.growths.first() else { return Vec::new() };
    let each = growth.bytes_per_example.map(|each| format!("{} per example", format_change(each as f64)));
    let all = growth.full_dataset_bytes.zip(experiment.dataset_length);
    let all = all.map(|(all, length)| match growth.holds_at_most.filter(|most| *most < length) {
        Some(most) => format!("{} for at most {most} of {length} examples", bytes(all)),
        None if is_all_that_is_shared(growth, experiment) => format!("{} at most, in each worker", bytes(all)),
        None => format!("{} for all {length} examples", bytes(all)),
    });
    let keeper = growth.keeper.clone().map(|keeper| match &growth.held_at {
        Some(at) => format!("{keeper}, at `{}`", at.trim_start_matches("module ")),
        None => keeper,
    });
    let fields = [
        ("growth", each),
        (if growth.kind == Kind::Leak { "each epoch" } else { "whole dataset" }, all),
        ("kept by", keeper),
        ("begins with", Some(growth.begins_with.clone())),
        ("cause", growth.cause.map(|cause| cause.name().replace('_', " "))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((Cow::from(name), value?))).collect()
}

fn stages(experiment: &Experiment, finding: &Finding) -> Section {
    let most = finding.stages.iter().map(|stage| stage.growth.len()).max().unwrap_or(0);
    let mut header: Vec<Cow<'static, str>> = ["run", "finding", "first", "second"].map(Cow::from).to_vec();
    header.extend((most > 2).then(|| Cow::from("later, each")));
    header.push("passes".into());
    let row = |stage: &StageFinding| {
        let grown = |pass: usize| stage.growth.get(pass).map_or("-".to_string(), |grown| change(*grown));
        let mut cells = vec![stage.name.clone(), told(stage), grown(0), grown(1)];
        let later = stage.growth.get(2..).filter(|later| !later.is_empty());
        let each = later.map_or("-".to_string(), |later| change(later.iter().sum::<i64>() / later.len() as i64));
        cells.extend((most > 2).then_some(each));
        cells.push(stage.growth.len().to_string());
        cells
    };
    let workers = experiment.runs.iter().find(|run| run.how == How::Workers).and_then(|run| run.examples);
    let workers =
        workers.map(|examples| format!(" Loader workers processed {examples} examples; their growth is summed."));
    let how = format!(
        "Memory growth in each pass over the same {} different examples, after free memory was returned. Each run includes the one before; \"alone\" gets copies from another process.{}",
        experiment.examples,
        workers.unwrap_or_default()
    );
    Section {
        title: "Stages".into(),
        body: vec![Block::Table(header, finding.stages.iter().map(row).collect()), Block::Paragraph(how)],
    }
}

/// A change of memory; less than a page is written as 0.
fn change(grown: i64) -> String {
    if grown.abs() < 4 << 10 { "0".into() } else { format_change(grown as f64) }
}

fn told(stage: &StageFinding) -> String {
    if stage.adds_nothing() { "nothing more".into() } else { stage.kind.name().replace('_', " ") }
}

fn gives_back(finding: &Finding) -> Option<Section> {
    let growth = finding.growths.first()?;
    if growth.gives_back.is_empty() {
        return None;
    }
    let fields = growth.gives_back.iter().map(|given| {
        (Cow::from(given.what.clone()), if given.bytes < 64 << 10 { "nothing".into() } else { bytes(given.bytes) })
    });
    let note = "Tried in turn after the last pass, each followed by `malloc_trim(0)`.";
    Some(Section {
        title: "What frees it".into(),
        body: vec![Block::Fields(fields.collect()), Block::Paragraph(note.into())],
    })
}

fn holds(experiment: &Experiment, finding: &Finding) -> Option<Section> {
    let growth = finding.growths.first()?;
    let look = experiment.looks.iter().find(|look| look.name == growth.run)?.holders.as_ref()?;
    let run = experiment.runs.iter().find(|run| run.name == growth.run)?;
    let body = vec![Block::Fields(accounts(look, run, growth)), Block::Bullets(held_things(look))];
    Some(Section { title: "What holds it".into(), body })
}

/// Where the bytes are: by owner and by mapping.
fn accounts(look: &Holders, run: &Run, growth: &Growth) -> Vec<Field> {
    let known = [
        ("Python objects", look.python_bytes),
        ("decoded pixels", look.images_bytes()),
        ("tensors in RAM", look.tensors_bytes),
        ("pinned tensors", look.pinned_bytes),
    ];
    let mut fields: Vec<Field> = known
        .into_iter()
        .filter(|(_, amount)| *amount >= 64 << 10)
        .map(|(name, amount)| (Cow::from(name), bytes(amount)))
        .collect();
    if let Some(explained) = growth.explained {
        fields.push((
            "accounted for".into(),
            format!("{:.0} % of the growth over {}", 100.0 * explained, passes(look.passes)),
        ));
    }
    let grown = run.mappings.iter().filter(|(_, amount)| **amount >= 256 << 10);
    let kinds: Vec<String> = grown.map(|(kind, amount)| format!("{kind} {}", format_change(*amount as f64))).collect();
    if !kinds.is_empty() {
        fields.push(("mappings".into(), kinds.join(", ")));
    }
    if look.garbage_objects > 0 {
        fields.push(("garbage".into(), format!("{} objects waited for the collector", look.garbage_objects)));
    }
    fields
}

fn held_things(look: &Holders) -> Vec<String> {
    let mut told = Vec::new();
    told.extend(look.images.iter().take(MOST_ROWS).map(|images| {
        format!("`{}`: {} images with decoded pixels, {}", images.path, images.count, bytes(images.bytes))
    }));
    told.extend(look.containers.iter().filter(|one| one.bytes >= 4096).take(MOST_ROWS).map(|one| {
        let of = one.of.as_deref().map(|of| format!(" of {of}")).unwrap_or_default();
        format!("`{}`: {}{of}, {} → {}, {}", one.path, one.kind, one.before, one.after, bytes(one.bytes))
    }));
    told.extend(look.caches.iter().take(MOST_ROWS).map(|cache| {
        let limit = cache.limit.map_or("no limit".to_string(), |limit| format!("limit {limit}"));
        format!("`{}`: functools.lru_cache, {} → {} entries, {limit}", cache.name, cache.before, cache.after)
    }));
    told.extend(look.tensors.iter().take(MOST_ROWS).map(|tensors| {
        let shape: Vec<String> = tensors.shape.iter().map(u64::to_string).collect();
        format!(
            "{} tensors of {} {} on {}, {}",
            tensors.count,
            shape.join("x"),
            tensors.dtype,
            tensors.device,
            bytes(tensors.bytes)
        )
    }));
    told.extend(look.lines.iter().filter(|line| line.bytes >= 16 << 10).take(MOST_ROWS).map(|line| {
        let text = line.text.as_deref().map(|text| format!(": `{}`", text.replace('`', "'"))).unwrap_or_default();
        format!(
            "line {} of {}, {} in {} blocks{text}",
            line.line,
            file_name(&line.file),
            bytes(line.bytes),
            line.blocks
        )
    }));
    let types = look.types.iter().filter(|one| one.count >= 10).take(MOST_ROWS);
    let types: Vec<String> = types.map(|one| format!("{} {}", one.count, one.name)).collect();
    if !types.is_empty() {
        told.push(format!("growing object types: {}", types.join(", ")));
    }
    told
}

fn file_name(path: &str) -> String {
    // The last two parts identify the file; the folders of somebody's machine do not.
    let parts: Vec<&str> = path.rsplit('/').take(2).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

fn to_do(finding: &Finding) -> Option<Section> {
    (!finding.advice.is_empty())
        .then(|| Section { title: "What to do".into(), body: vec![Block::Numbered(finding.advice.clone())] })
}

fn environment(experiment: &Experiment) -> Vec<(String, String)> {
    let pieces = experiment.pieces.iter().map(|piece| (piece.name.clone(), piece.kind.clone()));
    let versions = experiment.versions.iter().map(|(name, version)| (name.clone(), version.clone()));
    let facts = [
        ("examples", Some(experiment.examples.to_string())),
        ("in the dataset", experiment.dataset_length.map(|length| format!("{length} examples"))),
        ("batch size", Some(experiment.batch_size.to_string())),
        ("workers", (experiment.workers > 0).then(|| experiment.workers.to_string())),
        ("made", Some(experiment.made.clone())),
        ("took", Some(format!("{:.*} s", usize::from(experiment.seconds < 10.0), experiment.seconds))),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?)));
    pieces.chain(facts).chain(versions).collect()
}
