//! Tables as Grafana exports them: `Time` and a column for each series, named by its legend such as `{pod="train-0"}`, or one row for
//! each series and time (`Series;Time;Value`, as versions before 7 wrote it).
//!
//! A legend says little, so the cells decide: `1.53 GiB` is memory, `12.5%` is not. Numbers without a unit are memory where the
//! legend begins with a metric such as `container_memory_rss`. Tables whose columns name memory are read by `table.rs`.

use std::io::Read;
use std::ops::Range;

use garden_memory::{Bytes, Quantity, Sample, Subject};

use super::table::split;
use super::{Contents, Head, Reader, Recognised, prometheus, table};
use crate::ReadOptions;
use crate::amount::{Amount, Comma, Problem, parse_amount};
use crate::columns::choice::find_column;
use crate::columns::names::{Meaning, is_other_amount, is_share, understand, words};
use crate::error::Error;
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{BareColumn, Reading, TOO_LONG, TOO_MANY_SERIES, show_line, show_value};
use crate::series::identity::{Identity, Who};
use crate::time::parse_moment;
use crate::unit::rule::PROMETHEUS;

/// The first line of exports for Excel.
const SEPARATOR: &str = "sep=";

/// Recognises a table whose first column is `Time`, or whose columns are those of rows by series.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let above = head.lines.iter().take_while(|line| line.text.starts_with(SEPARATOR)).count();
    let (header, rows) = head.lines[above..].split_first()?;
    let delimiter = if header.text.contains(';') { b';' } else { b',' };
    let names = cells(header, delimiter);
    let of_series = ["Series", "Time", "Value"];
    let form = match names.first()?.as_str() {
        _ if names == of_series || names == ["Metric", "Time", "Value"] => Form::Rows,
        "Time" if names.len() > 1 => Form::Columns,
        _ => return None,
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| cells(row, delimiter)).collect();
    let export = Export { delimiter, header_line: header.number, form, names, judged: Vec::new() };
    let found = export.choose(&rows, head.options);
    // Names that say what each column is are read as a table, which knows the quantities beside memory.
    let is_named = matches!(&found, Ok(Some(export)) if !export.repeats_a_name())
        && !has_labels(head.lines[above].text.as_str())
        && table::layout_of(head.lines, head.options).is_some();
    if is_named {
        return None;
    }
    found.transpose().map(|export| export.map(|export| Box::new(export) as Box<dyn Reader>))
}

/// Whether legends have labels, as `{pod="train-0"}` has.
fn has_labels(header: &str) -> bool {
    header.contains('{') && header.contains('}')
}

fn cells(line: &HeadLine, delimiter: u8) -> Vec<String> {
    let mut fields = Vec::new();
    split(line.text.as_bytes(), delimiter, &mut fields);
    fields.into_iter().map(|field| line.text[field].trim().replace("\"\"", "\"")).collect()
}

/// How series are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A column each.
    Columns,
    /// A row for each series and time.
    Rows,
}

/// The header, and the columns of memory.
struct Export {
    delimiter: u8,
    header_line: u64,
    form: Form,
    names: Vec<String>,
    judged: Vec<usize>,
}

/// What the cells of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cells {
    /// Amounts with units.
    Amounts,
    Numbers,
    Shares,
    /// Nothing, or something else.
    Other,
}

impl Cells {
    fn of<'c>(cells: impl Iterator<Item = &'c str> + Clone) -> Cells {
        let known = || cells.clone().filter(|cell| !is_blank(cell));
        let amount = |cell: &str| parse_amount(cell.as_bytes(), Comma::Thousands).ok();
        match () {
            _ if known().next().is_none() => Cells::Other,
            _ if known().all(|cell| cell.ends_with('%')) => Cells::Shares,
            _ if known().all(|cell| amount(cell).is_some_and(|amount| amount.factor.is_none())) => Cells::Numbers,
            // `0 B` and `0` stand for nothing at all.
            _ if known().all(|cell| amount(cell).is_some_and(is_memory)) => Cells::Amounts,
            _ => Cells::Other,
        }
    }
}

