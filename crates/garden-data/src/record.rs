//! A row of a dataset as it was written: a conversation, and its pictures still compressed.

use crate::template::{Content, Message, Part};

/// A conversation with its pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Where it stands, such as `train.jsonl:17`.
    pub place: String,
    /// Who says and shows what; the last message is an answer.
    pub messages: Vec<Message>,
    /// The pictures, in the order in which the messages show them.
    pub pictures: Vec<StoredPicture>,
}

impl Record {
    /// Bytes that it holds: texts and pictures.
    pub fn bytes(&self) -> usize {
        let pictures: usize = self.pictures.iter().map(|picture| picture.data.len() + picture.name.len()).sum();
        let texts: usize = self.messages.iter().map(|message| text_bytes(&message.content)).sum();
        self.place.len() + texts + pictures
    }
}

fn text_bytes(content: &Content) -> usize {
    match content {
        Content::Text(text) => text.len(),
        Content::Parts(parts) => {
            parts.iter().map(|part| if let Part::Text(text) = part { text.len() } else { 0 }).sum()
        }
    }
}

/// A picture of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPicture {
    /// What errors call it: place and field, and the file if there is one.
    pub name: String,
    /// The file's bytes.
    pub data: Vec<u8>,
}
