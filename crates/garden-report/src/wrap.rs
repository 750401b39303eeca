//! Lines that fit a terminal: display width, wrapping with a hanging indent, shortening.
//!
//! The width of a text is the sum of its characters' widths, so that it can be cut anywhere: emoji made of several characters count as
//! all of them, and no line is too wide.

use unicode_width::UnicodeWidthChar;

/// Most columns of a text report.
pub(crate) const WIDTH: usize = 100;

/// The most columns that a text can take.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Breaks a text into lines of at most `columns`: `first` stands before the first line, `rest` before the others.
pub(crate) fn wrap(text: &str, first: &str, rest: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_string();
    let mut used = width(first);
    let mut fresh = true;
    for piece in pieces(text, columns.saturating_sub(width(rest)).max(2)) {
        let needed = width(&piece) + usize::from(!fresh);
        if !fresh && used + needed > columns {
            lines.push(std::mem::replace(&mut line, rest.to_string()));
            (used, fresh) = (width(rest), true);
        }
        if !fresh {
            line.push(' ');
            used += 1;
        }
        line.push_str(&piece);
        used += width(&piece);
        fresh = false;
    }
    lines.push(line);
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

/// The parts of a text that stay on one line: words, numbers with their unit, and slices of words that are too long.
fn pieces(text: &str, room: usize) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match pieces.last_mut() {
            Some(last) if belongs_to(last, word) && width(last) + 1 + width(word) <= room => {
                last.push(' ');
                last.push_str(word);
            }
            _ if width(word) <= room => pieces.push(word.to_string()),
            _ => pieces.extend(slices(word, room)),
        }
    }
    pieces
}

/// Whether a word is the unit of the number before it, or the number of a step, and would read badly on its own.
fn belongs_to(before: &str, word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%');
    let after_number = before.ends_with(|c: char| c.is_ascii_digit());
    let unit = matches!(bare, "%" | "B" | "KiB" | "MiB" | "GiB" | "TiB" | "s" | "min" | "h" | "d");
    let numbered = matches!(before.trim_start_matches('('), "step" | "steps" | "sample" | "samples");
    (after_number && unit) || (numbered && bare.starts_with(|c: char| c.is_ascii_digit()))
}

fn slices(word: &str, room: usize) -> Vec<String> {
    let mut slices = vec![String::new()];
    let mut used = 0;
    for c in word.chars() {
        if used + char_width(c) > room {
            slices.push(String::new());
            used = 0;
        }
        used += char_width(c);
        if let Some(last) = slices.last_mut() {
            last.push(c);
        }
    }
    slices
}

/// Cuts a text to at most `columns`, with an ellipsis in place of its middle: names say most at their ends.
pub(crate) fn shorten(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    let room = columns.saturating_sub(1);
    let tail: String = take_columns(text.chars().rev(), room / 2).chars().rev().collect();
    let head = take_columns(text.chars(), room - width(&tail));
    format!("{}…{}", head.trim_end(), tail.trim_start())
}

fn take_columns(chars: impl Iterator<Item = char>, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += char_width(*c);
        used <= columns
    };
    chars.take_while(fits).collect()
}

/// Pads a text with spaces on the right, up to `columns`.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// Pads a text with spaces on the left, up to `columns`.
pub(crate) fn pad_left(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hang_and_numbers_keep_their_units() {
        let lines = wrap("it grew by 171 MiB per step (95 %: 169 to 173)", "- ", "  ", 15);
        assert_eq!(lines, ["- it grew by", "  171 MiB per", "  step (95 %:", "  169 to 173)"]);
    }

    #[test]
    fn endless_and_wide_words_are_cut() {
        assert_eq!(wrap("abcdefgh", "", "  ", 5), ["abc", "  def", "  gh"]);
        assert_eq!(wrap("漢字漢字", "", "", 5), ["漢字", "漢字"]);
        assert_eq!(wrap("", "- ", "", 5), ["-"]);
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shorten("a_very_long_name.csv", 11), "a_ver…e.csv");
        assert_eq!(shorten("漢字漢字漢字", 6), "漢…字");
        assert_eq!(shorten("short", 5), "short");
    }
}
