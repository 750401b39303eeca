//! Unused fields that would change what is learnt if they were used: questions, answers, pictures, masks.
//!
//! Nobody reads a list of unused fields for long, so a row with such a field is refused until the user says what the field means. A field is
//! recognised by the words of its name, or as a picture by its value. Numbers about such things (`image_id`, `answer_type`) are not such things.

use super::picture::is_picture_text;
use super::value::{Object, Value};

/// What a field seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    Question,
    Answer,
    Reasoning,
    System,
    Picture,
    Recording,
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
            Looks::Answer => "an answer",
            Looks::Reasoning => "the reasons of an answer",
            Looks::System => "a system prompt",
            Looks::Picture => "a picture",
            Looks::Recording => "a video or a sound",
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
            Looks::Question => Some("question"),
            Looks::Answer | Looks::Label => Some("answer"),
            Looks::System => Some("system"),
            Looks::Picture => Some("image"),
            Looks::History => Some("history"),
            Looks::Conversation => Some("messages"),
            Looks::Mask | Looks::Rejected | Looks::Reasoning | Looks::Recording => None,
        }
    }
}

/// Words that make a field something about a picture or an answer, and not one itself.
const ABOUT: &[&str] = &[
    "id",
    "ids",
    "uid",
    "uuid",
    "type",
    "types",
    "kind",
    "size",
    "sizes",
    "width",
    "widths",
    "height",
    "heights",
    "hash",
    "md5",
    "sha1",
    "sha256",
    "phash",
    "count",
    "counts",
    "num",
    "n",
    "number",
    "index",
    "idx",
    "len",
    "length",
    "lengths",
    "tokens",
    "lang",
    "language",
    "languages",
    "source",
    "sources",
    "score",
    "scores",
    "category",
    "categories",
    "format",
    "mode",
    "license",
    "author",
    "date",
    "time",
    "created",
    "version",
    "quality",
    "confidence",
    "embedding",
    "embeddings",
    "similarity",
    "topic",
    "topics",
    "difficulty",
    "level",
    "model",
    "models",
    "status",
    "error",
    "exif",
    "meta",
    "metadata",
    "info",
    "split",
    "subset",
    "dataset",
    "link",
    "credit",
    "dims",
    "dim",
    "dimensions",
    "resolution",
    "aspect",
    "ratio",
    "rating",
    "ratings",
    "tag",
    "tags",
    "token",
    "start",
    "end",
    "span",
    "template",
    "config",
    "configs",
    "settings",
    "params",
    "parameters",
    "kwargs",
    "fingerprint",
    "effort",
    "no",
    "difficult",
];
/// Words of each kind, the more telling ones first.
const WORDS: &[(Looks, &[&str])] = &[
    (Looks::Mask, &["mask", "masks", "masked", "segmentation", "seg", "depth", "loss", "kto"]),
    (Looks::Rejected, &["rejected"]),
    (
        Looks::Label,
        &["label", "labels", "cls", "class", "classes", "preference", "preferred", "winner", "feedback", "desirable"],
    ),
    (Looks::System, &["system"]),
    (Looks::History, &["history", "histories", "previous"]),
    (
        Looks::Reasoning,
        &["reasoning", "thinking", "thought", "thoughts", "cot", "rationale", "rationales", "explanation"],
    ),
    (
        Looks::Answer,
        &[
            "answer",
            "answers",
            "response",
            "responses",
            "output",
            "outputs",
            "completion",
            "completions",
            "reply",
            "assistant",
            "gpt",
            "target",
            "targets",
            "solution",
            "solutions",
            "truth",
            "gt",
            "chosen",
            "caption",
            "captions",
            "description",
            "descriptions",
            "transcription",
            "transcript",
            "transcripts",
            "summary",
            "translation",
            "correction",
            "corrected",
            "gold",
            "suffix",
            "txt",
        ],
    ),
    (
        Looks::Picture,
        &[
            "image",
            "images",
            "img",
            "imgs",
            "picture",
            "pictures",
            "pic",
            "pics",
            "photo",
            "photos",
            "screenshot",
            "screenshots",
            "jpg",
            "jpeg",
            "png",
            "webp",
            "frame",
            "frames",
            "filename",
            "filenames",
            "filepath",
            "pixels",
        ],
    ),
    (Looks::Recording, &["video", "videos", "audio", "audios"]),
    (
        Looks::Question,
        &[
            "question",
            "questions",
            "query",
            "queries",
            "prompt",
            "prompts",
            "instruction",
            "instructions",
            "problem",
            "input",
            "inputs",
            "human",
            "request",
            "text",
            "texts",
            "context",
            "contexts",
            "passage",
            "article",
            "choice",
            "choices",
            "option",
            "options",
            "hint",
            "document",
            "documents",
            "paragraph",
            "paragraphs",
            "evidence",
            "background",
            "story",
            "lecture",
            "content",
            "contents",
            "prefix",
            "ocr",
        ],
    ),
    (
        Looks::Conversation,
        &["messages", "conversation", "conversations", "dialog", "dialogue", "dialogs", "chat", "turns"],
    ),
];
/// Names that say of a row or a message whether, or how much, it is trained.
const MASKS: [&str; 12] = [
    "kto_tag",
    "train",
    "training",
    "trainable",
    "is_train",
    "train_detail",
    "weight",
    "weights",
    "sample_weight",
    "example_weight",
    "supervise",
    "learn",
];
/// Names that say the same, with yes or no alone: those that leave out with yes, and those that leave out with no.
const LEFT_OUT: [&str; 7] = ["skip", "exclude", "excluded", "ignore", "ignored", "masked", "drop"];
const TAKEN: [&str; 7] = ["keep", "valid", "use", "used", "include", "included", "use_for_training"];
/// Endings of picture files.
pub(crate) const PICTURES: [&str; 15] =
    ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jfif", "jp2", "svg", "ppm"];
