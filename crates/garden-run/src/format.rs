//! Numbers as all parts of a report write them.

/// Seconds as people say them.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 1.0 => format!("{:.0} ms", 1000.0 * short),
        short if short < 100.0 => format!("{short:.1} s"),
        long => clock(long),
    }
}

/// Hours, minutes and seconds.
pub fn clock(seconds: f64) -> String {
    let all = seconds.round() as u64;
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {seconds} s"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// A share; what is not all of them is never `100.0 %`.
pub fn percent(share: f64) -> String {
    let tenths = (1000.0 * share).round();
    let tenths = if share < 1.0 { tenths.min(999.0) } else { tenths };
    format!("{:.1} %", tenths / 10.0)
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A sentence begins with a capital letter.
pub(crate) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_alike_and_all_means_all() {
        let shares = [0.0, 0.31, 2399.0 / 2400.0, 0.99999, 1.0];
        assert_eq!(shares.map(percent), ["0.0 %", "31.0 %", "99.9 %", "99.9 %", "100.0 %"]);
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([7, 1234, 1_234_567].map(grouped), ["7", "1\u{202f}234", "1\u{202f}234\u{202f}567"]);
    }
}
