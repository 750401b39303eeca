//! Unused fields of a row: listed, or refused with the flags that say what they mean.

use super::{Draft, is_meaning, unnumbered};
use crate::dataset::suspect::{Looks, is_end_of, looks_like, name_looks_like};
use crate::dataset::value::{Object, Value};
use crate::error::Error;

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

    /// Refuses members of archives that are not read and look like something to learn from.
    pub(super) fn check_members(&self, unread: &[String]) -> Result<(), Error> {
        let looks = |name: &String| {
            let part = name.strip_prefix('.')?.trim_end_matches(".txt");
            name_looks_like(part).filter(|_| !self.names.ignores(name))
        };
        match unread.iter().find_map(|name| Some((name, looks(name)?))) {
            None => Ok(()),
            Some((name, looks)) => {
                let hint = format!("put it into the row's `.json`; `--ignore-field {name}` trains without it");
                let problem =
                    format!("looks like {} and is not read: only `.json`, `.txt` and pictures are", looks.words());
                Err(self.error(name, problem).with_hint(hint))
            }
        }
    }

    /// Refuses unused fields that look like something to learn from, unless a message says the same.
    pub(super) fn check_unused(&self, inside: &str, object: &Object<'a>) -> Result<(), Error> {
        let found: Vec<(&str, &Value<'a>, Looks)> =
            self.suspects(object).into_iter().filter(|(_, value, _)| !self.repeats(value)).collect();
        let Some((first, value, looks)) = found.first() else { return Ok(()) };
        let problem = format!("is {value}: it looks like {} and is not used", looks.words());
        Err(self.error(&format!("{inside}{first}"), problem).with_hint(self.ways_out(inside, &found)))
    }

    /// Whether a text says what the row says already: it is that of a message, that of all messages with their marks, or it names a picture that is shown.
    fn repeats(&self, value: &Value<'a>) -> bool {
        let Value::Text(text) = value else { return false };
        let words: Vec<_> = self.messages.iter().map(|message| message.words()).collect();
        let is_all = || words.len() > 1 && words.iter().all(|words| !words.is_empty() && text.contains(words.trim()));
        words.iter().any(|words| words.trim() == text.trim()) || is_all() || self.shows(text)
    }

    /// Whether a text names a picture of the row.
    fn shows(&self, text: &str) -> bool {
        let of_parts = self.slots.iter().filter_map(|slot| Some(path_of(&slot.own.as_ref()?.value)?.to_string()));
        of_parts.chain(self.shown.iter().cloned()).any(|shown| is_end_of(text, &shown))
    }

    fn has_pictures(&self) -> bool {
        self.has_row_pictures || self.slots.iter().any(|slot| slot.own.is_some())
    }

    /// Fields of an object that look like something to learn from.
    fn suspects<'v>(&self, object: &'v Object<'a>) -> Vec<(&'v str, &'v Value<'a>, Looks)> {
        let has = |option: &str| object.0.iter().any(|(name, value)| name == option && !value.is_empty());
        let has_options = has("A") && has("B");
        let is_option = |name: &str| has_options && matches!(name.as_bytes(), [b'A'..=b'J']);
        let looks = |name: &str, value: &Value| {
            let option = (is_option(name) && !value.is_empty()).then_some(Looks::Question);
            looks_like(name, value, self.has_pictures()).or(option)
        };
        // Objects beside a conversation without placeholders are an annotation.
        let others = object.0.iter().filter(|(name, _)| name != "objects");
        others.filter_map(|(name, value)| Some((name.as_ref(), value, looks(name, value)?))).collect()
    }

    /// Flags by which unused fields are used or left out.
    fn ways_out(&self, inside: &str, found: &[(&str, &Value<'a>, Looks)]) -> String {
        let is_free = |looks: &Looks| match looks {
            Looks::Picture => !self.has_pictures(),
            Looks::Question => self.messages.iter().any(|message| message.role == "user" && message.words().is_empty()),
            Looks::System => self.messages.first().is_none_or(|first| first.role != "system"),
            _ => false,
        };
        let usable = found.iter().filter(|(.., looks)| inside.is_empty() && is_free(looks));
        let uses: Vec<String> =
            usable.filter_map(|(name, _, looks)| Some(format!("{}={name}", looks.meaning()?))).collect();
        let names: Vec<String> = found.iter().map(|(name, ..)| unnumbered(&format!("{inside}{name}"))).collect();
        let without = format!("`--ignore-field {}` trains without it", quoted(&names.join(",")));
        if uses.is_empty() { without } else { format!("`--field {}` uses it; {without}", quoted(&uses.join(","))) }
    }

    /// A hint, with the fields that might be what is missing.
    pub(super) fn with_candidates(&self, hint: &str, object: &Object<'a>, wanted: &[Looks]) -> String {
        let suspects = self.suspects(object);
        let is_text = |value: &Value<'a>| matches!(value, Value::Text(_));
        let mut uses: Vec<(&str, &str)> = Vec::new();
        for looks in wanted {
            let fitting = || suspects.iter().filter(|(.., found)| found == looks);
            let Some((name, ..)) = fitting().find(|(_, value, _)| is_text(value)).or_else(|| fitting().next()) else {
                continue;
            };
            if let Some(meaning) = looks.meaning().filter(|meaning| !uses.iter().any(|(known, _)| known == meaning)) {
                uses.push((meaning, name));
            }
        }
        if uses.is_empty() {
            return hint.to_string();
        }
        let is_other = |name: &&str| !is_meaning(name) && !uses.iter().any(|(_, used)| used == name);
        let others = suspects.iter().map(|(name, ..)| *name).filter(is_other);
        let others: Vec<&str> = others.collect();
        let pairs: Vec<String> = uses.iter().map(|(meaning, name)| format!("{meaning}={name}")).collect();
        let without = match &others[..] {
            [] => String::new(),
            others => format!(" --ignore-field {}", quoted(&others.join(","))),
        };
        format!("{hint}; if it is there by another name, say so: `--field {}{without}`", quoted(&pairs.join(",")))
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

/// A flag's value as a shell takes it.
fn quoted(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-=,.:/".contains(&byte));
    if is_plain { text.to_string() } else { format!("'{text}'") }
}
