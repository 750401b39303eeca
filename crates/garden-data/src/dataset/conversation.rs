//! The conversation of a row, in any of the common dataset formats.
//!
//! | format | fields |
//! | --- | --- |
//! | question and answer | `prompt`, `text`, `question` or `query`, or `instruction` with `input`; `response`, `output`, `answer` or `completion`; `system`, `history` |
//! | OpenAI chat | `messages` with `role` and `content`: a text, or parts of type `text`, `image_url` or `image`; `tools`, `tool_calls`, `weight`, `refusal` |
//! | ShareGPT, LLaVA, LLaMA-Factory | `conversations` with `from` and `value`; `system`, `tools`; calls as messages by `function_call` |
//! | TRL | `prompt` and `completion` as lists of messages |
//!
//! Names and boxes in `objects` go where a text says `<ref-object>` or `<bbox>`, once sizes are known (`boxes.rs`).
//!
//! Pictures of the whole row are in `image`, `images` or `file_name`. They go where a text says `<image>`, or where a part has type `image` and no
//! picture of its own; without such places they go before the first user message. Nothing is loaded before all of that is consistent.
//! Unsupported fields are refused by name, and so are unused ones that would change what is learnt (`suspect.rs`); other fields of a message go to the
//! chat template, and other unused fields are reported: nothing is dropped silently.

mod placeholders;
mod question;
mod unused;

use super::Split;
use super::calls::{Nulls, Reader};
use super::field_names::FieldNames;
use super::folder;
use super::picture::{Beside, Found, PictureField};
use super::suspect::{Around, SPLIT};
use super::value::{Object, Value, shortened};
use crate::dataset::free::{Json, Real};
use crate::dataset::record::Record;
use crate::error::Error;
use crate::example::boxes::{BOX_PLACEHOLDER, BoxUnit, NAME_PLACEHOLDER, Objects, RowBox};
use crate::example::length::PixelBounds;
use crate::example::outline::Outline;
use crate::template::{Content, Message, Part, TOOL_CALLS, Weight};
pub use placeholders::picture_token;
use placeholders::{Said, tagged};
use unused::path_of;

/// Where a text of a row shows the row's next picture.
pub const PLACEHOLDER: &str = "<image>";
const VIDEO_PLACEHOLDER: &str = "<video>";
const INSTRUCTION: &str = "instruction";
pub(crate) const PROMPTS: [&str; 5] = ["prompt", "text", "question", "query", INSTRUCTION];
const ANSWERS: [&str; 4] = ["response", "output", "answer", "completion"];
/// What a picture shows, that is, an answer; img2dataset writes it under both names.
const CAPTIONS: [&str; 2] = ["caption", "txt"];
/// `jpg` is img2dataset's column, `file_names` that of a folder of pictures with several per row.
pub(crate) const PICTURES: [&str; 5] = ["images", "image", "file_name", "file_names", "jpg"];
const SYSTEMS: [&str; 2] = ["system", "system_prompt"];
const HISTORY: &str = "history";
/// The field and the type of part of an answer that declines.
const REFUSAL: &str = "refusal";
/// Axolotl's flag of messages and parts that are trained.
const TRAIN: &str = "train";
const WEIGHTS: [&str; 4] = ["weight", "loss", "loss_scale", TRAIN];
const LISTS: [&str; 2] = ["messages", "conversations"];
/// Unsupported fields that change the meaning of a row, and what to do instead.
const REFUSED: [(&str, &str, Option<&str>); 10] = [
    ("video", "videos are not supported", None),
    ("videos", "videos are not supported", None),
    ("audio", "audio is not supported", None),
    ("audios", "audio is not supported", None),
    ("functions", "this older format is not supported", Some("use `tools` and `tool_calls`")),
    (
        "chat_template_kwargs",
        "template settings are the same for all rows",
        Some(
            "use `--chat-template FILE` for another template; `--ignore-field chat_template_kwargs` trains without them",
        ),
    ),
    ("min_pixels", BOUNDS, Some(BOUNDS_HINT)),
    ("max_pixels", BOUNDS, Some(BOUNDS_HINT)),
    ("resized_height", BOUNDS, Some(BOUNDS_HINT)),
    ("resized_width", BOUNDS, Some(BOUNDS_HINT)),
];
const BOUNDS: &str = "sizes of a picture belong to its part of a message";
const BOUNDS_HINT: &str = "put `min_pixels` and `max_pixels` into parts of type `image`, or pass `--max-pixels` for all rows; `--ignore-field` leaves them out";

/// Whether a table column is read.
pub(crate) fn is_known(column: &str) -> bool {
    is_meaning(column) || REFUSED.iter().any(|(name, ..)| *name == column)
}

/// Whether a field of this name means something here.
pub(crate) fn is_meaning(name: &str) -> bool {
    let others = [HISTORY, "tools", "input", "objects"];
    [&LISTS[..], &PROMPTS, &ANSWERS, &CAPTIONS, &PICTURES, &SYSTEMS, &others].concat().contains(&name)
}

/// The meaning of a `text` field without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoneText {
    /// A question whose answer is missing: in JSON, where the two usually come together.
    Question,
    /// A caption of the picture: in tables, and in folders and archives of pictures.
    Caption,
}

