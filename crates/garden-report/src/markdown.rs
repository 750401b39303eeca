//! A report as Markdown to paste into any bug tracker.
//!
//! Text from files must not become markup there: no links, no HTML, no mention of a person, no broken table. Wholly
//! foreign text is shown as code; in sentences, `code` between single backticks stays code and all else is escaped.

use garden_memory::{Bytes, MIB};

use crate::clean::clean;
use crate::format::{ClockWords, knee_place, whole};
use crate::page::Page;
use crate::plot::{NAME_COLUMNS, count_sentences, pictures, usable};
use crate::sections::{Block, Exhibit, Field, Section, image_words};
use crate::wrap::{WIDTH, shorten};
use crate::{Report, Series};

/// Most samples in the table.
const TABLE_SAMPLES: usize = 12;
/// Most columns of a value from a file.
const VALUE_COLUMNS: usize = 300;

/// The report as Markdown for an issue tracker.
pub fn markdown(report: &Report) -> String {
    render(&report.page(), Some(report))
}

/// A cleaned page as Markdown, with the additions of a trace's diagnosis.
pub(crate) fn render(page: &Page, report: Option<&Report>) -> String {
    let mut blocks = vec![heading(page), prose(&page.summary)];
    blocks.extend(environment_table(page));
    blocks.extend(report.into_iter().flat_map(charts));
    blocks.extend(report.and_then(samples_table));
    for section in page.findings() {
        blocks.extend(section_blocks(&section));
    }
    blocks.push(made(page, if report.is_some() { "Input notes" } else { "Notes" }));
    blocks.join("\n\n") + "\n"
}

fn heading(page: &Page) -> String {
    let title = shorten(&page.title, NAME_COLUMNS);
    let of = if title.is_empty() { String::new() } else { format!(" of {}", literal(&title)) };
    format!("## {}{of}: {}", literal(&shorten(&page.subject, NAME_COLUMNS)), literal(&page.word))
}

fn environment_table(page: &Page) -> Option<String> {
    let rows = page
        .environment
        .iter()
        .map(|(name, value)| vec![literal(&shorten(name, NAME_COLUMNS)), literal(&shorten(value, VALUE_COLUMNS))]);
    (rows.len() > 0).then(|| format!("### Environment\n\n{}", table(&["what", "value"], rows)))
}

fn charts(report: &Report) -> Vec<String> {
    let mut blocks = Vec::new();
    let pictures = pictures(report, WIDTH);
    if !pictures.is_empty() {
        let drawn = pictures.iter().map(|picture| {
            [std::slice::from_ref(&picture.heading), &picture.lines, &picture.notes].concat().join("\n")
        });
        // No line can end the fence early.
        let drawn = drawn.collect::<Vec<_>>().join("\n\n").replace('`', "'");
        blocks.push(format!("### Chart\n\n```text\n{drawn}\n```"));
    }
    let sentences: Vec<String> = count_sentences(report).iter().map(|sentence| prose(sentence)).collect();
    blocks.extend((!sentences.is_empty()).then(|| bullets(&sentences)));
    blocks
}

fn samples_table(report: &Report) -> Option<String> {
    let points = usable(&report.memory);
    let words = ClockWords::new(report);
    let picked = picked_samples(report, &points);
    let counts: Vec<&Series> = report.counts.iter().filter(|series| !series.points.is_empty()).collect();
    let names = counts.iter().map(|series| literal(&shorten(&clean(&series.name), NAME_COLUMNS)));
    let header: Vec<String> = [words.name().to_string(), "memory".to_string()].into_iter().chain(names).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).chain(["remark"]).collect();
    let rows = picked.iter().map(|(index, remark)| {
        let (x, bytes) = points[*index];
        let cells = [words.number(x), level_words(bytes)];
        cells.into_iter().chain(counts.iter().map(|series| value_at(series, x))).chain([remark.clone()]).collect()
    });
    let title = format!("### Samples ({} of {})", picked.len(), points.len());
    (!points.is_empty()).then(|| format!("{title}\n\n{}", table(&header, rows)))
}

/// A level to the mebibyte, so that the table shows small changes of a large level.
fn level_words(bytes: f64) -> String {
    let mib = bytes / MIB as f64;
    if mib >= 1000.0 { format!("{} MiB", whole(mib)) } else { Bytes::from_f64(bytes).to_string() }
}

