//! Boxes: positions of objects in a picture, in the coordinates that the model uses.
//!
//! Models use pixels of the picture as they see it, that is after resizing. Rows have pixels of the stored picture, or
//! fractions of its sides (`objects`, ms-swift's format), and their texts say where each goes (`<bbox>`, `<ref-object>`). So texts are complete only when the
//! sizes are known, which depend on the pixel bounds: the same row has other coordinates in another run.
//!
//! Boxes written in texts (`"bbox_2d": [...]`) may be in either kind of pixels, and nothing in them says which. So they stay unchanged
//! unless the user declares them to be original pixels; a box outside of its picture is wrong in either case.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::dataset::free::Real;
use crate::error::Error;
use crate::example::length::SizedPicture;
use crate::example::turns::ASSISTANT;
use crate::fingerprint::Fingerprint;
use crate::image::ImageSettings;
use crate::template::{Chat, Content, Message, Part};
use garden_input::{BoxRules, Grid};

/// Placeholder for the next box of the row's `objects`.
pub(crate) const BOX_PLACEHOLDER: &str = "<bbox>";
/// Placeholder for the next name.
pub(crate) const NAME_PLACEHOLDER: &str = "<ref-object>";
/// Pixels that a box may exceed its picture by, due to rounding; it is clipped.
const SLACK: f64 = 0.5;

/// Text format of boxes from `objects`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoxFormat {
    /// `[12, 40, 300, 500]`, and plain names (ms-swift's `QWENVL_BBOX_FORMAT=new`).
    #[default]
    #[serde(alias = "new")]
    Plain,
    /// `<|box_start|>(12,40),(300,500)<|box_end|>`, and names between `<|object_ref_start|>` and `<|object_ref_end|>`
    /// (ms-swift's default).
    #[serde(alias = "legacy")]
    Tokens,
}

/// Coordinates of boxes written in texts as `bbox_2d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextBoxes {
    /// Pixels of the picture as the model sees it; left unchanged.
    #[default]
    Resized,
    /// Pixels of the stored picture; converted.
    Original,
}

/// Box settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoxSettings {
    /// Text format of boxes from `objects`.
    pub format: BoxFormat,
    /// Coordinates of boxes in texts.
    pub in_texts: TextBoxes,
}

/// The names and boxes of a row, in the order of their placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The text for each `<ref-object>`.
    pub names: Vec<String>,
    /// The box for each `<bbox>`.
    pub boxes: Vec<RowBox>,
}

/// A box or a point as given in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowBox {
    /// x and y of a point, or of the upper left and the lower right corner.
    pub numbers: Vec<Real>,
    /// Their unit.
    pub unit: BoxUnit,
    /// Index of its picture in the row.
    pub picture: usize,
}

/// Unit of a box's coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxUnit {
    /// Pixels of the picture as stored and displayed (`real`).
    Pixels,
    /// Fractions of its sides (`norm1`).
    Shares,
}

/// A box or a point as shown to the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenBox {
    /// Index of its message.
    pub message: usize,
    /// Index of its picture; `None` for a box in a text of a row with several pictures.
    pub picture: Option<usize>,
    /// x and y of a point, or of two corners, in pixels of the picture as the model sees it.
    pub numbers: Vec<i64>,
    /// The text in the row.
    pub given: String,
    /// Its source.
    pub source: BoxSource,
}

/// The source of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoxSource {
    /// From `objects`, at a `<bbox>`.
    Objects,
    /// From a text, converted from pixels of the stored picture.
    Converted,
    /// From a text, unchanged.
    Text,
}

impl Objects {
    /// Whether there are no names and boxes.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.boxes.is_empty()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let boxes: usize = self.boxes.iter().map(|one| size_of::<RowBox>() + size_of_val(&one.numbers[..])).sum();
        boxes + self.names.iter().map(String::len).sum::<usize>()
    }

    /// Adds names and boxes to the fingerprint of a row.
    pub(crate) fn mark(&self, made: &mut Fingerprint) {
        for name in &self.names {
            made.bytes(b"name");
            made.text(name);
        }
        for one in &self.boxes {
            made.bytes(match one.unit {
                BoxUnit::Pixels => b"box of pixels",
                BoxUnit::Shares => b"box of shares",
            });
            made.number(one.picture as u64);
            one.numbers.iter().for_each(|number| made.number(number.0.to_bits()));
        }
    }
}

/// A conversation with boxes filled in.
pub(crate) struct Written<'a> {
    pub messages: Cow<'a, [Message]>,
    pub boxes: Vec<WrittenBox>,
}

