//! The model's own chat template: a conversation becomes the text that the model was trained to see.
//!
//! Templates are Jinja as Hugging Face sets it up: blocks swallow the line end behind them and the blanks before them, methods of Python's
//! strings and lists work, `raise_exception`, `strftime_now` and `tojson` exist. A template is code from outside, so it runs on
//! a budget of steps.

mod python;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::{Environment, Value, context};
use serde_json::Value as Json;

use crate::error::Error;

/// The name that the template goes by in its environment.
const NAME: &str = "chat_template";
/// Special tokens that templates may name.
const TOKENS: [&str; 5] = ["bos_token", "eos_token", "pad_token", "unk_token", "image_token"];

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What is said and shown.
    pub content: Content,
}

/// What a message says. Some templates treat the two differently.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts and images in their order.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A text.
    Text(String),
    /// The next one of the conversation's images.
    Image,
}

impl Message {
    /// A message that is a text.
    pub fn text(role: &str, text: &str) -> Message {
        Message { role: role.to_string(), content: Content::Text(text.to_string()) }
    }

    /// A message of images and a text behind them.
    pub fn with_images(role: &str, images: usize, text: &str) -> Message {
        let mut parts = vec![Part::Image; images];
        parts.push(Part::Text(text.to_string()));
        Message { role: role.to_string(), content: Content::Parts(parts) }
    }

    /// Images of the message.
    pub fn images(&self) -> usize {
        match &self.content {
            Content::Text(_) => 0,
            Content::Parts(parts) => parts.iter().filter(|part| **part == Part::Image).count(),
        }
    }

    /// The texts of the message, one behind the other.
    pub fn words(&self) -> Cow<'_, str> {
        match &self.content {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Parts(parts) => parts.iter().filter_map(Part::text).collect(),
        }
    }

    fn value(&self) -> Value {
        match &self.content {
            Content::Text(text) => context! { role => self.role.as_str(), content => text },
            Content::Parts(parts) => {
                context! { role => self.role.as_str(), content => parts.iter().map(Part::value).collect::<Vec<_>>() }
            }
        }
    }
}

impl Part {
    fn text(&self) -> Option<&str> {
        match self {
            Part::Text(text) => Some(text),
            Part::Image => None,
        }
    }

    fn value(&self) -> Value {
        match self {
            Part::Text(text) => context! { type => "text", text => text },
            Part::Image => context! { type => "image" },
        }
    }
}

/// What follows a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The beginning of the assistant's answer.
    Answer,
    /// Nothing: the answer is part of the conversation.
    Nothing,
}

/// A chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    path: PathBuf,
    /// The special tokens of `tokenizer_config.json`, by field.
    tokens: Vec<(&'static str, String)>,
}

impl Template {
    /// Finds the template of a model: `chat_template.jinja`, else `chat_template.json`, else in `tokenizer_config.json`.
    pub fn open(folder: &Path) -> Result<Template, Error> {
        let settings_path = folder.join("tokenizer_config.json");
        let settings = if settings_path.exists() { read_json(&settings_path)? } else { Json::Null };
        let tokens = TOKENS.into_iter().filter_map(|name| Some((name, token_text(&settings[name])?))).collect();
        let path = folder.join("chat_template.jinja");
        if path.exists() {
            let source = std::fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
            return Template::new(&path, &source, tokens);
        }
        let path = folder.join("chat_template.json");
        if path.exists() {
            let source = source_in(&path, &read_json(&path)?)?;
            return Template::new(&path, &source, tokens);
        }
        if settings.is_null() {
            let problem = "has no `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`";
            return Err(Error::broken(folder, problem));
        }
        let source = source_in(&settings_path, &settings)?;
        Template::new(&settings_path, &source, tokens)
    }

    fn new(path: &Path, source: &str, tokens: Vec<(&'static str, String)>) -> Result<Template, Error> {
        let unusable = |error: minijinja::Error| Error::broken(path, format!("no usable chat template: {error}"));
        let mut environment = python::environment().map_err(unusable)?;
        environment.add_template_owned(NAME, python::without_generation_tags(source)).map_err(unusable)?;
        Ok(Template { environment, path: path.to_path_buf(), tokens })
    }

    /// The special token of a field of `tokenizer_config.json`.
    pub(crate) fn token(&self, field: &str) -> Option<&str> {
        self.tokens.iter().find(|(name, _)| *name == field).map(|(_, text)| text.as_str())
    }

    /// The text of a conversation, with one placeholder for each image.
    pub fn render(&self, messages: &[Message], ending: Ending) -> Result<String, Error> {
        let messages: Vec<Value> = messages.iter().map(Message::value).collect();
        let tokens: BTreeMap<&str, String> = self.tokens.iter().cloned().collect();
        let values = context! {
            messages,
            add_generation_prompt => ending == Ending::Answer,
            ..Value::from(tokens)
        };
        let failed = |error: minijinja::Error| {
            let reason = error.detail().map_or_else(|| error.to_string(), str::to_string);
            let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
            Error::Conversation(format!("the chat template in `{}`{line} failed: {reason}", self.path.display()))
        };
        self.environment.get_template(NAME).map_err(failed)?.render(values).map_err(failed)
    }
}

fn read_json(path: &Path) -> Result<Json, Error> {
    let text = std::fs::read(path).map_err(|error| Error::file(path, error))?;
    serde_json::from_slice(&text).map_err(|error| Error::broken(path, format!("no JSON: {error}")))
}

/// The field is a text, or a list of named templates of which `default` is the one for chats.
fn source_in(path: &Path, value: &Json) -> Result<String, Error> {
    let field = &value["chat_template"];
    let named = field.as_array().and_then(|list| list.iter().find(|one| one["name"] == "default"));
    let source = field.as_str().or_else(|| named?["template"].as_str());
    source.map(str::to_string).ok_or_else(|| Error::field(path, "chat_template", "is missing"))
}

/// A special token is a text, or an object with its text.
fn token_text(value: &Json) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_string)
}
