//! The numbers of a log line, each with the text before it, its unit, and the text after it.
//!
//! Clock times and dates are taken out as the line's time stamp. Numbers glued to letters (`qwen2.5`, `350ms`, `1e-4`),
//! version numbers and rates (`160MB/s`) are not amounts.

use std::ops::Range;

use garden_memory::unit_factor;

use crate::amount::plain_decimal;
use crate::lines::find_byte;
use crate::time::{DATE_LENGTH, clock_at, date_at, date_time_at, day_clock_at};

/// A number in a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// The text between the number before and this one.
    pub(crate) label: Range<usize>,
    /// The text between this number (with its unit) and the next one.
    pub(crate) after: Range<usize>,
    pub(crate) value: f64,
    /// Bytes per unit, where a unit is written.
    pub(crate) factor: Option<u64>,
    /// The second number of `12/249` or `5.4/32 GB`.
    pub(crate) over: Option<f64>,
    pub(crate) kind: NumberKind,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NumberKind {
    Plain,
    Percent,
    /// `+1,607` or `(-246`: a difference, not a level.
    Change,
    /// `31.5s`.
    Seconds,
    /// The count of a tqdm bar, with the seconds it shows as elapsed.
    Bar(f64),
}

/// The time stamp of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stamp {
    /// Date and time.
    Date(f64),
    /// Time of day, or time since the start.
    Clock(f64),
}

/// How far into a line a time of day may stand to be its stamp.
const STAMP_WITHIN: usize = 64;

/// Finds the numbers of a line in lower case.
pub(crate) fn scan(line: &str, found: &mut Vec<Found>) -> Option<Stamp> {
    found.clear();
    let bytes = line.as_bytes();
    // Many lines have no number at all.
    let mut at = find_byte(bytes, |byte| byte.is_ascii_digit())?;
    let (mut label_from, mut stamp) = (0, None);
    while let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit).map(|skip| at + skip) {
        let rest = &bytes[digit..];
        if digit > 0 && is_glue(bytes[digit - 1]) {
            at = digit + rest.iter().take_while(|&&byte| is_glue(byte)).count();
            continue;
        }
        let whole @ (_, digits) = whole_at(rest);
        // Most numbers are not times: a time begins with up to four digits and one of these.
        if digits <= 4
            && matches!(rest.get(digits), Some(b'-' | b'/' | b':'))
            && let Some((length, time)) = time_at(line, digit)
        {
            stamp = stamp.or(time);
            (at, label_from) = (digit + length, digit + length);
            continue;
        }
        let (length, number) = number_at(rest, whole);
        if let Some(mut number) = number {
            let sign_at = sign_before(line, digit, &mut number);
            number.label = label_from..sign_at.max(label_from);
            if let Some(last) = found.last_mut() {
                last.after.end = sign_at.max(last.after.start);
            }
            number.after = digit + length..line.len();
            found.push(number);
        }
        (at, label_from) = (digit + length, digit + length);
    }
    stamp
}

fn is_glue(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'
}

/// A date or clock at a place of the line: its length, and the stamp if it is one.
fn time_at(text: &str, at: usize) -> Option<(usize, Option<Stamp>)> {
    let line = text.as_bytes();
    let rest = &line[at..];
    if let Some((seconds, length)) = date_time_at(rest) {
        return Some((length, Some(Stamp::Date(seconds))));
    }
    if date_at(rest).is_some() {
        return Some((DATE_LENGTH, None));
    }
    let clock = day_clock_at(&text[at..])?;
    // tqdm's elapsed and remaining times stand around a `<`.
    let in_bar = rest.get(clock.length) == Some(&b'<') || (at > 0 && line[at - 1] == b'<');
    let is_stamp = clock.parts == 3 && at < STAMP_WITHIN && !in_bar;
    Some((clock.length, is_stamp.then_some(Stamp::Clock(clock.seconds))))
}