fn is_memory(amount: Amount) -> bool {
    amount.factor.is_some() || amount.value == 0.0
}

fn is_blank(cell: &str) -> bool {
    matches!(cell, "" | "null" | "undefined" | "NaN" | "-")
}

impl Export {
    /// Chooses the columns of memory; none if there are none, so that another format may claim the file.
    fn choose(mut self, rows: &[Vec<String>], options: &ReadOptions) -> Result<Option<Export>, Error> {
        let (first, last) = match self.form {
            Form::Columns => (1, self.names.len()),
            Form::Rows => (2, 3),
        };
        let of_column =
            |column: usize| Cells::of(rows.iter().filter_map(move |row| row.get(column)).map(String::as_str));
        if let Some(asked) = options.column.as_ref().filter(|_| self.form == Form::Columns) {
            let missing = || Error::NoSuchColumn { asked: asked.clone(), available: self.names.clone() };
            let column = find_column(&self.names, asked).filter(|&column| column > 0).ok_or_else(missing)?;
            if of_column(column) == Cells::Shares || is_share(&self.names[column]) {
                return Err(Error::Share { column: self.names[column].clone() });
            }
            self.judged = vec![column];
            return Ok(Some(self));
        }
        let is_judged = |&column: &usize| match of_column(column) {
            Cells::Amounts => !names_other(metric_of(&self.names[column])),
            Cells::Numbers => {
                self.form == Form::Columns && prometheus::is_memory_in_use(metric_of(&self.names[column]))
            }
            Cells::Shares | Cells::Other => false,
        };
        self.judged = (first..last).filter(is_judged).collect();
        let share = (first..last).find(|&column| of_column(column) == Cells::Shares);
        match share.filter(|_| self.judged.is_empty()) {
            Some(column) => Err(Error::Share { column: self.names[column].clone() }),
            None if self.judged.is_empty() && self.names.iter().any(|name| has_labels(name)) => {
                Err(Error::NoMemoryColumn { columns: self.names })
            }
            None => Ok(Some(self).filter(|export| !export.judged.is_empty())),
        }
    }

    /// Whether two judged columns have names of one meaning, which a table would take for one series.
    fn repeats_a_name(&self) -> bool {
        let meanings = || self.judged.iter().map(|&column| understand(&self.names[column]).meaning);
        let known = |meaning: &Meaning| *meaning != Meaning::Unknown;
        meanings()
            .filter(known)
            .enumerate()
            .any(|(at, one)| meanings().filter(known).skip(at + 1).any(|other| other == one))
    }

    /// The series of a row's column.
    fn series<'r>(&'r self, column: usize, row: &'r [u8], fields: &[Range<usize>]) -> &'r str {
        match self.form {
            Form::Columns => &self.names[column],
            Form::Rows => std::str::from_utf8(&row[fields[0].clone()]).unwrap_or_default(),
        }
    }
}

/// The metric in front of labels: `container_memory_rss` of `container_memory_rss{pod="train-0"}`.
fn metric_of(legend: &str) -> &str {
    legend.split('{').next().unwrap_or_default()
}

/// Whether a legend says that its amounts are not memory in use.
fn names_other(metric: &str) -> bool {
    words(metric).iter().any(|word| is_other_amount(word) || matches!(word.as_str(), "total" | "request" | "requests"))
}

/// Whose memory the legend names.
fn subject_of(legend: &str) -> Subject {
    match () {
        _ if ["pod=", "container=", "pod_name="].iter().any(|label| legend.contains(label)) => Subject::Container,
        _ => prometheus::subject_of_metric(metric_of(legend)),
    }
}

