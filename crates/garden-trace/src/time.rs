//! Times in files: seconds, dates with a time of day, and clocks such as `12:00:03`.
//!
//! Only differences matter to a trace, so a date without a zone is taken as UTC. Dates without a time are not understood,
//! and names of months only in lines of `date`.

const DAY_S: f64 = 86_400.0;

/// A time of day or an elapsed time, as found at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clock {
    pub(crate) seconds: f64,
    /// Its length in bytes.
    pub(crate) length: usize,
    /// 2 for `12:03`, 3 for `1:12:03`.
    pub(crate) parts: usize,
}

/// Reads a cell that holds a time: a number, a date with a time of day, or a clock.
pub(crate) fn parse_time(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(number) = text.strip_suffix('s').unwrap_or(text).trim_end().parse::<f64>() {
        return number.is_finite().then(|| in_seconds(number));
    }
    if let Some((seconds, length)) = date_time_at(text.as_bytes()) {
        return (length == text.len()).then_some(seconds);
    }
    clock_at(text.as_bytes()).filter(|clock| clock.length == text.len()).map(|clock| clock.seconds)
}

/// Converts times since 1970 in milli-, micro- or nanoseconds to seconds.
///
/// 10^11 seconds is the year 5138, and 10^11 milliseconds is 1973: no date in between is ambiguous.
fn in_seconds(number: f64) -> f64 {
    match number.abs() {
        n if n >= 1e17 => number / 1e9,
        n if n >= 1e14 => number / 1e6,
        n if n >= 1e11 => number / 1e3,
        _ => number,
    }
}

/// Reads `2025-01-01 12:00:03,123+01:00` and its variants; returns seconds since 1970 and the length.
pub(crate) fn date_time_at(text: &[u8]) -> Option<(f64, usize)> {
    let (year, month, day) = date_at(text)?;
    if !matches!(text.get(DATE_LENGTH), Some(b' ' | b'T' | b't' | b'_')) {
        return None;
    }
    let clock = clock_at(&text[DATE_LENGTH + 1..])?;
    // A two-part clock after a date is hours and minutes.
    let seconds = if clock.parts == 2 { clock.seconds * 60.0 } else { clock.seconds };
    let (offset, zone_length) = zone_at(&text[DATE_LENGTH + 1 + clock.length..]);
    let days = days_since_1970(year, month, day) as f64;
    Some((days * DAY_S + seconds - offset, DATE_LENGTH + 1 + clock.length + zone_length))
}

/// The length of `2025-01-01`.
pub(crate) const DATE_LENGTH: usize = 10;

/// Reads `2025-01-01` or `2025/01/01`.
pub(crate) fn date_at(text: &[u8]) -> Option<(i64, i64, i64)> {
    let date = text.get(..DATE_LENGTH)?;
    let separator = date[4];
    if !matches!(separator, b'-' | b'/') || date[7] != separator {
        return None;
    }
    let (year, month, day) = (digits(&date[..4])?, digits(&date[5..7])?, digits(&date[8..])?);
    ((1..=12).contains(&month) && (1..=31).contains(&day)).then_some((year, month, day))
}

