//! A report as one self-contained page: verdict, charts, words, raw numbers, and how it was made.
//!
//! The words come from `sections.rs`; the charts are data that `assets/chart.js` draws. The page makes no requests: style
//! and script are in it, and its policy (CSP) allows no others, by their digests. So even if a text from a trace ever got
//! past the escaping, it could not run. Without JavaScript only the drawings are missing.

mod alternative;
mod blocks;
mod digest;
mod escape;

use crate::Report;
use crate::chart::{Chart, Size, Table};
use crate::clean::clean;
use crate::page::Page;
use crate::sections::{Block, Section, findings_of_page};
use crate::thin::thin;

use alternative::alternative;
use blocks::{block_html, table_html};
pub(crate) use digest::base64;
use digest::sha256_base64;
use escape::{escape, inline, script_json};

const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = concat!(
    include_str!("../../assets/words.js"),
    include_str!("../../assets/parts.js"),
    include_str!("../../assets/chart.js"),
    include_str!("../../assets/report.js")
);
/// A table with more columns than this gets the whole width.
const WIDE: usize = 5;
/// Titles from files are cut to this many characters.
const LONGEST_TITLE: usize = 120;

/// The report as a page that needs no network, no other file and no server.
pub fn html(report: &Report) -> String {
    let mut page = report.page_of(findings_of_page(report));
    page.charts = report.charts.clone();
    render(&page, Some(report))
}

/// A cleaned page as HTML, with the additions of a trace's diagnosis.
pub(crate) fn render(page: &Page, report: Option<&Report>) -> String {
    let charts: Vec<Chart> = page.charts.iter().cloned().map(thin).map(cleaned).collect();
    // The name of the answer for scripts.
    let name = if report.is_some() { "diagnosis" } else { "result" };
    // The caller wrote the JSON: invalid JSON would be an error whenever the page is opened.
    let json = Some(page.json.as_str()).filter(|json| serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok());
    let body = [
        top(),
        "<main>".to_string(),
        verdict(page),
        charts_html(&charts),
        findings_html(&page.sections),
        samples_html(report.and_then(|report| report.samples.as_ref())),
        made_html(page, if report.is_some() { "Input notes" } else { "Notes" }, json.map(|_| name)),
        "</main>".to_string(),
        json.map_or_else(String::new, |json| {
            format!("<script type=\"application/json\" id=\"{name}\">{}</script>", script_json(json))
        }),
        format!("<script>{SCRIPT}</script>"),
    ];
    format!("<!doctype html>\n<html lang=\"en\">\n{}\n<body>\n{}\n</body>\n</html>\n", head(page), body.join("\n"))
}

fn head(page: &Page) -> String {
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'",
        sha256_base64(STYLE.as_bytes()),
        sha256_base64(SCRIPT.as_bytes())
    );
    let title = escape(&title(page));
    let word = escape(&page.word);
    let version = escape(&page.version);
    format!(
        "<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"model-garden {version}\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{word}: {title} · Model Garden</title>\n\
         <style>{STYLE}</style>\n</head>"
    )
}

fn title(page: &Page) -> String {
    let title: String = page.title.chars().take(LONGEST_TITLE).collect();
    if title.is_empty() { "a run".to_string() } else { title }
}

fn top() -> String {
    "<a class=\"skip\" href=\"#findings\">Skip to the findings</a>\n\
     <header class=\"top\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\"><path d=\"M12 21V11M12 13C12 8 8 5 3 5c0 5 3 8 9 8M12 11c0-4 3-7 9-7 0 5-3 8-9 8\"/></svg>\
     Model Garden</p><button type=\"button\" id=\"theme\" class=\"tool\" hidden>Dark</button></header>"
        .to_string()
}

fn verdict(page: &Page) -> String {
    let mood = page.news.class();
    let numbers = match page.numbers.is_empty() {
        true => String::new(),
        false => block_html(&Block::Fields(page.numbers.clone())),
    };
    format!(
        "<section class=\"verdict {mood}\" aria-label=\"Verdict\">\n<p class=\"word\"><strong>{}</strong> \
         <span>{}</span></p>\n<h1>{}</h1>\n<div class=\"numbers\">{numbers}</div>\n</section>",
        escape(&page.word),
        escape(&title(page)),
        inline(&page.summary)
    )
}

