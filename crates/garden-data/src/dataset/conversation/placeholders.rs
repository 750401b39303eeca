//! What texts show: pictures named in tags, and placeholders that mean nothing here.

use std::ops::Range;

use super::{Draft, Slot};
use crate::dataset::picture::PictureField;
use crate::dataset::value::Value;
use crate::error::Error;
use crate::example::length::PixelBounds;
use crate::template::{Content, Part};

/// Qwen-VL's way to name a picture in a text.
const TAG_START: &str = "<img>";
const TAG_END: &str = "</img>";
/// Placeholders of other models, which mean nothing here.
const OTHER_PLACEHOLDERS: [&str; 14] = [
    "<Image>",
    "<IMAGE>",
    "</image>",
    "<img></img>",
    "<|image|>",
    "<|img|>",
    "<|begin_of_image|>",
    "<|media_pad|>",
    "<start_of_image>",
    "<image_soft_token>",
    "<image_placeholder>",
    "<ImageHere>",
    "<IMG_CONTEXT>",
    "[IMG]",
];
/// What templates write where pictures and videos are shown.
const PICTURE_TOKENS: [&str; 4] = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"];

impl Draft<'_, '_> {
    /// Qwen-VL's text, in which `<img>` names a picture's file. All other text stays, as in ms-swift.
    pub(super) fn with_tags(&mut self, field: &str, text: &str) -> Content {
        let (mut parts, mut end) = (Vec::new(), 0);
        let push = |parts: &mut Vec<Part>, text: &str| {
            if !text.is_empty() {
                parts.push(Part::Text(text.to_string()));
            }
        };
        for (range, path) in tagged(text) {
            push(&mut parts, &text[end..range.start]);
            parts.push(Part::Image);
            let value = Value::Text(path.to_string().into());
            self.slots.push(Slot {
                own: Some(PictureField { field: field.to_string(), value }),
                bounds: PixelBounds::default(),
            });
            end = range.end;
        }
        push(&mut parts, &text[end..]);
        Content::Parts(parts)
    }

    /// Refuses tokens and placeholders that would be trained as text, or as a picture that is not there.
    pub(super) fn check_placeholders(&self, field: &str, text: &str) -> Result<(), Error> {
        if let Some(token) = picture_token(text) {
            let error = self.error(field, format!("contains `{token}`, which only the chat template may write"));
            return Err(error.with_hint("write `<image>` where a picture goes, or take the token out"));
        }
        let numbered =
            || ["<image", "<image ", "<image_", "<|image_"].into_iter().find_map(|start| numbered(text, start));
        let others = || OTHER_PLACEHOLDERS.into_iter().find(|placeholder| text.contains(placeholder));
        if let Some(placeholder) = numbered().or_else(others).filter(|_| self.has_row_pictures) {
            let error = self.error(field, format!("contains `{placeholder}`, which shows no picture here"));
            return Err(error.with_hint("write `<image>` where a picture goes, and list pictures in that order"));
        }
        Ok(())
    }
}

/// A token in a text that only the chat template may write: it would stand for a picture.
pub fn picture_token(text: &str) -> Option<&'static str> {
    PICTURE_TOKENS.into_iter().find(|token| text.contains(token))
}

/// The pictures that a text names in `<img>`: where, and which file.
pub(super) fn tagged(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    text.match_indices(TAG_START).filter_map(|(start, _)| {
        let inner = &text[start + TAG_START.len()..];
        let path = &inner[..inner.find(TAG_END).filter(|end| *end > 0)?];
        let is_one = !path.contains('\n') && !path.contains(TAG_START);
        is_one.then(|| (start..start + TAG_START.len() + path.len() + TAG_END.len(), path))
    })
}

/// A placeholder with a number, such as `<image 1>`.
fn numbered<'t>(text: &'t str, start: &str) -> Option<&'t str> {
    text.match_indices(start).find_map(|(place, _)| {
        let digits = text[place + start.len()..].bytes().take_while(u8::is_ascii_digit).count();
        let end = text[place + start.len() + digits..].find('>').filter(|end| digits > 0 && *end <= 1)?;
        Some(&text[place..=place + start.len() + digits + end])
    })
}
