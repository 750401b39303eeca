//! Text that fits and is harmless: no escape sequences or controls, and as many columns as the terminal will use.

use std::iter::Peekable;

use ratatui::buffer::CellWidth;
use ratatui::text::Span;

const ESCAPE: char = '\u{1b}';
/// Control Sequence Introducer as a single C1 character.
const CSI: char = '\u{9b}';
/// Columns between tabulator stops.
const TAB: usize = 8;
/// No more of a text is looked at: no terminal shows it, and a program may print a megabyte without a line break.
const MOST_CHARACTERS: usize = 4096;

/// How many columns a text takes.
pub(super) fn width(text: &str) -> usize {
    text.cell_width().into()
}

/// Strips escape sequences, controls and characters that reorder text; tabulators become spaces.
pub(super) fn clean(text: &str) -> String {
    let mut kept = String::with_capacity(text.len().min(MOST_CHARACTERS));
    let mut column = 0;
    let mut chars = text.chars().take(MOST_CHARACTERS).peekable();
    while let Some(c) = chars.next() {
        match c {
            ESCAPE => match chars.next_if(|next| !next.is_control()) {
                Some('[') => skip_parameters(&mut chars),
                // A title or a hyperlink: up to BEL, or up to the ESC of `ESC \`.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    while chars.next_if(|&next| next != '\u{7}' && next != ESCAPE).is_some() {}
                }
                // A change of character set has one character more.
                Some(' '..='/') => drop(chars.next_if(|next| !next.is_control())),
                _ => {}
            },
            CSI => skip_parameters(&mut chars),
            '\t' => {
                let spaces = TAB - column % TAB;
                kept.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            _ if c.is_control() || is_invisible(c) => {}
            _ => {
                kept.push(c);
                column += if c.is_ascii() { 1 } else { width(c.encode_utf8(&mut [0; 4])) };
            }
        }
    }
    kept
}

/// Skips the parameters of a control sequence and its last character.
fn skip_parameters(chars: &mut Peekable<impl Iterator<Item = char>>) {
    while chars.next_if(|next| (' '..='?').contains(next)).is_some() {}
    chars.next_if(|next| ('@'..='~').contains(next));
}

/// Line and paragraph separators, direction marks and other characters without ink that hide or reorder text.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Cuts a text to at most `columns`, with an ellipsis where something is missing.
pub(super) fn cut(text: &str, columns: usize) -> String {
    // No text is wider than twice its bytes, so a short one need not be measured.
    if text.len() * 2 <= columns || width(text) <= columns {
        return text.to_string();
    }
    let mut kept = head(text, columns.saturating_sub(1));
    kept.truncate(kept.trim_end().len());
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// The beginning of a text, at most `columns` wide.
fn head(text: &str, columns: usize) -> String {
    let mut used = 0;
    let span = Span::raw(text);
    let fits = |symbol: &&str| {
        used += width(symbol);
        used <= columns
    };
    span.styled_graphemes(ratatui::style::Style::new()).map(|grapheme| grapheme.symbol).take_while(fits).collect()
}

/// Breaks a text between words into at most `most` lines; the first one begins `indent` columns further right.
pub(super) fn wrap(text: &str, indent: usize, columns: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    let mut words = text.split(' ').filter(|word| !word.is_empty()).peekable();
    while let Some(&word) = words.peek() {
        let indent = if lines.len() == 1 { indent } else { 0 };
        let is_last = lines.len() >= most;
        let Some(line) = lines.last_mut() else { break };
        let used = indent + width(line) + usize::from(!line.is_empty());
        if used + width(word) <= columns || (line.is_empty() && (is_last || indent == 0)) {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
            words.next();
        } else if is_last {
            // The cut below makes an ellipsis of the first word that is too much.
            line.push(' ');
            line.push_str(word);
            break;
        } else {
            lines.push(String::new());
        }
    }
    let room = |index: usize| if index == 0 { columns.saturating_sub(indent) } else { columns };
    lines.iter().enumerate().map(|(index, line)| cut(line, room(index))).collect()
}

/// A length of time as a clock shows it: `0:04:32`.
pub(super) fn clock(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(clean("\u{1b}[1;31mred\u{1b}[0m run\r\n"), "red run");
        assert_eq!(clean("\u{1b}]0;title\u{7}a \u{1b}]8;;http://x\u{1b}\\link"), "a link");
        assert_eq!(clean("\u{9b}2Jgone\u{1b}(B\u{202e}x\u{1b}"), "gonex");
        assert_eq!(clean("漢\tb"), "漢      b");
        assert!(clean(&"\t".repeat(1 << 20)).len() < 100_000);
    }

    #[test]
    fn texts_are_cut_by_columns() {
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字漢字", 6), "漢字…");
        assert_eq!(cut("漢字漢字", 8), "漢字漢字");
        assert_eq!([cut("abc", 3), cut("abc", 2), cut("abc", 1), cut("abc", 0)], ["abc", "a…", "…", ""]);
    }

    #[test]
    fn sentences_are_wrapped_and_the_last_line_is_cut() {
        assert_eq!(wrap("one two three four", 4, 9, 2), ["one", "two thre…"]);
        assert_eq!(wrap("one two three four", 0, 9, 3), ["one two", "three", "four"]);
        assert_eq!(wrap("unbreakable", 4, 9, 2), ["", "unbreaka…"]);
        assert_eq!(wrap("", 4, 9, 2), [""]);
        assert_eq!(wrap("word", 40, 1, 1), [""]);
    }

    #[test]
    fn a_clock_shows_hours() {
        assert_eq!(clock(272), "0:04:32");
    }
}
