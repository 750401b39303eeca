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
    System,
    Picture,
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
            Looks::System => "a system prompt",
            Looks::Picture => "a picture",
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
            Looks::Mask | Looks::Rejected => None,
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
];
/// Words of each kind, the more telling ones first.
const WORDS: &[(Looks, &[&str])] = &[
    (Looks::Mask, &["mask", "masks", "masked", "segmentation", "seg", "depth", "loss", "kto"]),
    (Looks::Rejected, &["rejected"]),
    (Looks::Label, &["label", "labels", "cls", "class", "classes", "preference", "feedback", "desirable"]),
    (Looks::System, &["system"]),
    (Looks::History, &["history", "histories", "previous"]),
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
            "explanation",
            "rationale",
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
            "video",
            "videos",
            "pixels",
        ],
    ),
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
            "choices",
            "options",
            "hint",
        ],
    ),
    (
        Looks::Conversation,
        &["messages", "conversation", "conversations", "dialog", "dialogue", "dialogs", "chat", "turns"],
    ),
];
/// Whole names that are masks; as parts of names these words mean other things.
const MASKS: [&str; 8] = ["train", "training", "trainable", "train_detail", "weight", "weights", "supervise", "learn"];
/// Endings of picture files.
const ENDINGS: [&str; 12] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "jfif", "jp2"];
/// A path is not longer than this.
const LONGEST_PATH: usize = 1000;

/// What an unused field seems to be; `None` for what changes nothing.
pub(crate) fn looks_like(name: &str, value: &Value) -> Option<Looks> {
    if value.is_empty() {
        return None;
    }
    if shows_picture(value) {
        return Some(Looks::Picture);
    }
    let looks = name_looks_like(name)?;
    // The number of an answer is a label; a number under the name of anything else is about it.
    let is_number = matches!(value, Value::Integer(_) | Value::Number(_) | Value::Bool(_));
    match looks {
        Looks::Mask | Looks::Label | Looks::Rejected | Looks::Answer => Some(looks),
        _ if is_number => None,
        _ => Some(looks),
    }
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

/// Whether a value is a picture: its bytes, its base64, the path of its file, or a list or object of those.
fn shows_picture(value: &Value) -> bool {
    match value {
        Value::Text(text) => is_picture_text(text) || is_picture_path(text),
        Value::Bytes(bytes) => crate::image::is_picture(bytes),
        Value::List(list) => list.first().is_some_and(shows_picture),
        Value::Object(Object(fields)) => fields
            .iter()
            .any(|(name, value)| ["bytes", "path", "base64"].contains(&name.as_ref()) && shows_picture(value)),
        _ => false,
    }
}

/// Whether a text is the path of a picture file. A URL says where a picture came from.
fn is_picture_path(text: &str) -> bool {
    let is_local = text.starts_with("file://") || !text.contains("://");
    let ending = text.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    is_local && text.len() <= LONGEST_PATH && !text.contains('\n') && ENDINGS.contains(&ending.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                looks_like(name, &Value::Bool(true)).or(looks_like(name, &Value::Text("x".into()))),
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
            assert_eq!(looks_like(name, &Value::Text("x".into())), expected, "{name}");
        }
        assert_eq!(looks_like("source", &Value::Text("coco/1.jpg".into())), Some(Looks::Picture));
        assert_eq!(looks_like("url", &Value::Text("https://example.org/1.jpg".into())), None);
        assert_eq!(looks_like("image_path", &Value::Text("".into())), None);
    }
}
