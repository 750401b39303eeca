//! Time stamps beside amounts, as loops of tools write them: in front of a row, on a line between snapshots (`date`), or in `top`'s first line.

use crate::time::{Midnights, clock_at, date_prefix, date_time_at};

/// What may stand between a stamp and the rest of a line.
const AFTER: [char; 8] = [']', ':', '-', ',', ';', '|', ' ', '\t'];

/// A moment, and which of the stamps told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stamp {
    pub(crate) time_s: f64,
    pub(crate) number: u64,
}

/// Where the times of a file come from; the first source seen stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Date,
    Clock,
}

/// The stamps so far.
#[derive(Default)]
pub(crate) struct Stamps {
    now: Option<Stamp>,
    source: Option<Source>,
    midnights: Midnights,
    count: u64,
}

impl Stamps {
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
                self.saw(Source::Clock, clock.seconds);
            }
            return "";
        }
        if let Some((seconds, length)) = date_prefix(line) {
            self.saw(Source::Date, seconds);
            return line[length..].trim_start_matches(AFTER);
        }
        let text = line.trim_start_matches(['[', '#']).trim_start();
        let Some((source, seconds, length)) = leading(text) else { return line };
        self.saw(source, seconds);
        text[length..].trim_start_matches(AFTER)
    }

    fn saw(&mut self, source: Source, seconds: f64) {
        if *self.source.get_or_insert(source) != source {
            return;
        }
        let time_s = if source == Source::Clock { self.midnights.unroll(seconds) } else { seconds };
        self.count += 1;
        self.now = Some(Stamp { time_s, number: self.count });
    }
}

/// The stamp at the beginning of a text: its source, its seconds and its length.
fn leading(text: &str) -> Option<(Source, f64, usize)> {
    let bytes = text.as_bytes();
    if !bytes.first()?.is_ascii_digit() {
        return None;
    }
    if let Some((seconds, length)) = date_time_at(bytes).filter(|(_, length)| ends(text, *length)) {
        return Some((Source::Date, seconds, length));
    }
    if let Some(clock) = clock_at(bytes).filter(|clock| clock.parts == 3 && ends(text, clock.length)) {
        let rest = text[clock.length..].trim_start();
        let half = ["AM", "PM"].into_iter().find(|half| rest.starts_with(half));
        let length = text.len() - rest.len() + half.map_or(0, str::len);
        let hour = clock.seconds / 3600.0;
        let seconds = match half {
            Some("PM") if hour < 12.0 => clock.seconds + 43_200.0,
            Some("AM") if hour >= 12.0 => clock.seconds - 43_200.0,
            _ => clock.seconds,
        };
        return Some((Source::Clock, seconds, if half.is_some() { length } else { clock.length }));
    }
    unix(text).map(|(seconds, length)| (Source::Date, seconds, length))
}

/// Seconds since 1970: ten digits, perhaps with decimals.
fn unix(text: &str) -> Option<(f64, usize)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let whole = text[..end].split('.').next()?;
    let seconds = text[..end].parse::<f64>().ok()?;
    let plausible = whole.len() == 10 && (1e9..4e9).contains(&seconds) && ends(text, end);
    plausible.then_some((seconds, end))
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
            ("Mon Jan 15 10:00:00 UTC 2024 5564416", "5564416", Some(1_705_312_800.0)),
        ] {
            let mut stamps = Stamps::default();
            assert_eq!(stamps.strip(line), rest, "{line}");
            assert_eq!(stamps.now().map(|stamp| stamp.time_s), time, "{line}");
        }
    }
}
