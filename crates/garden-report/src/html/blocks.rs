//! The blocks of a section as HTML.

use crate::sections::{Block, Entry, Exhibit, Field, Image, Likeness, Pair};

use super::escape::{escape, inline};

/// Cells of at most this many characters, such as `10 to 83`, read badly on two lines.
const SHORT: usize = 14;

/// A block as HTML.
pub(super) fn block_html(block: &Block) -> String {
    match block {
        Block::Paragraph(text) => format!("<p>{}</p>", inline(text)),
        Block::Bullets(items) => format!("<ul>{}</ul>", list(items)),
        Block::Numbered(items) => format!("<ol>{}</ol>", list(items)),
        Block::Fields(fields) => fields_html(fields),
        Block::Table(header, rows) => {
            let header: Vec<String> = header.iter().map(ToString::to_string).collect();
            table_html("", &header, rows)
        }
        Block::Entries(entries) => {
            format!("<ol class=\"entries\">{}</ol>", entries.iter().map(entry_html).collect::<String>())
        }
        Block::Image(image) => image_html(image),
        Block::Exhibits(exhibits) => {
            format!("<div class=\"exhibits\">{}</div>", exhibits.iter().map(exhibit_html).collect::<String>())
        }
        Block::Folded(title, body) => {
            let body: String = body.iter().map(block_html).collect();
            format!("<details><summary>{}</summary>{body}</details>", inline(title))
        }
    }
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("<li>{}</li>", inline(item))).collect()
}

/// Names and their texts; a repeated name is written once.
fn fields_html(fields: &[Field]) -> String {
    let groups = fields.chunk_by(|a, b| a.0 == b.0);
    let group = |group: &[Field]| {
        let texts: String = group.iter().map(|field| format!("<dd>{}</dd>", inline(&field.1))).collect();
        format!("<div><dt>{}</dt>{texts}</div>", escape(&group[0].0))
    };
    format!("<dl>{}</dl>", groups.map(group).collect::<String>())
}

fn entry_html(entry: &Entry) -> String {
    format!("<li><p class=\"entry\">{}</p>{}</li>", inline(&entry.title), fields_html(&entry.remarks))
}

/// A table that scrolls if it is wider than the page.
pub(super) fn table_html(class: &str, header: &[String], rows: &[Vec<String>]) -> String {
    let head: String = header.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    // Cells of numbers never break anyway.
    let cell = |cell: &String| match class.is_empty() && cell.chars().count() <= SHORT {
        true => format!("<td class=\"short\">{}</td>", inline(cell)),
        false => format!("<td>{}</td>", inline(cell)),
    };
    let cells = |row: &Vec<String>| row.iter().map(cell).collect::<String>();
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row))).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\"><table class=\"{class}\"><thead><tr>{head}</tr>\
         </thead><tbody>{body}</tbody></table></div>"
    )
}

fn image_html(image: &Image) -> String {
    let caption = format!("<figcaption>{}</figcaption>", inline(&image.caption));
    if !is_picture(&image.source) {
        return format!("<figure class=\"picture\">{caption}</figure>");
    }
    let alternative = escape(&image.alternative);
    format!("<figure class=\"picture\"><img src=\"{}\" alt=\"{alternative}\">{caption}</figure>", image.source)
}

fn exhibit_html(exhibit: &Exhibit) -> String {
    let shown = exhibit.pictures.iter().filter(|picture| is_picture(&picture.source));
    let picture = |picture: &Image| {
        format!("<img src=\"{}\" alt=\"{}\" loading=\"lazy\">", picture.source, escape(&picture.alternative))
    };
    let pictures: String = shown.map(picture).collect();
    let pictures = match pictures.is_empty() {
        true => pictures,
        false => format!("<div class=\"exhibit-pictures\">{pictures}</div>"),
    };
    let has_names = exhibit.pairs.iter().any(|pair| !pair.name.is_empty());
    let head = |name: &str| format!("<th scope=\"col\">{}</th>", escape(name));
    let header: String = has_names
        .then(|| "<td></td>".to_string())
        .into_iter()
        .chain(exhibit.sides.iter().map(|side| head(side)))
        .collect();
    let row = |pair: &Pair| {
        let name = if has_names { format!("<th scope=\"row\">{}</th>", escape(&pair.name)) } else { String::new() };
        let [left, right] = pair.sides.each_ref().map(|side| escape(side));
        match pair.likeness {
            Likeness::Same => format!("<tr>{name}<td>{left}</td><td>{right}</td></tr>"),
            // A sign besides the colour, for readers who cannot see the difference.
            Likeness::Different => {
                format!("<tr class=\"differs\">{name}<td>{left}</td><td>≠ <mark>{right}</mark></td></tr>")
            }
        }
    };
    let rows: String = exhibit.pairs.iter().map(row).collect();
    format!(
        "<article class=\"exhibit {}\"><div class=\"exhibit-head\">{pictures}<div class=\"exhibit-words\"><strong>{}</strong><span>{}</span>\
         <p>{}</p></div></div><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></article>",
        exhibit.news.class(),
        escape(&exhibit.word),
        escape(&exhibit.title),
        escape(&exhibit.question),
    )
}

/// Whether an address is a complete embedded picture, and nothing else.
fn is_picture(source: &str) -> bool {
    let kinds = ["png", "jpeg", "webp", "gif"];
    let rest = kinds.iter().find_map(|kind| source.strip_prefix(&format!("data:image/{kind};base64,")));
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    rest.is_some_and(|data| !data.is_empty() && data.chars().all(is_base64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_embedded_pictures_are_shown() {
        assert!(is_picture("data:image/png;base64,iVBORw0KGgo="));
        let others = ["https://example.org/a.png", "data:image/svg+xml;base64,PHN2Zz4=", "javascript:alert(1)"];
        assert!(others.iter().chain(&["data:image/png;base64,\" onerror=\"x", ""]).all(|source| !is_picture(source)));
    }
}
