//! A written time in the forms that people and tools use: ISO dates, `02/22/2025 09:00 AM`, `22.02.2025 09:00`,
//! `Feb 22 09:00:00`, lines of `date`, `20250222T090000Z`, clocks, and seconds or milliseconds since 1970.
//!
//! Some forms mean something only beside the other rows: which of `03/02/2025` is the day, whether `09:00` are hours or
//! minutes, on which day a clock stands. A moment says so by its [`Form`], and `settled.rs` decides at the end.

use super::written::{
    Clock, DATE_LENGTH, DAY_S, clock_at, date_at, date_time_at, days_since_1970, digits, in_seconds, zone_at,
};

/// What has yet to be decided about a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Nothing.
    Exact,
    /// A time of day (or since the start), without a date.
    Clock,
    /// `09:00`: hours and minutes, or minutes and seconds, as which it is read at first.
    ShortClock,
    /// `03/02/2025`: read as month and day at first, if it can be.
    DayMonth(Order),
    /// `Feb 22 09:00:00`: the year is missing, and that of [`ANY_YEAR`] is used.
    Yearless,
}

/// Which of the first two numbers of a date is the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    DayFirst,
    MonthFirst,
    Unclear,
}

/// A leap year, since any day may come.
pub(crate) const ANY_YEAR: i64 = 2024;

/// A time at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) seconds: f64,
    pub(crate) form: Form,
    /// Its length in bytes.
    pub(crate) length: usize,
}

/// Reads a cell that holds a time and nothing else.
pub(crate) fn parse_moment(cell: &str) -> Option<Moment> {
    let text = cell.trim();
    let exact = |seconds: f64| Moment { seconds, form: Form::Exact, length: text.len() };
    if let Ok(number) = text.strip_suffix('s').unwrap_or(text).trim_end().parse::<f64>() {
        return number.is_finite().then(|| exact(in_seconds(number)));
    }
    let date_alone = || {
        let (year, month, day) = date_at(text.as_bytes())?;
        (text.len() == DATE_LENGTH).then(|| exact(days_since_1970(year, month, day) as f64 * DAY_S))
    };
    let dated = || numeric_date(text, Clockless::Allowed);
    moment_at(text).or_else(date_alone).or_else(dated).filter(|moment| moment.length == text.len())
}

/// Reads a time, and not a mere number, at the beginning of a text.
pub(crate) fn moment_at(text: &str) -> Option<Moment> {
    let bytes = text.as_bytes();
    if !bytes.first()?.is_ascii_digit() {
        return named_date(text);
    }
    if let Some((seconds, length)) = date_time_at(bytes) {
        let (seconds, length) = with_zone(text, seconds, length);
        return Some(Moment { seconds, form: Form::Exact, length });
    }
    numeric_date(text, Clockless::Refused)
        .or_else(|| compact_date(bytes))
        .or_else(|| days_and_clock(text))
        .or_else(|| named_date(text))
        .or_else(|| clock_alone(text))
}

fn clock_alone(text: &str) -> Option<Moment> {
    let clock = day_clock_at(text)?;
    let form = if clock.parts == 2 { Form::ShortClock } else { Form::Clock };
    Some(Moment { seconds: clock.seconds, form, length: clock.length })
}

/// A clock with the half of the day behind it, as in `9:00 PM`, which counts as one of three parts.
pub(crate) fn day_clock_at(text: &str) -> Option<Clock> {
    let clock = clock_at(text.as_bytes())?;
    let behind = text[clock.length..].trim_start_matches(' ');
    let half = behind.get(..2).filter(|_| !behind[2..].starts_with(|c: char| c.is_alphanumeric()));
    let is = |wanted: &str| half.is_some_and(|half| half.eq_ignore_ascii_case(wanted));
    if !is("am") && !is("pm") {
        return Some(clock);
    }
    let seconds = if clock.parts == 2 { clock.seconds * 60.0 } else { clock.seconds };
    let shift = match seconds < DAY_S / 2.0 {
        true if is("pm") => DAY_S / 2.0,
        false if is("am") => -DAY_S / 2.0,
        _ => 0.0,
    };
    Some(Clock { seconds: seconds + shift, length: text.len() - behind.len() + 2, parts: 3 })
}

