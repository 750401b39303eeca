//! What a row means: a conversation in one of the shapes that people write.
//!
//! | shape | fields |
//! | --- | --- |
//! | question and answer | `prompt` or `text` or `question`; `response`, `output`, `answer` or `completion`; `system` |
//! | OpenAI chat | `messages` with `role` and `content`: a text, or parts of type `text`, `image_url` or `image` |
//! | ShareGPT, LLaVA | `conversations` with `from` and `value` |
//!
//! Pictures of the whole row are in `image`, `images` or `file_name`. They go where a text says `<image>`, or a part has type `image` and no
//! picture of its own; if nothing says where, they go before the first message of the user. Nothing is loaded before all of
//! that fits together.

use super::picture::{Beside, Found, PictureField};
use super::value::{Object, Value, shortened};
use crate::error::Error;
use crate::outline::Outline;
use crate::record::Record;
use crate::template::{Content, Message, Part};

const PLACEHOLDER: &str = "<image>";
const PROMPTS: [&str; 3] = ["prompt", "text", "question"];
const ANSWERS: [&str; 4] = ["response", "output", "answer", "completion"];
const PICTURES: [&str; 3] = ["images", "image", "file_name"];

/// What a `text` means that has no answer beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoneText {
    /// A question whose answer is missing: in JSON, where the two are usual.
    Question,
    /// What is to be said about the picture: in folders and archives of pictures, and tables.
    Caption,
}

/// A row, and what is known about it.
pub(crate) struct Row<'a> {
    pub place: &'a str,
    pub value: Value<'a>,
    pub beside: Beside<'a>,
    pub lone_text: LoneText,
    /// Bytes that are held for it before its pictures are read.
    pub bytes: u64,
}

impl<'a> Row<'a> {
    /// The conversation, with its pictures read.
    pub(crate) fn into_record(self) -> Result<Record, Error> {
        let place = self.place.to_string();
        let (messages, pictures) = self.read(|found| found.load())?;
        Ok(Record { place, messages, pictures })
    }

    /// The conversation, with the headers of its pictures read.
    pub(crate) fn into_outline(self, max_pixels: u64) -> Result<Outline, Error> {
        let (place, bytes) = (self.place.to_string(), self.bytes);
        let (messages, pictures) = self.read(|found| found.outline(max_pixels))?;
        let bytes = bytes + pictures.iter().map(|picture| picture.bytes).sum::<u64>();
        Ok(Outline { place, messages, pictures, bytes })
    }

    /// The conversation, with what is made of its pictures.
    fn read<P>(self, make: impl Fn(Found<'_>) -> Result<P, Error>) -> Result<(Vec<Message>, Vec<P>), Error> {
        let Row { place, value, beside, lone_text, .. } = self;
        let mut object = match value {
            Value::Object(object) => object,
            other => return Err(Error::row_field(place, "", format!("is {other}, not an object with fields"))),
        };
        let of_row = row_pictures(place, &mut object)?;
        let mut draft = Draft { place, messages: Vec::new(), slots: Vec::new() };
        if let Some(messages) = object.take("messages") {
            draft.read_messages("messages", messages)?;
        } else if let Some(messages) = object.take("conversations") {
            draft.read_messages("conversations", messages)?;
        } else {
            draft.read_question(&mut object, lone_text)?;
        }
        draft.finish(of_row, beside, make)
    }
}

/// Where a picture of the conversation comes from.
enum Slot<'a> {
    /// From the row's list.
    OfRow,
    /// From the part itself.
    Own(PictureField<'a>),
}

/// A conversation whose pictures are not read yet.
struct Draft<'p, 'a> {
    place: &'p str,
    messages: Vec<Message>,
    slots: Vec<Slot<'a>>,
}

impl<'a> Draft<'_, 'a> {
    fn error(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::row_field(self.place, field, problem)
    }

    fn text(&self, field: &str, value: Value<'a>) -> Result<String, Error> {
        match value {
            Value::Text(text) => Ok(text.into_owned()),
            other => Err(self.error(field, format!("is {other}, not a text"))),
        }
    }

