//! A row of a dataset as it was written: a conversation, and its pictures still compressed.

use crate::template::Message;

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

/// A picture of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPicture {
    /// What errors call it: place and field, and the file if there is one.
    pub name: String,
    /// The file's bytes.
    pub data: Vec<u8>,
}
