//! A diagnosis in words: sections of paragraphs, lists and tables, rendered by every format in its own way.
//!
//! Empty sections are left out. `page.rs` cleans the callers' sections; escaping is up to the renderers. Reports may add
//! sections (`Report::sections`), which every format renders like the others.

use std::borrow::Cow;

use garden_memory::{
    Bytes, Cause, Clock, Diagnosis, Exhaustion, Input, Mechanism, Part, Phase, ProcessChange, RuledOut, RunFacts,
    SeriesVerdict, Verdict, counted, elapsed, format_change,
};

use crate::clean::clean;
use crate::format::{ClockWords, amount, knee_place, percent, phase_name, rate_per, rate_per_minute, whole};
use crate::html::base64;
use crate::page::News;
use crate::{Report, StartAndEnd};

/// Most causes in a report for people.
const MOST_CAUSES: usize = 4;
/// Most ruled-out causes in a report for people.
const MOST_RULED_OUT: usize = 6;
/// Most processes in a report for people.
const MOST_PROCESSES: usize = 8;
/// Most phases in a report for people.
const MOST_PHASES: usize = 12;

/// A titled part of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The heading; empty where the body speaks for itself.
    pub title: Cow<'static, str>,
    /// The content.
    pub body: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Sentences.
    Paragraph(String),
    /// A list.
    Bullets(Vec<String>),
    /// A list in an order that matters.
    Numbered(Vec<String>),
    /// Names and their texts.
    Fields(Vec<Field>),
    /// A heading row and rows of cells.
    Table(Vec<Cow<'static, str>>, Vec<Vec<String>>),
    /// Numbered titles, each with named remarks.
    Entries(Vec<Entry>),
    /// An image.
    Image(Image),
    /// Examples, each with its pictures and two sides to compare.
    Exhibits(Vec<Exhibit>),
    /// Details that few will read, folded under a summary line.
    Folded(String, Vec<Block>),
}

/// A name and its text.
pub type Field = (Cow<'static, str>, String);

/// A picture, such as an example with a model's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    /// The picture itself as a `data:image/..;base64,..` address; anything else is left out, and only the texts remain.
    pub source: String,
    /// A description for readers who cannot see it.
    pub alternative: String,
    /// The text beneath it.
    pub caption: String,
}

/// An example with its pictures: expected beside actual output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exhibit {
    /// The pictures; their captions are left out.
    pub pictures: Vec<Image>,
    /// The outcome in one word.
    pub word: String,
    /// The colour of that word.
    pub news: News,
    /// The position of the example.
    pub title: String,
    /// The question.
    pub question: String,
    /// The names of the two sides.
    pub sides: [Cow<'static, str>; 2],
    /// The compared pieces.
    pub pairs: Vec<Pair>,
}

/// A piece of both sides of an [`Exhibit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Its name, such as the name of a field; may be empty.
    pub name: String,
    /// Both sides.
    pub sides: [String; 2],
    /// Whether the two are the same.
    pub likeness: Likeness,
}

/// Whether two sides are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Likeness {
    /// The same in what counts.
    #[default]
    Same,
    /// Different, and marked as such.
    Different,
}

impl Exhibit {
    /// The example as an entry, for formats without pictures.
    pub(crate) fn entry(&self) -> Entry {
        let title = [&self.title, &self.word].into_iter().filter(|text| !text.is_empty());
        let sides = self.sides.iter().enumerate().map(|(side, name)| {
            let piece = |pair: &Pair| match pair.name.is_empty() {
                true => pair.sides[side].clone(),
                false => format!("{} {}", pair.name, pair.sides[side]),
            };
            (name.clone(), self.pairs.iter().map(piece).collect::<Vec<_>>().join(", "))
        });
        let question = (Cow::from("question"), self.question.clone());
        let remarks = std::iter::once(question).chain(sides).filter(|remark| !remark.1.is_empty());
        Entry { title: title.map(String::as_str).collect::<Vec<_>>().join(": "), remarks: remarks.collect() }
    }