    fn read_question(&mut self, object: &mut Object<'a>, lone_text: LoneText) -> Result<(), Error> {
        let names = object.names();
        let system = object.take("system");
        let prompt = object.take_any(&PROMPTS);
        let answer = object.take_any(&ANSWERS).or_else(|| Some(("caption", object.take("caption")?)));
        for (fields, first) in [(&PROMPTS[..], &prompt), (&ANSWERS[..], &answer)] {
            if let (Some((first, _)), Some((second, _))) = (first, object.take_any(fields)) {
                return Err(self.error(second, format!("means the same as `{first}`, and both are there")));
            }
        }
        let (prompt, answer) = match (prompt, answer) {
            (prompt, Some(answer)) => (prompt, answer),
            (Some(("text", text)), None) if lone_text == LoneText::Caption => (None, ("text", text)),
            (Some((prompt, _)), None) => {
                let error = self.error("response", format!("is missing: `{prompt}` has no answer"));
                return Err(error.with_hint("the answer is called `response`, `output`, `answer` or `completion`"));
            }
            (None, None) => {
                let error = self.error("", format!("no conversation in this row: it has {names}"));
                return Err(error.with_hint("rows have `messages`, `conversations`, or `prompt` and `response`"));
            }
        };
        if let Some(system) = system {
            let text = self.text("system", system)?;
            self.messages.push(Message::text("system", &text));
        }
        let prompt = prompt.map_or(Ok(String::new()), |(field, value)| self.text(field, value))?;
        let content = self.with_placeholders(&prompt);
        self.messages.push(Message { role: "user".to_string(), content });
        let answer = self.text(answer.0, answer.1)?;
        self.messages.push(Message::text("assistant", &answer));
        Ok(())
    }

    fn read_messages(&mut self, field: &str, messages: Value<'a>) -> Result<(), Error> {
        let Value::List(messages) = messages else {
            return Err(self.error(field, format!("is {messages}, not a list of messages")));
        };
        for (index, message) in messages.into_iter().enumerate() {
            self.read_message(&format!("{field}[{index}]"), message)?;
        }
        match self.messages.last() {
            None => Err(self.error(field, "is an empty list")),
            Some(last) if last.role != "assistant" => {
                let error = self.error(field, format!("has no answer: the last message is by `{}`", last.role));
                Err(error.with_hint("a row ends with a message of the assistant"))
            }
            Some(_) => Ok(()),
        }
    }

    fn read_message(&mut self, field: &str, message: Value<'a>) -> Result<(), Error> {
        let Value::Object(mut message) = message else {
            return Err(self.error(field, format!("is {message}, not a message")));
        };
        let names = message.names();
        let missing = |what: &str, other: &str| {
            let error = Error::row_field(
                self.place,
                &format!("{field}.{what}"),
                format!("is missing: the message has {names}"),
            );
            error.with_hint(format!("`{what}` or `{other}`"))
        };
        let (role_field, role) = message.take_any(&["role", "from"]).ok_or_else(|| missing("role", "from"))?;
        let (content_field, content) =
            message.take_any(&["content", "value"]).ok_or_else(|| missing("content", "value"))?;
        let role_field = format!("{field}.{role_field}");
        let role = self.text(&role_field, role)?;
        let role = self.known_role(&role_field, &role)?;
        let content = self.read_content(&format!("{field}.{content_field}"), role, content)?;
        self.messages.push(Message { role: role.to_string(), content });
        Ok(())
    }