fn charts_html(charts: &[Chart]) -> String {
    let figure = |(index, chart): (usize, &Chart)| {
        let id = format!("chart-{}", index + 1);
        let size = size_class(charts, index);
        let note = if chart.note.is_empty() { String::new() } else { format!("<p>{}</p>", inline(&chart.note)) };
        let data = script_json(&serde_json::to_string(chart).unwrap_or_default());
        format!(
            "<figure class=\"card {size}\" id=\"{id}\">\n<figcaption><h2>{}</h2>{note}</figcaption>\n\
             <div class=\"chart\"></div>\n<noscript><p>The chart needs JavaScript; its content is below.</p></noscript>\n\
             {}\n<script type=\"application/json\">{data}</script>\n</figure>",
            escape(&chart.title),
            alternative(chart),
        )
    };
    let figures: Vec<String> = charts.iter().enumerate().map(figure).collect();
    if figures.is_empty() { String::new() } else { format!("<div class=\"charts\">\n{}\n</div>", figures.join("\n")) }
}

/// The class for a chart's size: of small ones in a row, an odd last one gets the whole width.
fn size_class(charts: &[Chart], index: usize) -> &'static str {
    let is_small = |chart: &&Chart| chart.size == Size::Small;
    let before = charts[..index].iter().rev().take_while(is_small).count();
    let is_last = charts.get(index + 1).is_none_or(|next| next.size == Size::Large);
    match charts[index].size {
        Size::Large => "large",
        Size::Small if before % 2 == 0 && is_last => "alone",
        Size::Small => "small",
    }
}

fn findings_html(sections: &[Section]) -> String {
    let sections: Vec<String> = sections.iter().map(section_html).collect();
    format!("<div class=\"findings\" id=\"findings\">\n{}\n</div>", sections.join("\n"))
}

fn section_html(section: &Section) -> String {
    let title = if section.title.is_empty() { String::new() } else { format!("<h2>{}</h2>", escape(&section.title)) };
    let body: String = section.body.iter().map(block_html).collect();
    let has_wide = section.body.iter().any(is_wide);
    format!("<section class=\"card{}\">{title}{body}</section>", if has_wide { " wide" } else { "" })
}

/// Whether a block needs the whole width.
fn is_wide(block: &Block) -> bool {
    match block {
        Block::Table(header, _) => header.len() > WIDE,
        Block::Exhibits(_) => true,
        _ => false,
    }
}

fn samples_html(samples: Option<&Table>) -> String {
    let Some(table) = samples.filter(|table| !table.rows.is_empty()) else { return String::new() };
    let cells = |row: &[String]| row.iter().map(|cell| clean(cell)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = table.rows.iter().map(|row| cells(row)).collect();
    format!(
        "<section class=\"card\"><details><summary><h2>Raw numbers</h2> <span>{}</span></summary>{}</details></section>",
        escape(&clean(&table.note)),
        table_html("numeric", &cells(&table.header), &rows)
    )
}

/// How the page was made; `answer` is the name of the answer for scripts, if there is one.
fn made_html(page: &Page, notes_title: &str, answer: Option<&str>) -> String {
    let command = page.command.as_deref().map(|command| format!(" with <code>{}</code>", escape(command)));
    let notes: String = page.notes.iter().map(|note| format!("<li>{}</li>", inline(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<p>{notes_title}:</p><ul>{notes}</ul>") };
    let fields = page.environment.iter().map(|(name, value)| (name.clone().into(), value.clone())).collect();
    let inside = answer.map_or_else(String::new, |name| format!(" and the {name}"));
    format!(
        "<section class=\"card made\"><h2>How this was made</h2>\n\
         <p>Made by model-garden {}{}. This page is a single file that works offline; it contains its charts{inside} \
         as JSON.</p>\n{}{notes}\n{}</section>",
        escape(&page.version),
        command.unwrap_or_default(),
        block_html(&Block::Fields(fields)),
        answer.map_or_else(String::new, tools_html),
    )
}

fn tools_html(name: &str) -> String {
    format!(
        "<p class=\"tools\" hidden><button type=\"button\" class=\"tool\" id=\"copy\">Copy the {name} as JSON</button>\n\
         <button type=\"button\" class=\"tool\" id=\"download\">Download it</button> <span role=\"status\" id=\"done\"></span></p>\n"
    )
}

/// A chart with cleaned texts.
fn cleaned(mut chart: Chart) -> Chart {
    (chart.axis.from, chart.axis.to) = chart.range();
    let texts = [&mut chart.title, &mut chart.note, &mut chart.axis.name];
    let texts = texts.into_iter().chain(chart.curves.iter_mut().map(|curve| &mut curve.name));
    let texts = texts.chain(chart.outlooks.iter_mut().map(|outlook| &mut outlook.name));
    let texts = texts.chain(chart.bands.iter_mut().map(|band| &mut band.name));
    let texts = texts.chain(chart.levels.iter_mut().map(|level| &mut level.name));
    let texts = texts.chain(chart.marks.iter_mut().flat_map(|mark| [&mut mark.name, &mut mark.label]));
    texts.for_each(|text| *text = clean(text).chars().take(LONGEST_TITLE).collect());
    chart
}
