//! Time stamps beside amounts, as loops of tools write them: in front of a row, on a line between snapshots (`date`), or in `top`'s first line.

use super::moment::{Form, Moment, moment_at};
use super::written::{DAY_S, Midnights, clock_at, in_seconds};

/// What may stand between a stamp and the rest of a line.
const AFTER: [char; 8] = [']', ':', '-', ',', ';', '|', ' ', '\t'];

/// A moment, and which of the stamps told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stamp {
    pub(crate) time_s: f64,
    /// What `settled.rs` has yet to decide about it.
    pub(crate) form: Form,
    pub(crate) number: u64,
}

/// Where the times of a file come from; the first source seen stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Date,
    Clock,
}

/// Whether a clock of two parts, such as `09:00`, is a stamp; among other columns it may be a process's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShortClocks {
    #[default]
    AreNot,
    AreStamps,
}

/// The stamps so far.
#[derive(Default)]
pub(crate) struct Stamps {
    now: Option<Stamp>,
    source: Option<Source>,
    midnights: Midnights,
    count: u64,
    short_clocks: ShortClocks,
    // Whether the latest stamp was a mere number.
    is_number: bool,
}

impl Stamps {
    pub(crate) fn new(short_clocks: ShortClocks) -> Stamps {
        Stamps { short_clocks, ..Stamps::default() }
    }

    /// The latest stamp.
    pub(crate) fn now(&self) -> Option<Stamp> {
        self.now
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Takes the stamp off the front of a line; returns the rest.
    pub(crate) fn strip<'l>(&mut self, line: &'l str) -> &'l str {
        if let Some(rest) = line.strip_prefix("top - ") {
            if let Some(clock) = clock_at(rest.as_bytes()).filter(|clock| clock.parts == 3) {
                self.saw(Moment { seconds: clock.seconds, form: Form::Clock, length: 0 });
            }
            return "";
        }
        if let Some(moment) = heading(line) {
            self.saw(moment);
            return "";
        }
        let text = line.trim_start_matches(['[', '#', '=', '*']).trim_start();
        let text = text.strip_prefix("---").map_or(text, |text| text.trim_start_matches(['-', ' ']));
        let is_wanted =
            |moment: &Moment| moment.form != Form::ShortClock || self.short_clocks == ShortClocks::AreStamps;
        let written = moment_at(text).filter(is_wanted);
        let is_number = written.is_none();
        let found = written.or_else(|| unix(text));
        let Some(moment) = found.filter(|moment| ends(text, moment.length)) else { return line };
        self.saw(moment);
        self.is_number = is_number;
        let rest = text[moment.length..].trim_start_matches(AFTER);
        // What frames a line: `== 2025-03-01 22:00:00 ==`.
        if rest.trim_matches(['=', '*', '#', '-', ' ']).is_empty() { "" } else { rest }
    }

    /// Whether a line that is a mere number goes on with the seconds since 1970 that the stamps before it were.
    pub(crate) fn is_next_number(&self, line: &str) -> bool {
        let last = self.now.filter(|_| self.is_number).map(|stamp| stamp.time_s);
        let next = unix(line).filter(|moment| moment.length == line.len());
        last.zip(next).is_some_and(|(last, next)| (last..last + DAY_S).contains(&next.seconds))
    }

    fn saw(&mut self, moment: Moment) {
        let source = if matches!(moment.form, Form::Clock | Form::ShortClock) { Source::Clock } else { Source::Date };
        if *self.source.get_or_insert(source) != source {
            return;
        }
        // All series of a file share the clock, so it runs on here.
        let (time_s, form) = match moment.form {
            Form::Clock => (self.midnights.unroll(moment.seconds), Form::Exact),
            form => (moment.seconds, form),
        };
        self.count += 1;
        self.now = Some(Stamp { time_s, form, number: self.count });
    }
}

/// The time in a line that stands above a snapshot: `Timestamp : Sat Mar  1 22:00:00 2025` of `nvidia-smi -q`, and
/// `host  Sat Mar  1 22:00:00 2025  550.54.15` of `gpustat`.
fn heading(line: &str) -> Option<Moment> {
    if let Some(rest) = line.strip_prefix("Timestamp ") {
        return moment_at(rest.trim_start().strip_prefix(':')?.trim_start());
    }
    // Nearly all lines fail here.
    let (_, rest) = line.split_once("  ").filter(|(host, _)| !host.contains(' '))?;
    let moment = moment_at(rest.trim_start()).filter(|moment| moment.form == Form::Exact)?;
    let version = rest.trim_start()[moment.length..].trim();
    version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then_some(moment).filter(|_| !version.is_empty())
}

/// Seconds since 1970, perhaps with decimals, or milli-, micro- or nanoseconds.
fn unix(text: &str) -> Option<Moment> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let whole = text[..end].split('.').next()?;
    let seconds = in_seconds(text[..end].parse::<f64>().ok()?);
    let plausible = matches!(whole.len(), 10 | 13 | 16 | 19) && (1e9..4e9).contains(&seconds);
    plausible.then_some(Moment { seconds, form: Form::Exact, length: end })
}

/// Whether a stamp ends at this length, and not in the middle of a word.
fn ends(text: &str, length: usize) -> bool {
    !text[length..].starts_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '/' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_in_every_place() {
        for (line, rest, time) in [
            ("2024-01-15 10:00:00 Mem: 1", "Mem: 1", Some(1_705_312_800.0)),
            ("[10:00:01] - x", "x", Some(36_001.0)),
            ("10:00:01 PM  1000 4711", "1000 4711", Some(79_201.0)),
            ("12:00:01 AM  1000", "1000", Some(1.0)),
            ("Mon Jan 15 10:00:00 UTC 2024", "", Some(1_705_312_800.0)),
            ("1705312800 5 6", "5 6", Some(1_705_312_800.0)),
            ("top - 10:00:01 up 3 days", "", Some(36_001.0)),
            ("4711 5564416 python3", "4711 5564416 python3", None),
            ("00:05:16 x", "x", Some(316.0)),
            ("== 2024-01-15 10:00:00 ==", "", Some(1_705_312_800.0)),
            ("--- 10:00:01 ---", "", Some(36_001.0)),
            ("-/+ buffers/cache: 1 2", "-/+ buffers/cache: 1 2", None),
            ("Mon Jan 15 10:00:00 UTC 2024 5564416", "5564416", Some(1_705_312_800.0)),
        ] {
            let mut stamps = Stamps::default();
            assert_eq!(stamps.strip(line), rest, "{line}");
            assert_eq!(stamps.now().map(|stamp| stamp.time_s), time, "{line}");
        }
    }
}
