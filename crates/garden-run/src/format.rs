//! Numbers as all parts of a report write them.

/// A share; what is not all of them is never `100.0 %`.
pub fn percent(share: f64) -> String {
    let tenths = (1000.0 * share).round();
    let tenths = if share < 1.0 { tenths.min(999.0) } else { tenths };
    format!("{:.1} %", tenths / 10.0)
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
}
