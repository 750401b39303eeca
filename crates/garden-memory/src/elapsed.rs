//! Lengths of time in words, the same in every sentence, report and view.

/// Seconds in words: `45 s`, `5 min 7 s`, `12 min`, `2 h 5 min`, `3 d 4 h`. Seconds are not told from ten minutes on.
pub fn elapsed(seconds: f64) -> String {
    /// Beyond this nobody waits for it: a thousand years.
    const LONGEST: f64 = 3.2e10;
    if seconds.is_nan() {
        return "an unknown time".to_string();
    }
    if seconds >= LONGEST {
        return "more than a thousand years".to_string();
    }
    let all = seconds.max(0.0).round() as u64;
    // Rounded to the smaller unit first, so that 3,599.7 s is an hour and not 60 minutes.
    let minutes = (seconds.max(0.0) / 60.0).round() as u64;
    let hours = (seconds.max(0.0) / 3600.0).round() as u64;
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        small => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match all {
        0..60 => format!("{all} s"),
        60..600 => two(all / 60, "min", all % 60, "s"),
        600..3570 => format!("{minutes} min"),
        3570..172_800 => two(minutes / 60, "h", minutes % 60, "min"),
        _ => two(hours / 24, "d", hours % 24, "h"),
    }
}

/// The time of a step or another short piece of work: `340 µs`, `12.5 ms`, `1.25 s`; from a hundred seconds on in words.
pub fn short_time(seconds: f64) -> String {
    if seconds >= 100.0 {
        return elapsed(seconds);
    }
    let (unit, factor, digits) = time_unit(seconds);
    format!("{:.digits$} {unit}", factor * seconds)
}

/// The unit of a short time, its factor and the digits after the point.
pub fn time_unit(seconds: f64) -> (&'static str, f64, usize) {
    let (unit, factor) = match seconds {
        value if value < 0.001 => ("µs", 1e6),
        value if value < 1.0 => ("ms", 1e3),
        _ => ("s", 1.0),
    };
    // Three digits in all, as sizes have.
    let digits = match factor * seconds {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    (unit, factor, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_are_enough() {
        let given = [-3.0, 0.4, 45.0, 59.6, 60.0, 307.0, 725.0, 3599.7, 3600.0, 7500.0, 86_400.0, 273_600.0, 3.0e9];
        let told = [
            "0 s",
            "0 s",
            "45 s",
            "1 min",
            "1 min",
            "5 min 7 s",
            "12 min",
            "1 h",
            "1 h",
            "2 h 5 min",
            "24 h",
            "3 d 4 h",
            "34722 d 5 h",
        ];
        assert_eq!(given.map(elapsed), told);
        assert_eq!([f64::INFINITY, f64::NAN].map(elapsed), ["more than a thousand years", "an unknown time"]);
    }

    #[test]
    fn short_times_have_their_unit() {
        let given = [0.00034, 0.0125, 0.3, 1.25, 45.0, 725.0];
        assert_eq!(given.map(short_time), ["340 µs", "12.5 ms", "300 ms", "1.25 s", "45.0 s", "12 min"]);
    }
}
