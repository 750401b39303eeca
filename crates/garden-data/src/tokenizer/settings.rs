//! What stands beside `tokenizer.json`: `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`. They name special tokens, and in
//! transformers they can change tokens: whatever would is refused by its name.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use garden_input::{Family, TokenRules};
use serde_json::{Map, Value};

use super::Tokenizer;
use crate::dataset::file::{LARGEST_SETTINGS, read};
use crate::error::Error;

/// Special tokens that transformers takes for granted where no file says anything.
const UNNAMED: [&str; 3] = ["eos_token", "pad_token", "unk_token"];
/// Fields that change tokens when they are true.
const SWITCHES: [&str; 2] = ["add_prefix_space", "split_special_tokens"];
/// Fields that list special tokens; of two, transformers takes the first.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];
/// What to do about files that disagree.
const SAVE_AGAIN: &str = "load and save the tokenizer with transformers once (`AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`): then its files agree";

/// The settings beside a tokenizer.
#[derive(Debug)]
pub(crate) struct TokenizerSettings {
    folder: PathBuf,
    rules: &'static TokenRules,
    /// Each with its file.
    fields: BTreeMap<String, (PathBuf, Value)>,
}

impl TokenizerSettings {
    /// Reads the settings of a model folder.
    pub fn read(folder: &Path) -> Result<TokenizerSettings, Error> {
        let mut settings = TokenizerSettings {
            folder: folder.to_path_buf(),
            rules: &Family::of_folder(folder).tokens,
            fields: BTreeMap::new(),
        };
        settings.add("tokenizer_config.json")?;
        if settings.value("added_tokens_decoder").is_none() {
            // The older file counts where the newer one does not list all added tokens.
            settings.add("special_tokens_map.json")?;
        }
        Ok(settings)
    }

    fn add(&mut self, file: &str) -> Result<(), Error> {
        let path = self.folder.join(file);
        self.fields.extend(read_object(&path)?.into_iter().map(|(name, value)| (name, (path.clone(), value))));
        Ok(())
    }

    /// Special tokens by their names, such as `eos_token`.
    pub fn names(&self) -> BTreeMap<String, String> {
        let is_unnamed = |name: &&&str| !self.fields.contains_key(**name);
        let unnamed =
            UNNAMED.iter().filter(is_unnamed).map(|name| (name.to_string(), self.rules.end_of_text.to_string()));
        unnamed.chain(self.named().map(|(name, text, _)| (name.to_string(), text.to_string()))).collect()
    }

    /// Refuses settings with which transformers would make other tokens than `tokenizer.json` says.
    pub fn check(&self, tokenizer: &Tokenizer) -> Result<(), Error> {
        for name in SWITCHES {
            if self.value(name).and_then(Value::as_bool) == Some(true) {
                return Err(self.wrong(name, "is true, which is not supported: it changes tokens"));
            }
        }
        if let Some(length) = self.value("max_length") {
            let hint = "remove the field; `max-length` of a recipe limits rows";
            return Err(self.wrong("max_length", format!("is {length}: texts would be cut")).advised(hint));
        }
        let known = self.rules.tokenizers;
        if let Some(class) = self.value("tokenizer_class").filter(|class| !known.iter().any(|known| *class == known)) {
            return Err(self.wrong("tokenizer_class", format!("is {class}; only \"{}\" is supported", known[0])));
        }
        if let Some((name, text, path)) =
            self.named().chain(self.listed()).find(|(_, text, _)| tokenizer.added_token(text).is_none())
        {
            let problem = format!("has `{text}`, which is not among the added tokens of tokenizer.json");
            return Err(Error::field(path, name, problem).advised(SAVE_AGAIN));
        }
        match self.value("added_tokens_decoder") {
            Some(Value::Object(tokens)) => self.check_decoder(tokens, tokenizer),
            _ => self.check_older(tokenizer),
        }
    }

