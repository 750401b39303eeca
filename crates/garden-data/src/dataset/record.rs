//! A row of a dataset as stored: a conversation, with its pictures still compressed.

use crate::dataset::free::Json;
use crate::example::Said;
use crate::example::boxes::Objects;
use crate::example::length::PixelBounds;
use crate::template::{Chat, Message};

/// A conversation with its pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The row's position, such as `train.jsonl:17`.
    pub place: String,
    /// The messages; the last one is an answer.
    pub messages: Vec<Message>,
    /// Tools that the assistant may call.
    pub tools: Vec<Json>,
    /// The row's field for each message, such as `conversations[1]`.
    pub fields: Vec<String>,
    /// Names and boxes for placeholders in the texts.
    pub objects: Objects,
    /// The pictures, in the order of the messages.
    pub pictures: Vec<StoredPicture>,
}

impl Record {
    /// The template's input.
    pub fn chat(&self) -> Chat<'_> {
        Chat { messages: &self.messages, tools: &self.tools, fields: &self.fields }
    }

    /// Everything an example is built from, except the pictures.
    pub fn said(&self) -> Said<'_> {
        Said { place: &self.place, chat: self.chat(), objects: &self.objects }
    }

    /// Bytes held: texts and pictures.
    pub fn bytes(&self) -> usize {
        let pictures: usize = self.pictures.iter().map(|picture| picture.data.len() + picture.name.len()).sum();
        let texts: usize = self.messages.iter().map(text_bytes).sum();
        let tools: usize = self.tools.iter().map(Json::bytes).sum();
        self.place.len() + texts + tools + pictures + self.objects.bytes()
    }
}

fn text_bytes(message: &Message) -> usize {
    let texts: usize = message.parts().flatten().map(str::len).sum();
    texts + message.fields.iter().map(|(name, value)| name.len() + value.bytes()).sum::<usize>()
}

/// A picture of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPicture {
    /// Its name in error messages: position and field, and the file if there is one.
    pub name: String,
    /// The file's bytes.
    pub data: Vec<u8>,
    /// Pixel bounds requested by the row.
    pub bounds: PixelBounds,
}
