//! A row whose pictures are known by their headers: what it takes to count tokens, without the pixels.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::free::Json;
use crate::length::{PixelBounds, SizedPicture};
use crate::template::{Chat, Message};

/// A conversation with what the headers of its pictures say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Where it stands, such as `train.jsonl:17`.
    pub place: String,
    /// Who says and shows what; the last message is an answer.
    pub messages: Vec<Message>,
    /// Tools that the assistant may call.
    pub tools: Vec<Json>,
    /// What the row calls each message, such as `conversations[1]`.
    pub fields: Vec<String>,
    /// The pictures, in the order in which the messages show them.
    pub pictures: Vec<PictureOutline>,
    /// Bytes that are held to read the row with its whole pictures: the row as it is stored, and the pictures still compressed.
    pub bytes: u64,
    /// Fields that are not read, without the numbers of list elements: `id`, `messages[].content[].detail`.
    pub ignored: Vec<String>,
}

/// What is known of a picture without decoding it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureOutline {
    /// What errors call it: place and field, and the file if there is one.
    pub name: String,
    /// Pixels of a row, as it is shown.
    pub width: usize,
    /// Rows, as it is shown.
    pub height: usize,
    /// Whether it has to be decoded as a whole before any of it can be used; sequential JPEG files need not.
    pub is_whole: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// The same for the same file: a hash of its length, its first 64 KiB and its last 4 KiB.
    pub fingerprint: u64,
    /// Bounds on its pixels that the row asks for.
    pub bounds: PixelBounds,
}

impl PictureOutline {
    /// Its name and size.
    pub fn sized(&self) -> SizedPicture<'_> {
        SizedPicture { name: &self.name, width: self.width, height: self.height, bounds: self.bounds }
    }
}

impl Outline {
    /// What a template renders.
    pub fn chat(&self) -> Chat<'_> {
        Chat { messages: &self.messages, tools: &self.tools, fields: &self.fields }
    }

    /// The same for rows that say and show the same.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.messages.hash(&mut hasher);
        self.tools.hash(&mut hasher);
        for picture in &self.pictures {
            (picture.fingerprint, picture.bounds).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether the last answer says nothing and calls nothing.
    pub fn has_empty_answer(&self) -> bool {
        self.messages.last().is_some_and(|message| message.words().trim().is_empty() && message.calls().is_empty())
    }
}