/// The clock behind a date, in seconds, with its zone.
fn clock_behind(text: &str) -> Option<(f64, usize)> {
    let clock = day_clock_at(text)?;
    let seconds = if clock.parts == 2 { clock.seconds * 60.0 } else { clock.seconds };
    let (offset, zone) = zone_at(&text.as_bytes()[clock.length..]);
    Some(with_zone(text, seconds - offset, clock.length + zone))
}

/// Takes a zone behind a blank into account: ` UTC`, ` +0100`.
fn with_zone(text: &str, seconds: f64, length: usize) -> (f64, usize) {
    let Some(behind) = text[length..].strip_prefix(' ') else { return (seconds, length) };
    let ends = |text: &str| !text.starts_with(|c: char| c.is_alphanumeric());
    if let Some(name) = ["UTC", "GMT"].into_iter().find(|name| behind.strip_prefix(name).is_some_and(ends)) {
        return (seconds, length + 1 + name.len());
    }
    match zone_at(behind.as_bytes()) {
        (offset, count) if count >= 5 && ends(&behind[count..]) => (seconds - offset, length + 1 + count),
        _ => (seconds, length),
    }
}

/// Whether a date may stand without a time of day.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clockless {
    Allowed,
    Refused,
}

/// `02/22/2025 09:00 AM`, `22.02.2025 09:00:00`, `22-02-2025 09:00`, `22/Feb/2025:09:00:00 +0000`.
fn numeric_date(text: &str, clockless: Clockless) -> Option<Moment> {
    let (first, at) = short_number(text, 0, 2)?;
    let separator = *text.as_bytes().get(at).filter(|byte| matches!(byte, b'/' | b'.' | b'-'))?;
    let (second, at) = match month_of(text.get(at + 1..at + 4)?) {
        Some(month) => (Second::Month(month), at + 4),
        None => short_number(text, at + 1, 2).map(|(number, at)| (Second::Number(number), at))?,
    };
    if text.as_bytes().get(at) != Some(&separator) {
        return None;
    }
    let (year, at) = short_number(text, at + 1, 4).filter(|(_, end)| end - at == 5 || end - at == 3)?;
    let year = if year < 100 { 2000 + year } else { year };
    let (form, month, day) = match second {
        Second::Month(month) => (Form::Exact, month, first),
        // Nobody writes the month first with points.
        Second::Number(second) if separator == b'.' || first == second => (Form::Exact, second, first),
        Second::Number(second) if first > 12 => (Form::DayMonth(Order::DayFirst), second, first),
        Second::Number(second) if second > 12 => (Form::DayMonth(Order::MonthFirst), first, second),
        Second::Number(second) => (Form::DayMonth(Order::Unclear), first, second),
    };
    let date_s = midnight_of(year, month, day)?;
    let behind = &text[at..];
    let blank = behind.len() - behind.trim_start_matches([' ', ',', 'T', ':']).len();
    let clock = clock_behind(&behind[blank..]).filter(|_| blank > 0);
    match clock {
        Some((seconds, length)) => Some(Moment { seconds: date_s + seconds, form, length: at + blank + length }),
        None => (clockless == Clockless::Allowed).then_some(Moment { seconds: date_s, form, length: at }),
    }
}

enum Second {
    Month(i64),
    Number(i64),
}

/// A number of up to so many digits at a place, and where it ends.
fn short_number(text: &str, at: usize, most: usize) -> Option<(i64, usize)> {
    let count = text.as_bytes().get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=most).contains(&count) {
        return None;
    }
    Some((digits(&text.as_bytes()[at..at + count])?, at + count))
}

/// The seconds of a day's midnight, if there is such a day.
fn midnight_of(year: i64, month: i64, day: i64) -> Option<f64> {
    let is_date = (1970..=2100).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    is_date.then(|| days_since_1970(year, month, day) as f64 * DAY_S)
}

