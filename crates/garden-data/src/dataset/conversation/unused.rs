//! Unused fields of a row: listed, or refused with the flags that say what they mean.

use super::{Draft, INSTRUCTION, is_meaning, unnumbered};
use crate::dataset::suspect::{Looks, PICTURES, RECORDINGS, is_end_of, looks_like, name_looks_like, options};
use crate::dataset::value::{Object, Value};
use crate::error::Error;
use crate::template::REASONING;

impl<'a> Draft<'_, 'a> {
    /// Records the unused fields of an object. Those that would change what is learnt are refused.
    pub(super) fn leave(&mut self, inside: &str, mut object: Object<'a>) -> Result<(), Error> {
        let left_out = self.names.leave_out(inside, &mut object);
        self.check_unused(inside, &object)?;
        self.ignored.extend(left_out);
        let left = object.0.into_iter().filter(|(_, value)| *value != Value::Null);
        self.ignored.extend(left.map(|(name, _)| unnumbered(&format!("{inside}{name}"))));
        Ok(())
    }

    /// Refuses members of archives and columns of tables that are not read and look like something to learn from.
    pub(super) fn check_unread(&self, unread: &[String]) -> Result<(), Error> {
        for name in unread.iter().filter(|name| !self.names.ignores(name)) {
            if let Some(looks) = name.strip_prefix('.').and_then(member_looks_like) {
                let (problem, hint) = match looks {
                    Looks::Picture => ("a picture in a format that is not read", "convert it to PNG or JPEG"),
                    Looks::Recording => ("a video or a sound, which is not supported", "take such rows out"),
                    _ => (looks.words(), "put it into the row's `.json`"),
                };
                let others = if matches!(looks, Looks::Picture | Looks::Recording) {
                    ""
                } else {
                    " and is not read: only `.json`, `.txt` and pictures are"
                };
                let hint = format!("{hint}; `--ignore-field {name}` trains without it");
                return Err(self.error(name, format!("looks like {problem}{others}")).with_hint(hint));
            }
            if is_meaning(name) {
                let hint = format!("write it as text; `--ignore-field {name}` trains without it");
                let problem = "is a column of a type that is not read, such as a date or a decimal number";
                return Err(self.error(name, problem).with_hint(hint));
            }
        }
        Ok(())
    }

    /// Refuses unused fields that look like something to learn from, unless a message says the same.
    pub(super) fn check_unused(&self, inside: &str, object: &Object<'a>) -> Result<(), Error> {
        // Of a message, reasoning goes to the chat template, which decides whether it is written.
        let is_for_template = |name: &str| !inside.is_empty() && REASONING.contains(&name);
        let suspects = self.suspects(object).into_iter().filter(|(name, ..)| !is_for_template(name));
        let found: Vec<(&str, &Value<'a>, Looks)> =
            suspects.filter(|(_, value, looks)| !self.repeats(value, *looks)).collect();
        let Some((first, value, looks)) = found.first() else { return Ok(()) };
        let problem = format!("is {value}: it looks like {} and is not used", looks.words());
        Err(self.error(&format!("{inside}{first}"), problem).with_hint(self.ways_out(inside, &found)))
    }

    /// Whether a text says what the row says already: it is that of a message, that of all messages with their marks, or it names a picture that is shown.
    fn repeats(&self, value: &Value<'a>, looks: Looks) -> bool {
        let Value::Text(text) = value else { return false };
        match looks {
            Looks::Picture => self.shows(text),
            Looks::Question | Looks::Prose | Looks::Answer | Looks::Reasoning | Looks::System | Looks::Conversation => {
                self.messages.iter().any(|message| message.words().trim() == text.trim()) || self.is_all_of_it(text)
            }
            Looks::Recording | Looks::Missing | Looks::Label | Looks::Rejected | Looks::Mask | Looks::History => false,
        }
    }

    /// Whether a text has the row's messages, one after the other.
    fn is_all_of_it(&self, text: &str) -> bool {
        let mut rest = text;
        self.messages.len() > 1
            && self.messages.iter().all(|message| {
                let words = message.words();
                let found = rest.find(words.trim()).filter(|_| !words.trim().is_empty());
                rest = found.map_or(rest, |place| &rest[place + words.trim().len()..]);
                found.is_some()
            })
    }

    /// Whether a text names a picture of the row.
    fn shows(&self, text: &str) -> bool {
        let of_parts = self.slots.iter().filter_map(|slot| Some(path_of(&slot.own.as_ref()?.value)?.to_string()));
        of_parts.chain(self.shown.iter().cloned()).any(|shown| is_end_of(text, &shown))
    }

    /// Fields of an object that look like something to learn from.
    fn suspects<'v>(&self, object: &'v Object<'a>) -> Vec<(&'v str, &'v Value<'a>, Looks)> {
        let options: Vec<&str> = options(object).collect();
        let looks = |name: &str, value: &Value| {
            let option = (options.contains(&name) && !value.is_empty()).then_some(Looks::Question);
            looks_like(name, value, self.around).or(option)
        };
        // Objects beside a conversation without placeholders are an annotation.
        let others = object.0.iter().filter(|(name, _)| name != "objects");
        others.filter_map(|(name, value)| Some((name.as_ref(), value, looks(name, value)?))).collect()
    }

    /// Fields that look like pictures, unless the row shows some.
    pub(super) fn pictures_unused(&self, object: &Object<'a>) -> Vec<String> {
        if self.around.shows {
            return Vec::new();
        }
        let pictures = self.suspects(object).into_iter().filter(|(.., looks)| *looks == Looks::Picture);
        pictures.map(|(name, ..)| name.to_string()).collect()
    }

    /// Flags by which unused fields are used or left out.
    fn ways_out(&self, inside: &str, found: &[(&str, &Value<'a>, Looks)]) -> String {
        let is_free = |looks: &Looks| match looks {
            Looks::Picture => !self.around.shows,
            Looks::Question | Looks::Prose => {
                self.messages.iter().any(|message| message.role == "user" && message.words().is_empty())
            }
            Looks::System => self.messages.first().is_none_or(|first| first.role != "system"),
            _ => false,
        };
        let usable = found.iter().filter(|(.., looks)| inside.is_empty() && is_free(looks));
        let mut uses: Vec<String> =
            usable.filter_map(|(name, _, looks)| Some(format!("{}={name}", looks.meaning()?))).collect();
        if inside.is_empty() && uses.is_empty() {
            uses.extend(self.as_input(found));
        }
        let names: Vec<String> = found.iter().map(|(name, ..)| unnumbered(&format!("{inside}{name}"))).collect();
        let without = format!("`--ignore-field {}` trains without it", quoted(&names.join(",")));
        let used = format!("`--field {}` uses it; ", quoted(&uses.join(",")));
        let missing = "give the path of its file as `image`; ";
        match found.iter().any(|(.., looks)| *looks == Looks::Missing) {
            true => format!("{missing}{without}"),
            false if uses.is_empty() => without,
            false => format!("{used}{without}"),
        }
    }

    /// Meanings that put a text below the question, as Alpaca's `input` is.
    fn as_input(&self, found: &[(&str, &Value<'a>, Looks)]) -> Option<String> {
        let is_part = |looks: &Looks| matches!(looks, Looks::Question | Looks::Prose);
        let mut texts = found.iter().filter(|(_, value, looks)| is_part(looks) && matches!(value, Value::Text(_)));
        let (name, ..) = texts.next().filter(|_| texts.next().is_none())?;
        let question = self.question.filter(|question| !self.names.gives_meaning(question))?;
        let is_read = question == INSTRUCTION;
        Some(if is_read { format!("input={name}") } else { format!("{INSTRUCTION}={question},input={name}") })
    }

    /// A hint, with the fields that might be what is missing.
    pub(super) fn with_candidates(&self, hint: &str, object: &Object<'a>, wanted: &[Looks]) -> String {
        let suspects = self.suspects(object);
        let mut uses: Vec<(&str, &str)> = Vec::new();
        let mut unusable = None;
        let looks_for_pictures = (!self.around.shows).then_some(&Looks::Picture);
        for looks in wanted.iter().chain(looks_for_pictures) {
            // Where there are answers, a label is that of something else.
            if *looks == Looks::Label && unusable.is_some() {
                continue;
            }
            let mut fitting = suspects.iter().filter(|(.., found)| found == looks);
            let usable = fitting.clone().find_map(|(name, value, _)| Some((meaning_of(*looks, value)?, name)));
            match usable {
                Some((meaning, name)) if uses.iter().all(|(known, _)| *known != meaning) => uses.push((meaning, name)),
                Some(_) => {}
                None if *looks == Looks::Picture => {}
                None => unusable = unusable.or_else(|| fitting.next().map(|(name, value, _)| (*name, *value))),
            }
        }
        // A conversation has both questions and answers.
        if uses.iter().any(|(meaning, _)| *meaning == "messages") {
            uses.retain(|(meaning, _)| ["messages", "image"].contains(meaning));
        }
        let mut hint = hint.to_string();
        if let Some((name, value)) = unusable.filter(|_| uses.iter().all(|(meaning, _)| *meaning == "image")) {
            hint += &format!("; `{name}` is {value}: write what is to be trained as a string");
        }
        if uses.iter().all(|(meaning, _)| *meaning == "image" && !wanted.contains(&Looks::Picture)) {
            return hint;
        }
        let is_other = |name: &&str| !is_meaning(name) && !uses.iter().any(|(_, used)| used == name);
        let others = suspects.iter().filter(|(.., looks)| *looks != Looks::Missing).map(|(name, ..)| *name);
        let others = others.filter(is_other);
        let others: Vec<&str> = others.collect();
        let pairs: Vec<String> = uses.iter().map(|(meaning, name)| format!("{meaning}={name}")).collect();
        let without = match &others[..] {
            [] => String::new(),
            others => format!(" --ignore-field {}", quoted(&others.join(","))),
        };
        format!("{hint}; if it is there by another name, say so: `--field {}{without}`", quoted(&pairs.join(",")))
    }
}

/// The meaning that a value can have, of those that its name suggests.
fn meaning_of(looks: Looks, value: &Value) -> Option<&'static str> {
    let is_role = |name: &str| name == "role" || name == "from";
    let is_of_messages = |list: &[Value]| matches!(list.first(), Some(Value::Object(Object(first))) if first.iter().any(|(name, _)| is_role(name)));
    let asks = |list: &[Value]| {
        list.iter().any(|message| {
            let Value::Object(Object(fields)) = message else { return false };
            fields.iter().any(|(_, value)| matches!(value, Value::Text(role) if role == "user" || role == "human"))
        })
    };
    match (looks, value) {
        (Looks::Picture, _) | (_, Value::Text(_)) => looks.meaning(),
        (Looks::Answer | Looks::Label | Looks::Conversation, Value::List(list)) if is_of_messages(list) => {
            if looks == Looks::Conversation || asks(list) { Some("messages") } else { Some("answer") }
        }
        // Tables have lists of answers where there is one.
        (Looks::Answer | Looks::Label, Value::List(list)) if matches!(&list[..], [Value::Text(_)]) => Some("answer"),
        _ => None,
    }
}

/// The path of a picture, where it is given by one.
pub(super) fn path_of<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    match value {
        Value::Text(text) => Some(text),
        Value::Object(Object(fields)) => {
            let path = fields.iter().find(|(name, _)| name == "path").map(|(_, value)| value)?;
            if let Value::Text(text) = path { Some(text) } else { None }
        }
        _ => None,
    }
}

/// What a member of an archive seems to be, by the part of its name behind the row's.
fn member_looks_like(name: &str) -> Option<Looks> {
    let ending = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match name_looks_like(name.trim_end_matches(".txt")) {
        None | Some(Looks::Picture) if PICTURES.contains(&ending.as_str()) => Some(Looks::Picture),
        None if RECORDINGS.contains(&ending.as_str()) => Some(Looks::Recording),
        looks => looks,
    }
}

/// A flag's value as a shell takes it.
fn quoted(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-=,.:/".contains(&byte));
    if is_plain { text.to_string() } else { format!("'{text}'") }
}
