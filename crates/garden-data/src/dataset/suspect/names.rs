//! What the names of fields say, word by word.

use super::Looks;

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
            "attachment",
            "attachments",
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
/// Names of what a question is about, in rows of one question and its answer. In a row with a conversation they are about it.
const PARTS: &[&str] = &[
    "abstract",
    "alternatives",
    "body",
    "candidates",
    "claim",
    "code",
    "ctx",
    "distractor",
    "distractors",
    "email",
    "ending",
    "endings",
    "excerpt",
    "fact",
    "facts",
    "goal",
    "hypothesis",
    "knowledge",
    "message",
    "post",
    "premise",
    "review",
    "scenario",
    "schema",
    "sentence",
    "sentences",
    "snippet",
    "statement",
    "stem",
    "support",
    "table",
    "tables",
    "tweet",
    "user",
    "utterance",
];
/// Names of a system prompt, in the same rows.
const PERSONAS: &[&str] = &["persona", "sys"];
/// Words of names that describe a row, whose values may be whole sentences.
const DESCRIPTIONS: &[&str] = &[
    "affiliation",
    "attribution",
    "citation",
    "comment",
    "comments",
    "copyright",
    "domain",
    "field",
    "intent",
    "keyword",
    "keywords",
    "location",
    "name",
    "names",
    "note",
    "notes",
    "provenance",
    "publisher",
    "semantic",
    "skill",
    "skills",
    "subfield",
    "subject",
    "subjects",
    "task",
    "tasks",
    "title",
    "titles",
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
/// Things of which a row may give a number instead of the thing itself.
const SHOWN: &[&str] = &[
    "image",
    "images",
    "img",
    "imgs",
    "picture",
    "pictures",
    "photo",
    "photos",
    "screenshot",
    "coco",
    "flickr",
    "video",
    "videos",
    "vid",
    "clip",
    "audio",
];
const NUMBERS: &[&str] = &["id", "ids", "uid", "uuid", "key", "idx", "index", "hash", "md5", "sha1", "sha256", "phash"];
/// Such names in one word.
const JOINED: &[&str] = &["imageid", "imgid", "videoid", "vid"];

/// Whether a name is one of masks.
pub(super) fn is_mask(name: &str) -> bool {
    MASKS.contains(&words(name).join("_").as_str())
}

/// What a field seems to be by its name alone.
pub(crate) fn name_looks_like(name: &str) -> Option<Looks> {
    if is_mask(name) {
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

/// What a field seems to be beside one question and its answer, by its name alone. Numbers tell parts of the same kind apart.
pub(super) fn part_looks_like(name: &str) -> Option<Looks> {
    let mut words = words(name);
    words.retain(|word| !word.bytes().all(|byte| byte.is_ascii_digit()));
    // The text of a source is a text, though the source of a text is none.
    if words.len() > 1 && words.first().is_some_and(|word| word == "source") {
        words.remove(0);
    }
    let name = words.join("_");
    match () {
        () if PERSONAS.contains(&name.as_str()) => Some(Looks::System),
        () if PARTS.contains(&name.as_str()) => Some(Looks::Question),
        () => name_looks_like(&name).filter(|looks| *looks == Looks::Question),
    }
}

/// Whether a name is that of a number or a key of a picture or a recording.
pub(super) fn refers_to_what_is_shown(name: &str) -> bool {
    has_word(name, SHOWN) && has_word(name, NUMBERS) || has_word(name, JOINED)
}

/// Whether a name says that the field is about something, and not the thing itself.
pub(super) fn says_what_it_is_about(name: &str) -> bool {
    has_word(name, ABOUT)
}

/// Whether a name is that of a description, which may be whole sentences.
pub(super) fn describes(name: &str) -> bool {
    says_what_it_is_about(name) || has_word(name, DESCRIPTIONS)
}

pub(super) fn has_word(name: &str, some: &[&str]) -> bool {
    words(name).iter().any(|word| some.contains(&word.as_str()))
}

/// The words of a name: `imagePath_1` is `image`, `path` and `1`.
pub(super) fn words(name: &str) -> Vec<String> {
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
