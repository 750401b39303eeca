//! A row whose pictures are known by their headers: what it takes to count tokens, without the pixels.

use crate::fingerprint::Fingerprint;
use crate::length::SizedPicture;
use crate::template::{Content, Message, Part};

/// A conversation with what the headers of its pictures say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Where it stands, such as `train.jsonl:17`.
    pub place: String,
    /// Who says and shows what; the last message is an answer.
    pub messages: Vec<Message>,
    /// The pictures, in the order in which the messages show them.
    pub pictures: Vec<PictureOutline>,
    /// Bytes that are held to read the row with its whole pictures: the row as it is stored, and the pictures still compressed.
    pub bytes: u64,
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
}

impl PictureOutline {
    /// Its name and size.
    pub fn sized(&self) -> SizedPicture<'_> {
        SizedPicture { name: &self.name, width: self.width, height: self.height }
    }
}

impl Outline {
    /// The same for rows that say and show the same. Checkpoints have it, so it must stay what it is: what a message may have besides is added only
    /// where it has it.
    pub fn fingerprint(&self) -> u64 {
        let mut made = Fingerprint::default();
        for message in &self.messages {
            made.text(&message.role);
            let parts = match &message.content {
                Content::Text(text) => {
                    made.bytes(b"text");
                    made.text(text);
                    continue;
                }
                Content::Parts(parts) => parts,
            };
            for part in parts {
                match part {
                    Part::Text(text) => {
                        made.bytes(b"part");
                        made.text(text);
                    }
                    Part::Image => made.bytes(b"image"),
                }
            }
        }
        self.pictures.iter().for_each(|picture| made.number(picture.fingerprint));
        made.value()
    }

    /// Whether the last answer says nothing.
    pub fn has_empty_answer(&self) -> bool {
        self.messages.last().is_some_and(|message| message.words().trim().is_empty())
    }
}