    /// `added_tokens_decoder` takes the place of the added tokens in `tokenizer.json`, so it has to say the same.
    fn check_decoder(&self, tokens: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<(), Error> {
        let differs = |problem: String| Err(self.wrong("added_tokens_decoder", problem).advised(SAVE_AGAIN));
        for (id, token) in tokens {
            let text = token["content"].as_str().unwrap_or_default();
            let known = tokenizer.added_token(text).filter(|known| id.parse() == Ok(*known));
            let Some(known) = known else {
                return differs(format!("has `{text}` as {id}; tokenizer.json has {}", place(tokenizer, text)));
            };
            let is = |name: &str| token[name].as_bool() == Some(true);
            let found = (is("special"), is("normalized"), is("lstrip") || is("rstrip") || is("single_word"));
            if found != (tokenizer.is_special(known), tokenizer.is_normalised(known), false) {
                return differs(format!("says otherwise than tokenizer.json how `{text}` is found in texts"));
            }
        }
        let missing = tokenizer.added_tokens().filter(|(_, id)| !tokens.contains_key(&id.to_string()));
        match missing.min_by_key(|(_, id)| *id) {
            Some((text, id)) => differs(format!("lacks `{text}` ({id}), which tokenizer.json has")),
            None => Ok(()),
        }
    }

    /// `added_tokens.json`, which may only repeat what `tokenizer.json` has.
    fn check_older(&self, tokenizer: &Tokenizer) -> Result<(), Error> {
        let path = self.folder.join("added_tokens.json");
        let other = |(text, id): &(String, Value)| tokenizer.added_token(text).map(i64::from) != id.as_i64();
        match read_object(&path)?.into_iter().find(other) {
            Some((text, id)) => {
                let problem = format!("is {id}; tokenizer.json has {}", place(tokenizer, &text));
                Err(Error::field(&path, text, problem).advised(SAVE_AGAIN))
            }
            None => Ok(()),
        }
    }

    /// Special tokens with a name of their own: name, text and file.
    fn named(&self) -> impl Iterator<Item = (&str, &str, &Path)> {
        let own = self.fields.iter().filter(|(name, _)| name.ends_with("_token"));
        let own = own.map(|(name, (path, value))| (name.as_str(), value, path.as_path()));
        let extra = self.fields.get(LISTS[0]).and_then(|(path, value)| Some((path.as_path(), value.as_object()?)));
        let extra = extra.into_iter().flat_map(|(path, tokens)| tokens.iter().map(move |one| (one, path)));
        let extra = extra.map(|((name, value), path)| (name.as_str(), value, path));
        own.chain(extra).filter_map(|(name, value, path)| Some((name, text(value)?, path)))
    }

    /// Special tokens of a list.
    fn listed(&self) -> impl Iterator<Item = (&str, &str, &Path)> {
        let is_some = |value: &Value| value.as_array().is_some_and(|tokens| !tokens.is_empty());
        let list = LISTS.iter().find(|name| self.value(name).is_some_and(is_some));
        let list = list.and_then(|name| Some((*name, self.fields.get(*name)?)));
        list.into_iter().flat_map(|(name, (path, value))| {
            let tokens = value.as_array().into_iter().flatten();
            tokens.filter_map(move |token| Some((name, text(token)?, path.as_path())))
        })
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, problem: impl Into<String>) -> Error {
        let path = self.fields.get(name).map_or(self.folder.as_path(), |(path, _)| path);
        Error::field(path, name, problem)
    }
}

/// The token of a text in `tokenizer.json`, in words.
fn place(tokenizer: &Tokenizer, text: &str) -> String {
    tokenizer.added_token(text).map_or("no such added token".to_string(), |token| format!("it as {token}"))
}

/// A special token is a string, or an object with its text.
fn text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// The JSON object in a file; nothing if there is no file.
fn read_object(path: &Path) -> Result<Map<String, Value>, Error> {
    let text = match read(path, LARGEST_SETTINGS) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Map::new()),
        text => text.map_err(|error| Error::file(path, error))?,
    };
    serde_json::from_slice(&text).map_err(|error| Error::broken(path, format!("no JSON object: {error}")))
}