/// The number at the beginning of a text: how much of the text it takes, and the number if it is an amount.
fn number_at(text: &[u8], whole: (u64, usize)) -> (usize, Option<Found>) {
    let (value, digits) = digits_at(text, whole);
    let plain = Found { label: 0..0, after: 0..0, value, factor: None, over: None, kind: NumberKind::Plain };
    // Most numbers end here: neither a unit nor a percent sign nor a slash can follow.
    if !text.get(digits).is_some_and(|&byte| is_glue(byte) || matches!(byte, b' ' | b'%' | b'/' | b'(')) {
        return (digits, Some(plain));
    }
    let glued = text[digits..].iter().take_while(|&&byte| is_glue(byte)).count();
    let (factor, unit) = match unit_at(&text[digits..]) {
        (None, _) => bracketed_unit_at(&text[digits..]),
        found => found,
    };
    let is_seconds = matches!(&text[digits..digits + glued], b"s" | b"sec");
    if factor.is_none() && glued > 0 && !is_seconds {
        return (digits + glued, None);
    }
    let end = digits + if factor.is_some() { unit } else { glued };
    let kind = if is_seconds { NumberKind::Seconds } else { NumberKind::Plain };
    let number = Found { factor, kind, ..plain };
    let next = skip_blanks(text, end);
    match text.get(next) {
        Some(b'%') => (next + 1, Some(Found { kind: NumberKind::Percent, ..number })),
        Some(b'/') => fraction_at(text, skip_blanks(text, next + 1), number, end),
        _ => (end, Some(number)),
    }
}

/// The text after a slash: the whole of a part, or the unit of a rate.
fn fraction_at(text: &[u8], at: usize, part: Found, part_end: usize) -> (usize, Option<Found>) {
    match text.get(at) {
        Some(byte) if byte.is_ascii_digit() => {}
        Some(byte) if byte.is_ascii_alphabetic() => return (part_end, None),
        _ => return (part_end, Some(part)),
    }
    let (whole, digits) = digits_at(&text[at..], whole_at(&text[at..]));
    let (factor, unit) = unit_at(&text[at + digits..]);
    let end = at + digits + unit;
    let kind = bar_at(&text[end..]).map_or(part.kind, NumberKind::Bar);
    (end, Some(Found { factor: part.factor.or(factor), over: Some(whole), kind, ..part }))
}

fn skip_blanks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|&&byte| byte == b' ').count()
}

/// The digits at the beginning of a text as a number, exact up to 15 digits, and their count.
fn whole_at(text: &[u8]) -> (u64, usize) {
    let (mut number, mut count) = (0u64, 0);
    while let Some(digit @ b'0'..=b'9') = text.get(count) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        count += 1;
    }
    (number, count)
}

/// Digits with thousands separators and decimals, given the digits before the first separator.
fn digits_at(text: &[u8], (number, whole): (u64, usize)) -> (f64, usize) {
    let count = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = whole;
    while whole <= 3 && matches!(text.get(length), Some(b',' | b'_')) && count(length + 1) == 3 {
        length += 4;
    }
    let separated = length > whole;
    if text.get(length) == Some(&b'.') && count(length + 1) > 0 {
        length += 1 + count(length + 1);
    }
    if length == whole && whole <= 15 {
        return (number as f64, length);
    }
    if let Some(value) = plain_decimal(&text[..length]) {
        return (value, length);
    }
    let digits = std::str::from_utf8(&text[..length]).unwrap_or_default();
    let value = if separated { digits.replace([',', '_'], "").parse() } else { digits.parse() };
    (value.unwrap_or(f64::NAN), length)
}

/// A unit in brackets after a number, as in `126572 (kb)`.
fn bracketed_unit_at(text: &[u8]) -> (Option<u64>, usize) {
    let blanks = skip_blanks(text, 0);
    let Some(inside) = text.get(blanks..).and_then(|text| text.strip_prefix(b"(")) else { return (None, 0) };
    let letters = inside.iter().take(6).take_while(|byte| byte.is_ascii_alphabetic()).count();
    if letters < 2 || inside.get(letters) != Some(&b')') {
        return (None, 0);
    }
    let factor = std::str::from_utf8(&inside[..letters]).ok().and_then(unit_factor);
    (factor, if factor.is_some() { blanks + letters + 2 } else { 0 })
}

