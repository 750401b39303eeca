//! Added tokens: texts such as `<|im_start|>` that are always one token.

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Token(i32),
    Text(&'a str),
}

/// A set of added tokens. Of several at the same position the longest wins.
#[derive(Debug, Default)]
pub(super) struct Added {
    /// Longest first.
    tokens: Vec<(String, i32)>,
    /// First bytes of all tokens.
    first: Vec<u8>,
}

impl Added {
    pub fn new(mut tokens: Vec<(String, i32)>) -> Added {
        tokens.retain(|(text, _)| !text.is_empty());
        tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let mut first: Vec<u8> = tokens.iter().map(|(text, _)| text.as_bytes()[0]).collect();
        first.sort_unstable();
        first.dedup();
        Added { tokens, first }
    }

    /// Whether a token is among them.
    pub fn has(&self, token: i32) -> bool {
        self.tokens.iter().any(|(_, id)| *id == token)
    }

    /// The parts of a text, none of them empty.
    pub fn split<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Part<'a>> {
        let (mut rest, mut pending) = (text, None);
        std::iter::from_fn(move || {
            if let Some(token) = pending.take() {
                return Some(Part::Token(token));
            }
            if rest.is_empty() {
                return None;
            }
            let Some((start, length, token)) = self.find(rest) else {
                return Some(Part::Text(std::mem::take(&mut rest)));
            };
            let before = &rest[..start];
            rest = &rest[start + length..];
            if before.is_empty() {
                return Some(Part::Token(token));
            }
            pending = Some(token);
            Some(Part::Text(before))
        })
    }

    /// Start, length and id of the next token.
    fn find(&self, text: &str) -> Option<(usize, usize, i32)> {
        let bytes = text.as_bytes();
        (0..bytes.len()).filter(|place| self.first.contains(&bytes[*place])).find_map(|place| {
            let (text, token) = self.tokens.iter().find(|(text, _)| bytes[place..].starts_with(text.as_bytes()))?;
            Some((place, text.len(), *token))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_at_a_place_counts() {
        let added = Added::new(vec![("<a>".into(), 1), ("<a>b".into(), 2), ("b".into(), 3)]);
        let parts: Vec<Part> = added.split("x<a>b<a>cb<").collect();
        let expected =
            [Part::Text("x"), Part::Token(2), Part::Token(1), Part::Text("c"), Part::Token(3), Part::Text("<")];
        assert_eq!(parts, expected);
        assert_eq!(added.split("").count(), 0);
    }
}
