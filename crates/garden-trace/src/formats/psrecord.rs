//! The plain logs of psrecord: a header after `#`, then numbers in aligned columns.
//!
//! "Real (MB)" is resident memory divided by 1024^2, so it is MiB. psrecord's CSV form is an ordinary table.

use std::io::Read;

use garden_memory::{MIB, Quantity, Sample};

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::amount::{Amount, Comma, Problem, parse_amount};
use crate::columns::choice::find_column;
use crate::error::Error;
use crate::lines::{LineEnd, Lines};
use crate::reading::{Reading, TOO_LONG, show_line, show_value};

/// The names in psrecord's header.
struct Header {
    names: Vec<String>,
}

const TIME: &str = "Elapsed time";
const RESIDENT: &str = "Real (MB)";

/// Finds the header; psrecord's messages on standard output may precede it.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let is_header = |text: &str| text.starts_with('#') && text.contains(TIME) && text.contains("(MB)");
    let line = head.lines.iter().take(20).find(|line| is_header(&line.text))?;
    let names = line.text.trim_start_matches('#').split("  ").map(str::trim).filter(|name| !name.is_empty());
    claim(Header { names: names.map(str::to_string).collect() })
}

impl Reader for Header {
    fn name(&self) -> &'static str {
        "psrecord"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, self, file.options, reading)
    }
}

/// Reads the rows of numbers.
fn read<R: Read>(
    lines: &mut Lines<R>,
    header: &Header,
    options: &ReadOptions,
    reading: &mut Reading,
) -> Result<(), Error> {
    let asked = options.column.as_deref().unwrap_or(RESIDENT);
    let missing = || Error::NoSuchColumn { asked: asked.to_string(), available: header.names.clone() };
    let main = find_column(&header.names, asked).ok_or_else(missing)?;
    let time = header.names.iter().position(|name| name == TIME);
    if options.unit.is_some() {
        reading.note("`--unit` is ignored: psrecord always writes MiB");
    }
    reading.name_main(&header.names[main]);
    while let Some(line) = lines.next()? {
        if line.end == LineEnd::TooLong {
            reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
        } else if !is_talk(line.text) {
            match sample_of(line.text, main, time) {
                Ok(sample) => {
                    reading.saw_factor(MIB);
                    reading.push(&sample);
                }
                Err(problem) => {
                    let cell = cell(line.text, main).unwrap_or(line.text);
                    reading.skip_line(problem.reason(), line.number, || show_value(&header.names[main], cell));
                }
            }
        }
    }
    Ok(())
}

fn is_talk(line: &[u8]) -> bool {
    let talk: [&[u8]; 4] = [b"#", b"Attaching to process", b"Starting up command", b"Process finished"];
    talk.iter().any(|start| line.starts_with(start))
}

fn cell(line: &[u8], index: usize) -> Option<&[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).nth(index)
}

fn number(line: &[u8], index: usize) -> Result<Amount, Problem> {
    parse_amount(cell(line, index).ok_or(Problem::Missing)?, Comma::Thousands)
}

fn sample_of(line: &[u8], main: usize, time: Option<usize>) -> Result<Sample, Problem> {
    let mut sample = Sample::default();
    sample.set(Quantity::Rss, number(line, main)?.scaled(MIB)?);
    let time = time.and_then(|index| number(line, index).ok());
    sample.time_s = time.map(|time| time.value).filter(|time| time.is_finite());
    Ok(sample)
}
