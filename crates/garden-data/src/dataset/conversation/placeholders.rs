//! What texts show: pictures named in tags, and placeholders that mean nothing here.

use std::ops::Range;

use super::{Draft, PLACEHOLDER, Slot};
use crate::dataset::picture::PictureField;
use crate::dataset::value::Value;
use crate::error::Error;
use crate::example::length::PixelBounds;
use crate::template::{Content, Part};

/// Qwen-VL's way to name a picture in a text.
const TAG_START: &str = "<img>";
const TAG_END: &str = "</img>";
/// Placeholders of other models, which mean nothing here and stand in no other text. Capitals do not count.
const OTHER_PLACEHOLDERS: [&str; 19] = [
    "<<image>>",
    "<image/>",
    "<image />",
    "</image>",
    "<img></img>",
    "<|image|>",
    "<|img|>",
    "<|begin_of_image|>",
    "<|media_start|>",
    "<|media_pad|>",
    "<start_of_image>",
    "<fake_token_around_image>",
    "<im_patch>",
    "<im_start>",
    "<image_soft_token>",
    "<image_placeholder>",
    "<imagehere>",
    "<img_context>",
    "[img]",
];
/// Others, which texts about web pages and programs contain, too: placeholders if they stand apart.
const MAYBE_PLACEHOLDERS: [&str; 5] = ["<picture>", "<img>", "<img ", "[image]", "{image}"];
/// The same for sounds.
const SOUND_PLACEHOLDER: &str = "<audio>";
/// How placeholders with a number begin.
const NUMBERED: [&str; 12] = [
    "<image",
    "<image ",
    "<image_",
    "<image-",
    "<|image_",
    "<|image ",
    "<img",
    "<img ",
    "<img_",
    "<picture",
    "<picture ",
    "<picture_",
];
/// What every template writes around turns and behind texts.
const TURN_TOKENS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
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
    pub(super) fn check_placeholders(&self, field: &str, text: &str, said: Said) -> Result<(), Error> {
        if let Some(token) = picture_token(text) {
            let error = self.error(field, format!("contains `{token}`, which only the chat template may write"));
            return Err(error.with_hint("write `<image>` where a picture goes, or take the token out"));
        }
        if let Some(token) = TURN_TOKENS.into_iter().find(|token| text.contains(token)) {
            let error = self.error(field, format!("contains `{token}`, which the chat template writes"));
            return Err(error.with_hint("take it out: the template marks the turns and their ends"));
        }
        if said == Said::Asked && placeholder_apart(text, &[SOUND_PLACEHOLDER]).is_some() {
            return Err(self.error(field, "has a place for a sound (`<audio>`): audio is not supported"));
        }
        if let Some(placeholder) = self.other_placeholder(text, said) {
            let error = self.error(field, format!("contains `{placeholder}`, which shows no picture here"));
            let hint = "write `<image>` where a picture goes, and list pictures in that order";
            return Err(error.with_hint(match &self.unused_pictures[..] {
                [] => hint.to_string(),
                names => format!("{hint}; `--field image={}` if they are there", names.join(",image=")),
            }));
        }
        Ok(())
    }

    /// A placeholder of another model. In answers and in rows without pictures, what looks like one may be part of what is written about.
    fn other_placeholder<'t>(&self, text: &'t str, said: Said) -> Option<&'t str> {
        let anywhere = || numbered(text).chain(others(text)).next().map(|range| &text[range]);
        let apart =
            || numbered(text).chain(others(text)).find(|range| stands_apart(text, range)).map(|range| &text[range]);
        match (self.around.shows, said) {
            (true, Said::Asked) => anywhere().or_else(|| placeholder_apart(text, &MAYBE_PLACEHOLDERS)),
            (true, Said::Answered) => anywhere(),
            (false, Said::Asked) => apart(),
            (false, Said::Answered) => None,
        }
    }
}

/// Whose text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Asked,
    Answered,
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

