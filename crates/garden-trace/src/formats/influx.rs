//! InfluxDB's line protocol, as Telegraf writes it: `procstat,host=n1,pid=4711 memory_rss=4194304000i 1740866400000000000`.
//!
//! Each line becomes an object of JSON lines: its fields under the measurement's name, its tags (which tell series apart) and its
//! time, in nanoseconds. Blanks, commas and equals signs within names are escaped by a backslash.

use std::io::Read;

use serde_json::{Map, Value};

use super::{Contents, Head, Reader, Recognised, claim, jsonl, read_as};
use crate::error::Error;
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{Reading, show_line};

/// Recognises lines of the protocol.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let is_point = |line: &HeadLine| object_of(&line.text).is_some();
    let points = head.lines.iter().filter(|line| !line.text.starts_with('#'));
    (points.clone().next().is_some() && points.clone().all(is_point)).then(|| claim(Influx))?
}

struct Influx;

impl Reader for Influx {
    fn name(&self) -> &'static str {
        "influx line protocol"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let objects = to_lines(&mut file.lines, reading)?;
        read_as(&objects, jsonl::recognise_lines, file.options, reading)
    }
}

fn to_lines<R: Read>(lines: &mut Lines<R>, reading: &mut Reading) -> Result<String, Error> {
    let mut objects = String::new();
    while let Some(line) = lines.next()? {
        let object = std::str::from_utf8(line.text).ok().filter(|_| line.end != LineEnd::TooLong).and_then(object_of);
        match object {
            Some(object) => {
                objects.push_str(&Value::Object(object).to_string());
                objects.push('\n');
            }
            None if line.text.starts_with(b"#") => {}
            None => reading.skip_line("not a line of InfluxDB's protocol", line.number, || show_line(line.text)),
        }
    }
    Ok(objects)
}

/// The tags, fields and time of a line.
fn object_of(line: &str) -> Option<Map<String, Value>> {
    let parts = split(line, ' ');
    let [names, fields, time] = parts[..] else { return None };
    // Other logs may have three words, but no such time.
    let is_time = time.len() >= 16 && time.bytes().all(|byte| byte.is_ascii_digit());
    let mut names = split(names, ',').into_iter();
    let measurement = names.next().filter(|name| is_time && !name.is_empty() && !name.contains(['=', '{', '"']))?;
    let mut object = Map::new();
    for tag in names {
        let (name, value) = pair(tag)?;
        object.insert(name, Value::String(plain(value)));
    }
    for field in split(fields, ',') {
        let (name, value) = pair(field)?;
        object.insert(format!("{}_{name}", plain(measurement)), number(value)?);
    }
    object.insert("time".to_string(), Value::String(time.to_string()));
    Some(object)
}

/// A text cut where a character stands that is neither escaped nor quoted.
fn split(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut from, mut is_escaped, mut is_quoted) = (Vec::new(), 0, false, false);
    for (place, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if c == at && !is_quoted => {
                parts.push(&text[from..place]);
                from = place + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

fn pair(text: &str) -> Option<(String, &str)> {
    let parts = split(text, '=');
    let [name, value] = parts[..] else { return None };
    (!name.is_empty() && !value.is_empty()).then(|| (plain(name), value))
}

fn plain(text: &str) -> String {
    text.replace("\\ ", " ").replace("\\,", ",").replace("\\=", "=")
}

/// A field's value: `1i` and `1u` are whole numbers; texts and truth values say nothing about memory.
fn number(text: &str) -> Option<Value> {
    let is_word = matches!(text, "t" | "T" | "true" | "True" | "TRUE" | "f" | "F" | "false" | "False" | "FALSE");
    if is_word || text.starts_with('"') {
        return Some(Value::Null);
    }
    let digits = text.strip_suffix(['i', 'u']).unwrap_or(text);
    digits.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_escapes_and_quotes() {
        let shown = |line: &str| object_of(line).map(|object| Value::Object(object).to_string());
        assert_eq!(
            shown(r#"proc\ stat,host=a\,b rss=4i,load=0.5,text="x, y=1 z",up=true 1740866400000000000"#).as_deref(),
            Some(
                r#"{"host":"a,b","proc stat_load":0.5,"proc stat_rss":4.0,"proc stat_text":null,"proc stat_up":null,"time":"1740866400000000000"}"#
            )
        );
        for line in ["step 10 1740866400000000000", "a b=1", "a b=1 12", "a=1 b=2 1740866400000000000", ""] {
            assert_eq!(shown(line), None, "{line}");
        }
    }
}