/// A row and its context.
pub(crate) struct Row<'a> {
    pub place: &'a str,
    pub value: Value<'a>,
    pub beside: Beside<'a>,
    pub lone_text: LoneText,
    pub nulls: Nulls,
    /// Bytes held for the row before its pictures are read.
    pub bytes: u64,
    /// Columns that are not read at all.
    pub unread: &'a [String],
}

/// A conversation with its processed pictures.
struct Made<P> {
    messages: Vec<Message>,
    tools: Vec<Json>,
    fields: Vec<String>,
    objects: Objects,
    pictures: Vec<(P, PixelBounds)>,
    /// Unused fields.
    ignored: Vec<String>,
}

impl<'a> Row<'a> {
    /// The conversation with its pictures loaded.
    pub(crate) fn into_record(self, names: &FieldNames, split: Split) -> Result<Record, Error> {
        let place = self.place.to_string();
        let Made { messages, tools, fields, objects, pictures, .. } = self.read(names, split, |found| found.load())?;
        let pictures = pictures.into_iter().map(|(mut picture, bounds)| {
            picture.bounds = bounds;
            picture
        });
        Ok(Record { place, messages, tools, fields, objects, pictures: pictures.collect() })
    }

    /// The conversation with only the headers of its pictures read.
    pub(crate) fn into_outline(self, names: &FieldNames, split: Split, max_pixels: u64) -> Result<Outline, Error> {
        let (place, stored_bytes, unread) = (self.place.to_string(), self.bytes, self.unread);
        let Made { messages, tools, fields, objects, pictures, mut ignored } =
            self.read(names, split, |found| found.outline(max_pixels))?;
        let pictures = pictures.into_iter().map(|(mut picture, bounds)| {
            picture.bounds = bounds;
            picture
        });
        ignored.extend(unread.iter().cloned());
        Ok(Outline { place, messages, tools, fields, objects, pictures: pictures.collect(), stored_bytes, ignored })
    }

    /// The conversation, with each picture processed by `make`.
    fn read<P>(
        self,
        names: &FieldNames,
        split: Split,
        make: impl Fn(Found<'_>) -> Result<P, Error>,
    ) -> Result<Made<P>, Error> {
        let Row { place, value, beside, lone_text, nulls, .. } = self;
        let mut object = match value {
            Value::Object(object) => object,
            other => return Err(Error::row_field(place, "", format!("is {other}, not an object with fields"))),
        };
        let mut draft = Draft { reader: Reader { place, nulls }, ..Draft::new(place, names) };
        draft.fields_there = object.names();
        draft.ignored = names.leave_out("", &mut object);
        draft.check_unread(self.unread)?;
        names.rename(place, &mut object)?;
        draft.refuse(&mut object)?;
        draft.is_of_split(split, &object)?;
        let of_row = row_pictures(place, &mut object)?;
        draft.has_row_pictures = !of_row.is_empty();
        let has_members = matches!(beside, Beside::Archive { members: [_, ..], .. });
        draft.around.shows = draft.has_row_pictures || has_members || shows_pictures(&object);
        draft.shown = of_row.iter().filter_map(|picture| Some(path_of(&picture.value)?.to_string())).collect();
        draft.unused_pictures = draft.pictures_unused(&object);
        if let Some(tools) = object.take("tools") {
            draft.tools = draft.reader.tools("tools", tools)?;
        }
        match object.take_any(&LISTS) {
            Some((field, messages)) => {
                draft.read_system(&mut object)?;
                draft.has_no_history(field, &mut object)?;
                draft.read_messages(field, messages, Weight::Usual)?;
                draft.ends_with_answer(field)?;
                draft.has_one_system(field)?;
            }
            None => {
                draft.around.is_pair = true;
                draft.read_question(&mut object, lone_text, draft.has_row_pictures || has_members)?;
            }
        }
        draft.read_objects(&mut object)?;
        draft.leave("", object)?;
        draft.finish(of_row, beside, make)
    }
}

/// The source of a picture in the conversation, and the pixel bounds given in its part.
struct Slot<'a> {
    /// The picture in the part itself; `None`: the next one of the row's list.
    own: Option<PictureField<'a>>,
    bounds: PixelBounds,
}

impl Slot<'_> {
    fn of_row() -> Self {
        Slot { own: None, bounds: PixelBounds::default() }
    }
}

/// The field of a picture's missing question.
const CAPTIONED: &str = "prompt";

/// A conversation whose pictures are not read yet.
struct Draft<'p, 'a> {
    place: &'p str,
    names: &'p FieldNames,
    reader: Reader<'p>,
    /// Whether pictures are given beside the conversation.
    has_row_pictures: bool,
    /// The paths of those, where they are given by paths.
    shown: Vec<String>,
    /// Whether the row shows pictures in any way, and whether it is one question and its answer.
    around: Around,
    /// Fields that look like pictures, in a row that shows none.
    unused_pictures: Vec<String>,
    /// The fields that the row has, in words.
    fields_there: String,
    /// The field of a question below which another text could be put as `input`.
    question: Option<&'static str>,
    messages: Vec<Message>,
    /// The row's field for each message.
    fields: Vec<String>,
    tools: Vec<Json>,
    objects: Objects,
    slots: Vec<Slot<'a>>,
    /// Unused fields.
    ignored: Vec<String>,
}

