//! Text to tokens and back, as in Hugging Face's tokenizers for the Qwen2 family.
//!
//! Added tokens are split off, the text between them is normalised to NFC and split into words ([`pre_tokenizer`]), and the
//! bytes of each word are merged by rank ([`bpe`]). A `tokenizer.json` that uses anything else is refused with the name of
//! the field, since tokens other than in the model's training would go unnoticed.

mod added_tokens;
mod bpe;
mod file;
mod offsets;
mod pre_tokenizer;
pub(crate) mod settings;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::error::Error;
use added_tokens::Added;
use bpe::{Merges, Scratch};
use offsets::Aligned;

/// Whether decoded text includes special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Include special tokens.
    Keep,
    /// Omit special tokens.
    Skip,
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    merges: Merges,
    /// Matched in the original text.
    added: Added,
    /// Matched in the normalised text.
    added_later: Added,
    /// The bytes of each token; empty for unused ids.
    pieces: Vec<Box<[u8]>>,
    is_special: Vec<bool>,
    /// Added tokens by their text.
    by_text: HashMap<String, i32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Tokenizer, Error> {
        let text = crate::dataset::file::read(path, crate::dataset::file::LARGEST_SETTINGS);
        let text = text.map_err(|error| missing(path, error))?;
        if garden_files::is_lfs_pointer(&text) {
            return Err(Error::broken(path, "is a Git LFS pointer, not the file").advised(LFS));
        }
        file::read(path, &text)
    }

    /// Appends the tokens of a text.
    pub fn encode_into(&self, text: &str, tokens: &mut Vec<i32>) {
        let mut scratch = Scratch::default();
        for part in self.added.split(text) {
            match part {
                added_tokens::Part::Token(token) => tokens.push(token),
                added_tokens::Part::Text(text) => match normalized(text) {
                    None => self.encode_normalized(text, &mut scratch, tokens),
                    Some(text) => self.encode_normalized(&text, &mut scratch, tokens),
                },
            }
        }
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens);
        tokens
    }

    /// The tokens of a text, and the byte range of each in the text.
    ///
    /// If the text is not in NFC, a token that ends within a character gets all bytes of that character.
    pub fn encode_spans(&self, text: &str) -> (Vec<i32>, Vec<Range<usize>>) {
        let (mut scratch, mut start) = (Scratch::default(), 0);
        let (mut tokens, mut spans) = (Vec::new(), Vec::new());
        for part in self.added.split(text) {
            let (length, aligned) = match part {
                added_tokens::Part::Token(token) => {
                    tokens.push(token);
                    (self.pieces[token as usize].len(), None)
                }
                added_tokens::Part::Text(part) => {
                    let aligned = Aligned::of(part);
                    let normal = aligned.as_ref().map_or(part, |aligned| &aligned.text);
                    self.encode_normalized(normal, &mut scratch, &mut tokens);
                    (part.len(), aligned)
                }
            };
            let mut end = 0;
            for token in &tokens[spans.len()..] {
                let place = end..end + self.pieces[*token as usize].len();
                end = place.end;
                let written = aligned.as_ref().map_or(place.clone(), |aligned| aligned.written(place));
                spans.push(start + written.start..start + written.end);
            }
            start += length;
        }
        (tokens, spans)
    }

    fn encode_normalized(&self, text: &str, scratch: &mut Scratch, tokens: &mut Vec<i32>) {
        for part in self.added_later.split(text) {
            match part {
                added_tokens::Part::Token(token) => tokens.push(token),
                added_tokens::Part::Text(text) => {
                    for word in pre_tokenizer::split(text) {
                        self.merges.encode(word.as_bytes(), scratch, tokens);
                    }
                }
            }
        }
    }

    /// The text of tokens. Invalid UTF-8 becomes U+FFFD, as in Python; unknown tokens are skipped.
    pub fn decode(&self, tokens: &[i32], special: SpecialTokens) -> String {
        String::from_utf8_lossy(&self.decode_bytes(tokens, special)).into_owned()
    }

    /// The bytes of tokens, for streaming: a token may end within a character.
    pub fn decode_bytes(&self, tokens: &[i32], special: SpecialTokens) -> Vec<u8> {
        let mut bytes = Vec::new();
        for token in tokens.iter().filter_map(|token| usize::try_from(*token).ok()) {
            let is_skipped = special == SpecialTokens::Skip && self.is_special.get(token) == Some(&true);
            if let Some(piece) = self.pieces.get(token).filter(|_| !is_skipped) {
                bytes.extend_from_slice(piece);
            }
        }
        bytes
    }

    /// The added token with this text, such as `<|im_end|>`.
    pub fn added_token(&self, text: &str) -> Option<i32> {
        self.by_text.get(text).copied()
    }

    /// The added tokens with their texts.
    pub(crate) fn added_tokens(&self) -> impl Iterator<Item = (&str, i32)> {
        self.by_text.iter().map(|(text, token)| (text.as_str(), *token))
    }

    /// Whether an added token is looked for in the normalised text.
    pub(crate) fn is_normalised(&self, token: i32) -> bool {
        self.added_later.has(token)
    }

    /// Whether a token is special, that is, never part of user text.
    pub fn is_special(&self, token: i32) -> bool {
        usize::try_from(token).is_ok_and(|token| self.is_special.get(token) == Some(&true))
    }

    /// One more than the largest token.
    pub fn size(&self) -> usize {
        self.pieces.len()
    }
}

/// What to do about files that Git LFS has not fetched.
const LFS: &str = "run `git lfs install` and `git lfs pull` in the folder, or download the model with `hf download`";
/// What to do about a tokenizer in files of an older format.
const CONVERT: &str = "transformers writes it from the two: `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`";
/// What to do about a folder without a tokenizer.
const COPY: &str = "copy tokenizer.json and tokenizer_config.json of the original model into the folder";

/// A tokenizer that cannot be read, with what to do about it.
fn missing(path: &Path, error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::NotFound {
        return Error::file(path, error);
    }
    let has_older = ["vocab.json", "merges.txt"].iter().all(|name| path.with_file_name(name).exists());
    match has_older {
        true => Error::broken(path, "is missing; there are only vocab.json and merges.txt").advised(CONVERT),
        false => Error::broken(path, "is missing").advised(COPY),
    }
}

/// The text in NFC, or `None` if it already is.
fn normalized(text: &str) -> Option<String> {
    (!is_normal(text)).then(|| text.nfc().map(|(character, _)| character).collect())
}

/// Whether a text is certainly in NFC.
fn is_normal(text: &str) -> bool {
    text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes
}
