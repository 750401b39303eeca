//! Reads `tokenizer.json`, and refuses features that the Qwen2 family does not use.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;

use super::Tokenizer;
use super::added_tokens::Added;
use super::bpe::Merges;
use super::pre_tokenizer;
use crate::error::Error;

/// Larger token ids mean a broken file.
const LARGEST_TOKEN: u32 = 1 << 24;

// The texts of a released vocabulary are 150,000 and more: they are not copied, so that reading the file takes little more memory than the file has.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: HashMap<Text<'a>, u32>,
    #[serde(borrow)]
    merges: Vec<Pair<'a>>,
    #[serde(flatten)]
    other: HashMap<String, Value>,
}

/// A text of the file; only one with escapes is a copy.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A merge, in the newer and in the older format.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pair<'a> {
    Both(#[serde(borrow)] Text<'a>, #[serde(borrow)] Text<'a>),
    Line(#[serde(borrow)] Text<'a>),
}

impl Pair<'_> {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Pair::Both(left, right) => Some((&left.0, &right.0)),
            Pair::Line(line) => line.0.split_once(' '),
        }
    }
}

pub(super) fn read(path: &Path, text: &[u8]) -> Result<Tokenizer, Error> {
    let file: File<'_> =
        serde_json::from_slice(text).map_err(|error| Error::broken(path, format!("no tokenizer: {error}")))?;
    let reader = Reader { path };
    reader.check(&file)?;
    let merges = reader.merges(&file.model)?;
    let tokens = file.model.vocab.len() + file.added_tokens.len();
    let mut tokenizer = Tokenizer {
        merges,
        added: Added::default(),
        added_later: Added::default(),
        pieces: Vec::with_capacity(tokens),
        is_special: Vec::with_capacity(tokens),
        by_text: HashMap::new(),
    };
    let bytes = Bytes::new();
    for (text, token) in &file.model.vocab {
        reader.place(&mut tokenizer, *token)?;
        tokenizer.pieces[*token as usize] = bytes.of(&text.0);
    }
    reader.add_tokens(&mut tokenizer, file.added_tokens, &bytes)?;
    Ok(tokenizer)
}

struct Reader<'a> {
    path: &'a Path,
}