fn value_at(series: &Series, x: f64) -> String {
    let found = series.points.iter().find(|point| point.0 == x && point.1.is_finite());
    found.map(|point| whole(point.1)).unwrap_or_default()
}

/// The first, the last, the highest, the one nearest to the knee, and others evenly between them.
fn picked_samples(report: &Report, points: &[(f64, f64)]) -> Vec<(usize, String)> {
    let Some(last) = points.len().checked_sub(1) else { return Vec::new() };
    let place = |measure: &dyn Fn(&(f64, f64)) -> f64| {
        (0..points.len()).min_by(|&a, &b| measure(&points[a]).total_cmp(&measure(&points[b]))).unwrap_or(0)
    };
    let mut remarks = vec![(0, "first"), (last, "last"), (place(&|point| -point.1), "highest")];
    let knee = knee_place(report);
    remarks.extend(knee.map(|knee| (place(&|point| (point.0 - knee).abs()), "nearest to the knee")));
    let mut picked: Vec<usize> = remarks.iter().map(|remark| remark.0).collect();
    let even = (0..TABLE_SAMPLES).map(|n| n * last / (TABLE_SAMPLES - 1));
    picked.extend(even);
    picked.sort_unstable();
    picked.dedup();
    thin_to(&mut picked, &remarks);
    let remark = |index| remarks.iter().filter(|r| r.0 == index).map(|r| r.1).collect::<Vec<_>>().join(", ");
    picked.into_iter().map(|index| (index, remark(index))).collect()
}

/// Drops samples without a remark that are closest to their neighbours, until the table has its size.
fn thin_to(picked: &mut Vec<usize>, remarks: &[(usize, &str)]) {
    while picked.len() > TABLE_SAMPLES {
        let plain = (1..picked.len() - 1).filter(|&at| remarks.iter().all(|remark| remark.0 != picked[at]));
        match plain.min_by_key(|&at| picked[at + 1] - picked[at - 1]) {
            Some(at) => picked.remove(at),
            None => return,
        };
    }
}

fn section_blocks(section: &Section) -> Vec<String> {
    let title = (!section.title.is_empty()).then(|| format!("### {}", escape(&section.title)));
    title.into_iter().chain(section.body.iter().map(block_text)).collect()
}

fn block_text(block: &Block) -> String {
    match block {
        Block::Paragraph(text) => prose(text),
        Block::Bullets(items) => bullets(&items.iter().map(|item| prose(item)).collect::<Vec<_>>()),
        Block::Numbered(items) => numbered(items.iter().map(|item| prose(item))),
        Block::Fields(fields) => bullets(&fields.iter().map(remark).collect::<Vec<_>>()),
        Block::Table(header, rows) => table(
            &header.iter().map(|cell| escape(cell)).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(),
            rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()),
        ),
        Block::Entries(entries) => numbered(entries.iter().map(|entry| {
            let below: String = entry
                .remarks
                .iter()
                .map(|field| {
                    format!(
                        "
   - {}",
                        remark(field)
                    )
                })
                .collect();
            format!("**{}**{below}", prose(&entry.title))
        })),
        // A tracker would not show an embedded picture, only its text.
        Block::Image(image) => prose(&image_words(image)),
        Block::Exhibits(exhibits) => block_text(&Block::Entries(exhibits.iter().map(Exhibit::entry).collect())),
        Block::Folded(title, body) => {
            std::iter::once(prose(title)).chain(body.iter().map(block_text)).collect::<Vec<_>>().join("\n\n")
        }
    }
}

fn remark((name, text): &Field) -> String {
    format!("{}: {}", escape(name), inline(text))
}

fn bullets(items: &[String]) -> String {
    items.iter().map(|item| format!("- {item}")).collect::<Vec<_>>().join("\n")
}

fn numbered(items: impl Iterator<Item = String>) -> String {
    items.enumerate().map(|(index, item)| format!("{}. {item}", index + 1)).collect::<Vec<_>>().join("\n")
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let head = line(header.iter().map(|cell| cell.to_string()).collect());
    let rule = line(vec!["---".to_string(); header.len()]);
    [head, rule].into_iter().chain(rows.map(line)).collect::<Vec<_>>().join("\n")
}

