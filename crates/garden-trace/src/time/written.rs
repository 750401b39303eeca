//! Parts of written times: dates such as `2025-01-31`, clocks such as `12:00:03`, zones. `moment.rs` puts them together.
//!
//! Only differences matter to a trace, so a date without a zone is taken as UTC.

pub(crate) const DAY_S: f64 = 86_400.0;

/// A time of day or an elapsed time, as found at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clock {
    pub(crate) seconds: f64,
    /// Its length in bytes.
    pub(crate) length: usize,
    /// 2 for `12:03`, 3 for `1:12:03`.
    pub(crate) parts: usize,
}

/// Converts times since 1970 in milli-, micro- or nanoseconds to seconds.
///
/// 10^11 seconds is the year 5138, and 10^11 milliseconds is 1973: no date in between is ambiguous.
pub(crate) fn in_seconds(number: f64) -> f64 {
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
pub(crate) fn zone_at(text: &[u8]) -> (f64, usize) {
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

pub(crate) fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0i64, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
}

/// Days of the proleptic Gregorian calendar, counted in years that begin in March so that the leap day comes last.
pub(crate) fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day: the inverse of [`days_since_1970`].
pub(crate) fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
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
    fn days_and_dates_are_inverse() {
        for days in (-1_000..50_000).step_by(7) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_since_1970(year, month, day), days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }

    #[test]
    fn a_clock_goes_on_after_midnight() {
        let mut midnights = Midnights::default();
        let unrolled = [86_390.0, 5.0, 3.0, 50_000.0].map(|clock| midnights.unroll(clock));
        assert_eq!(unrolled, [86_390.0, 86_405.0, 86_403.0, 136_400.0]);
    }
}
