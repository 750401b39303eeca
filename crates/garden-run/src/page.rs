//! `report.html` of a training run: the answer, charts, answers with their pictures, the judge's verdict, the guard, the recipe.

use std::borrow::Cow;
use std::path::Path;

use garden_guard::Summary;
use garden_memory::{Verdict, elapsed, grouped, short_time};
use garden_report::{Block, News, Page, Section, json_text};
use garden_train::{DatasetRows, EvalReport, FIELDS, Field, Recipe};
use serde_json::{Value, json};

use crate::answers::exhibits;
use crate::charts::charts;
use crate::format::{capital, percent};
use crate::guarded::guarded;
use crate::record::RunRecord;

/// The page of a run. `command` is the command line that asks for it.
pub fn page(record: &RunRecord, command: Option<String>) -> Page {
    let (answers, mut notes) = exhibits(record);
    let judged = record.judged.as_ref().map(|judged| judged.page("memory"));
    let mut sections: Vec<Section> = answers.into_iter().collect();
    sections.extend(evaluations(record));
    sections.extend(fields(record));
    sections.extend(left_out(record));
    sections.extend(memory(record, judged.as_ref()));
    sections.extend(record.guard.as_ref().filter(|summary| summary.attempts.len() > 1).map(guarded));
    sections.extend(datasets(record));
    sections.push(recipe(&record.job.recipe));
    let (word, news) = outcome(record);
    let recipe = &record.job.recipe;
    let mut environment =
        vec![("base model".to_string(), recipe.base_model.clone()), ("dataset".to_string(), recipe.dataset_words())];
    if let Some(judged) = judged {
        environment.extend(judged.environment);
        notes.extend(judged.notes);
    }
    Page {
        subject: "Training".into(),
        title: title(&recipe.output_dir),
        word: word.into(),
        news,
        summary: capital(&record.answer()),
        numbers: numbers(record),
        sections,
        charts: charts(record),
        environment,
        notes,
        json: json_text(&told(record)),
        command,
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// How the run is called: the name of its folder.
pub fn title(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn outcome(record: &RunRecord) -> (&'static str, News) {
    let is_leaking = record.judged.as_ref().is_some_and(|judged| judged.diagnosis.verdict == Verdict::Leak);
    match (&record.end, record.guard.as_ref().map(Summary::is_stopped)) {
        (Some(_), _) if is_leaking => ("trained, but leaks", News::Open),
        (Some(_), _) => ("trained", News::Good),
        (None, Some(true)) => ("stopped", News::Open),
        (None, Some(false)) => ("failed", News::Bad),
        (None, None) => ("not finished", News::Unknown),
    }
}

/// What came of it, for scripts.
fn told(record: &RunRecord) -> Value {
    let diagnosis = record.judged.as_ref().map(|judged| &judged.diagnosis);
    json!({
        "answer": record.answer(),
        "done": record.end.is_some(),
        "seconds": record.seconds(),
        "steps": record.last_step(),
        "rows": record.job.train.used(),
        "datasets": record.job.datasets(),
        "result": record.end,
        "evaluations": record.evaluations,
        "left_out": record.left_out,
        "verdict": diagnosis.map(|found| found.verdict.name()),
        "planned": record.planned,
        "guard": record.guard,
    })
}

/// The numbers beneath the answer.
fn numbers(record: &RunRecord) -> Vec<garden_report::Field> {
    let mut fields: Vec<garden_report::Field> = Vec::new();
    let mut add = |name: &'static str, text: String| fields.push((Cow::from(name), text));
    let (job, last) = (&record.job, record.last_step());
    let held_out = job.eval.as_ref().map_or_else(String::new, |rows| format!(", {} held out", grouped(rows.used())));
    add("rows", format!("{} to train on{held_out}", grouped(job.train.used())));
    let epoch = record.steps.last().map_or_else(String::new, |step| format!(", {:.1} epochs", step.epoch));
    add("steps", format!("{} of {}{epoch}", grouped(last), grouped(job.steps())));
    let paces: Vec<f64> =
        record.steps.iter().map(|step| step.step_seconds).filter(|seconds| seconds.is_finite()).collect();
    let pace = match paces.is_empty() {
        true => String::new(),
        false => format!(", {} per step", short_time(paces.iter().sum::<f64>() / paces.len() as f64)),
    };
    add("time", format!("{}{pace}", elapsed(record.seconds())));
    if let Some(tokens) = record.tokens() {
        add("tokens", grouped(tokens as usize));
    }
    if let (Some(first), Some(last)) = (record.steps.first(), record.steps.last()) {
        add("mean training loss", format!("{:.3} → {:.3} (first and last line of the log)", first.loss, last.loss));
    }
    if let (Some(first), Some(last)) = (record.evaluations.first(), record.evaluations.last()) {
        // What the result is, as the headline and the card have it; a run may have gone on beyond that.
        let result = record.best().unwrap_or(last);
        let end = match result.step == last.step {
            true => String::new(),
            false => format!(" after step {}, {:.3} at the end", result.step, last.loss),
        };
        add("held-out loss", format!("{:.3} → {:.3}{end}", first.loss, result.loss));
        let shares = |value: fn(&EvalReport) -> Option<f64>| Some((value(first)?, value(result)?));
        let words = |(before, after): (f64, f64)| format!("{} → {}", percent(before), percent(after));
        if let Some(shares) = shares(|report| report.mean_token_accuracy) {
            add("token accuracy", words(shares));
        }
        if let Some(shares) = shares(|report| report.exact_match) {
            add("correct answers", words(shares));
        }
        if let Some(shares) = shares(|report| report.field_accuracy) {
            add("correct fields", words(shares));
        }
        if let Some(shares) = shares(|report| report.mean_iou) {
            add("box overlap", words(shares));
        }
        if let Some(shares) = shares(|report| report.iou_50) {
            add("boxes found", words(shares));
        }
    }
    if let Some(words) = record.memory_words() {
        add("memory", words);
    }
    fields
}

fn evaluations(record: &RunRecord) -> Option<Section> {
    let has_accuracy = record.evaluations.iter().any(|report| report.mean_token_accuracy.is_some());
    let has_answers = record.evaluations.iter().any(|report| report.exact_match.is_some());
    let has_fields = record.evaluations.iter().any(|report| report.field_accuracy.is_some());
    let has_boxes = record.evaluations.iter().any(|report| report.mean_iou.is_some());
    let (result, start) = (record.best().map(|best| best.step), record.better_start());
    let by = format!(" (best by {})", record.job.recipe.metric_for_best_model.name());
    let share = |share: Option<f64>| share.map(percent).unwrap_or_default();
    let mut header: Vec<Cow<'static, str>> = vec!["after step".into(), "loss".into()];
    header.extend(has_accuracy.then_some(Cow::from("token accuracy")));
    header.extend(has_answers.then_some(Cow::from("correct answers")));
    header.extend(has_fields.then_some(Cow::from("correct fields")));
    if has_boxes {
        header.extend(["box overlap (mean IoU)".into(), "boxes found (IoU ≥ 0.5)".into()]);
    }
    header.push("time".into());
    let row = |report: &EvalReport| {
        let is_best = start.map_or(Some(report.step) == result, |start| start.step == report.step);
        let mark = match is_best {
            true => by.as_str(),
            false if Some(report.step) == result => " (the result)",
            false => "",
        };
        let mut cells = vec![format!("{}{mark}", report.step), format!("{:.4}", report.loss)];
        cells.extend(has_accuracy.then(|| share(report.mean_token_accuracy)));
        cells.extend(has_answers.then(|| share(report.exact_match)));
        cells.extend(has_fields.then(|| share(report.field_accuracy)));
        if has_boxes {
            cells.extend([share(report.mean_iou), share(report.iou_50)]);
        }
        cells.push(short_time(report.seconds));
        cells
    };
    let last = record.evaluations.last()?;
    let rows: Vec<Vec<String>> = record.evaluations.iter().map(row).collect();
    let answers = if has_answers { format!(", with answers to {} of them", last.answers) } else { String::new() };
    let words = format!("On {} held-out rows{answers}.", grouped(last.rows));
    Some(Section { title: "Evaluations".into(), body: vec![Block::Paragraph(words), Block::Table(header, rows)] })
}

/// Rows that are named on the page.
const LEFT_OUT: usize = 100;

/// Rows that turned out broken while training.
fn left_out(record: &RunRecord) -> Option<Section> {
    let rows = record.left_out_rows();
    let shown = rows.iter().take(LEFT_OUT).map(|row| vec![(*row).to_string()]).collect();
    let more = rows.len().saturating_sub(LEFT_OUT);
    let more = if more == 0 { String::new() } else { format!(" The first {LEFT_OUT} are shown; log.jsonl has all.") };
    let words = format!(
        "{} turned out broken after the run had begun and {} left out, {} times in all: their steps were made without them.{more}",
        if rows.len() == 1 { "1 row".to_string() } else { format!("{} rows", grouped(rows.len())) },
        if rows.len() == 1 { "was" } else { "were" },
        grouped(record.left_out.len())
    );
    let body = vec![Block::Paragraph(words), Block::Table(vec!["row".into()], shown)];
    (!rows.is_empty()).then(|| Section { title: "Rows left out".into(), body })
}

/// How often each field was right in the first evaluation and in another one, those that are wrong most often first.
pub fn field_rows(record: &RunRecord, last: Option<&EvalReport>) -> Vec<Vec<String>> {
    let (Some(first), Some(last)) = (record.evaluations.first(), last) else { return Vec::new() };
    let mut fields: Vec<(&String, f64)> = last.fields.iter().map(|(name, share)| (name, *share)).collect();
    fields.sort_by(|one, other| one.1.total_cmp(&other.1));
    let share =
        |report: &EvalReport, name: &str| report.fields.get(name).map(|share| percent(*share)).unwrap_or_default();
    fields.into_iter().map(|(name, _)| vec![name.clone(), share(first, name), share(last, name)]).collect()
}

fn fields(record: &RunRecord) -> Option<Section> {
    let rows = field_rows(record, record.evaluations.last());
    let header = ["field", "before", "at the end"].map(Cow::from).to_vec();
    (rows.len() > 1).then(|| Section { title: "Correct fields".into(), body: vec![Block::Table(header, rows)] })
}

/// The verdict, the plan, and what the verdict rests on: open where something has to be done, else folded.
fn memory(record: &RunRecord, judged: Option<&Page>) -> Vec<Section> {
    let mut body = Vec::new();
    if let Some(judged) = judged {
        body.push(Block::Paragraph(format!("{}: {}", judged.word.to_uppercase(), judged.summary)));
    }
    if let Some(words) = record.memory_words() {
        body.push(Block::Paragraph(format!("{}.", capital(&words))));
    }
    let header = ["purpose", "planned", "measured"].map(Cow::from).to_vec();
    let rows = record
        .planned
        .rows
        .iter()
        .map(|row| vec![row.purpose.clone(), row.planned.to_string(), row.measured.to_string()]);
    body.push(Block::Table(header, rows.collect()));
    let judgement = judged.map(|judged| judged.sections.clone()).unwrap_or_default();
    let is_calm = judged.is_some_and(|judged| matches!(judged.news, News::Good | News::Unknown));
    let mut sections = Vec::new();
    if is_calm {
        let blocks = judgement
            .into_iter()
            .flat_map(|section| std::iter::once(Block::Paragraph(format!("{}:", section.title))).chain(section.body));
        body.push(Block::Folded("Evidence for the verdict".into(), blocks.collect()));
    } else {
        sections = judgement;
    }
    std::iter::once(Section { title: "Memory".into(), body }).chain(sections).collect()
}

/// A setting, its value, and what it would be by itself.
pub struct Setting {
    pub field: &'static Field,
    pub value: String,
    pub default: String,
}

/// All settings in the order of the help.
pub fn settings(recipe: &Recipe) -> Vec<Setting> {
    let usual = Recipe::default();
    let setting = |field: &'static Field| Setting {
        field,
        value: recipe.setting(field.name),
        default: usual.setting(field.name),
    };
    FIELDS.iter().map(setting).collect()
}

/// What came of which dataset, where that is not all of one.
fn datasets(record: &RunRecord) -> Option<Section> {
    let datasets = record.job.datasets();
    if !DatasetRows::are_mixed(&datasets) {
        return None;
    }
    let header = ["dataset", "rows per epoch", "share", "rows trained on", "rows stored"].map(Cow::from).to_vec();
    let row = |rows: &DatasetRows| {
        let counts = [rows.per_epoch, rows.used, rows.stored].map(grouped);
        let [per_epoch, used, stored] = counts;
        vec![rows.dataset.clone(), per_epoch, percent(rows.share), used, stored]
    };
    let rows = datasets.iter().map(row).collect();
    Some(Section { title: "Datasets".into(), body: vec![Block::Table(header, rows)] })
}

fn recipe(recipe: &Recipe) -> Section {
    let all = settings(recipe);
    let shown = |text: &String| if text.is_empty() { "-".to_string() } else { text.clone() };
    let row = |setting: &Setting| vec![setting.field.name.to_string(), shown(&setting.value), shown(&setting.default)];
    let header = || ["setting", "value", "default"].map(Cow::from).to_vec();
    let own = all.iter().filter(|setting| setting.value != setting.default).map(row).collect();
    let words =
        "Settings that differ from the defaults; `recipe.toml` next to this page has all of them, for `--config`.";
    let everything = Block::Table(header(), all.iter().map(row).collect());
    let body = vec![
        Block::Paragraph(words.into()),
        Block::Table(header(), own),
        Block::Folded(format!("All {} settings", all.len()), vec![everything]),
    ];
    Section { title: "Recipe".into(), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_as_they_were_given() {
        let recipe = Recipe { learning_rate: 5e-3, lora_dropout: 0.1, epochs: 3.0, ..Recipe::default() };
        let found = settings(&recipe);
        let value =
            |name: &str| found.iter().find(|setting| setting.field.name == name).map(|setting| setting.value.as_str());
        assert_eq!((value("learning-rate"), value("lora-dropout")), (Some("0.005"), Some("0.1")));
        assert_eq!((value("adam-beta2"), value("prefetch")), (Some("0.999"), Some("256MB")));
        let own: Vec<&str> = found.iter().filter(|one| one.value != one.default).map(|one| one.field.name).collect();
        assert_eq!(own, ["learning-rate", "lora-dropout"]);
    }
}
