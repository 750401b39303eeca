//! The model's chat template: renders a conversation to the text format that the model was trained on.
//!
//! Templates are Jinja as configured by Hugging Face: `trim_blocks` and `lstrip_blocks` are on, methods of Python's
//! strings and lists work, `raise_exception`, `strftime_now` and `tojson` exist. A template is untrusted code, so it runs on
//! a budget (`budget.rs`).

mod bounded;
mod budget;
mod python;
pub(crate) mod unused;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::dataset::file::{self, LARGEST_SETTINGS};
use crate::dataset::free::{Json, ordered};
use crate::error::Error;
use crate::tokenizer::settings::TokenizerSettings;
use bounded::Compiled;
use budget::{LONGEST_TEXT, STEPS};

/// Files with a template, in the order in which transformers looks for one.
const PROCESSOR: &str = "processor_config.json";
const OLDER: &str = "chat_template.json";
const NEWER: &str = "chat_template.jinja";
/// The message field with the assistant's tool calls.
pub(crate) const TOOL_CALLS: &str = "tool_calls";
/// Names of the field with an assistant's reasoning. transformers copies it to the first two, which templates read.
pub(crate) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// Its role: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// Text and images.
    pub content: Content,
    /// Other fields of the message that a template may read, in order: `tool_calls`, `reasoning_content`, `name`.
    pub fields: Vec<(String, Json)>,
    /// Whether it counts in the loss, if it is an answer.
    pub weight: Weight,
}

/// The content of a message. Some templates treat the variants differently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts and images, in order.
    Parts(Vec<Part>),
    /// No content: an assistant that only calls tools.
    #[default]
    Absent,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A text.
    Text(String),
    /// The conversation's next image.
    Image,
}

/// Whether a message counts in the loss, if it is an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// As set by the labels.
    #[default]
    Usual,
    /// Part of a `prompt` beside a `completion`: only if all tokens count.
    Prompt,
    /// Excluded by the row.
    Zero,
}

/// The template's input: messages, and the tools that the assistant may call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// Tool definitions.
    pub tools: &'a [Json],
    /// The row's field for each message; by default `messages`.
    pub fields: &'a [String],
}

impl<'a> Chat<'a> {
    /// A conversation without tools.
    pub fn of(messages: &'a [Message]) -> Chat<'a> {
        Chat { messages, ..Chat::default() }
    }

    /// The row's field for a message.
    pub(crate) fn field(&self, number: usize) -> String {
        // A system prompt that is not in the row comes before all other messages.
        let added = self.messages.len().saturating_sub(self.fields.len());
        let known = number.checked_sub(added).and_then(|number| self.fields.get(number));
        known.cloned().unwrap_or_else(|| format!("messages[{number}]"))
    }
}

impl Message {
    /// A text message.
    pub fn text(role: &str, text: &str) -> Message {
        Message::new(role, Content::Text(text.to_string()))
    }

    /// A message of images followed by a text.
    pub fn with_images(role: &str, images: usize, text: &str) -> Message {
        let mut parts = vec![Part::Image; images];
        parts.push(Part::Text(text.to_string()));
        Message::new(role, Content::Parts(parts))
    }

    /// A message without other fields.
    pub fn new(role: &str, content: Content) -> Message {
        Message { role: role.to_string(), content, ..Message::default() }
    }

    /// Number of images in the message.
    pub fn images(&self) -> usize {
        self.parts().filter(|part| part.is_none()).count()
    }

    /// The texts of the message, concatenated.
    pub fn words(&self) -> Cow<'_, str> {
        match &self.content {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Parts(parts) => parts.iter().filter_map(Part::text).collect(),
            Content::Absent => Cow::Borrowed(""),
        }
    }

    /// The tool calls.
    pub fn calls(&self) -> &[Json] {
        match self.fields.iter().find(|(name, _)| name == TOOL_CALLS) {
            Some((_, Json::List(calls))) => calls,
            _ => &[],
        }
    }

    /// The texts of the message, with `None` for each image.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Option<&str>> {
        let (text, parts) = match &self.content {
            Content::Text(text) => (Some(Some(text.as_str())), &[][..]),
            Content::Parts(parts) => (None, parts.as_slice()),
            Content::Absent => (None, &[][..]),
        };
        text.into_iter().chain(parts.iter().map(Part::text))
    }

    fn value(&self) -> Value {
        let mut fields = vec![("role".to_string(), Value::from(self.role.as_str()))];
        match &self.content {
            Content::Text(text) => fields.push(("content".to_string(), Value::from(text.as_str()))),
            Content::Parts(parts) => fields.push(("content".to_string(), parts.iter().map(Part::value).collect())),
            Content::Absent => {}
        }
        fields.extend(self.fields.iter().map(|(name, value)| (name.clone(), value.value())));
        let thoughts = REASONING.iter().find_map(|name| self.fields.iter().find(|(field, _)| field == name));
        if let Some((_, thoughts)) = thoughts {
            fields.retain(|(name, _)| name != REASONING[0]);
            fields.push((REASONING[0].to_string(), thoughts.value()));
            if !fields.iter().any(|(name, _)| name == REASONING[1]) {
                fields.push((REASONING[1].to_string(), thoughts.value()));
            }
        }
        ordered(fields)
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

/// A chat template to use instead of the model's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateFile {
    /// The file it was read from.
    pub path: PathBuf,
    /// The template's source.
    pub source: String,
}

