//! Unused fields that would change what is learnt if they were used: questions, answers, pictures, masks.
//!
//! Nobody reads a list of unused fields for long, so a row with such a field is refused until the user says what the field means. A field is
//! recognised by the words of its name, or as a picture by its value. Numbers about such things (`image_id`, `answer_type`) are not such things, unless
//! the row shows no picture: then the number stands for one that is missing. Beside one question and its answer, a text of several words that nothing is
//! known about may belong to the question.

mod masks;
mod names;

use masks::{leaves_out, may_leave_out, yes_or_no};
pub(crate) use names::name_looks_like;
use names::{describes, has_word, is_mask, part_looks_like, refers_to_what_is_shown, says_what_it_is_about};

use super::picture::is_picture_text;
use super::value::{Object, Value};

/// What a field seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    Question,
    /// A text of several words, of which its name says nothing.
    Prose,
    Answer,
    Reasoning,
    System,
    Picture,
    Recording,
    /// The number or the key of a picture or a recording that the row does not show.
    Missing,
    Label,
    Rejected,
    Mask,
    History,
    Conversation,
}

impl Looks {
    /// In a sentence.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Looks::Question => "a question",
            Looks::Prose => "a text that belongs to the question",
            Looks::Answer => "an answer",
            Looks::Reasoning => "the reasons of an answer",
            Looks::System => "a system prompt",
            Looks::Picture => "a picture",
            Looks::Recording => "a video or a sound",
            Looks::Missing => "the number of a picture or a video, which the row does not show,",
            Looks::Label => "a label",
            Looks::Rejected => "a rejected answer",
            Looks::Mask => "a mask of what is trained",
            Looks::History => "earlier turns",
            Looks::Conversation => "a conversation",
        }
    }

    /// The meaning to give it with `--field`, if there is one.
    pub(crate) fn meaning(self) -> Option<&'static str> {
        match self {
            Looks::Question | Looks::Prose => Some("question"),
            Looks::Answer | Looks::Label => Some("answer"),
            Looks::System => Some("system"),
            Looks::Picture => Some("image"),
            Looks::History => Some("history"),
            Looks::Conversation => Some("messages"),
            Looks::Mask | Looks::Rejected | Looks::Reasoning | Looks::Recording | Looks::Missing => None,
        }
    }
}

/// The field that names the split of a row.
pub(crate) const SPLIT: &str = "split";
/// What is known about the row of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    /// Whether the row shows a picture.
    pub shows: bool,
    /// Whether the row is one question and its answer, and no conversation.
    pub is_pair: bool,
}

/// Endings of picture files.
pub(crate) const PICTURES: [&str; 15] =
    ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jfif", "jp2", "svg", "ppm"];