impl Reader for Export {
    fn name(&self) -> &'static str {
        "grafana"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let mut rows = Rows { export: self, factor: file.options.unit.map(|unit| unit.factor()), fields: Vec::new() };
        rows.read(&mut file.lines, reading)
    }
}

struct Rows<'e> {
    export: &'e Export,
    /// The unit that the caller gave.
    factor: Option<u64>,
    fields: Vec<Range<usize>>,
}

impl Rows<'_> {
    fn read<R: Read>(&mut self, lines: &mut Lines<R>, reading: &mut Reading) -> Result<(), Error> {
        while let Some(line) = lines.next()? {
            reading.leave();
            match line.end {
                LineEnd::TooLong => reading.skip_line(TOO_LONG, line.number, || show_line(line.text)),
                _ if line.number <= self.export.header_line => {}
                _ => self.take(line.text, line.number, reading),
            }
        }
        Ok(())
    }

    fn take(&mut self, row: &[u8], number: u64, reading: &mut Reading) {
        split(row, self.export.delimiter, &mut self.fields);
        let cell = |column: usize| self.fields.get(column).map(|field| row[field.clone()].trim_ascii());
        let time_column = if self.export.form == Form::Rows { 1 } else { 0 };
        let time = cell(time_column).and_then(|cell| std::str::from_utf8(cell).ok()).and_then(parse_moment);
        let Some(moment) = time else {
            return reading.skip_line("the time is not understood", number, || show_line(row));
        };
        for &column in &self.export.judged {
            let Some(cell) = cell(column).filter(|cell| !std::str::from_utf8(cell).is_ok_and(is_blank)) else {
                continue;
            };
            let legend = self.export.series(column, row, &self.fields);
            if !reading.enter(legend.as_bytes(), || Identity::of(Who::Named, legend)) {
                reading.skip_line(TOO_MANY_SERIES, number, || show_line(row));
                continue;
            }
            reading.times.saw(moment.form);
            let mut sample = Sample::default();
            sample.time_s = Some(moment.seconds);
            if let Err(problem) = self.push(cell, legend, sample, reading) {
                reading.skip_value(problem.reason(), number, || show_value(legend, cell));
            }
        }
    }

    fn push(&self, cell: &[u8], legend: &str, mut sample: Sample, reading: &mut Reading) -> Result<(), Problem> {
        let amount = parse_amount(cell, Comma::Thousands)?;
        let factor = amount.factor.or(self.factor).or(prometheus::factor_of(metric_of(legend)));
        sample.set(Quantity::Rss, amount.scaled(factor.unwrap_or(1))?);
        reading.name_main(legend);
        reading.trace().subject = subject_of(legend);
        match factor {
            Some(factor) => {
                if let Some(decimals) = decimals_of(cell).filter(|_| amount.factor.is_some()) {
                    let least = factor as f64 / 10f64.powi(decimals);
                    note_rounding(least, reading);
                }
                reading.saw_factor(factor);
                reading.push(&sample);
            }
            None => {
                let column =
                    BareColumn { name: legend.to_string(), convention: PROMETHEUS, provisional: 1, in_log: None };
                reading.declare_bare(Quantity::Rss, column);
                reading.push_bare(&sample, &[(Quantity::Rss, amount.value)]);
            }
        }
        Ok(())
    }
}

/// Rounding below this is finer than most growth.
const COARSE: f64 = 4.0 * 1024.0 * 1024.0;

fn note_rounding(least: f64, reading: &mut Reading) {
    if least > COARSE {
        let least = Bytes::from_f64(least);
        reading
            .current()
            .note(format!("cells are rounded to {least}, so small changes do not show: export unformatted data"));
    }
}

/// The digits behind the point of a cell.
fn decimals_of(cell: &[u8]) -> Option<i32> {
    let point = cell.iter().position(|&byte| byte == b'.');
    let digits = |from: usize| cell[from..].iter().take_while(|byte| byte.is_ascii_digit()).count() as i32;
    Some(point.map_or(0, |point| digits(point + 1)))
}