/// The pictures of a row, and their sizes after resizing.
#[derive(Clone, Copy)]
pub(crate) struct Sizes<'a> {
    pub settings: &'a ImageSettings,
    pub pictures: &'a [SizedPicture<'a>],
    pub grids: &'a [Grid],
}

/// Width and height of a picture before and after resizing.
#[derive(Clone, Copy, Debug)]
struct Size {
    before: [usize; 2],
    after: [usize; 2],
}

impl Sizes<'_> {
    fn of(&self, picture: usize) -> Option<Size> {
        let (sized, grid) = (self.pictures.get(picture)?, self.grids.get(picture)?);
        let after = [grid[2] * self.settings.patch, grid[1] * self.settings.patch];
        Some(Size { before: [sized.width, sized.height], after })
    }
}

/// Writes the boxes of a row into its texts. Messages without boxes stay borrowed.
pub(crate) fn write_boxes<'a>(
    place: &str,
    chat: Chat<'a>,
    objects: &Objects,
    sizes: Sizes,
    settings: BoxSettings,
    rules: &'static BoxRules,
) -> Result<Written<'a>, Error> {
    let has_keys = |text: &str| rules.keys.iter().any(|key| text.contains(key));
    let texts = || chat.messages.iter().flat_map(Message::parts).flatten();
    if objects.is_empty() && !sizes.pictures.is_empty() && texts().any(|text| text.contains(BOX_PLACEHOLDER)) {
        let problem = format!("a text has `{BOX_PLACEHOLDER}`, but the row has no box for it");
        let hint = "`objects.bbox` needs a box for each placeholder, in the order of the texts";
        return Err(Error::row_field(place, "objects", problem).with_hint(hint));
    }
    if objects.is_empty() && (sizes.pictures.is_empty() || !texts().any(has_keys)) {
        return Ok(Written { messages: Cow::Borrowed(chat.messages), boxes: Vec::new() });
    }
    let mut writer = Writer { place, chat, objects, sizes, settings, rules, names: 0, next: 0, boxes: Vec::new() };
    let mut messages = chat.messages.to_vec();
    for (number, message) in messages.iter_mut().enumerate() {
        match &mut message.content {
            Content::Text(text) => *text = writer.text(number, text)?,
            Content::Parts(parts) => {
                for part in parts {
                    if let Part::Text(text) = part {
                        *text = writer.text(number, text)?;
                    }
                }
            }
            Content::Absent => {}
        }
    }
    Ok(Written { messages: Cow::Owned(messages), boxes: writer.boxes })
}

/// Walks through the texts of a row.
struct Writer<'w> {
    place: &'w str,
    chat: Chat<'w>,
    objects: &'w Objects,
    sizes: Sizes<'w>,
    settings: BoxSettings,
    rules: &'static BoxRules,
    /// Names and boxes written so far.
    names: usize,
    next: usize,
    boxes: Vec<WrittenBox>,
}