/// Endings of files with videos and sounds.
pub(crate) const RECORDINGS: [&str; 14] =
    ["mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "wav", "mp3", "flac", "ogg", "opus", "m4a"];
/// Words of names that say where something was found.
const PLACES: [&str; 5] = ["url", "urls", "uri", "href", "link"];
/// A row with the first two has the options of its question in fields of one letter.
const OPTIONS: [&str; 10] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"];
/// A path is not longer than this.
const LONGEST_PATH: usize = 1000;

/// Objects inside objects in which pictures are looked for.
const DEPTH: usize = 3;

/// What an unused field seems to be; `None` for what changes nothing. Beside a picture, a path may say where something comes from.
pub(crate) fn looks_like(name: &str, value: &Value, is_beside_picture: bool) -> Option<Looks> {
    if value.is_empty() {
        return None;
    }
    let is_origin = is_beside_picture && says_what_it_is_about(name);
    if holds(value, DEPTH, &|value| shows_pixels(value) || !is_origin && is_file(value, &PICTURES)) {
        return Some(Looks::Picture);
    }
    if !is_origin && holds(value, DEPTH, &|value| is_file(value, &RECORDINGS)) {
        return Some(Looks::Recording);
    }
    if leaves_out(name, value) {
        return Some(Looks::Mask);
    }
    let looks = name_looks_like(name)?;
    // Beside the picture, its address says where it was found.
    let is_address = || matches!(value, Value::Text(text) if text.contains("://"));
    if looks == Looks::Picture && is_beside_picture && is_address() && has_word(name, &PLACES) {
        return None;
    }
    // The number of an answer is a label; a number under the name of anything else is about it.
    let is_number = matches!(value, Value::Integer(_) | Value::Number(_) | Value::Bool(_));
    match looks {
        Looks::Mask if MASKS.contains(&name) && is_all(value) => None,
        Looks::Mask | Looks::Label | Looks::Rejected | Looks::Answer => Some(looks),
        _ if is_number => None,
        _ => Some(looks),
    }
}

/// Whether a mask's value leaves nothing out.
fn is_all(value: &Value) -> bool {
    matches!(value, Value::Bool(true) | Value::Integer(1)) || *value == Value::Number(1.0)
}

/// Whether a field says of its row that it is not trained.
fn leaves_out(name: &str, value: &Value) -> bool {
    let is = |yes: bool| match value {
        Value::Bool(given) => *given == yes,
        Value::Integer(given) => *given == i128::from(yes),
        _ => false,
    };
    LEFT_OUT.contains(&name) && is(true) || TAKEN.contains(&name) && is(false)
}

/// Whether the fields of a row are the options of a question.
pub(crate) fn has_options(object: &Object) -> bool {
    OPTIONS[..2].iter().all(|option| object.0.iter().any(|(name, value)| name == option && !value.is_empty()))
}

/// Whether a name is that of an option.
pub(crate) fn is_option(name: &str) -> bool {
    OPTIONS.contains(&name)
}

/// Whether a field of this name may look like something to learn from, depending on its value.
pub(crate) fn name_may_look(name: &str) -> bool {
    name_looks_like(name).is_some() || LEFT_OUT.contains(&name) || TAKEN.contains(&name) || is_option(name)
}

/// What a field seems to be by its name alone.
pub(crate) fn name_looks_like(name: &str) -> Option<Looks> {
    if MASKS.contains(&name) {
        return Some(Looks::Mask);
    }
    let words = words(name);
    let has = |some: &[&str]| words.iter().any(|word| some.contains(&word.as_str()));
    if has(ABOUT) {
        return None;
    }
    if has(&["file"]) && has(&["name", "names", "path", "paths"]) {
        return Some(Looks::Picture);
    }
    WORDS.iter().find(|(_, some)| has(some)).map(|(looks, _)| *looks)
}

/// Whether a name says that the field is about something, and not the thing itself.
fn says_what_it_is_about(name: &str) -> bool {
    has_word(name, ABOUT)
}

fn has_word(name: &str, some: &[&str]) -> bool {
    words(name).iter().any(|word| some.contains(&word.as_str()))
}

/// The words of a name: `imagePath_1` is `image`, `path` and `1`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for letter in name.chars() {
        let begins = letter.is_uppercase() && last.is_lowercase()
            || letter.is_ascii_digit() != last.is_ascii_digit() && last.is_alphanumeric();
        if begins || !letter.is_alphanumeric() {
            words.push(String::new());
        }
        if letter.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(letter.to_lowercase());
        }
        last = letter;
    }
    // Hashes have digits in their names.
    let joined: Vec<String> = words.windows(2).map(|pair| pair.concat()).collect();
    words.extend(joined.into_iter().filter(|word| ["sha1", "sha256", "md5"].contains(&word.as_str())));
    words.retain(|word| !word.is_empty());
    words
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