    fn cleaned(&self) -> Exhibit {
        let picture = |image: &Image| cleaned_image(image);
        let pair = |pair: &Pair| Pair {
            name: clean(&pair.name),
            sides: pair.sides.each_ref().map(|side| clean(side)),
            likeness: pair.likeness,
        };
        Exhibit {
            pictures: self.pictures.iter().map(picture).collect(),
            word: clean(&self.word),
            news: self.news,
            title: clean(&self.title),
            question: clean(&self.question),
            sides: self.sides.each_ref().map(|side| clean(side).into()),
            pairs: self.pairs.iter().map(pair).collect(),
        }
    }
}

fn cleaned_image(image: &Image) -> Image {
    Image { source: image.source.clone(), alternative: clean(&image.alternative), caption: clean(&image.caption) }
}

/// A title with remarks.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The title.
    pub title: String,
    /// The remarks, by kind.
    pub remarks: Vec<Field>,
}

impl Image {
    /// A picture from the bytes of a file; `kind` is its format, such as `png`.
    pub fn embedded(kind: &str, data: &[u8], alternative: String, caption: String) -> Image {
        Image { source: format!("data:image/{kind};base64,{}", base64(data)), alternative, caption }
    }

    fn words_are_both(&self) -> bool {
        !self.caption.is_empty() && !self.alternative.is_empty()
    }
}

impl Block {
    fn is_empty(&self) -> bool {
        match self {
            Block::Paragraph(text) => text.is_empty(),
            Block::Bullets(items) | Block::Numbered(items) => items.is_empty(),
            Block::Fields(fields) => fields.is_empty(),
            Block::Table(_, rows) => rows.is_empty(),
            Block::Entries(entries) => entries.is_empty(),
            Block::Image(image) => image.source.is_empty() && image.caption.is_empty(),
            Block::Exhibits(exhibits) => exhibits.is_empty(),
            Block::Folded(_, body) => body.iter().all(Block::is_empty),
        }
    }
}

/// The sections of a diagnosis; empty ones are absent.
struct Findings {
    evidence: Option<Section>,
    phases: Option<Section>,
    series: Option<Section>,
    attempts: Option<Section>,
    processes: Option<Section>,
    forecast: Option<Section>,
    causes: Option<Section>,
    ruled_out: Option<Section>,
    advice: Option<Section>,
    stability: Option<Section>,
}

impl Findings {
    fn of(report: &Report) -> Findings {
        let (diagnosis, words) = (report.diagnosis, ClockWords::new(report));
        let evidence = diagnosis.evidence.iter().map(|e| clean(&e.text)).collect();
        let advice = diagnosis.advice.iter().map(|advice| clean(advice)).collect();
        Findings {
            evidence: section("Evidence", vec![Block::Bullets(evidence)]),
            phases: section("Phases", phases(diagnosis, words)),
            series: section("Series", vec![Block::Bullets(series(diagnosis))]),
            attempts: section(attempts_title(diagnosis), vec![Block::Bullets(attempts(diagnosis, words))]),
            processes: section("Processes", processes(diagnosis)),
            forecast: section("Forecast", vec![Block::Fields(forecast(diagnosis, report.facts, words))]),
            causes: section("Likely causes", causes(diagnosis)),
            ruled_out: section("Ruled out", ruled_out(diagnosis)),
            advice: section("What to do", vec![Block::Numbered(advice)]),
            stability: section("Stability check", stability(diagnosis)),
        }
    }
}

/// The heading of the attempts, which says whether the last one decides or is too short.
fn attempts_title(diagnosis: &Diagnosis) -> &'static str {
    match diagnosis.parts.last().is_none_or(|last| last.decides) {
        true => "Attempts (the last one decides)",
        false => "Attempts (the last one is too short to decide)",
    }
}

/// The sections beneath the numbers: observations before conclusions, and advice near the end, where a terminal stops.
pub(crate) fn findings(report: &Report) -> Vec<Section> {
    let Findings { evidence, phases, series, attempts, processes, forecast, causes, ruled_out, advice, stability } =
        Findings::of(report);
    let own = [series, evidence, phases, attempts, processes, forecast, causes, ruled_out, advice, stability];
    own.into_iter().flatten().chain(report.sections.iter().cloned()).collect()
}