impl<'p, 'a> Draft<'p, 'a> {
    fn new(place: &'p str, names: &'p FieldNames) -> Draft<'p, 'a> {
        let reader = Reader { place, nulls: Nulls::Written };
        let around = Around { shows: false, is_pair: false };
        let (has_row_pictures, shown, unused_pictures, fields_there, question) = Default::default();
        let (messages, fields, tools, objects, slots, ignored) = Default::default();
        Draft {
            place,
            names,
            reader,
            has_row_pictures,
            shown,
            around,
            unused_pictures,
            fields_there,
            question,
            messages,
            fields,
            tools,
            objects,
            slots,
            ignored,
        }
    }

    fn error(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::row_field(self.place, field, problem)
    }

    fn push(&mut self, field: &str, message: Message) {
        self.messages.push(message);
        self.fields.push(field.to_string());
    }

    fn text(&self, field: &str, value: Value<'a>) -> Result<String, Error> {
        match value {
            Value::Text(text) => Ok(text.into_owned()),
            other => Err(self.error(field, format!("is {other}, not a string"))),
        }
    }

    /// Refuses unsupported fields that would change the meaning of the row.
    fn refuse(&self, object: &mut Object<'a>) -> Result<(), Error> {
        for (name, problem, hint) in REFUSED {
            if let Some(value) = object.take(name).filter(|value| !value.is_empty()) {
                let error = self.error(name, format!("is {value}: {problem}"));
                return Err(match hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                });
            }
        }
        Ok(())
    }

    /// Refuses training rows that say of themselves that they are there to evaluate.
    fn is_of_split(&self, split: Split, object: &Object<'a>) -> Result<(), Error> {
        let given = object.0.iter().find(|(name, _)| name == SPLIT).map(|(_, value)| value);
        match given {
            Some(value @ Value::Text(text)) if split == Split::Train && folder::is_for_evaluation(text) => {
                let hint = "take such rows out; `--ignore-field split` trains them all the same";
                Err(self.error(SPLIT, format!("is {value}: the row is there to evaluate")).with_hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Names and boxes for placeholders in texts, in ms-swift's format. Without placeholders, `objects` is an unused annotation.
    fn read_objects(&mut self, object: &mut Object<'a>) -> Result<(), Error> {
        let count = |placeholder: &str| -> usize {
            let texts = self.messages.iter().flat_map(Message::parts).flatten();
            texts.map(|text| text.matches(placeholder).count()).sum()
        };
        let (names, boxes) = (count(NAME_PLACEHOLDER), count(BOX_PLACEHOLDER));
        let is_there = object.0.iter().any(|(name, value)| name == "objects" && !value.is_empty());
        if !is_there || names + boxes == 0 {
            return Ok(());
        }
        let mut objects = match object.take("objects") {
            Some(Value::Object(objects)) => objects,
            Some(other) => {
                let error = self.error("objects", format!("is {other}, not an object with `ref` and `bbox`"));
                return Err(error.with_hint("`{\"ref\": [\"a dog\"], \"bbox\": [[x1, y1, x2, y2]]}`"));
            }
            None => return Ok(()),
        };
        let unit =
            match objects.take("bbox_type").map(|unit| self.text("objects.bbox_type", unit)).transpose()?.as_deref() {
                None | Some("" | "real") => BoxUnit::Pixels,
                Some("norm1") => BoxUnit::Shares,
                Some(other) => {
                    let error = self.error("objects.bbox_type", format!("is `{}`, which is unknown", shortened(other)));
                    return Err(
                        error.with_hint("use `real` (pixels of the original picture) or `norm1` (shares of its sides)")
                    );
                }
            };
        for (number, name) in self.list("objects.ref", objects.take("ref"))?.into_iter().enumerate() {
            let name = self.text(&format!("objects.ref[{number}]"), name)?;
            self.objects.names.push(name);
        }
        let found = self.list("objects.bbox", objects.take("bbox"))?;
        let pictures = self.list("objects.image_id", objects.take("image_id"))?;
        if !pictures.is_empty() && pictures.len() != found.len() {
            let problem = format!("has {} numbers for {} boxes", pictures.len(), found.len());
            return Err(self.error("objects.image_id", problem).with_hint("the picture of each box, counted from 0"));
        }
        let mut pictures = pictures.into_iter().enumerate();
        for (number, one) in found.into_iter().enumerate() {
            let picture = match pictures.next() {
                None => 0,
                Some((_, Value::Integer(picture))) if u32::try_from(picture).is_ok() => picture as usize,
                Some((_, Value::Number(picture))) if (0.0..1e9).contains(&picture) && picture.fract() == 0.0 => {
                    picture as usize
                }
                Some((number, other)) => {
                    let problem = format!("is {other}, not a picture number");
                    return Err(self.error(&format!("objects.image_id[{number}]"), problem));
                }
            };
            let numbers = self.read_box(&format!("objects.bbox[{number}]"), one)?;
            self.objects.boxes.push(RowBox { numbers, unit, picture });
        }
        let counts = [
            ("objects.ref", self.objects.names.len(), "names", NAME_PLACEHOLDER, names),
            ("objects.bbox", self.objects.boxes.len(), "boxes", BOX_PLACEHOLDER, boxes),
        ];
        for (field, there, what, placeholder, wanted) in counts {
            if there != wanted {
                let problem = format!("has {there} {what}; `{placeholder}` occurs {wanted} times in the texts");
                return Err(self.error(field, problem).with_hint("use one for each, in their order"));
            }
        }
        self.leave("objects.", objects)
    }

    /// A list, empty if missing.
    fn list(&self, field: &str, value: Option<Value<'a>>) -> Result<Vec<Value<'a>>, Error> {
        match value {
            None => Ok(Vec::new()),
            Some(Value::List(list)) => Ok(list),
            Some(other) => Err(self.error(field, format!("is {other}, not a list"))),
        }
    }

    /// Two or four numbers.
    fn read_box(&self, field: &str, value: Value<'a>) -> Result<Vec<Real>, Error> {
        let numbers = self.list(field, Some(value))?;
        let count = numbers.len();
        let mut read = Vec::with_capacity(count);
        for number in numbers {
            read.push(Real(match number {
                Value::Integer(number) => number as f64,
                Value::Number(number) if number.is_finite() => number,
                other => return Err(self.error(field, format!("has {other}, which is not a number"))),
            }));
        }
        if count == 2 || count == 4 {
            return Ok(read);
        }
        let error = self.error(field, format!("has {count} numbers"));
        Err(error.with_hint("use four (x1, y1, x2, y2) for a box, two (x, y) for a point"))
    }

    fn read_system(&mut self, object: &mut Object<'a>) -> Result<(), Error> {
        let Some((field, system)) = object.take_any(&SYSTEMS).filter(|(_, system)| !system.is_empty()) else {
            return Ok(());
        };
        let Value::Text(text) = system else {
            let error = self.error(field, format!("is {system}, not a string"));
            return Err(error.with_hint("write its texts as one string"));
        };
        self.check_placeholders(field, &text, Said::Asked)?;
        self.push(field, Message::text("system", &text));
        Ok(())
    }

    /// The text of an answer.
    fn answer(&self, field: &str, text: String) -> Result<String, Error> {
        self.check_placeholders(field, &text, Said::Answered)?;
        if tagged(&text).next().is_some() {
            let error = self.error(field, "names a picture in `<img>`: answers cannot show pictures");
            return Err(error.with_hint("take the tag out, or put the picture into the question"));
        }
        // Other tools count it among the places of pictures, and move those behind it.
        if self.around.shows && text.contains(PLACEHOLDER) {
            let error = self.error(field, "contains `<image>`: answers cannot show pictures");
            return Err(error.with_hint("take it out, or put the picture into the question"));
        }
        Ok(text)
    }

    /// The text of a part, in which pictures are parts of their own.
    fn part_text(&self, field: &str, speaker: Speaker, text: String) -> Result<String, Error> {
        if speaker == Speaker::Assistant {
            return self.answer(field, text);
        }
        self.check_placeholders(field, &text, Said::Asked)?;
        if tagged(&text).next().is_some() {
            let error = self.error(field, "names a picture in `<img>`, which is read in messages that are one text");
            return Err(error.with_hint("use a part `{\"type\": \"image\", \"image\": \"PATH\"}` instead"));
        }
        if self.has_row_pictures && text.contains(PLACEHOLDER) {
            let error =
                self.error(field, "contains `<image>`, which is only a placeholder in messages that are one text");
            return Err(error.with_hint("use a part `{\"type\": \"image\"}` where the picture goes"));
        }
        Ok(text)
    }

    fn has_one_system(&self, field: &str) -> Result<(), Error> {
        match &self.messages[..] {
            [one, other, ..] if one.role == "system" && other.role == "system" => {
                Err(self
                    .error("system", format!("means the same as the first message of `{field}`, and the row has both")))
            }
            _ => Ok(()),
        }
    }

    fn read_question(&mut self, object: &mut Object<'a>, lone_text: LoneText, has_pictures: bool) -> Result<(), Error> {
        let (prompt, answer) = self.find_pair(object, lone_text, has_pictures)?;
        self.read_system(object)?;
        self.read_history(object)?;
        match prompt {
            Some((field, prompt @ Value::List(_))) => self.read_messages(field, prompt, Weight::Prompt)?,
            prompt => {
                let field = prompt.as_ref().map_or(CAPTIONED, |(field, _)| *field);
                let mut text = prompt.map_or(Ok(String::new()), |(field, value)| self.text(field, value))?;
                self.question = (!text.is_empty()).then_some(field);
                // Joined as in Alpaca.
                if field == INSTRUCTION
                    && let Some(input) = object.take("input").filter(|input| !input.is_empty())
                {
                    text = format!("{text}\n{}", self.text("input", input)?);
                    self.question = None;
                }
                let content = self.with_placeholders(field, &text)?;
                self.push(field, Message::new("user", content));
            }
        }
        self.has_one_system("prompt")?;
        match answer {
            // One answer of possibly several is a text, too.
            (field, Value::List(mut list)) if matches!(&list[..], [Value::Text(_)]) => {
                let answer = self.text(field, list.remove(0))?;
                let answer = self.answer(field, answer)?;
                self.push(field, Message::text("assistant", &answer));
            }
            (field, Value::List(list)) if list.iter().any(|one| matches!(one, Value::Text(_))) => {
                let problem = format!("is a list of {}: only one answer is trained", list.len());
                return Err(self.error(field, problem).with_hint("write the one to train as a string"));
            }
            (field, answer @ Value::List(_)) => {
                self.read_messages(field, answer, Weight::Usual)?;
                self.ends_with_answer(field)?;
            }
            (field, answer @ (Value::Integer(_) | Value::Number(_) | Value::Bool(_))) => {
                let error = self.error(field, format!("is {answer}, not a string"));
                return Err(error.with_hint("write as a string what the model should say"));
            }
            (field, answer) => {
                let answer = self.text(field, answer)?;
                let answer = self.answer(field, answer)?;
                self.push(field, Message::text("assistant", &answer));
            }
        }
        Ok(())
    }

    fn read_messages(&mut self, field: &str, messages: Value<'a>, weight: Weight) -> Result<(), Error> {
        let Value::List(messages) = messages else {
            let error = self.error(field, format!("is {messages}, not a list of messages"));
            let is_json = matches!(&messages, Value::Text(text) if text.starts_with(['[', '{']));
            let hint = "it is JSON as text: write what `json.loads` makes of it";
            return Err(if is_json { error.with_hint(hint) } else { error });
        };
        if messages.is_empty() {
            return Err(self.error(field, "is an empty list"));
        }
        let first = self.messages.len();
        for (index, message) in messages.into_iter().enumerate() {
            self.read_message(&format!("{field}[{index}]"), message)?;
        }
        for message in &mut self.messages[first..] {
            // A prompt does not count in the loss, whatever weights its messages have.
            message.weight = if weight == Weight::Prompt { weight } else { message.weight };
        }
        Ok(())
    }

    fn ends_with_answer(&self, field: &str) -> Result<(), Error> {
        match self.messages.last() {
            Some(last) if last.role != "assistant" => {
                let error = self.error(field, format!("has no answer: the last message is from `{}`", last.role));
                Err(error.with_hint("a row must end with an assistant message"))
            }
            _ => Ok(()),
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
        let content = message.take_any(&["content", "value"]);
        let role_field = format!("{field}.{role_field}");
        let role = self.text(&role_field, role)?;
        let speaker = self.known_role(&role_field, &role)?;
        let mut calls = self.read_calls(field, speaker, &mut message)?;
        let content = match self.read_refusal(field, speaker, content.as_ref(), &mut message)? {
            Some(refusal) => Some((REFUSAL, refusal)),
            None => content,
        };
        let (content_field, content) = match content {
            Some((name, content)) => (format!("{field}.{name}"), Some(content)),
            None if !calls.is_empty() => (String::new(), None),
            None => return Err(missing("content", "value")),
        };
        let content = match content {
            None => Content::Absent,
            // The content of such a message is a call or a list of calls.
            Some(content) if speaker == Speaker::Call => {
                calls.extend(self.reader.calls(&content_field, content)?);
                if calls.is_empty() {
                    return Err(self.error(&content_field, "has no tool call"));
                }
                Content::Absent
            }
            Some(content) => self.read_content(&content_field, speaker, content)?,
        };
        let weight = self.read_weight(field, speaker, &mut message)?;
        let inside = format!("{field}.");
        let left_out = self.names.leave_out(&inside, &mut message);
        self.ignored.extend(left_out);
        self.check_unused(&inside, &message)?;
        let mut fields = Vec::new();
        for (name, value) in message.0 {
            if value != Value::Null {
                fields.push((name.to_string(), self.reader.free(&format!("{field}.{name}"), value)?));
            }
        }
        if speaker == Speaker::Call && self.call_more(&mut calls) {
            return Ok(());
        }
        if !calls.is_empty() {
            fields.push((TOOL_CALLS.to_string(), Json::List(calls)));
        }
        self.push(field, Message { role: speaker.role().to_string(), content, fields, weight });
        Ok(())
    }

    /// An answer in the field where OpenAI's API puts it if the model declines. The models that are trained here have one text only, so it is the answer.
    fn read_refusal(
        &self,
        field: &str,
        speaker: Speaker,
        content: Option<&(&'static str, Value<'a>)>,
        message: &mut Object<'a>,
    ) -> Result<Option<Value<'a>>, Error> {
        let is_text = |value: &Value<'a>| matches!(value, Value::Text(text) if !text.is_empty());
        if speaker != Speaker::Assistant || !message.0.iter().any(|(name, value)| name == REFUSAL && is_text(value)) {
            return Ok(None);
        }
        match content {
            Some((name, content)) if !content.is_empty() => {
                let problem = format!("means the same as `{name}`, and the message has both");
                Err(self.error(&format!("{field}.{REFUSAL}"), problem))
            }
            _ => Ok(message.take(REFUSAL)),
        }
    }

    /// Tool calls beside the content of an assistant message.
    fn read_calls(&self, field: &str, speaker: Speaker, message: &mut Object<'a>) -> Result<Vec<Json>, Error> {
        let older = message.0.iter().any(|(name, value)| name == "function_call" && !value.is_empty());
        if older {
            let error = self.error(&format!("{field}.function_call"), "is an older format that is not supported");
            return Err(error.with_hint("use `tools` and `tool_calls`"));
        }
        let Some(calls) = message.take(TOOL_CALLS).filter(|calls| !calls.is_empty()) else { return Ok(Vec::new()) };
        let field = format!("{field}.{TOOL_CALLS}");
        match speaker {
            Speaker::Assistant => self.reader.calls(&field, calls),
            other => Err(self.error(&field, format!("is not for `{}`: only the assistant calls tools", other.role()))),
        }
    }

    /// Appends calls given as separate messages to the assistant's turn before them. As turns of their own they would teach the model to end
    /// its turn between calls.
    fn call_more(&mut self, calls: &mut Vec<Json>) -> bool {
        let Some(last) = self.messages.last_mut().filter(|last| last.role == Speaker::Assistant.role()) else {
            return false;
        };
        match last.fields.iter_mut().find(|(name, _)| name == TOOL_CALLS) {
            Some((_, Json::List(known))) => known.append(calls),
            _ => last.fields.push((TOOL_CALLS.to_string(), Json::List(std::mem::take(calls)))),
        }
        true
    }

    /// Whether an answer counts in the loss: OpenAI's `weight` (0 or 1), ms-swift's `loss` (true or false) and `loss_scale`, Axolotl's `train`.
    fn read_weight(&self, field: &str, speaker: Speaker, message: &mut Object<'a>) -> Result<Weight, Error> {
        let is_answer = speaker.role() == "assistant";
        let mut weight = Weight::Usual;
        for name in WEIGHTS {
            if self.names.ignores(&format!("{field}.{name}")) {
                continue;
            }
            let Some(value) = message.take(name) else { continue };
            let counts = match value {
                Value::Integer(1) | Value::Bool(true) | Value::Number(1.0) => true,
                Value::Integer(0) | Value::Bool(false) | Value::Number(0.0) => false,
                other => {
                    let error = self.error(&format!("{field}.{name}"), format!("is {other}"));
                    return Err(error.with_hint("0: the message is not trained; 1: it is"));
                }
            };
            // Only Axolotl's flag has a meaning for messages that are not answers: they would be trained.
            if !is_answer && counts && name == TRAIN {
                let problem =
                    format!("is true, but only answers are trained, and this message is from `{}`", speaker.role());
                return Err(self.error(&format!("{field}.{name}"), problem).with_hint(format!(
                    "`--ignore-field '{}'` trains answers alone, whatever their flags",
                    unnumbered(&format!("{field}.{name}"))
                )));
            }
            if is_answer && !counts {
                weight = Weight::Zero;
            }
        }
        Ok(weight)
    }

    fn known_role(&self, field: &str, role: &str) -> Result<Speaker, Error> {
        match role {
            "system" | "developer" => Ok(Speaker::System),
            "user" | "human" => Ok(Speaker::User),
            "assistant" | "gpt" | "model" => Ok(Speaker::Assistant),
            "function_call" | "tool_call" => Ok(Speaker::Call),
            "tool" | "observation" | "tool_response" => Ok(Speaker::Tool),
            other => {
                let error = self.error(field, format!("is `{}`, an unknown role", shortened(other)));
                Err(error.with_hint(
                    "use `system`, `user` (`human`), `assistant` (`gpt`), `tool` (`observation`, `tool_response`) or \
                     `function_call` (`tool_call`)",
                ))
            }
        }
    }

    fn read_content(&mut self, field: &str, speaker: Speaker, content: Value<'a>) -> Result<Content, Error> {
        match content {
            // The assistant's text is learnt verbatim.
            Value::Text(text) if speaker == Speaker::Assistant => {
                Ok(Content::Text(self.answer(field, text.into_owned())?))
            }
            Value::Text(text) => self.with_placeholders(field, &text),
            Value::List(parts) => {
                let mut read = Vec::with_capacity(parts.len());
                for (index, part) in parts.into_iter().enumerate() {
                    read.push(self.read_part(&format!("{field}[{index}]"), speaker, part)?);
                }
                match &mut read[..] {
                    [Part::Text(text)] => Ok(Content::Text(std::mem::take(text))),
                    _ => Ok(Content::Parts(read)),
                }
            }
            other => Err(self.error(field, format!("is {other}, not a string or a list of parts"))),
        }
    }

    fn read_part(&mut self, field: &str, speaker: Speaker, part: Value<'a>) -> Result<Part, Error> {
        let mut part = match part {
            Value::Object(part) => part,
            Value::Text(text) => return Ok(Part::Text(self.part_text(field, speaker, text.into_owned())?)),
            other => return Err(self.error(field, format!("is {other}, not a part of a message"))),
        };
        let kind_field = format!("{field}.type");
        let names = part.names();
        let Some(kind) = part.take("type") else {
            let error = self.error(&kind_field, format!("is missing: the part has {names}"));
            return Err(
                error.with_hint("`{\"type\": \"text\", \"text\": ...}` or `{\"type\": \"image\", \"image\": ...}`")
            );
        };
        let kind = self.text(&kind_field, kind)?;
        let read = match kind.as_str() {
            "text" => match part.take_any(&["text", "content"]) {
                Some((name, text)) => {
                    let field = format!("{field}.{name}");
                    let text = self.text(&field, text)?;
                    Part::Text(self.part_text(&field, speaker, text)?)
                }
                None => return Err(self.error(&format!("{field}.text"), format!("is missing: the part has {names}"))),
            },
            REFUSAL if speaker == Speaker::Assistant => match part.take(REFUSAL) {
                Some(text) => Part::Text(self.text(&format!("{field}.{REFUSAL}"), text)?),
                None => {
                    return Err(self.error(&format!("{field}.{REFUSAL}"), format!("is missing: the part has {names}")));
                }
            },
            "image" | "image_url" if speaker == Speaker::Assistant => {
                let error = self.error(&kind_field, format!("is `{kind}`: answers cannot show pictures"));
                return Err(error.with_hint("put the picture into the question"));
            }
            "image" | "image_url" => {
                let own = part.take_any(&["image_url", "image", "url", "path", "bytes", "base64", "source"]);
                self.check_index(field, &mut part, own.is_some())?;
                let own = own.map(|(name, value)| PictureField { field: format!("{field}.{name}"), value });
                let bounds = self.read_bounds(field, &mut part)?;
                self.slots.push(Slot { own, bounds });
                Part::Image
            }
            other => {
                let error = self.error(&kind_field, format!("is `{}`, which is not supported", shortened(other)));
                return Err(error.with_hint("use `text`, `image_url` or `image`"));
            }
        };
        self.leave(&format!("{field}."), part)?;
        Ok(read)
    }

    /// Hugging Face's parts may number the row's picture that they show; other orders than that of the messages are not supported.
    fn check_index(&self, field: &str, part: &mut Object<'a>, has_own: bool) -> Result<(), Error> {
        let Some(index) = part.take("index").filter(|_| !has_own) else { return Ok(()) };
        let next = self.slots.iter().filter(|slot| slot.own.is_none()).count();
        if matches!(index, Value::Integer(index) if usize::try_from(index) == Ok(next)) {
            return Ok(());
        }
        let problem = format!("is {index}, but this is the row's picture {next}, counted from 0");
        Err(self.error(&format!("{field}.index"), problem).with_hint("sort `images` by their place in the messages"))
    }

    /// Bounds on the pixels of one picture, as in qwen-vl-utils.
    fn read_bounds(&self, field: &str, part: &mut Object<'a>) -> Result<PixelBounds, Error> {
        if let Some((name, value)) = part.take_any(&["resized_height", "resized_width"]) {
            let error = self.error(&format!("{field}.{name}"), format!("is {value}: fixed sizes are not supported"));
            return Err(error.with_hint("use `min_pixels` and `max_pixels`"));
        }
        let mut bound = |name: &str| match part.take(name) {
            None => Ok(None),
            Some(Value::Integer(pixels)) if pixels > 0 && u64::try_from(pixels).is_ok() => Ok(Some(pixels as u64)),
            Some(Value::Number(pixels)) if pixels >= 1.0 && pixels.fract() == 0.0 => Ok(Some(pixels as u64)),
            Some(other) => Err(self.error(&format!("{field}.{name}"), format!("is {other}, not a number of pixels"))),
        };
        let (least, most) = (bound("min_pixels")?, bound("max_pixels")?);
        match (least, most) {
            (Some(least), Some(most)) if least > most => {
                Err(self.error(&format!("{field}.min_pixels"), format!("is {least}, more than `max_pixels` ({most})")))
            }
            _ => Ok(PixelBounds { least, most }),
        }
    }

    /// Text with a row picture at each placeholder, and the picture named by each tag. The line break next to a placeholder is removed with it.
    fn with_placeholders(&mut self, field: &str, text: &str) -> Result<Content, Error> {
        if text.contains(VIDEO_PLACEHOLDER) {
            return Err(self.error(field, "shows a video (`<video>`): videos are not supported"));
        }
        self.check_placeholders(field, text, Said::Asked)?;
        let tags = tagged(text).count();
        if tags > 0 && (text.contains(PLACEHOLDER) || self.has_row_pictures) {
            let error = self.error(field, "names a picture in `<img>`, and the row shows pictures in another way, too");
            return Err(error.with_hint("use one way: `<img>` with paths, or `<image>` with `images`"));
        }
        if tags > 0 {
            return Ok(self.with_tags(field, text));
        }
        if !text.contains(PLACEHOLDER) {
            return Ok(Content::Text(text.to_string()));
        }
        let mut parts = Vec::new();
        for (index, piece) in text.split(PLACEHOLDER).enumerate() {
            let mut piece = piece;
            if index > 0 {
                parts.push(Part::Image);
                self.slots.push(Slot::of_row());
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
        Ok(Content::Parts(parts))
    }

    fn finish<P>(
        mut self,
        of_row: Vec<PictureField<'a>>,
        beside: Beside<'_>,
        make: impl Fn(Found<'_>) -> Result<P, Error>,
    ) -> Result<Made<P>, Error> {
        let members = match beside {
            // Pictures in an archive need no field: they belong to the row's group.
            Beside::Archive { members, .. }
                if of_row.is_empty() && self.slots.iter().all(|slot| slot.own.is_none()) =>
            {
                members
            }
            _ => &[],
        };
        let of_members = members
            .iter()
            .map(|member| PictureField { field: "image".to_string(), value: Value::Text(member.name.clone().into()) });
        let of_row: Vec<PictureField<'a>> = of_row.into_iter().chain(of_members).collect();
        let places = self.slots.iter().filter(|slot| slot.own.is_none()).count();
        if places == 0 {
            self.place_in_front(of_row.len());
        } else if places != of_row.len() {
            let count = of_row.len();
            let pictures = if count == 1 { "picture" } else { "pictures" };
            let problem = format!("the row has {count} {pictures}, but its messages show {places}");
            return Err(self
                .error("images", format!("does not match: {problem}"))
                .with_hint("use one `<image>` or part of type `image` for each"));
        }
        let mut of_row = of_row.into_iter();
        let mut pictures = Vec::with_capacity(self.slots.len());
        for Slot { own, bounds } in std::mem::take(&mut self.slots) {
            if let Some(field) = own.or_else(|| of_row.next()) {
                pictures.push((field.find(self.place, beside, &mut self.ignored, &make)?, bounds));
            }
        }
        let Draft { messages, tools, fields, objects, ignored, .. } = self;
        Ok(Made { messages, tools, fields, objects, pictures, ignored })
    }

    /// Puts pictures before the first user message, or before the first message if there is none.
    fn place_in_front(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let first = self.messages.iter().position(|message| message.role == "user").unwrap_or(0);
        let before: usize = self.messages[..first].iter().map(Message::images).sum();
        self.slots.splice(before..before, (0..count).map(|_| Slot::of_row()));
        let content = &mut self.messages[first].content;
        let parts = match std::mem::replace(content, Content::Parts(Vec::new())) {
            Content::Absent => Vec::new(),
            Content::Text(text) if text.is_empty() => Vec::new(),
            Content::Text(text) => vec![Part::Text(text)],
            Content::Parts(parts) => parts,
        };
        *content = Content::Parts(std::iter::repeat_n(Part::Image, count).chain(parts).collect());
    }
}

/// The error for two fields with the same meaning.
fn both(place: &str, first: &str, second: &str) -> Error {
    let problem = format!("means the same as `{first}`, and the row has both");
    Error::row_field(place, second, problem)
        .with_hint(format!("`--ignore-field {first}` or `--ignore-field {second}` leaves one out"))
}

/// Whether a part or a text of a row shows a picture.
fn shows_pictures(object: &Object) -> bool {
    let texts = object.0.iter().filter(|(name, _)| is_meaning(name));
    texts.into_iter().any(|(_, value)| holds_picture(value))
}

/// Whether a content, or one of several messages, turns or parts, shows a picture.
fn holds_picture(value: &Value) -> bool {
    match value {
        Value::Text(text) => tagged(text).next().is_some(),
        Value::List(list) => list.iter().any(holds_picture),
        Value::Object(Object(fields)) => fields.iter().any(|(name, value)| match (name.as_ref(), value) {
            ("type", Value::Text(kind)) => kind == "image" || kind == "image_url",
            ("content" | "value", value) => holds_picture(value),
            _ => false,
        }),
        _ => false,
    }
}

/// The pictures given beside the conversation.
fn row_pictures<'a>(place: &str, object: &mut Object<'a>) -> Result<Vec<PictureField<'a>>, Error> {
    let Some((field, value)) = object.take_any(&PICTURES) else { return Ok(Vec::new()) };
    if let Some((second, _)) = object.take_any(&PICTURES) {
        return Err(both(place, field, second));
    }
    let one = |(index, value)| PictureField { field: format!("{field}[{index}]"), value };
    Ok(match value {
        Value::List(list) => list.into_iter().enumerate().map(one).collect(),
        value => vec![PictureField { field: field.to_string(), value }],
    })
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    System,
    User,
    Assistant,
    /// The assistant, with a message that is only a tool call.
    Call,
    Tool,
}

impl Speaker {
    /// The role's name in chat templates.
    fn role(self) -> &'static str {
        match self {
            Speaker::System => "system",
            Speaker::User => "user",
            Speaker::Assistant | Speaker::Call => "assistant",
            Speaker::Tool => "tool",
        }
    }
}

/// A field without list indices, so that all elements share one name.
pub(crate) fn unnumbered(field: &str) -> String {
    let mut name = String::with_capacity(field.len());
    for piece in field.split_inclusive('[') {
        name += piece.trim_start_matches(|digit: char| name.ends_with('[') && digit.is_ascii_digit());
    }
    name
}
