//! Makes text from files harmless for a terminal: one line, no escape sequences, no control or direction characters.
//!
//! Markdown and HTML markup is left alone here; the renderers escape it.

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';
/// Control Sequence Introducer as a single C1 character.
const CSI: char = '\u{9b}';

/// Strips escape sequences, controls and invisible characters, and makes every run of white space one space.
pub(crate) fn clean(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    for word in strip_escapes(text).split(|c: char| c.is_whitespace() || c.is_control()) {
        let mut visible = word.chars().filter(|&c| !is_invisible(c)).peekable();
        if visible.peek().is_some() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(visible);
    }
    words
}

/// Removes terminal escape sequences: `ESC [ .. letter`, `ESC ] .. BEL`, `ESC ( B` and `ESC` with one character.
fn strip_escapes(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find([ESCAPE, CSI]) {
        kept.push_str(&rest[..start]);
        rest = after_escape(&rest[start..]);
    }
    kept.push_str(rest);
    kept
}

/// The text after the escape sequence at the beginning of `text`.
fn after_escape(text: &str) -> &str {
    let mut chars = text.chars();
    let introducer = if chars.next() == Some(CSI) { Some('[') } else { chars.next() };
    let body = chars.as_str();
    match introducer {
        Some('[') => {
            let parameters = body.trim_start_matches(|c: char| (' '..='?').contains(&c));
            parameters.strip_prefix(|c: char| ('@'..='~').contains(&c)).unwrap_or(parameters)
        }
        // Titles and hyperlinks end with BEL or `ESC \`. One that never ends swallows nothing but its introducer.
        Some(']' | 'P' | 'X' | '^' | '_') => match body.find([BELL, ESCAPE]) {
            Some(end) if body[end..].starts_with(BELL) => &body[end + 1..],
            Some(end) => body[end..].strip_prefix("\u{1b}\\").unwrap_or(&body[end..]),
            None => body,
        },
        // A change of character set has characters in between.
        Some(' '..='/') => {
            let last = body.trim_start_matches(|c: char| (' '..='/').contains(&c));
            last.strip_prefix(|c: char| ('0'..='~').contains(&c)).unwrap_or(last)
        }
        Some('0'..='~') => body,
        // A lone ESC: ordinary text follows (or another control, dropped by the caller).
        _ => &text[1..],
    }
}

/// Characters without ink that can hide or reorder text: joiners, direction marks, variation selectors, tags.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn escape_sequences_leave_nothing_behind() {
        assert_eq!(clean("\u{1b}[1;31mred\u{1b}[0m run"), "red run");
        assert_eq!(clean("\u{1b}]0;title\u{7}a \u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\"), "a link");
        assert_eq!(clean("\u{9b}2Jgone"), "gone");
        assert_eq!(clean("\u{1b}(Bplain\u{1b}"), "plain");
        assert_eq!(clean("\u{1b}]never ends"), "never ends");
    }

    #[test]
    fn one_line_without_invisible_characters() {
        assert_eq!(clean("  a\r\n\tb\u{0}c\u{2028}d  "), "a b c d");
        assert_eq!(clean("ab\u{202e}cd\u{200b}"), "abcd");
        assert_eq!(clean("\u{200b} \u{7}"), "");
    }
}
