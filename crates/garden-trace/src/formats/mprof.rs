//! The output of memory_profiler's `mprof run`: `mprofile_*.dat`.
//!
//! Lines are `CMDLINE command`, `MEM MiB unix_time`, `CHLD number MiB unix_time` (with `--multiprocess`) and `FUNC name
//! ..` (marks of decorated functions). Only MEM is judged: with `--include-children` it already holds the sum.

use std::io::Read;

use garden_memory::{EventKind, MIB, Quantity, Sample};

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::amount::{Comma, parse_amount};
use crate::error::{Error, shorten};
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{Reading, TOO_LONG, show_line, show_value};

/// Recognises the lines of mprof.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    is_of_mprof(head.lines).then(|| claim(Mprof))?
}

/// Whether the lines were written by mprof.
fn is_of_mprof(head: &[HeadLine]) -> bool {
    let words = |line: &HeadLine| line.text.split(' ').map(str::to_string).collect::<Vec<_>>();
    let is_mem = |line: &HeadLine| {
        let words = words(line);
        words.len() == 3 && words[0] == "MEM" && words[1..].iter().all(|word| word.parse::<f64>().is_ok())
    };
    let begins =
        head.first().is_some_and(|line| matches!(words(line)[0].as_str(), "CMDLINE" | "MEM" | "FUNC" | "CHLD"));
    begins && (head.iter().any(is_mem) || head.len() == 1 && head[0].text.starts_with("CMDLINE "))
}

struct Mprof;

impl Reader for Mprof {
    fn name(&self) -> &'static str {
        "memory_profiler"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, file.options, reading)
    }
}

/// Reads the MEM lines.
fn read<R: Read>(lines: &mut Lines<R>, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    if let Some(asked) = options.column.as_ref().filter(|asked| !asked.eq_ignore_ascii_case("MEM")) {
        return Err(Error::NoSuchColumn { asked: asked.clone(), available: vec!["MEM".to_string()] });
    }
    if options.unit.is_some() {
        reading.note("`--unit` is ignored: mprof always writes MiB");
    }
    reading.name_main("MEM");
    let mut children = 0;
    while let Some(line) = lines.next()? {
        let (kind, rest) = match line.text.iter().position(|&byte| byte == b' ') {
            Some(space) => (&line.text[..space], &line.text[space + 1..]),
            None => (line.text, &[][..]),
        };
        match kind {
            _ if line.end == LineEnd::TooLong => reading.skip_line(TOO_LONG, line.number, || show_line(line.text)),
            b"MEM" => take_sample(rest, line.number, reading),
            b"CHLD" => children += 1,
            b"CMDLINE" => take_command(rest, reading),
            b"FUNC" => {}
            _ => reading.skip_line("not an mprof line", line.number, || show_line(line.text)),
        }
    }
    if children > 0 {
        reading.note(format!("CHLD lines (child processes) ignored: {children}; MEM is judged"));
    }
    Ok(())
}

fn take_sample(rest: &[u8], line: u64, reading: &mut Reading) {
    let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (memory, time) = (words.next().unwrap_or(&[]), words.next().unwrap_or(&[]));
    let bytes = match parse_amount(memory, Comma::Thousands).and_then(|amount| amount.scaled(MIB)) {
        Ok(bytes) => bytes,
        Err(problem) => return reading.skip_line(problem.reason(), line, || show_value("MEM", memory)),
    };
    let time_s = parse_amount(time, Comma::Thousands).ok().map(|time| time.value).filter(|time| time.is_finite());
    if time_s.is_none() {
        return reading.skip_line("time is not a number", line, || show_value("MEM", rest));
    }
    let mut sample = Sample::default();
    sample.time_s = time_s;
    sample.set(Quantity::Rss, bytes);
    reading.saw_factor(MIB);
    reading.push(&sample);
}

/// mprof appends, so a second command in the file is another run.
fn take_command(rest: &[u8], reading: &mut Reading) {
    if !reading.is_empty() {
        reading.push_event(EventKind::Restart, None, None);
    }
    let command = shorten_command(rest);
    reading.trace().origin.retain(|(name, _)| name != "command");
    reading.trace().origin.push(("command".to_string(), command));
}

fn shorten_command(rest: &[u8]) -> String {
    let command = String::from_utf8_lossy(rest);
    if command.len() <= 1000 { command.trim().to_string() } else { shorten(&command) }
}