/// Endings of files with videos and sounds.
pub(crate) const RECORDINGS: [&str; 14] =
    ["mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "wav", "mp3", "flac", "ogg", "opus", "m4a"];
/// Words of names that say where something was found.
const PLACES: [&str; 5] = ["url", "urls", "uri", "href", "link"];
/// Fields that say what kind of thing is at an address.
const KINDS: [&str; 7] = ["type", "kind", "mime", "mime_type", "mimeType", "media_type", "contentType"];
/// A row with the first two of a line has the options of its question in fields of such names.
const OPTIONS: [[&str; 10]; 4] = [
    ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"],
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
    ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
    ["opa", "opb", "opc", "opd", "ope", "opf", "opg", "oph", "opi", "opj"],
];
/// A path is not longer than this.
const LONGEST_PATH: usize = 1000;
/// Names, labels and headings have fewer words than texts that somebody reads.
const SHORTEST_PROSE: usize = 8;

/// Objects inside objects in which pictures are looked for.
const DEPTH: usize = 3;

/// What an unused field seems to be; `None` for what changes nothing. Beside a picture, a path may say where something comes from.
pub(crate) fn looks_like(name: &str, value: &Value, around: Around) -> Option<Looks> {
    if value.is_empty() {
        return None;
    }
    if let Some(looks) = value_looks_like(name, value, around.shows) {
        return Some(looks);
    }
    if leaves_out(name, value) {
        return Some(Looks::Mask);
    }
    if !around.shows && refers_to_what_is_shown(name) {
        return Some(Looks::Missing);
    }
    // The number of an answer is a label; a number under the name of anything else is about it.
    let is_number = matches!(value, Value::Integer(_) | Value::Number(_) | Value::Bool(_));
    let Some(looks) = name_looks_like(name) else {
        return part_looks_like(name).or(prose(name, value)).filter(|_| around.is_pair && !is_number);
    };
    // Beside the picture, its address says where it was found.
    let is_address = || matches!(value, Value::Text(text) if text.contains("://"));
    if looks == Looks::Picture && around.shows && is_address() && has_word(name, &PLACES) {
        return None;
    }
    match looks {
        Looks::Mask if is_mask(name) && is_all(value) => None,
        Looks::Mask | Looks::Label | Looks::Rejected | Looks::Answer => Some(looks),
        _ if is_number => None,
        _ => Some(looks),
    }
}

/// A picture or a recording, by its value.
fn value_looks_like(name: &str, value: &Value, is_beside_picture: bool) -> Option<Looks> {
    let is_origin = is_beside_picture && says_what_it_is_about(name);
    let is_file = |value: &Value, endings: &[&str]| !is_origin && is_file(value, endings, is_beside_picture);
    let says_so = |value: &Value| !is_beside_picture && says_that_it_is_a_picture(value);
    match () {
        () if holds(value, DEPTH, &|value| shows_pixels(value) || is_file(value, &PICTURES) || says_so(value)) => {
            Some(Looks::Picture)
        }
        () if holds(value, DEPTH, &|value| is_file(value, &RECORDINGS)) => Some(Looks::Recording),
        () => None,
    }
}

/// A text that somebody reads, and of which its name does not say that it is about the row.
fn prose(name: &str, value: &Value) -> Option<Looks> {
    let is_text = |value: &Value| matches!(value, Value::Text(text) if is_prose(text));
    let has_text = match value {
        Value::List(list) => list.iter().any(is_text),
        value => is_text(value),
    };
    (has_text && !describes(name)).then_some(Looks::Prose)
}

/// Whether a text has several lines or a sentence's number of words. Two of the letters that are written without spaces are about a word.
fn is_prose(text: &str) -> bool {
    let unspaced = |letter: &char| matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}');
    let words = text.split_whitespace().count() + text.chars().filter(unspaced).count() / 2;
    words >= SHORTEST_PROSE || text.trim().contains('\n')
}

/// Whether a mask's value leaves nothing out.
fn is_all(value: &Value) -> bool {
    yes_or_no(value) == Some(true) || *value == Value::Number(1.0)
}

/// The names of those fields of a row that are the options of its question.
pub(crate) fn options(object: &Object) -> impl Iterator<Item = &'static str> {
    let has = |option: &&str| object.0.iter().any(|(name, value)| name == option && !value.is_empty());
    let given = OPTIONS.iter().filter(move |names| names[..2].iter().all(has));
    given.flatten().copied().collect::<Vec<&str>>().into_iter()
}

/// Whether a field of this name may look like something to learn from, depending on its value.
pub(crate) fn name_may_look(name: &str) -> bool {
    name == SPLIT
        || name_looks_like(name).is_some()
        || part_looks_like(name).is_some()
        || may_leave_out(name)
        || refers_to_what_is_shown(name)
        || OPTIONS.iter().flatten().any(|option| *option == name)
}

/// Whether a value, or one inside it, is such a one.
fn holds(value: &Value, depth: usize, is: &impl Fn(&Value) -> bool) -> bool {
    is(value)
        || depth > 0
            && match value {
                Value::List(list) => list.iter().any(|value| holds(value, depth - 1, is)),
                Value::Object(Object(fields)) => fields.iter().any(|(_, value)| holds(value, depth - 1, is)),
                _ => false,
            }
}

/// Whether a value is a picture itself: its bytes or its base64.
fn shows_pixels(value: &Value) -> bool {
    match value {
        Value::Text(text) => is_picture_text(text),
        Value::Bytes(bytes) => crate::image::is_picture(bytes),
        _ => false,
    }
}

/// Whether an object says of itself that it is a picture, as attachments of chats do.
fn says_that_it_is_a_picture(value: &Value) -> bool {
    let Value::Object(Object(fields)) = value else { return false };
    let is_picture = |kind: &Value| matches!(kind, Value::Text(kind) if kind == "image" || kind.starts_with("image/"));
    fields.iter().any(|(name, kind)| KINDS.contains(&name.as_ref()) && is_picture(kind))
}