impl Writer<'_> {
    /// A text with names and boxes filled in.
    fn text(&mut self, message: usize, text: &str) -> Result<String, Error> {
        let mut made = String::with_capacity(text.len());
        let (mut marks, mut at) = (Marks::of(text, !self.objects.is_empty(), self.rules), 0);
        while let Some((start, mark)) = marks.from(at) {
            made += &text[at..start];
            at = start + mark.len();
            match mark {
                NAME_PLACEHOLDER => {
                    let name = self.objects.names.get(self.names).map_or("", String::as_str);
                    self.names += 1;
                    made += &self.settings.format.name(name, self.rules);
                }
                BOX_PLACEHOLDER => made += &self.place_box(message)?,
                key => {
                    made += key;
                    let rest = &text[at..];
                    let Some(list) = number_list(rest) else {
                        self.check_no_list(message, key, rest)?;
                        continue;
                    };
                    made += &rest[..list.start];
                    made += &self.text_box(message, key, &rest[list.start..list.end], &list.numbers)?;
                    at += list.end;
                }
            }
        }
        Ok(made + &text[at..])
    }

    /// Rejects an answer whose box cannot be parsed, since it cannot be converted. A question may well describe the format of an answer.
    fn check_no_list(&self, message: usize, key: &str, rest: &str) -> Result<(), Error> {
        let value = rest.trim_start().strip_prefix(':').map(str::trim_start).unwrap_or_default();
        let is_answer = self.chat.messages[message].role == ASSISTANT;
        if self.settings.in_texts == TextBoxes::Resized || !is_answer || !value.starts_with(['[', '"']) {
            return Ok(());
        }
        let shown: String = value.chars().take(40).collect();
        let problem =
            format!("has `{}` {shown}, which is not a list of numbers: it cannot be converted", key.trim_matches('"'));
        Err(Error::row_field(self.place, &self.chat.field(message), problem))
    }

    /// Writes the next box of `objects`.
    fn place_box(&mut self, message: usize) -> Result<String, Error> {
        let number = self.next;
        self.next += 1;
        let Some(one) = self.objects.boxes.get(number) else { return Ok(String::new()) };
        let field = format!("objects.bbox[{number}]");
        let Some(size) = self.sizes.of(one.picture) else {
            let there = match self.sizes.pictures.len() {
                0 => "the row has no picture".to_string(),
                1 => "the row has one, which is number 0".to_string(),
                count => format!("the row has {count}, counted from 0"),
            };
            let problem = format!("is in picture {}; {there}", one.picture);
            let hint = "`objects.image_id` has the picture number of each box; without it, all are in the first";
            return Err(Error::row_field(self.place, &field, problem).with_hint(hint));
        };
        let numbers: Vec<f64> = one.numbers.iter().map(|number| number.0).collect();
        let (hint, within) = match one.unit {
            BoxUnit::Pixels => (
                "boxes are x1, y1, x2, y2 in pixels of the original picture; for shares of its sides, use `bbox_type` `norm1`",
                size.before.map(|side| side as f64),
            ),
            BoxUnit::Shares => ("with `bbox_type` `norm1` boxes are x1, y1, x2, y2 from 0 to 1", [1.0, 1.0]),
        };
        let problem = fault(&numbers, within, size.before.map(|side| SLACK / side as f64));
        if let Some(problem) = problem {
            return Err(Error::row_field(self.place, &field, format!("is {problem}")).with_hint(hint));
        }
        let written = scaled(&numbers, within, size.after);
        let text = self.settings.format.numbers(&written, self.rules);
        let (picture, given, source) = (Some(one.picture), listed(&numbers), BoxSource::Objects);
        self.boxes.push(WrittenBox { message, picture, numbers: written, given, source });
        Ok(text)
    }

    /// Handles a box written in a text.
    fn text_box(&mut self, message: usize, key: &str, given: &str, numbers: &[f64]) -> Result<String, Error> {
        let field = self.chat.field(message);
        let key = key.trim_matches('"');
        let error = |problem: String| Error::row_field(self.place, &field, format!("has `{key}` {problem}"));
        let is_point = key.starts_with("point");
        let wanted = if is_point { 2 } else { 4 };
        if numbers.len() != wanted {
            return Err(error(format!("{given} with {} numbers instead of {wanted}", numbers.len())));
        }
        let all: Vec<Size> = (0..self.sizes.pictures.len()).filter_map(|picture| self.sizes.of(picture)).collect();
        let sides = |size: &Size, unit: TextBoxes| match unit {
            TextBoxes::Resized => size.after.map(|side| side as f64),
            TextBoxes::Original => size.before.map(|side| side as f64),
        };
        // With several pictures, it may belong to any of them.
        let fits = |unit: TextBoxes| {
            let fault_in = |size: &Size| fault(numbers, sides(size, unit), sides(size, unit).map(|side| SLACK / side));
            all.iter().map(fault_in).min_by_key(Option::is_some).flatten()
        };
        let unit = self.settings.in_texts;
        if let Some(problem) = fits(unit) {
            let error = error(problem);
            return Err(match unit {
                TextBoxes::Resized if fits(TextBoxes::Original).is_none() => error.with_hint(
                    "it fits the original picture: if boxes in texts are in its pixels, convert them with `--bbox-2d original`",
                ),
                TextBoxes::Resized => {
                    error.with_hint("boxes in texts are x1, y1, x2, y2 in pixels of the resized picture")
                }
                TextBoxes::Original => {
                    error.with_hint("with `--bbox-2d original`, boxes are x1, y1, x2, y2 in pixels of the original picture")
                }
            });
        }
        let (written, source) = match (unit, &all[..]) {
            (TextBoxes::Resized, _) => {
                (numbers.iter().map(|number| number.round_ties_even() as i64).collect(), BoxSource::Text)
            }
            (TextBoxes::Original, [size]) => (scaled(numbers, sides(size, unit), size.after), BoxSource::Converted),
            (TextBoxes::Original, _) => {
                let problem =
                    format!("{given}, but the row has {} pictures and does not say which one it is in", all.len());
                return Err(error(problem).with_hint("use `objects` with `image_id`"));
            }
        };
        let text = if source == BoxSource::Text { given.to_string() } else { listed(&written) };
        let picture = (all.len() == 1).then_some(0);
        self.boxes.push(WrittenBox { message, picture, numbers: written, given: given.to_string(), source });
        Ok(text)
    }
}