fn made(page: &Page, notes_title: &str) -> String {
    let version = literal(&shorten(&page.version, NAME_COLUMNS));
    let notes: Vec<String> = page.notes.iter().map(|note| prose(note)).collect();
    let command = page.command.as_deref().map(|command| format!(" with {}", code(command)));
    let sentence = format!("Made by model-garden {version}{}.", command.unwrap_or_default());
    let notes = if notes.is_empty() { String::new() } else { format!("\n\n{notes_title}:\n\n{}", bullets(&notes)) };
    format!("### How this was made\n\n{sentence}{notes}")
}

/// Foreign text, verbatim: plain where that is harmless, else as code.
fn literal(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " .,+-()%".contains(c);
    let harmless = text.chars().all(plain) && !text.contains("www.") && !text.starts_with(['-', '+']);
    if harmless { text.to_string() } else { code(text) }
}

fn code(text: &str) -> String {
    if !text.contains(['`', '|', '\\']) {
        return format!("`{text}`");
    }
    // Backticks, pipes and backslashes mean different things in different tables: as entities they are literal everywhere.
    let harmless = |c: char| c.is_alphanumeric() || " .,-=/".contains(c);
    let entity = |c: char| if harmless(c) { c.to_string() } else { format!("&#{};", c as u32) };
    format!("<code>{}</code>", text.chars().map(entity).collect::<String>())
}

/// A sentence on its own line, which must not begin a list or a rule.
fn prose(text: &str) -> String {
    let text = inline(text);
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut rest = text[digits..].chars();
    let (mark, next) = (rest.next(), rest.next());
    match mark {
        Some('+' | '-' | '=') if digits == 0 && next.is_none_or(|c| !c.is_alphanumeric()) => format!("\\{text}"),
        Some('.' | ')') if digits > 0 && next.is_none_or(|c| c == ' ') => {
            format!("{}\\{}", &text[..digits], &text[digits..])
        }
        _ => text,
    }
}

/// A sentence; text between two single backticks is code, the rest is escaped.
fn inline(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    // Code needs a closing backtick and text in between: otherwise the backticks are literal.
    let paired = parts.len() % 2 == 1 && parts.iter().skip(1).step_by(2).all(|code| !code.trim().is_empty());
    if !paired {
        return escape(text);
    }
    let part = |(index, part): (usize, &&str)| if index % 2 == 1 { format!("`{part}`") } else { escape(part) };
    parts.iter().enumerate().map(part).collect()
}

/// Escapes everything that Markdown, HTML or a bug tracker would read as more than text.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let inside_word = before.is_alphanumeric() && chars.peek().is_some_and(|next| next.is_alphanumeric());
        match c {
            '`' => escaped.push_str("&#96;"),
            '|' => escaped.push_str("&#124;"),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // A zero-width space keeps trackers from mentioning people and linking other issues.
            '@' => escaped.push_str("@&#8203;"),
            '#' => escaped.push_str("\\#&#8203;"),
            '_' if inside_word => escaped.push(c),
            '\\' | '*' | '_' | '[' | ']' | '~' | '$' | '!' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
        before = c;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_shown_and_never_obeyed() {
        assert_eq!(literal("Linux 6.1"), "Linux 6.1");
        assert_eq!(literal("/data/run_2.csv"), "`/data/run_2.csv`");
        assert_eq!(literal("<b>@you</b>"), "`<b>@you</b>`");
        assert_eq!(literal("a|`b`\\"), "<code>a&#124;&#96;b&#96;&#92;</code>");
    }

    #[test]
    fn sentences_keep_their_code_and_nothing_else() {
        assert_eq!(prose("call `gc.collect()` *now*"), "call `gc.collect()` \\*now\\*");
        assert_eq!(inline("a ` alone, <img> rss_mb _x_"), "a &#96; alone, &lt;img&gt; rss_mb \\_x\\_");
        assert_eq!(prose("see #12, @you | [a](b)"), "see \\#&#8203;12, @&#8203;you &#124; \\[a\\](b)");
        assert_eq!(prose("1. not a list"), "1\\. not a list");
        assert_eq!(prose("- not a list"), "\\- not a list");
    }
}