    fn known_role(&self, field: &str, role: &str) -> Result<&'static str, Error> {
        match role {
            "system" | "developer" => Ok("system"),
            "user" | "human" => Ok("user"),
            "assistant" | "gpt" | "model" => Ok("assistant"),
            other => {
                let error = self.error(field, format!("is `{}`, which is nobody known", shortened(other)));
                Err(error.with_hint("`system`, `user` (`human`) and `assistant` (`gpt`) are; tools are not supported"))
            }
        }
    }

    fn read_content(&mut self, field: &str, role: &str, content: Value<'a>) -> Result<Content, Error> {
        match content {
            // What the assistant says is learnt as it is.
            Value::Text(text) if role == "assistant" => Ok(Content::Text(text.into_owned())),
            Value::Text(text) => Ok(self.with_placeholders(&text)),
            Value::List(parts) => {
                let mut read = Vec::with_capacity(parts.len());
                for (index, part) in parts.into_iter().enumerate() {
                    read.push(self.read_part(&format!("{field}[{index}]"), part)?);
                }
                match &mut read[..] {
                    [Part::Text(text)] => Ok(Content::Text(std::mem::take(text))),
                    _ => Ok(Content::Parts(read)),
                }
            }
            other => Err(self.error(field, format!("is {other}, not a text or a list of parts"))),
        }
    }

    fn read_part(&mut self, field: &str, part: Value<'a>) -> Result<Part, Error> {
        let mut part = match part {
            Value::Object(part) => part,
            Value::Text(text) => return Ok(Part::Text(text.into_owned())),
            other => return Err(self.error(field, format!("is {other}, not a part of a message"))),
        };
        let kind_field = format!("{field}.type");
        let names = part.names();
        let Some(kind) = part.take("type") else {
            return Err(self.error(&kind_field, format!("is missing: the part has {names}")));
        };
        let kind = self.text(&kind_field, kind)?;
        match kind.as_str() {
            "text" => match part.take_any(&["text", "content"]) {
                Some((name, text)) => Ok(Part::Text(self.text(&format!("{field}.{name}"), text)?)),
                None => Err(self.error(&format!("{field}.text"), format!("is missing: the part has {names}"))),
            },
            "image" | "image_url" => {
                let own = part.take_any(&["image_url", "image", "url", "path", "bytes"]);
                self.slots.push(match own {
                    Some((name, value)) => Slot::Own(PictureField { field: format!("{field}.{name}"), value }),
                    None => Slot::OfRow,
                });
                Ok(Part::Image)
            }
            other => {
                let error = self.error(&kind_field, format!("is `{}`, which is not supported", shortened(other)));
                Err(error.with_hint("`text`, `image_url` and `image` are"))
            }
        }
    }

    /// A text with a picture of the row at each placeholder. The line break that sets a placeholder apart goes with it.
    fn with_placeholders(&mut self, text: &str) -> Content {
        if !text.contains(PLACEHOLDER) {
            return Content::Text(text.to_string());
        }
        let mut parts = Vec::new();
        for (index, piece) in text.split(PLACEHOLDER).enumerate() {
            let mut piece = piece;
            if index > 0 {
                parts.push(Part::Image);
                self.slots.push(Slot::OfRow);
                piece = piece.strip_prefix('\n').unwrap_or(piece);
            }
            if !piece.is_empty() {
                parts.push(Part::Text(piece.to_string()));
            }
        }
        // A placeholder at the very end has its line break in front.
        if let [.., Part::Text(text), Part::Image] = &mut parts[..]
            && text.ends_with('\n')
        {
            text.pop();
        }
        Content::Parts(parts)
    }

    fn finish<P>(
        mut self,
        of_row: Vec<PictureField<'a>>,
        beside: Beside<'_>,
        make: impl Fn(Found<'_>) -> Result<P, Error>,
    ) -> Result<(Vec<Message>, Vec<P>), Error> {
        let members = match beside {
            // Pictures of an archive need no field: they are in the row's group.
            Beside::Archive { members, .. }
                if of_row.is_empty() && !self.slots.iter().any(|slot| matches!(slot, Slot::Own(_))) =>
            {
                members
            }
            _ => &[],
        };
        let of_members = members
            .iter()
            .map(|member| PictureField { field: "image".to_string(), value: Value::Text(member.name.clone().into()) });
        let of_row: Vec<PictureField<'a>> = of_row.into_iter().chain(of_members).collect();
        let places = self.slots.iter().filter(|slot| matches!(slot, Slot::OfRow)).count();
        if places == 0 {
            self.place_in_front(of_row.len());
        } else if places != of_row.len() {
            let problem = format!("the row has {} pictures, but its messages show {places}", of_row.len());
            return Err(self
                .error("images", format!("does not fit: {problem}"))
                .with_hint("one `<image>` or part of type `image` for each"));
        }
        let mut of_row = of_row.into_iter();
        let mut pictures = Vec::with_capacity(self.slots.len());
        for slot in self.slots {
            let field = match slot {
                Slot::Own(field) => Some(field),
                Slot::OfRow => of_row.next(),
            };
            if let Some(field) = field {
                pictures.push(field.find(self.place, beside, &make)?);
            }
        }
        Ok((self.messages, pictures))
    }

    /// Shows pictures before the first message of the user, or of anybody if there is none.
    fn place_in_front(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let first = self.messages.iter().position(|message| message.role == "user").unwrap_or(0);
        let before: usize = self.messages[..first].iter().map(Message::images).sum();
        self.slots.splice(before..before, (0..count).map(|_| Slot::OfRow));
        let content = &mut self.messages[first].content;
        let parts = match std::mem::replace(content, Content::Parts(Vec::new())) {
            Content::Text(text) if text.is_empty() => Vec::new(),
            Content::Text(text) => vec![Part::Text(text)],
            Content::Parts(parts) => parts,
        };
        *content = Content::Parts(std::iter::repeat_n(Part::Image, count).chain(parts).collect());
    }
}

/// The pictures that stand beside the conversation.
fn row_pictures<'a>(place: &str, object: &mut Object<'a>) -> Result<Vec<PictureField<'a>>, Error> {
    let Some((field, value)) = object.take_any(&PICTURES) else { return Ok(Vec::new()) };
    if let Some((second, _)) = object.take_any(&PICTURES) {
        let problem = format!("means the same as `{field}`, and both are there");
        return Err(Error::row_field(place, second, problem));
    }
    let one = |(index, value)| PictureField { field: format!("{field}[{index}]"), value };
    Ok(match value {
        Value::List(list) => list.into_iter().enumerate().map(one).collect(),
        value => vec![PictureField { field: field.to_string(), value }],
    })
}