/// Placeholders with a number, such as `<image 1>`.
fn numbered(text: &str) -> impl Iterator<Item = Range<usize>> {
    let of_start = move |start: &'static str| {
        found(text, start).filter_map(move |range| {
            let digits = text[range.end..].bytes().take_while(u8::is_ascii_digit).count();
            let end = text[range.end + digits..].find('>').filter(|end| digits > 0 && *end <= 1)?;
            Some(range.start..range.end + digits + end + 1)
        })
    };
    NUMBERED.into_iter().flat_map(of_start)
}

/// Placeholders of other models. What differs from ours in capitals alone is another one, too.
fn others(text: &str) -> impl Iterator<Item = Range<usize>> {
    let capitals = found(text, PLACEHOLDER).filter(|range| &text[range.clone()] != PLACEHOLDER);
    let tags = found(text, TAG_START)
        .filter(|range| &text[range.clone()] != TAG_START && found(&text[range.end..], TAG_END).next().is_some());
    OTHER_PLACEHOLDERS.into_iter().flat_map(|placeholder| found(text, placeholder)).chain(capitals).chain(tags)
}

/// Where a text has something that begins with a mark, in capitals or not.
fn found<'t>(text: &'t str, wanted: &'t str) -> impl Iterator<Item = Range<usize>> + use<'t> {
    let (text, wanted) = (text.as_bytes(), wanted.as_bytes());
    let starts = memchr::memchr_iter(wanted[0], text);
    let is_there = move |start: &usize| {
        text.get(*start..*start + wanted.len()).is_some_and(|there| there.eq_ignore_ascii_case(wanted))
    };
    starts.filter(is_there).map(|start| start..start + wanted.len())
}

/// The first of several placeholders that stands apart from the text; one that is open reaches to the end of its tag.
fn placeholder_apart<'t>(text: &'t str, placeholders: &[&'t str]) -> Option<&'t str> {
    let whole = |range: Range<usize>| match text[range.clone()].ends_with('>') || !text[range.clone()].starts_with('<')
    {
        true => Some(range),
        false => Some(range.start..range.end + text[range.end..].find('>')? + 1),
    };
    let mut ranges = placeholders.iter().flat_map(|placeholder| found(text, placeholder)).filter_map(whole);
    ranges
        .find(|range| stands_apart(text, range) && tagged(text).all(|(tag, _)| tag.start != range.start))
        .map(|range| &text[range])
}

/// Whether a piece stands alone on its line, or at the beginning or the end of a text.
fn stands_apart(text: &str, range: &Range<usize>) -> bool {
    let (before, after) = (&text[..range.start], &text[range.end..]);
    let is_line = |text: &str, line: Option<&str>| text.is_empty() || line.is_some_and(|line| line.trim().is_empty());
    let is_alone = is_line(before, before.rsplit('\n').next()) && is_line(after, after.split('\n').next());
    before.trim().is_empty() || after.trim().is_empty() || is_alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_apart() {
        for (text, wanted, is_apart) in [
            ("<image_1>\nWhat?", "<image_1>", true),
            ("What?<image_1>", "<image_1>", true),
            ("Look:\n  <image_1> \nWhat?", "<image_1>", true),
            ("Is <image_1> larger?", "<image_1>", false),
        ] {
            let start = text.find(wanted).unwrap_or(0);
            assert_eq!(stands_apart(text, &(start..start + wanted.len())), is_apart, "{text}");
        }
        let one = |text| placeholder_apart(text, &MAYBE_PLACEHOLDERS);
        assert_eq!(one("<img src=a.jpg>\nWhat?"), Some("<img src=a.jpg>"));
        assert_eq!(one("Write <img src='x'>."), None);
        assert_eq!(one("<img>a.jpg</img>What?"), None);
    }

    #[test]
    fn placeholders_in_any_case_and_with_numbers() {
        let all = |text: &'static str| -> Vec<&str> {
            others(text).chain(numbered(text)).map(|range| &text[range]).collect()
        };
        assert_eq!(all("<Image> <image> <IMG>a.jpg</IMG> <<image>>"), ["<<image>>", "<Image>", "<IMG>"]);
        assert_eq!(
            all("<image 1> <|image_2|> <Picture 3> <image of a cat>"),
            ["<image 1>", "<|image_2|>", "<Picture 3>"]
        );
        assert!(all("<img>a.jpg</img> <image>").is_empty());
    }
}
