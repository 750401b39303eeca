//! The words that make a program go on from a checkpoint: `--resume-with '--resume_from_checkpoint {checkpoint}'`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Splits a template into words as a shell would, quotes and backslashes included, and puts the checkpoint in.
pub fn resume_words(template: &str, checkpoint: &Path) -> Vec<OsString> {
    let place = checkpoint.as_os_str().as_encoded_bytes();
    split_words(template).into_iter().map(|word| OsString::from_vec(replace(word.as_bytes(), place))).collect()
}

fn replace(word: &[u8], place: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"{checkpoint}";
    let mut result = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(place);
        rest = &rest[at + MARK.len()..];
    }
    result.extend_from_slice(rest);
    result
}

fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(letter),
            (_, '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_would_and_paths_stay_whole() {
        let words = |template| resume_words(template, Path::new("/a b/checkpoint-7"));
        assert_eq!(words("--resume_from_checkpoint {checkpoint}"), ["--resume_from_checkpoint", "/a b/checkpoint-7"]);
        assert_eq!(words("--resume={checkpoint} -v"), ["--resume=/a b/checkpoint-7", "-v"]);
        assert_eq!(words(r#"'x y' "a\"b" \  '' "#), ["x y", "a\"b", " ", ""]);
        assert!(words("  ").is_empty());
    }
}