/// `20250222T090000Z`, `20250222-090000`, `20250222 09:00:00`.
fn compact_date(text: &[u8]) -> Option<Moment> {
    let part = |from: usize, to: usize| text.get(from..to).and_then(digits);
    let date_s = midnight_of(part(0, 4)?, part(4, 6)?, part(6, 8)?)?;
    let separator = text.get(8).filter(|byte| matches!(byte, b'T' | b'-' | b'_' | b' '))?;
    let (seconds, length) = match (part(9, 11), part(11, 13), part(13, 15)) {
        (Some(hour), Some(minute), Some(second)) => ((hour * 3600 + minute * 60 + second) as f64, 15),
        _ if *separator == b' ' || *separator == b'T' => {
            // `nvidia-smi dmon` aligns its columns.
            let blanks = text[8..].iter().take_while(|&&byte| byte == b' ').count().max(1);
            let clock = clock_at(&text[8 + blanks..]).filter(|clock| clock.parts == 3)?;
            (clock.seconds, 8 + blanks + clock.length)
        }
        _ => return None,
    };
    let (offset, zone) = zone_at(&text[length..]);
    Some(Moment { seconds: date_s + seconds - offset, form: Form::Exact, length: length + zone })
}

/// `1 day, 2:03:04` and `1 days 02:03:04`, as Python and pandas write time that has passed.
fn days_and_clock(text: &str) -> Option<Moment> {
    let (days, at) = short_number(text, 0, 4)?;
    let behind = text[at..].strip_prefix(" day")?;
    let behind = behind.strip_prefix('s').unwrap_or(behind).trim_start_matches([',', ' ']);
    let clock = clock_at(behind.as_bytes()).filter(|clock| clock.parts == 3)?;
    let length = text.len() - behind.len() + clock.length;
    Some(Moment { seconds: days as f64 * DAY_S + clock.seconds, form: Form::Exact, length })
}

fn month_of(name: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    MONTHS.iter().position(|month| month.eq_ignore_ascii_case(name)).map(|at| at as i64 + 1)
}

fn is_weekday(word: &str) -> bool {
    ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(&word)
}