impl TemplateFile {
    /// Reads a template: a Jinja file, or a JSON file with the field `chat_template`, such as `tokenizer_config.json`.
    pub fn read(path: &Path) -> Result<TemplateFile, Error> {
        let source = match path.extension().is_some_and(|ending| ending == "json") {
            true => source_in(path, &read_json(path)?)?,
            false => {
                let text = file::read(path, LARGEST_SETTINGS).map_err(|error| Error::file(path, error))?;
                String::from_utf8(text).map_err(|_| Error::broken(path, "not UTF-8 text"))?
            }
        };
        Ok(TemplateFile { path: path.to_path_buf(), source })
    }

    /// The template in the files of a folder, if there is one, in the order of transformers.
    pub fn find(folder: &Path) -> Result<Option<TemplateFile>, Error> {
        let [processor, older, newer] = [PROCESSOR, OLDER, NEWER].map(|name| folder.join(name));
        if processor.exists() && !read_json(&processor)?["chat_template"].is_null() {
            return Ok(Some(TemplateFile::read(&processor)?));
        }
        [older, newer].iter().find(|path| path.exists()).map(|path| TemplateFile::read(path)).transpose()
    }

    /// Writes the template into a folder, in place of those that its files have.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let [processor, older, newer] = [PROCESSOR, OLDER, NEWER].map(|name| folder.join(name));
        if processor.exists() {
            let mut value = read_json(&processor)?;
            if value.as_object_mut().is_some_and(|fields| fields.remove("chat_template").is_some()) {
                let text = format!("{value:#}\n");
                garden_files::replace(&processor, text).map_err(|error| Error::file(&processor, error))?;
            }
        }
        if older.exists() {
            std::fs::remove_file(&older).map_err(|error| Error::file(&older, error))?;
        }
        garden_files::replace(&newer, &self.source).map_err(|error| Error::file(&newer, error))
    }
}

/// How a rendered conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With the start of the assistant's answer.
    Answer,
    /// Without anything: the answer is part of the conversation.
    Nothing,
}

/// A chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    compiled: Compiled,
    path: PathBuf,
    /// The special tokens, by the names that templates have for them.
    tokens: BTreeMap<String, String>,
}

impl Template {
    /// Finds the template of a model: the given one, else as in transformers that in `processor_config.json`, `chat_template.json` or
    /// `chat_template.jinja`, and only then that in `tokenizer_config.json`.
    pub fn open(folder: &Path, given: Option<&TemplateFile>) -> Result<Template, Error> {
        let tokens = TokenizerSettings::read(folder)?.names();
        if let Some(file) = given.cloned().map_or_else(|| TemplateFile::find(folder), |file| Ok(Some(file)))? {
            return Template::new(&file, tokens);
        }
        let settings = folder.join("tokenizer_config.json");
        if settings.exists() {
            return Template::new(&TemplateFile::read(&settings)?, tokens);
        }
        let problem = "has no `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`";
        Err(Error::broken(folder, problem).advised(
            "pass a template as --chat-template, or copy chat_template.jinja or chat_template.json of the original model into the folder",
        ))
    }

    fn new(file: &TemplateFile, tokens: BTreeMap<String, String>) -> Result<Template, Error> {
        let TemplateFile { path, source } = file;
        let unusable = |error: minijinja::Error| Error::broken(path, format!("not a usable chat template: {error}"));
        let syntax = python::syntax().map_err(unusable)?;
        let compiled = Compiled::new(&python::without_generation_tags(source), &syntax).map_err(unusable)?;
        Ok(Template { environment: python::environment(), compiled, path: path.clone(), tokens })
    }

    /// The file it was read from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The special token of this name.
    pub(crate) fn token(&self, name: &str) -> Option<&str> {
        self.tokens.get(name).map(String::as_str)
    }

    /// The text of a conversation, with one placeholder per image.
    pub fn render(&self, chat: Chat, ending: Ending) -> Result<String, Error> {
        let bytes: usize = chat.messages.iter().flat_map(Message::parts).flatten().map(str::len).sum();
        if bytes > LONGEST_TEXT {
            let problem = format!("the conversation has {bytes} bytes of text; the maximum is {LONGEST_TEXT}");
            return Err(Error::Conversation(problem));
        }
        let messages: Vec<Value> = chat.messages.iter().map(Message::value).collect();
        let tools = if chat.tools.is_empty() { Value::from(()) } else { chat.tools.iter().map(Json::value).collect() };
        let values = context! {
            messages,
            tools,
            documents => (),
            add_generation_prompt => ending == Ending::Answer,
            ..Value::from(self.tokens.clone())
        };
        self.compiled.render(&self.environment, values).map_err(|error| {
            let reason = match error.kind() {
                ErrorKind::OutOfFuel => format!("it takes more than {STEPS} steps"),
                _ => error.detail().map_or_else(|| error.to_string(), str::to_string),
            };
            let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
            Error::Conversation(format!("the chat template in `{}`{line} failed: {reason}", self.path.display()))
        })
    }
}

fn read_json(path: &Path) -> Result<serde_json::Value, Error> {
    let text = file::read(path, LARGEST_SETTINGS).map_err(|error| Error::file(path, error))?;
    serde_json::from_slice(&text).map_err(|error| Error::broken(path, format!("not JSON: {error}")))
}

/// The field is a string, or a list of named templates, of which `default` is used for chats.
fn source_in(path: &Path, value: &serde_json::Value) -> Result<String, Error> {
    let field = &value["chat_template"];
    let named = field.as_array().and_then(|list| list.iter().find(|one| one["name"] == "default"));
    let source = field.as_str().or_else(|| named?["template"].as_str());
    source.map(str::to_string).ok_or_else(|| Error::field(path, "chat_template", "is missing"))
}