impl Reader<'_> {
    fn check(&self, file: &File<'_>) -> Result<(), Error> {
        self.must_be("model.type", file.model.kind.as_deref().unwrap_or("BPE"), &["BPE"])?;
        // Fields that are off change nothing; anything else would change tokens.
        for (field, value) in &file.model.other {
            let is_off = matches!(value, Value::Null | Value::Bool(false)) || value.as_str() == Some("");
            if !is_off && field != "fuse_unk" && field != "unk_token" {
                return Err(self.unsupported(&format!("model.{field}"), value, "null, false or \"\""));
            }
        }
        if !file.truncation.is_null() {
            let problem = format!("is {}: texts would be cut", file.truncation);
            return Err(Error::field(self.path, "truncation", problem)
                .advised("set it to null; `max-length` of a recipe limits rows"));
        }
        // Texts are padded to the longest one of a batch in any case.
        let is_to_longest = file.padding["strategy"] == "BatchLongest" && file.padding["pad_to_multiple_of"].is_null();
        if !file.padding.is_null() && !is_to_longest {
            let problem = format!("is {}: texts would be padded", file.padding);
            return Err(Error::field(self.path, "padding", problem).advised("set it to null"));
        }
        if !file.normalizer.is_null() {
            self.must_be("normalizer.type", kind(&file.normalizer), &["NFC"])?;
        } else {
            return Err(Error::field(self.path, "normalizer", "is missing; only `NFC` is supported"));
        }
        self.check_words(&file.pre_tokenizer)?;
        if !file.post_processor.is_null() && !adds_nothing(&file.post_processor) {
            self.must_be("post_processor.type", kind(&file.post_processor), &["ByteLevel"])?;
        }
        self.must_be("decoder.type", kind(&file.decoder), &["ByteLevel"])
    }

    fn check_words(&self, value: &Value) -> Result<(), Error> {
        self.must_be("pre_tokenizer.type", kind(value), &["Sequence"])?;
        let steps = value["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let [split, bytes] = steps else {
            return Err(Error::field(
                self.path,
                "pre_tokenizer.pretokenizers",
                format!("has {} steps; only `Split` and `ByteLevel` are supported", steps.len()),
            ));
        };
        self.must_be("pre_tokenizer.pretokenizers.0.type", kind(split), &["Split"])?;
        self.must_be("pre_tokenizer.pretokenizers.1.type", kind(bytes), &["ByteLevel"])?;
        let pattern = split["pattern"]["Regex"].as_str().unwrap_or("");
        self.must_be("pre_tokenizer.pretokenizers.0.pattern.Regex", pattern, &[pre_tokenizer::PATTERN])?;
        self.must_be(
            "pre_tokenizer.pretokenizers.0.behavior",
            split["behavior"].as_str().unwrap_or(""),
            &["Isolated", "isolated"],
        )?;
        for (step, field, value) in [(0, "invert", split), (1, "add_prefix_space", bytes), (1, "use_regex", bytes)] {
            if value[field].as_bool() != Some(false) {
                let field = format!("pre_tokenizer.pretokenizers.{step}.{field}");
                return Err(Error::field(self.path, field, "is not false, the only supported value"));
            }
        }
        Ok(())
    }

    fn merges(&self, model: &Model<'_>) -> Result<Merges, Error> {
        let mut bytes = [0; 256];
        for (byte, character) in alphabet().into_iter().enumerate() {
            let text = character.to_string();
            bytes[byte] = *model.vocab.get(text.as_str()).ok_or_else(|| {
                Error::field(self.path, "model.vocab", format!("has no token for the byte {byte} (`{text}`)"))
            })?;
        }
        let mut merges = Merges::new(bytes, model.merges.len());
        let mut both = String::new();
        for (rank, pair) in (0_u32..).zip(&model.merges) {
            let wrong = |problem: String| Error::field(self.path, format!("model.merges.{rank}"), problem);
            let (left, right) = pair.parts().ok_or_else(|| wrong("is not a pair of tokens".to_string()))?;
            both.clear();
            both.push_str(left);
            both.push_str(right);
            let token = |text: &str| {
                model
                    .vocab
                    .get(text)
                    .copied()
                    .ok_or_else(|| wrong(format!("needs `{text}`, which is not in the vocabulary")))
            };
            merges.insert(token(left)?, token(right)?, rank, token(&both)?);
        }
        Ok(merges)
    }

    fn add_tokens(&self, tokenizer: &mut Tokenizer, tokens: Vec<AddedToken>, bytes: &Bytes) -> Result<(), Error> {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for (number, token) in tokens.into_iter().enumerate() {
            for (field, is_set) in
                [("single_word", token.single_word), ("lstrip", token.lstrip), ("rstrip", token.rstrip)]
            {
                if is_set {
                    let field = format!("added_tokens.{number}.{field}");
                    return Err(Error::field(self.path, field, "is true, which is not supported"));
                }
            }
            self.place(tokenizer, token.id)?;
            tokenizer.pieces[token.id as usize] = bytes.of(&token.content);
            tokenizer.is_special[token.id as usize] = token.special;
            tokenizer.by_text.insert(token.content.clone(), token.id as i32);
            if token.normalized {
                later.push((token.content.nfc().map(|(character, _)| character).collect(), token.id as i32));
            } else {
                now.push((token.content, token.id as i32));
            }
        }
        (tokenizer.added, tokenizer.added_later) = (Added::new(now), Added::new(later));
        Ok(())
    }

    /// Grows the vocabulary to include a token.
    fn place(&self, tokenizer: &mut Tokenizer, token: u32) -> Result<(), Error> {
        if token > LARGEST_TOKEN {
            return Err(Error::field(self.path, "model.vocab", format!("has token {token}, which is too large")));
        }
        let size = tokenizer.pieces.len().max(token as usize + 1);
        tokenizer.pieces.resize(size, Box::default());
        tokenizer.is_special.resize(size, false);
        Ok(())
    }

    fn must_be(&self, field: &str, value: &str, wanted: &[&str]) -> Result<(), Error> {
        if wanted.contains(&value) {
            return Ok(());
        }
        Err(Error::field(self.path, field, format!("is `{value}`; only `{}` is supported", wanted[0])))
    }

    fn unsupported(&self, field: &str, value: &Value, wanted: &str) -> Error {
        Error::field(self.path, field, format!("is {value}; only {wanted} is supported"))
    }
}

/// Whether a post-processor leaves the tokens of a text as they are: transformers writes such a one where there was none.
fn adds_nothing(value: &Value) -> bool {
    let parts = value["single"].as_array().map(Vec::as_slice);
    kind(value) == "TemplateProcessing" && matches!(parts, Some([only]) if only["Sequence"]["id"] == "A")
}

fn kind(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("")
}

/// The character that represents each byte in a vocabulary: itself if printable, else one from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut next = 0x100_u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// The byte for each character of the alphabet.
struct Bytes(HashMap<char, u8>);

impl Bytes {
    fn new() -> Bytes {
        Bytes((0..=255).zip(alphabet()).map(|(byte, character)| (character, byte)).collect())
    }

    /// The bytes of a token. A token with characters outside the alphabet is taken literally, as in the library.
    fn of(&self, text: &str) -> Box<[u8]> {
        let bytes: Option<Vec<u8>> = text.chars().map(|character| self.0.get(&character).copied()).collect();
        bytes.unwrap_or_else(|| text.as_bytes().to_vec()).into()
    }
}