/// Reads `12:03`, `1:12:03` or `12:00:03.123`.
pub(crate) fn clock_at(text: &[u8]) -> Option<Clock> {
    let (mut seconds, mut length, mut parts) = (0.0, 0, 0);
    loop {
        let count = text[length..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        // Hours may take more digits; minutes and seconds take two.
        let fits = if parts == 0 { (1..=4).contains(&count) } else { count == 2 };
        if !fits {
            return None;
        }
        seconds = seconds * 60.0 + digits(&text[length..length + count])? as f64;
        length += count;
        parts += 1;
        if parts == 3 || text.get(length) != Some(&b':') {
            break;
        }
        length += 1;
    }
    if parts < 2 {
        return None;
    }
    let (fraction, fraction_length) = fraction_at(&text[length..]);
    Some(Clock { seconds: seconds + fraction, length: length + fraction_length, parts })
}

fn fraction_at(text: &[u8]) -> (f64, usize) {
    let count = match text.first() {
        Some(b'.' | b',') => text[1..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    if count == 0 {
        return (0.0, 0);
    }
    let kept = count.min(15);
    let value = digits(&text[1..=kept]).unwrap_or(0) as f64 / 10f64.powi(kept as i32);
    (value, count + 1)
}

/// Reads `Z`, `+01:00`, `+0100` or `+01`; returns seconds east of UTC and the length.
fn zone_at(text: &[u8]) -> (f64, usize) {
    let sign = match text.first() {
        Some(b'Z' | b'z') => return (0.0, 1),
        Some(b'+') => 1.0,
        Some(b'-') => -1.0,
        _ => return (0.0, 0),
    };
    let hours = text.get(1..3).and_then(digits);
    let Some(hours) = hours else { return (0.0, 0) };
    let colon = usize::from(text.get(3) == Some(&b':'));
    match text.get(3 + colon..5 + colon).and_then(digits) {
        Some(minutes) => (sign * (hours * 3600 + minutes * 60) as f64, 5 + colon),
        None => (sign * (hours * 3600) as f64, 3),
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0i64, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
}

/// Days of the proleptic Gregorian calendar, counted in years that begin in March so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Reads what `date` writes, such as `Mon Jan 15 12:00:03 UTC 2024` or `Mon 15 Jan 2024 12:00:03 PM CET`, at the
/// beginning of a line; returns seconds since 1970 and the length.
pub(crate) fn date_prefix(line: &str) -> Option<(f64, usize)> {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // Nearly all lines fail here.
    DAYS.iter().find(|day| line.starts_with(*day))?;
    let (mut month, mut day, mut year, mut seconds, mut shift, mut end) = (None, None, None, None, 0.0, 0);
    let places = line.split(' ').scan(0, |from, word| {
        let to = *from + word.len();
        *from = to + 1;
        Some((to, word))
    });
    for (to, word) in places.filter(|(_, word)| !word.is_empty()).skip(1).take(6) {
        let bare = word.trim_end_matches(',');
        let clock = clock_at(bare.as_bytes()).filter(|clock| clock.length == bare.len());
        let number = Some(bare).filter(|bare| bare.len() <= 4).and_then(|bare| digits(bare.as_bytes()));
        let is_complete = month.is_some() && day.is_some() && year.is_some() && seconds.is_some();
        match (clock, number) {
            (Some(clock), _) if seconds.is_none() => seconds = Some(clock.seconds),
            (_, Some(number)) if bare.len() == 4 && year.is_none() => year = Some(number),
            (_, Some(number)) if bare.len() <= 2 && day.is_none() => day = Some(number),
            (None, None) if bare == "PM" && seconds.is_some_and(|seconds| seconds < DAY_S / 2.0) => shift = DAY_S / 2.0,
            (None, None) if bare == "AM" && seconds.is_some_and(|seconds| seconds >= DAY_S / 2.0) => {
                shift = -DAY_S / 2.0;
            }
            (None, None) if month.is_none() && MONTHS.contains(&bare) => {
                month = MONTHS.iter().position(|name| *name == bare).map(|at| at as i64 + 1);
            }
            // The zone, or the half of the day that goes without saying.
            (None, None) if seconds.is_some() && bare.len() <= 5 && bare.bytes().all(|b| b.is_ascii_uppercase()) => {}
            _ if is_complete => break,
            _ => return None,
        }
        end = to;
    }
    Some((days_since_1970(year?, month?, day?) as f64 * DAY_S + seconds? + shift, end))
}

/// Makes clocks run on past midnight.
#[derive(Clone, Default)]
pub(crate) struct Midnights {
    days: f64,
    last: Option<f64>,
}

impl Midnights {
    /// Seconds since the first midnight, for a time of day.
    pub(crate) fn unroll(&mut self, seconds: f64) -> f64 {
        // More than half a day back is a new day; less is a clock that was set, or lines out of order.
        if self.last.is_some_and(|last| last - seconds > DAY_S / 2.0) {
            self.days += 1.0;
        }
        self.last = Some(seconds);
        self.days * DAY_S + seconds
    }
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
            ("2023-11-14T22:13", 1_699_999_980.0),
            ("2024-02-29 00:00:00", 1_709_164_800.0),
            ("1970-01-01 00:00:00", 0.0),
            ("00:31", 31.0),
            ("1:00:31", 3631.0),
        ] {
            assert_eq!(parse_time(text), Some(seconds), "{text}");
        }
        for text in ["", "nan", "2023-13-01 00:00:00", "12:3", "noon", "1:2:3:4"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn lines_of_date() {
        for line in [
            "Mon Jan 15 10:00:00 UTC 2024",
            "Mon Jan 15 10:00:00 AM UTC 2024",
            "Mon 15 Jan 2024 10:00:00 CET",
            "Mon Jan 15 10:00:00 2024",
        ] {
            assert_eq!(date_prefix(line), Some((1_705_312_800.0, line.len())), "{line}");
        }
        assert_eq!(date_prefix("Mon Jan 15 10:00:00 PM UTC 2024 4000"), Some((1_705_356_000.0, 31)));
        assert_eq!(date_prefix("Monday is a day"), None);
    }

    #[test]
    fn a_clock_goes_on_after_midnight() {
        let mut midnights = Midnights::default();
        let unrolled = [86_390.0, 5.0, 3.0, 50_000.0].map(|clock| midnights.unroll(clock));
        assert_eq!(unrolled, [86_390.0, 86_405.0, 86_403.0, 136_400.0]);
    }
}