/// The sections in the order in which the reader of a page wants them.
pub(crate) fn findings_of_page(report: &Report) -> Vec<Section> {
    let Findings { evidence, phases, series, attempts, processes, forecast, causes, ruled_out, advice, stability } =
        Findings::of(report);
    let own = [series, evidence, causes, advice, forecast, stability, phases, attempts, processes, ruled_out];
    own.into_iter().flatten().chain(report.sections.iter().cloned()).collect()
}

/// Fields with cleaned texts.
pub(crate) fn cleaned_fields(fields: &[Field]) -> Vec<Field> {
    fields.iter().map(|(name, text)| (clean(name).into(), clean(text))).collect()
}

/// A section with cleaned texts; `None` if nothing is left of it.
pub(crate) fn cleaned_section(given: &Section) -> Option<Section> {
    section(clean(&given.title), given.body.iter().map(cleaned_block).collect())
}

fn cleaned_block(block: &Block) -> Block {
    let words = |texts: &[String]| texts.iter().map(|text| clean(text)).collect::<Vec<_>>();
    let name = |name: &Cow<'static, str>| Cow::from(clean(name));
    let entry = |entry: &Entry| Entry { title: clean(&entry.title), remarks: cleaned_fields(&entry.remarks) };
    match block {
        Block::Paragraph(text) => Block::Paragraph(clean(text)),
        Block::Bullets(items) => Block::Bullets(words(items)),
        Block::Numbered(items) => Block::Numbered(words(items)),
        Block::Fields(fields) => Block::Fields(cleaned_fields(fields)),
        Block::Table(header, rows) => {
            Block::Table(header.iter().map(name).collect(), rows.iter().map(|row| words(row)).collect())
        }
        Block::Entries(entries) => Block::Entries(entries.iter().map(entry).collect()),
        Block::Image(image) => Block::Image(cleaned_image(image)),
        Block::Exhibits(exhibits) => Block::Exhibits(exhibits.iter().map(Exhibit::cleaned).collect()),
        Block::Folded(title, body) => Block::Folded(clean(title), body.iter().map(cleaned_block).collect()),
    }
}

/// A section, unless it would be empty.
pub(crate) fn section(title: impl Into<Cow<'static, str>>, body: Vec<Block>) -> Option<Section> {
    let body: Vec<Block> = body.into_iter().filter(|block| !block.is_empty()).collect();
    (!body.is_empty()).then(|| Section { title: title.into(), body })
}

/// Notes on how the input was read.
pub(crate) fn read(report: &Report) -> Option<Section> {
    let notes = report.diagnosis.input.notes.iter().map(|note| clean(note)).collect();
    section(
        "",
        vec![Block::Paragraph(format!("Read: {}", input_words(&report.diagnosis.input))), Block::Bullets(notes)],
    )
}

