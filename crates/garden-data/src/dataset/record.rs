//! A row of a dataset as it was written: a conversation, and its pictures still compressed.

use crate::dataset::free::Json;
use crate::example::Said;
use crate::example::boxes::Objects;
use crate::example::length::PixelBounds;
use crate::template::{Chat, Message};

/// A conversation with its pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Where it stands, such as `train.jsonl:17`.
    pub place: String,
    /// Who says and shows what; the last message is an answer.
    pub messages: Vec<Message>,
    /// Tools that the assistant may call.
    pub tools: Vec<Json>,
    /// What the row calls each message, such as `conversations[1]`.
    pub fields: Vec<String>,
    /// Names and boxes that the texts have places for.
    pub objects: Objects,
    /// The pictures, in the order in which the messages show them.
    pub pictures: Vec<StoredPicture>,
}

impl Record {
    /// What a template renders.
    pub fn chat(&self) -> Chat<'_> {
        Chat { messages: &self.messages, tools: &self.tools, fields: &self.fields }
    }

    /// What an example is made of, but for its pictures.
    pub fn said(&self) -> Said<'_> {
        Said { place: &self.place, chat: self.chat(), objects: &self.objects }
    }

    /// Bytes that it holds: texts and pictures.
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
    /// What errors call it: place and field, and the file if there is one.
    pub name: String,
    /// The file's bytes.
    pub data: Vec<u8>,
    /// Bounds on its pixels that the row asks for.
    pub bounds: PixelBounds,
}