/// Finds placeholders and box keys in a text.
struct Marks<'t> {
    text: &'t str,
    /// Each mark with its next position. It is searched again only once that is passed, so a text is scanned once per mark.
    next: Vec<(&'static str, Option<usize>)>,
}

impl<'t> Marks<'t> {
    fn of(text: &'t str, has_objects: bool, rules: &'static BoxRules) -> Marks<'t> {
        let placeholders = if has_objects { &[BOX_PLACEHOLDER, NAME_PLACEHOLDER][..] } else { &[] };
        Marks { text, next: placeholders.iter().chain(&rules.keys).map(|mark| (*mark, text.find(mark))).collect() }
    }

    /// The first mark from a position on: its position and text.
    fn from(&mut self, at: usize) -> Option<(usize, &'static str)> {
        for (mark, next) in &mut self.next {
            if next.is_some_and(|next| next < at) {
                *next = self.text[at..].find(*mark).map(|place| at + place);
            }
        }
        self.next.iter().filter_map(|(mark, next)| Some(((*next)?, *mark))).min()
    }
}

/// Maximum bytes scanned for a list of numbers.
const LONGEST_LIST: usize = 512;

/// A list of numbers, and its range in the text after a key.
struct NumberList {
    start: usize,
    end: usize,
    numbers: Vec<f64>,
}

/// The list of numbers after a key and a colon, if there is one.
fn number_list(text: &str) -> Option<NumberList> {
    let value = text.trim_start().strip_prefix(':')?.trim_start();
    let inside = value.strip_prefix('[')?;
    // No further than four numbers can reach, whatever follows.
    let end = inside.bytes().take(LONGEST_LIST).position(|byte| byte == b']')?;
    let inside = &inside[..end];
    let numbers: Option<Vec<f64>> = inside.split(',').map(|number| finite(number.trim())).collect();
    let start = text.len() - value.len();
    Some(NumberList { start, end: start + inside.len() + 2, numbers: numbers? })
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Why a box or a point cannot be right within these sides; `slack` is a fraction of each side.
fn fault(numbers: &[f64], sides: [f64; 2], slack: [f64; 2]) -> Option<String> {
    let [width, height] = sides;
    let is_out = |number: f64, axis: usize| {
        let slack = slack[axis] * sides[axis];
        !(-slack..=sides[axis] + slack).contains(&number)
    };
    if numbers.iter().enumerate().any(|(place, number)| is_out(*number, place % 2)) {
        return Some(format!("{}, outside its picture of {width} x {height}", listed(numbers)));
    }
    match numbers {
        [x1, y1, x2, y2] if x2 <= x1 || y2 <= y1 => {
            let (second, first) = if x2 <= x1 { ("x2", "x1") } else { ("y2", "y1") };
            Some(format!("{}: {second} is not greater than {first}", listed(numbers)))
        }
        _ => None,
    }
}

/// Scales coordinates from one size to another, rounded as in Python.
fn scaled(numbers: &[f64], from: [f64; 2], to: [usize; 2]) -> Vec<i64> {
    let one = |(place, number): (usize, &f64)| {
        let (from, to) = (from[place % 2], to[place % 2] as f64);
        (number / from * to).round_ties_even().clamp(0.0, to) as i64
    };
    numbers.iter().enumerate().map(one).collect()
}

fn listed<T: ToString>(numbers: &[T]) -> String {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    format!("[{}]", numbers.join(", "))
}

impl BoxFormat {
    fn numbers(self, numbers: &[i64], rules: &BoxRules) -> String {
        match self {
            BoxFormat::Plain => listed(numbers),
            BoxFormat::Tokens => {
                let mut text = String::from(rules.tokens[0]);
                for (place, point) in numbers.chunks_exact(2).enumerate() {
                    let comma = if place > 0 { "," } else { "" };
                    // Writing to a string does not fail.
                    let _ = write!(text, "{comma}({},{})", point[0], point[1]);
                }
                text + rules.tokens[1]
            }
        }
    }

    fn name(self, name: &str, rules: &BoxRules) -> String {
        match self {
            BoxFormat::Plain => name.to_string(),
            BoxFormat::Tokens => format!("{}{name}{}", rules.tokens[2], rules.tokens[3]),
        }
    }
}