fn input_words(input: &Input) -> String {
    let format = Some(clean(&input.format)).filter(|format| !format.is_empty());
    let column = column_words(input).map(|column| format!("column {column}"));
    let known = [format, Some(counted(input.samples, "sample")), column, Some(format!("{} skipped", input.skipped))];
    known.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The judged column and its unit: `rss_mb (MiB)`.
fn column_words(input: &Input) -> Option<String> {
    let unit = input.unit.as_deref().map(|unit| format!(" ({})", clean(unit))).unwrap_or_default();
    let column = input.column.as_deref().map(clean).filter(|column| !column.is_empty());
    column.map(|column| format!("{column}{unit}"))
}

/// A picture in words, for formats without pictures.
pub(crate) fn image_words(image: &Image) -> String {
    let parts = [&image.caption, &image.alternative].into_iter().filter(|text| !text.is_empty());
    parts.map(String::as_str).collect::<Vec<_>>().join(" (") + if image.words_are_both() { ")" } else { "" }
}

/// Where the run and the report come from, as far as known, as name and value.
pub(crate) fn environment(report: &Report) -> Vec<(String, String)> {
    let facts = report.facts;
    let input = &report.diagnosis.input;
    let number = |name: &str, value: Option<u64>| Some((name.to_string(), value?.to_string()));
    let stated = [
        number("examples", facts.examples),
        number("batch size", facts.batch_size),
        number("gradient accumulation", facts.gradient_accumulation),
        number("steps per epoch", facts.epoch_steps()),
        number("total steps", facts.total_steps),
        facts.memory_limit.map(|limit| ("memory limit".to_string(), limit.to_string())),
        Some(("input format".to_string(), clean(&input.format))),
        column_words(input).map(|column| ("column".to_string(), column)),
        Some(("samples".to_string(), format!("{}, {} skipped", input.samples, input.skipped))),
        Some(("model-garden".to_string(), clean(report.version))),
    ];
    let origin = report.origin.iter().map(|(name, value)| (clean(name), clean(value)));
    origin.chain(stated.into_iter().flatten()).filter(|(_, value)| !value.is_empty()).collect()
}

/// The mechanism's name as words; `None` if there is none.
fn mechanism_words(mechanism: Mechanism) -> Option<String> {
    (mechanism != Mechanism::None).then(|| mechanism.name().replace('_', " "))
}

/// The numbers beneath the verdict.
pub(crate) fn numbers(report: &Report) -> Vec<Field> {
    let words = ClockWords::new(report);
    let diagnosis = report.diagnosis;
    let level = diagnosis.level.map(|level| amount(level.bytes, level.low, level.high));
    let fields = [
        ("memory", start_and_end(report, words)),
        ("mechanism", mechanism_words(diagnosis.mechanism)),
        ("confidence", diagnosis.confidence.and_then(percent)),
        ("growth", growth(diagnosis)),
        ("knee", knee(report, words)),
        ("level", level),
    ];
    known(fields)
}

fn known<const N: usize>(fields: [(&'static str, Option<String>); N]) -> Vec<Field> {
    fields.into_iter().filter_map(|(name, value)| Some((Cow::from(name), value?))).collect()
}

/// Memory at the start and at the end in words.
fn start_and_end(report: &Report, words: ClockWords) -> Option<String> {
    let StartAndEnd { from, to, first_bytes, last_bytes } = StartAndEnd::of(report)?;
    let change = format_change(last_bytes as f64 - first_bytes as f64);
    let stretch = words.stretch(from, to);
    Some(format!("{} at the start, {} at the end ({change}), {stretch}", Bytes(first_bytes), Bytes(last_bytes)))
}

fn growth(diagnosis: &Diagnosis) -> Option<String> {
    let growth = &diagnosis.growth;
    // The interval is of the rate per step where there is one.
    let by_step = growth.bytes_per_step.and_then(|rate| rate_per(rate, growth.low, growth.high, "step"));
    let has_step = by_step.is_some();
    let by_time = growth.bytes_per_second.and_then(|rate| match has_step {
        true => rate_per_minute(rate, None, None),
        false => rate_per_minute(rate, growth.low, growth.high),
    });
    let by_example = growth.bytes_per_example.and_then(|rate| rate_per(rate, None, None, "example"));
    let rates: Vec<String> = [by_step, by_time, by_example].into_iter().flatten().collect();
    (!rates.is_empty()).then(|| rates.join(", "))
}

fn knee(report: &Report, words: ClockWords) -> Option<String> {
    let knee = report.diagnosis.knee?;
    let unit = if words.clock == Clock::Time { "" } else { words.clock.unit() };
    let place = format!("{unit} {}", words.number(knee_place(report)?));
    let interval = (knee.low.is_finite() && knee.high.is_finite()).then(|| words.range(knee.low, knee.high));
    let interval = interval.map(|range| format!(" (95 %: {range})")).unwrap_or_default();
    Some(format!("{}{interval}", place.trim()))
}

fn phases(diagnosis: &Diagnosis, words: ClockWords) -> Vec<Block> {
    let hidden = diagnosis.phases.len().saturating_sub(MOST_PHASES);
    let rows = diagnosis.phases.iter().skip(hidden).map(|phase| phase_row(diagnosis, phase, words)).collect();
    let stretch = match words.clock {
        Clock::Step => "steps",
        Clock::Time => "time",
        Clock::Sample => "samples",
    };
    let earlier = if hidden > 0 { format!("{hidden} earlier phases in --format json") } else { String::new() };
    let header = ["phase", stretch, "level", "rate"].map(Cow::from).to_vec();
    vec![Block::Table(header, rows), Block::Paragraph(earlier)]
}

fn phase_row(diagnosis: &Diagnosis, phase: &Phase, words: ClockWords) -> Vec<String> {
    let level = format!("{} → {}", Bytes(phase.start_bytes), Bytes(phase.end_bytes));
    let rate = words.rate(phase.rate, Some(phase.low), Some(phase.high)).unwrap_or_default();
    vec![phase_name(diagnosis, phase).to_string(), words.range(phase.from, phase.to), level, rate]
}

fn attempts(diagnosis: &Diagnosis, words: ClockWords) -> Vec<String> {
    let sentence = |part: &Part| {
        let (stretch, samples) = (words.stretch(part.from, part.to), counted(part.samples, "sample"));
        format!("{stretch} ({samples}), {}: {}", part.verdict.name(), clean(&part.summary))
    };
    diagnosis.parts.iter().map(sentence).collect()
}

/// The verdicts on all series of the file, the one that decides first.
fn series(diagnosis: &Diagnosis) -> Vec<String> {
    let mut all: Vec<&SeriesVerdict> = diagnosis.series.iter().collect();
    all.sort_by_key(|one| !one.decides);
    let sentence =
        |one: &&SeriesVerdict| format!("{}, {}: {}", clean(&one.name), one.verdict.name(), clean(&one.summary));
    all.iter().map(sentence).collect()
}

/// The processes that changed most; a single process adds nothing to the rest of the report.
fn processes(diagnosis: &Diagnosis) -> Vec<Block> {
    if diagnosis.processes.len() < 2 {
        return Vec::new();
    }
    let row = |change: &ProcessChange| {
        let level = format!("{} → {}", Bytes(change.from_bytes), Bytes(change.to_bytes));
        vec![
            change.pid.to_string(),
            clean(&change.name),
            clean(&change.role),
            level,
            format_change(change.change() as f64),
        ]
    };
    let rows = diagnosis.processes.iter().take(MOST_PROCESSES).map(row).collect();
    vec![Block::Table(["process", "name", "role", "memory", "change"].map(Cow::from).to_vec(), rows)]
}

fn forecast(diagnosis: &Diagnosis, facts: &RunFacts, words: ClockWords) -> Vec<Field> {
    let forecast = &diagnosis.forecast;
    let bounded = forecast.if_bounded.map(|plateau| {
        let from = plateau.step.filter(|step| step.is_finite()).map(|step| format!(" from step {} on", whole(step)));
        format!("{}{}", amount(plateau.bytes, plateau.low, plateau.high), from.unwrap_or_default())
    });
    // While undecided, the end of a bounded growth is part of the answer even where it is unknown.
    let is_open = diagnosis.verdict == Verdict::Growing && diagnosis.mechanism != Mechanism::FilePages;
    let unknown =
        (is_open && facts.epoch_steps().is_none()).then(|| "end unknown without the epoch length".to_string());
    let bounded = bounded.or(unknown);
    let unbounded = forecast.if_unbounded.and_then(|end| exhaustion(end, words));
    let likelihood = diagnosis.likelihood.and_then(|likelihood| {
        Some(format!(
            "{} that it ends by itself, {} that it never does",
            percent(likelihood.bounded)?,
            percent(likelihood.leak)?
        ))
    });
    let decided = forecast.decided_by_step.filter(|step| step.is_finite());
    // A growth that has ended is no longer a matter of if.
    let open = matches!(diagnosis.verdict, Verdict::Growing | Verdict::Leak | Verdict::Insufficient);
    known([
        (if open { "if bounded" } else { "stays at" }, bounded),
        ("if unbounded", unbounded),
        ("likelihood", likelihood),
        ("decided by", decided.map(|step| format!("step {}", whole(step)))),
        ("limit", forecast.limit_bytes.map(|limit| limit_words(limit, diagnosis))),
    ])
}

fn exhaustion(end: Exhaustion, words: ClockWords) -> Option<String> {
    let at = end.step.filter(|step| step.is_finite()).map(|step| format!("at step {}", whole(step)));
    let ahead =
        end.time_s.filter(|time| time.is_finite()).map(|time| format!("{} after the last sample", elapsed(time)));
    // Like the moment itself: a step where there are steps, else a time from the last sample on.
    let moment =
        |place: f64| if end.step.is_none() && end.time_s.is_some() { elapsed(place) } else { words.number(place) };
    let interval = end.low.is_finite().then(|| match end.high.filter(|high| high.is_finite()) {
        Some(high) if end.step.is_some() => words.range(end.low, high),
        Some(high) => format!("{} to {}", moment(end.low), moment(high)),
        None => format!("{} or later, perhaps never", moment(end.low)),
    });
    let interval = interval.map(|range| format!(" (95 %: {range})")).unwrap_or_default();
    let when = match (at, ahead) {
        (Some(at), Some(ahead)) => format!("{at}{interval}, {ahead}"),
        (Some(at), None) => format!("{at}{interval}"),
        (None, Some(ahead)) => format!("{ahead}{interval}"),
        (None, None) if interval.is_empty() => return None,
        (None, None) => format!("{}s from now{interval}", words.name()),
    };
    Some(format!("the limit is reached {when}"))
}

fn limit_words(limit: u64, diagnosis: &Diagnosis) -> String {
    match diagnosis.level.map(|level| level.bytes) {
        Some(level) if level <= limit => format!("{}, {} above the current level", Bytes(limit), Bytes(limit - level)),
        Some(level) => format!("{}, exceeded by {}", Bytes(limit), Bytes(level - limit)),
        None => Bytes(limit).to_string(),
    }
}

fn causes(diagnosis: &Diagnosis) -> Vec<Block> {
    let entries = diagnosis.causes.iter().take(MOST_CAUSES).map(cause).collect();
    vec![Block::Entries(entries), more(diagnosis.causes.len(), MOST_CAUSES)]
}

/// Where to find the rest of a shortened list; empty if nothing was left out.
fn more(all: usize, shown: usize) -> Block {
    let hidden = all.saturating_sub(shown);
    Block::Paragraph(if hidden > 0 { format!("{hidden} more in --format json") } else { String::new() })
}

fn cause(cause: &Cause) -> Entry {
    let score = percent(cause.score).map(|score| format!("{score}: ")).unwrap_or_default();
    let supporting = cause.supporting.iter().map(|text| (Cow::from("for"), clean(text)));
    let against = cause.against.iter().map(|text| (Cow::from("against"), clean(text)));
    let fix = [(Cow::from("fix"), clean(cause.fix))];
    let remarks = supporting.chain(against).chain(fix).filter(|remark| !remark.1.is_empty());
    Entry { title: format!("{score}{}", clean(cause.title)), remarks: remarks.collect() }
}

fn ruled_out(diagnosis: &Diagnosis) -> Vec<Block> {
    let sentence = |cause: &RuledOut| format!("{}: {}", clean(cause.title), clean(&cause.reason));
    let sentences = diagnosis.ruled_out.iter().take(MOST_RULED_OUT).map(sentence).collect();
    vec![Block::Bullets(sentences), more(diagnosis.ruled_out.len(), MOST_RULED_OUT)]
}

fn stability(diagnosis: &Diagnosis) -> Vec<Block> {
    let sentence = diagnosis.stability.as_ref().map(|check| {
        let outcome = if check.passed { "passed" } else { "failed" };
        Block::Paragraph(format!("{outcome}: {}", clean(&check.text)))
    });
    sentence.into_iter().collect()
}
