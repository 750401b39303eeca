//! The pre-tokenizer: splits a text into words, across which no merge reaches.
//!
//! The Qwen2 family uses a regular expression, whose first matching alternative counts:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)      a contraction
//! [^\r\n\p{L}\p{N}]?\p{L}+          letters, with one character before them that is not a letter, number or line break
//! \p{N}                             one digit
//!  ?[^\s\p{L}\p{N}]+[\r\n]*         punctuation, with a space before and line breaks after
//! \s*[\r\n]+                        whitespace up to its last line break
//! \s+(?!\S)                         whitespace, except the last character if something follows
//! \s+                               whitespace
//! ```
//!
//! Written out by hand it needs no look-ahead engine, and is many times faster. Any other expression is refused.

use unicode_general_category::{GeneralCategory, get_general_category};

/// The regular expression that [`split`] implements.
pub(super) const PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The words of a text; together they are the text.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = first_word(rest)?;
        let (word, after) = rest.split_at(length);
        rest = after;
        Some(word)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    LineEnd,
    Space,
    Other,
}

fn class(character: char) -> Class {
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        '\r' | '\n' => Class::LineEnd,
        _ if character.is_whitespace() => Class::Space,
        _ if character.is_ascii() => Class::Other,
        _ => match get_general_category(character) {
            GeneralCategory::UppercaseLetter
            | GeneralCategory::LowercaseLetter
            | GeneralCategory::TitlecaseLetter
            | GeneralCategory::ModifierLetter
            | GeneralCategory::OtherLetter => Class::Letter,
            GeneralCategory::DecimalNumber | GeneralCategory::LetterNumber | GeneralCategory::OtherNumber => {
                Class::Number
            }
            _ => Class::Other,
        },
    }
}

/// Length of the first word in bytes.
fn first_word(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let (kind, after) = (class(first), &text[first.len_utf8()..]);
    if first == '\''
        && let Some(length) = contraction(after)
    {
        return Some(1 + length);
    }
    let letters = run(after, |class| class == Class::Letter);
    if kind == Class::Letter || (letters > 0 && matches!(kind, Class::Space | Class::Other)) {
        return Some(first.len_utf8() + letters);
    }
    if kind == Class::Number {
        return Some(first.len_utf8());
    }
    let space = usize::from(first == ' ');
    let marks = run(&text[space..], |class| class == Class::Other);
    if marks > 0 {
        return Some(space + marks + run(&text[space + marks..], |class| class == Class::LineEnd));
    }
    Some(white_space(text))
}

/// Bytes after the apostrophe. Case-insensitively, the long s is an s.
fn contraction(text: &str) -> Option<usize> {
    let mut characters = text.chars();
    let (first, second) = (characters.next()?, characters.next().map(|second| second.to_ascii_lowercase()));
    match (first.to_ascii_lowercase(), second) {
        ('s' | 't' | 'm' | 'd', _) => Some(1),
        ('ſ', _) => Some('ſ'.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(2),
        _ => None,
    }
}

/// Bytes of the word at the start of whitespace.
fn white_space(text: &str) -> usize {
    let all = run(text, |class| matches!(class, Class::Space | Class::LineEnd));
    if let Some(last) = text[..all].rfind(['\r', '\n']) {
        return last + 1;
    }
    let last = text[..all].chars().next_back().map_or(0, char::len_utf8);
    if all < text.len() && all > last { all - last } else { all }
}

/// Bytes of leading characters of a class.
fn run(text: &str, is_wanted: impl Fn(Class) -> bool) -> usize {
    text.find(|character| !is_wanted(class(character))).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(split(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn words_are_those_of_the_expression() {
        check("Don't we'LL 'ſx", &["Don", "'t", " we", "'LL", " '", "ſx"]);
        check("a1 23.4", &["a", "1", " ", "2", "3", ".", "4"]);
        check("a  b\n\n c \n", &["a", " ", " b", "\n\n", " c", " \n"]);
        check("x !!\n\ny   ", &["x", " !!\n\n", "y", "   "]);
        check("\u{a0}a \u{3000}.", &["\u{a0}a", " ", "\u{3000}", "."]);
        check("\t\tif", &["\t", "\tif"]);
        check("", &[]);
    }
}