/// The unit after a number; a single letter apart from it must end its clause, as in `(14.5 g)`.
fn unit_at(text: &[u8]) -> (Option<u64>, usize) {
    let blanks = text.iter().take(2).take_while(|&&byte| byte == b' ').count();
    let letters = text[blanks..].iter().take(6).take_while(|byte| byte.is_ascii_alphabetic()).count();
    let end = blanks + letters;
    let ends_there = !text.get(end).is_some_and(|&byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let ends_clause = || text.get(end).is_none_or(|byte| matches!(byte, b')' | b']' | b',' | b';' | b'|' | b'}'));
    let is_lone_letter =
        || blanks == 1 && letters == 1 && matches!(text[blanks], b'k' | b'm' | b'g' | b't') && ends_clause();
    let is_unit = ends_there && (letters > usize::from(blanks > 0) || is_lone_letter());
    if !is_unit {
        return (None, 0);
    }
    match std::str::from_utf8(&text[blanks..end]).ok().and_then(unit_factor) {
        Some(factor) => (Some(factor), end),
        None => (None, 0),
    }
}

/// The seconds elapsed in a tqdm bar such as ` [00:31<10:12, 2.58s/it]`.
fn bar_at(text: &[u8]) -> Option<f64> {
    let bracket = skip_blanks(text, 0);
    let clock = clock_at(text.get(bracket..)?.strip_prefix(b"[")?)?;
    (text.get(bracket + 1 + clock.length) == Some(&b'<')).then_some(clock.seconds)
}

/// Takes the sign before a number into account; returns where the number begins, sign included.
fn sign_before(line: &str, at: usize, number: &mut Found) -> usize {
    let before = &line[..at];
    // Most numbers have no sign.
    match before.bytes().rfind(|&byte| byte != b' ') {
        Some(b'+' | b'-' | 0x80..) => {}
        _ => return at,
    }
    if let Some(text) = before.trim_end_matches(' ').strip_suffix(['+', '±', 'δ', 'Δ']) {
        number.kind = NumberKind::Change;
        return text.len();
    }
    let Some(text) = before.strip_suffix(['-', '−']) else { return at };
    let opens = text.trim_end_matches(' ').ends_with(['(', '[']);
    let stands_alone = text.is_empty() || text.ends_with([' ', ':', '=', '(', '[', ',', '\t']);
    match () {
        _ if opens => number.kind = NumberKind::Change,
        _ if stands_alone => number.value = -number.value,
        _ => return at,
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(line: &str) -> String {
        let mut found = Vec::new();
        let stamp = scan(line, &mut found);
        let mut parts: Vec<String> = stamp.iter().map(|stamp| format!("{stamp:?}")).collect();
        parts.extend(found.iter().map(|f| {
            let unit = f.factor.map_or(String::new(), |factor| format!("*{factor}"));
            let over = f.over.map_or(String::new(), |over| format!("/{over}"));
            let kind = if f.kind == NumberKind::Plain { String::new() } else { format!(" {:?}", f.kind) };
            format!("{}{unit}{over}{kind} <{}>", f.value, line[f.label.clone()].trim())
        }));
        parts.join("; ")
    }

    #[test]
    fn numbers_with_their_labels() {
        for (line, expected) in [
            ("step 20: 7,159 mb  (+1,607 mb)", "20 <step>; 7159*1048576 <:>; 1607*1048576 Change <(>"),
            ("[step 10/249] mem 5.4 gib", "10/249 <[step>; 5.4*1073741824 <] mem>"),
            ("[12:00:03] ram=5g", "Clock(43203.0); 5*1073741824 <] ram=>"),
            (
                "5%|x| 12/249 [00:31<10:12, 2.58s/it, ram=1k]",
                "5 Percent <>; 12/249 Bar(31.0) <|x|>; 1*1024 </it, ram=>",
            ),
            ("qwen2.5-vl 3b lr 1e-4 v1.2.3 160mb/s", "3*1 <qwen2.5-vl>; 4 <->"),
            ("ram 5.4/32 gb 45%", "5.4*1073741824/32 <ram>; 45 Percent <>"),
            ("elapsed 31.5s rss -5", "31.5 Seconds <elapsed>; -5 <rss>"),
        ] {
            assert_eq!(show(line), expected, "{line}");
        }
    }
}