/// Whether a value is the path of a file with one of these endings. A URL says where a file came from.
fn is_file(value: &Value, endings: &[&str]) -> bool {
    let Value::Text(text) = value else { return false };
    let is_local = text.starts_with("file://") || !text.contains("://");
    let ending = text.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    is_local && text.len() <= LONGEST_PATH && !text.contains('\n') && endings.contains(&ending.as_str())
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
                looks_like(name, &Value::Bool(false), true).or(looks_like(name, &Value::Text("x".into()), true)),
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
            assert_eq!(looks_like(name, &Value::Text("x".into()), true), expected, "{name}");
        }
        let path = || Value::Text("coco/1.jpg".into());
        assert_eq!(looks_like("scene", &path(), true), Some(Looks::Picture));
        assert_eq!(looks_like("source", &path(), true), None, "where something comes from is not the thing");
        assert_eq!(looks_like("source", &path(), false), Some(Looks::Picture), "nothing else is the picture");
        let within = |name: &'static str, value| Value::Object(Object(vec![(name.into(), value)]));
        assert_eq!(looks_like("attachments", &Value::List(vec![within("url", path())]), true), Some(Looks::Picture));
        assert_eq!(looks_like("mm", &within("image", Value::List(vec![path()])), true), Some(Looks::Picture));
        assert_eq!(looks_like("metadata", &within("file", path()), true), None);
        let pixels = || Value::Bytes(b"\x89PNG\r\n\x1a\n".to_vec());
        assert_eq!(looks_like("metadata", &within("file", pixels()), true), Some(Looks::Picture));
        assert_eq!(looks_like("pages", &Value::List(vec![Value::Null, pixels()]), true), Some(Looks::Picture));
        for (name, value, looks) in [
            ("skip", true, Some(Looks::Mask)),
            ("skip", false, None),
            ("valid", false, Some(Looks::Mask)),
            ("valid", true, None),
            ("use_for_training", false, Some(Looks::Mask)),
            ("train", true, None),
            ("train", false, Some(Looks::Mask)),
        ] {
            assert_eq!(looks_like(name, &Value::Bool(value), true), looks, "{name}: {value}");
        }
        assert_eq!(looks_like("weight", &Value::Number(1.0), true), None);
        assert_eq!(looks_like("weight", &Value::Number(0.5), true), Some(Looks::Mask));
        let address = || Value::Text("https://example.org/1.jpg".into());
        assert_eq!(looks_like("url", &address(), true), None);
        assert_eq!(looks_like("image_url", &address(), true), None, "where the picture was found");
        assert_eq!(looks_like("image_url", &address(), false), Some(Looks::Picture));
        assert_eq!(looks_like("image_2", &address(), true), Some(Looks::Picture), "another picture");
        let film = || Value::Text("films/1.mp4".into());
        assert_eq!(looks_like("clip", &film(), true), Some(Looks::Recording));
        assert_eq!(looks_like("source", &film(), true), None);
        assert_eq!(looks_like("image_path", &Value::Text("".into()), true), None);
    }
}