/// Whether a value is the path of a file with one of these endings. Beside a picture, an address says where a file came from.
fn is_file(value: &Value, endings: &[&str], is_beside_picture: bool) -> bool {
    let Value::Text(text) = value else { return false };
    let is_address = text.contains("://") && !text.starts_with("file://");
    let path = if is_address { text.split(['?', '#']).next().unwrap_or_default() } else { text };
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    let is_one = text.len() <= LONGEST_PATH && !text.contains('\n') && !(is_address && text.contains(' '));
    is_one && !(is_address && is_beside_picture) && endings.contains(&ending.as_str())
}

/// Whether two paths may be of the same file: the one is the end of the other. A picture of the same name in another folder is another one.
pub(crate) fn is_end_of(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let short = short.trim_start_matches("./");
    long.strip_suffix(short).is_some_and(|before| !short.is_empty() && (before.is_empty() || before.ends_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: Around = Around { shows: true, is_pair: false };
    const UNSHOWN: Around = Around { shows: false, is_pair: false };
    const ALONE: Around = Around { shows: false, is_pair: true };

    #[test]
    fn names_of_the_same_file() {
        for (one, other) in [
            ("0.jpg", "pics/0.jpg"),
            ("pics/0.jpg", "pics/0.jpg"),
            ("./a/0.jpg", "a/0.jpg"),
            ("/data/a/0.jpg", "a/0.jpg"),
        ] {
            assert!(is_end_of(one, other) && is_end_of(other, one), "{one} {other}");
        }
        for (one, other) in
            [("depth/0.jpg", "rgb/0.jpg"), ("10.jpg", "pics/0.jpg"), ("", "a.jpg"), ("0.jpg", "pics/10.jpg")]
        {
            assert!(!is_end_of(one, other) && !is_end_of(other, one), "{one} {other}");
        }
    }

    #[test]
    fn names_of_what_is_learnt_and_of_what_is_not() {
        for (name, looks) in [
            ("query", Looks::Question),
            ("user_prompt", Looks::Question),
            ("image_path", Looks::Picture),
            ("image_1", Looks::Picture),
            ("imagePath", Looks::Picture),
            ("file_names", Looks::Picture),
            ("image_url", Looks::Picture),
            ("kto_tag", Looks::Mask),
            ("loss_mask", Looks::Mask),
            ("train", Looks::Mask),
            ("label", Looks::Label),
            ("rejected_response", Looks::Rejected),
            ("ground_truth", Looks::Answer),
            ("system_prompt", Looks::System),
            ("chosen", Looks::Answer),
        ] {
            assert_eq!(
                looks_like(name, &Value::Bool(false), SHOWN).or(looks_like(name, &Value::Text("x".into()), SHOWN)),
                Some(looks),
                "{name}"
            );
        }
        for name in [
            "id",
            "source",
            "score",
            "image_id",
            "question_id",
            "questionId",
            "image_width",
            "image_sha256",
            "prompt_tokens",
            "answer_type",
            "url",
            "key",
            "status",
            "error_message",
            "original_width",
            "similarity",
            "sha256",
            "NSFW",
            "split",
            "train_id",
            "category",
            "task",
            "language",
            "model",
            "docId",
            "ucsf_document_id",
            "other_question",
        ] {
            let expected = (name == "other_question").then_some(Looks::Question);
            assert_eq!(looks_like(name, &Value::Text("x".into()), SHOWN), expected, "{name}");
        }
        let path = || Value::Text("coco/1.jpg".into());
        assert_eq!(looks_like("scene", &path(), SHOWN), Some(Looks::Picture));
        assert_eq!(looks_like("source", &path(), SHOWN), None, "where something comes from is not the thing");
        assert_eq!(looks_like("source", &path(), UNSHOWN), Some(Looks::Picture), "nothing else is the picture");
        let within = |name: &'static str, value| Value::Object(Object(vec![(name.into(), value)]));
        assert_eq!(looks_like("attachments", &Value::List(vec![within("url", path())]), SHOWN), Some(Looks::Picture));
        assert_eq!(looks_like("mm", &within("image", Value::List(vec![path()])), SHOWN), Some(Looks::Picture));
        assert_eq!(looks_like("metadata", &within("file", path()), SHOWN), None);
        let pixels = || Value::Bytes(b"\x89PNG\r\n\x1a\n".to_vec());
        assert_eq!(looks_like("metadata", &within("file", pixels()), SHOWN), Some(Looks::Picture));
        assert_eq!(looks_like("pages", &Value::List(vec![Value::Null, pixels()]), SHOWN), Some(Looks::Picture));
        for (name, value, looks) in [
            ("skip", true, Some(Looks::Mask)),
            ("skip", false, None),
            ("valid", false, Some(Looks::Mask)),
            ("valid", true, None),
            ("use_for_training", false, Some(Looks::Mask)),
            ("train", true, None),
            ("train", false, Some(Looks::Mask)),
        ] {
            assert_eq!(looks_like(name, &Value::Bool(value), SHOWN), looks, "{name}: {value}");
        }
        assert_eq!(looks_like("weight", &Value::Number(1.0), SHOWN), None);
        assert_eq!(looks_like("weight", &Value::Number(0.5), SHOWN), Some(Looks::Mask));
        let address = || Value::Text("https://example.org/1.jpg".into());
        assert_eq!(looks_like("url", &address(), SHOWN), None);
        assert_eq!(looks_like("image_url", &address(), SHOWN), None, "where the picture was found");
        assert_eq!(looks_like("image_url", &address(), UNSHOWN), Some(Looks::Picture));
        assert_eq!(looks_like("image_2", &address(), SHOWN), Some(Looks::Picture), "another picture");
        let film = || Value::Text("films/1.mp4".into());
        assert_eq!(looks_like("clip", &film(), SHOWN), Some(Looks::Recording));
        assert_eq!(looks_like("source", &film(), SHOWN), None);
        assert_eq!(looks_like("image_path", &Value::Text("".into()), SHOWN), None);
    }

    #[test]
    fn addresses_and_numbers_of_pictures_that_are_not_shown() {
        let text = |text: &'static str| Value::Text(text.into());
        for (name, value, looks) in [
            ("url", text("https://example.org/1.jpg"), Some(Looks::Picture)),
            ("s3_key", text("s3://bucket/1.PNG?size=2#x"), Some(Looks::Picture)),
            ("media", Value::List(vec![text("https://example.org/1.mp4")]), Some(Looks::Recording)),
            ("url", text("https://example.org/page.html"), None),
            ("url", text("https://example.org"), None),
            ("image_id", Value::Integer(262_148), Some(Looks::Missing)),
            ("imageId", text("2405722"), Some(Looks::Missing)),
            ("video_id", text("x"), Some(Looks::Missing)),
            ("question_id", Value::Integer(1), None),
            ("num_images", Value::Integer(0), None),
        ] {
            assert_eq!(looks_like(name, &value, UNSHOWN), looks, "{name}: {value}");
            assert_eq!(looks_like(name, &value, SHOWN), None, "{name}: {value}");
        }
        let file = Object(vec![("type".into(), text("image")), ("url".into(), text("https://example.org/1"))]);
        let files = Value::List(vec![Value::Object(file)]);
        assert_eq!(looks_like("files", &files, UNSHOWN), Some(Looks::Picture));
    }

    #[test]
    fn texts_that_may_belong_to_a_question() {
        let text = |text: &'static str| Value::Text(text.into());
        let long = "He went to the gate that was written on his ticket.";
        for (name, value, looks) in [
            ("premise", text("p"), Some(Looks::Question)),
            ("sentence1", text("s"), Some(Looks::Question)),
            ("source_text", text("s"), Some(Looks::Question)),
            ("source", text("s"), None),
            ("table", Value::List(vec![text("a")]), Some(Looks::Question)),
            ("code", Value::Integer(200), None),
            ("persona", text("a pirate"), Some(Looks::System)),
            ("setting", text(long), Some(Looks::Prose)),
            ("setting", text("外はもう暗くなっていて、雨が降り始めていた。"), Some(Looks::Prose)),
            ("setting", text("at night"), None),
            ("lines", Value::List(vec![text("x"), text("a\nb")]), Some(Looks::Prose)),
            ("title", text(long), None),
            ("error_message", text(long), None),
        ] {
            assert_eq!(looks_like(name, &value, ALONE), looks, "{name}: {value}");
            // A conversation has all of it in its messages.
            assert_eq!(looks_like(name, &value, UNSHOWN), None, "{name}: {value}");
        }
        let row = |names: [&'static str; 2]| Object(names.map(|name| (name.into(), text("x"))).to_vec());
        assert!(options(&row(["1", "2"])).any(|name| name == "2"));
        assert!(options(&row(["opa", "opb"])).any(|name| name == "opb"));
        assert_eq!(options(&row(["a", "c"])).count(), 0);
    }
}