/// Dates with the name of a month: `Mon Jan 15 12:00:03 UTC 2024`, `Mon 15 Jan 2024 12:00:03 PM CET`,
/// `22 Feb 2025 09:00:00`, `Feb 22 09:00:00`.
fn named_date(text: &str) -> Option<Moment> {
    // Nearly all lines fail here.
    let first = text.split(' ').next()?.trim_end_matches(',');
    let has_weekday = is_weekday(first);
    if !has_weekday && month_of(first).is_none() && !(first.len() <= 2 && first.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    let (mut month, mut day, mut year, mut clock) = (None, None, None, None);
    let mut words = words_with_ends(text).skip(usize::from(has_weekday));
    while clock.is_none() {
        let (end, word) = words.next()?;
        let bare = word.trim_end_matches(',');
        let number = || digits(bare.as_bytes());
        match () {
            _ if month.is_none() && month_of(bare).is_some() => month = month_of(bare),
            _ if day.is_none() && bare.len() <= 2 && number().is_some() => day = number(),
            _ if month.is_some() && year.is_none() && bare.len() == 4 && number().is_some() => year = number(),
            _ => {
                let from = end - word.len();
                let found = day_clock_at(&text[from..])?;
                let seconds = if found.parts == 2 { found.seconds * 60.0 } else { found.seconds };
                clock = Some((seconds, from + found.length));
            }
        }
    }
    let (seconds, clock_end) = clock?;
    let mut length = clock_end;
    // Lines of `date` have the zone and the year behind the clock, and begin with the day of the week.
    for (end, word) in words_with_ends(text).filter(|(end, _)| has_weekday && *end > clock_end) {
        let is_zone = word.len() <= 5 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_year = year.is_none() && word.len() == 4 && digits(word.as_bytes()).is_some();
        if is_year {
            year = digits(word.as_bytes());
        } else if !is_zone {
            break;
        }
        length = end;
    }
    let form = if year.is_some() { Form::Exact } else { Form::Yearless };
    let date_s = midnight_of(year.unwrap_or(ANY_YEAR), month?, day?)?;
    Some(Moment { seconds: date_s + seconds, form, length })
}

/// The words of a text, each with the place where it ends.
fn words_with_ends(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let places = text.split(' ').scan(0, |from, word| {
        let end = *from + word.len();
        *from = end + 1;
        Some((end, word))
    });
    places.filter(|(_, word)| !word.is_empty()).take(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_every_dress() {
        for (text, seconds) in [
            ("12.5", 12.5),
            ("12.5 s", 12.5),
            ("1700000000123", 1_700_000_000.123),
            ("2023-11-14T22:13:20Z", 1_700_000_000.0),
            ("2023-11-14 22:13:20,250", 1_700_000_000.25),
            ("2023/11/14 23:13:20+01:00", 1_700_000_000.0),
            ("2023-11-14 23:13:20 +0100", 1_700_000_000.0),
            ("2023-11-14 22:13:20 UTC", 1_700_000_000.0),
            ("2023-11-14T22:13", 1_699_999_980.0),
            ("2023-11-14", 1_699_920_000.0),
            ("11/14/2023 10:13:20 PM", 1_700_000_000.0),
            ("11/14/2023 10:13 pm", 1_699_999_980.0),
            ("11/14/2023, 22:13:20", 1_700_000_000.0),
            ("14/11/2023 22:13:20", 1_700_000_000.0),
            ("14.11.2023 22:13:20", 1_700_000_000.0),
            ("14.11.23 22:13:20", 1_700_000_000.0),
            ("14-Nov-2023 22:13:20", 1_700_000_000.0),
            ("14/Nov/2023:23:13:20 +0100", 1_700_000_000.0),
            ("14 Nov 2023 22:13:20", 1_700_000_000.0),
            ("Nov 14, 2023 22:13:20", 1_700_000_000.0),
            ("Tue Nov 14 22:13:20 2023", 1_700_000_000.0),
            ("Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_000.0),
            ("20231114T221320Z", 1_700_000_000.0),
            ("20231114-221320", 1_700_000_000.0),
            ("20231114 22:13:20", 1_700_000_000.0),
            ("2024-02-29 00:00:00", 1_709_164_800.0),
            ("1970-01-01 00:00:00", 0.0),
            ("00:31", 31.0),
            ("1:00:31", 3631.0),
            ("1:00:31 PM", 46_831.0),
            ("12:30 AM", 1_800.0),
            ("1 day, 0:00:01", 86_401.0),
            ("2 days 00:00:01.5", 172_801.5),
        ] {
            assert_eq!(parse_moment(text).map(|moment| moment.seconds), Some(seconds), "{text}");
        }
        for text in [
            "",
            "nan",
            "2023-13-01 00:00:00",
            "12:3",
            "noon",
            "1:2:3:4",
            "14/14/2023 10:00",
            "1.2.3",
            "Nov 14",
            "99/99/9999",
            "May be 12:00:00",
            "20231314T000000",
        ] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_left_open() {
        for (text, form) in [
            ("11/14/2023 10:13", Form::DayMonth(Order::MonthFirst)),
            ("14/11/2023 10:13", Form::DayMonth(Order::DayFirst)),
            ("03/02/2023 10:13", Form::DayMonth(Order::Unclear)),
            ("03/03/2023 10:13", Form::Exact),
            ("03.02.2023 10:13", Form::Exact),
            ("Feb 22 09:00:00", Form::Yearless),
            ("09:00", Form::ShortClock),
            ("9:00 AM", Form::Clock),
            ("09:00:00", Form::Clock),
        ] {
            assert_eq!(parse_moment(text).map(|moment| moment.form), Some(form), "{text}");
        }
    }

    #[test]
    fn a_stamp_ends_before_the_rest_of_the_line() {
        for (line, length) in [
            ("Mon Jan 15 10:00:00 UTC 2024", 28),
            ("Mon Jan 15 10:00:00 AM UTC 2024", 31),
            ("Mon 15 Jan 2024 10:00:00 CET 4000", 28),
            ("Mon Jan 15 10:00:00 2024", 24),
            ("Jan 15 10:00:00 4000 MB", 15),
            ("Jan 15 10:00:00 GPU 0", 15),
            ("01/15/2024 10:00 PM RAM 5", 19),
            ("15.01.2024 10:00:00 5", 19),
        ] {
            assert_eq!(moment_at(line).map(|moment| moment.length), Some(length), "{line}");
        }
        assert_eq!(moment_at("Monday is a day"), None);
        assert_eq!(moment_at("4711 5564416 python3"), None);
    }
}
