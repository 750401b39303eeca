//! Datasets of other tools that are not read: what they are, and the command that converts them.
//!
//! The commands need Python alone and write JSON Lines with `image`, `prompt` and `response`.

use std::path::Path;

use super::conversation::is_known;
use super::value::{Object, Value};

/// What writes each row of a Python generator as JSON.
fn rows_command(setup: &str, row: &str, each: &str, to: &str) -> String {
    format!("python3 -c \"import csv, json, pathlib; {setup}[print(json.dumps({row})) for {each}]\" > {to}")
}

/// A path as a shell takes it inside of double quotes and Python of single ones.
fn inside(path: &Path) -> String {
    path.display().to_string().replace(['\'', '"', '$', '`', '\\'], "?")
}

/// The path beside a file, with another ending.
fn beside(path: &Path, ending: &str) -> String {
    format!("'{}'", inside(&path.with_extension(ending)))
}

/// The command that converts a table in text form, for a file that begins like one.
pub(super) fn of_table(path: &Path, beginning: &[u8]) -> Option<String> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let text = String::from_utf8_lossy(beginning);
    let header = text.lines().next().unwrap_or_default();
    let named = |separator: char| {
        let columns: Vec<&str> =
            header.split(separator).map(|name| name.trim_matches(['"', ' ', '\u{feff}'])).collect();
        columns.len() > 1 && columns.iter().any(|name| is_known(name))
    };
    let tab = match ending.as_str() {
        "csv" => header.contains('\t') && !header.contains(','),
        "tsv" | "tab" => true,
        _ if named(',') => false,
        _ if named('\t') => true,
        _ => return None,
    };
    Some(format!("tables as text have no types: convert it with `{}`", table_command(path, tab)))
}

/// The command that converts a table of comma- or tab-separated values.
pub(super) fn table_command(path: &Path, has_tabs: bool) -> String {
    let separator = if has_tabs { ", delimiter='\\t'" } else { "" };
    let each = format!("row in csv.DictReader(open('{}', newline='', encoding='utf-8-sig'){separator})", inside(path));
    rows_command("", "{k: v for k, v in row.items() if v}", &each, &beside(path, "jsonl"))
}

/// The command for a folder with a folder of pictures for each class.
pub(super) fn classes_command(folder: &Path) -> String {
    let folder = inside(folder);
    let setup = format!("d = pathlib.Path('{folder}'); ");
    let row =
        "{'file_name': str(p.relative_to(d)), 'prompt': 'What does the picture show?', 'response': p.parent.name}";
    let each = "p in sorted(d.glob('*/*')) if p.suffix.lower() in ('.jpg', '.jpeg', '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff')";
    rows_command(&setup, row, each, &format!("'{folder}/metadata.jsonl'"))
}

/// The command for a folder with a text beside each picture, as trainers of picture generators have it.
pub(super) fn captions_command(folder: &Path) -> String {
    let folder = inside(folder);
    let setup = format!("d = pathlib.Path('{folder}'); ");
    let row = "{'file_name': p.name, 'response': p.with_suffix('.txt').read_text().strip()}";
    let each = "p in sorted(d.iterdir()) if p.suffix.lower() in ('.jpg', '.jpeg', '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff') and p.with_suffix('.txt').exists()";
    rows_command(&setup, row, each, &format!("'{folder}/metadata.jsonl'"))
}

/// A file that is one JSON object with everything in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    CocoCaptions,
    CocoBoxes,
    Questions,
    Annotations,
    Via,
    LabelMe,
}

/// What a JSON file is that is one object of another tool, and the command that converts it; from its beginning and its end.
pub(super) fn of_object(path: &Path, beginning: &[u8], end: &[u8]) -> Option<(String, String)> {
    let keys = first_keys(beginning);
    let has = |name: &str| keys.iter().any(|key| key == name);
    let shows = |name: &str| memchr::memmem::find(end, name.as_bytes()).is_some();
    let kind = match () {
        () if ["messages", "conversations", "prompt", "question", "response"].into_iter().any(has) => return None,
        () if has("questions") => Whole::Questions,
        () if has("imagePath") && has("shapes") => Whole::LabelMe,
        () if has("_via_img_metadata") => Whole::Via,
        () if has("info") || has("licenses") || has("categories") || has("annotations") => match () {
            () if shows("\"multiple_choice_answer\"") => Whole::Annotations,
            () if shows("\"caption\"") => Whole::CocoCaptions,
            () if shows("\"bbox\"") || shows("\"supercategory\"") => Whole::CocoBoxes,
            () => return None,
        },
        () => {
            let name = AROUND_ROWS.into_iter().find(|name| has(name) && begins_rows(beginning, name))?;
            let hint = unwrap_command(name, &inside(path), &beside(path, "rows.json"));
            return Some(("is one JSON object".into(), hint));
        }
    };
    Some(kind.told(path))
}

impl Whole {
    /// What it is, and what to do.
    fn told(self, path: &Path) -> (String, String) {
        let (file, to) = (inside(path), beside(path, "jsonl"));
        let read = format!("d = json.load(open('{file}')); n = {{i['id']: i['file_name'] for i in d['images']}}; ");
        match self {
            Whole::CocoCaptions => {
                let row = "{'image': n[a['image_id']], 'response': a['caption']}";
                let command = rows_command(&read, row, "a in d['annotations']", &to);
                (
                    "is one JSON object: captions of COCO".into(),
                    format!("convert it with `{command}`; paths are relative to that file"),
                )
            }
            Whole::CocoBoxes => {
                let setup = format!(
                    "{read}c = {{c['id']: c['name'] for c in d['categories']}}; b = {{}}; \
                     [b.setdefault(a['image_id'], []).append({{'bbox_2d': [round(v) for v in (a['bbox'][0], a['bbox'][1], a['bbox'][0] + a['bbox'][2], a['bbox'][1] + a['bbox'][3])], 'label': c[a['category_id']]}}) for a in d['annotations']]; "
                );
                let row =
                    "{'image': n[i], 'prompt': 'Locate every object and answer in JSON.', 'response': json.dumps(r)}";
                let command = rows_command(&setup, row, "i, r in b.items()", &to);
                (
                    "is one JSON object: boxes of COCO".into(),
                    format!(
                        "convert it with `{command}`, and train with `--bbox-2d original`; paths are relative to that file"
                    ),
                )
            }
            Whole::Questions => {
                let setup = format!(
                    "q = json.load(open('{file}'))['questions']; \
                     a = {{x['question_id']: x['multiple_choice_answer'] for x in json.load(open('ANNOTATIONS.json'))['annotations']}}; "
                );
                let row = "{'image': 'COCO_train2014_%012d.jpg' % x['image_id'], 'prompt': x['question'], 'response': a[x['question_id']]}";
                let command = rows_command(&setup, row, "x in q", &to);
                (
                    "is one JSON object: questions of VQA, whose answers are in another file".into(),
                    format!("join both with `{command}`"),
                )
            }
            Whole::Annotations => (
                "is one JSON object: answers of VQA, whose questions are in another file".into(),
                "pass the file of the questions: its message has the command that joins both".into(),
            ),
            Whole::Via => ("is one JSON object: a project of VGG Image Annotator".into(), A_LINE_EACH.into()),
            Whole::LabelMe => ("is one JSON object: a file of LabelMe".into(), A_LINE_EACH.into()),
        }
    }
}

/// Whether a text has a key with a list of objects.
fn begins_rows(text: &[u8], key: &str) -> bool {
    let key = format!("\"{key}\"");
    let Some(place) = memchr::memmem::find(text, key.as_bytes()) else { return false };
    let behind = text[place + key.len()..].iter().filter(|byte| !byte.is_ascii_whitespace());
    behind.take(3).eq(b":[{")
}

/// The keys of the first object of a text, as far as they are there.
fn first_keys(text: &[u8]) -> Vec<String> {
    let (mut keys, mut depth, mut place) = (Vec::new(), 0_usize, 0);
    while let Some(byte) = text.get(place) {
        place += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = end_of_text(&text[place..]) else { break };
                let is_key = text[place + end + 1..].trim_ascii_start().first() == Some(&b':');
                if depth == 1 && is_key {
                    keys.push(String::from_utf8_lossy(&text[place..place + end]).into_owned());
                }
                place += end + 1;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    keys
}

/// The place of the quote that ends a string.
fn end_of_text(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })
}

/// Names of the list of rows in a file that is one object.
const AROUND_ROWS: [&str; 8] = ["data", "rows", "examples", "items", "samples", "records", "instances", "train"];

/// What to do with the annotations of pictures.
const A_LINE_EACH: &str =
    "write a line such as `{\"image\": \"a.jpg\", \"prompt\": ..., \"response\": ...}` for each picture";

/// What to do with a row that another tool exports and that has no conversation.
pub(super) fn known_export(object: &Object) -> Option<String> {
    if let Some(known) = known_row(object) {
        return Some(known.to_string());
    }
    let is_rows = |value: &Value| matches!(value, Value::List(list) if matches!(list.first(), Some(Value::Object(_))));
    let (name, _) = object.0.iter().find(|(name, value)| AROUND_ROWS.contains(&name.as_ref()) && is_rows(value))?;
    Some(unwrap_command(name, "FILE.json", "'ROWS.json'"))
}

/// How to take the rows out of one object.
fn unwrap_command(name: &str, from: &str, to: &str) -> String {
    format!(
        "are the rows in `{name}`? `python3 -c \"import json, sys; json.dump(json.load(open('{from}'))['{name}'], sys.stdout)\" > {to}` writes that list as a file of its own"
    )
}

/// What to do with a row of a known tool.
fn known_row(object: &Object) -> Option<&'static str> {
    let has = |name: &str| object.0.iter().any(|(key, _)| key == name);
    if has("annotations") && has("data") {
        return Some(
            "this is a task of Label Studio, whose answers depend on its labelling interface: write a line such as \
             `{\"image\": ..., \"prompt\": ..., \"response\": ...}` for each",
        );
    }
    if has("imagePath") && has("shapes") {
        return Some(A_LINE_EACH);
    }
    if has("schemaVersion") {
        return Some(
            "this is Amazon's format: write parts as `{\"type\": \"text\", \"text\": ...}`, and `system` as one string",
        );
    }
    if has("preferred_output") {
        return Some(
            "these are preferences of OpenAI's format, and only one answer is trained: write `input.messages` and `preferred_output` as one list `messages`",
        );
    }
    if has("contents") {
        return Some("this is Google's format: write `contents` as `messages`, with `role` and `content`");
    }
    if has("texts") {
        return Some("write each pair of `texts` as two `messages`, with `role` and `content`");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_first_object() {
        assert_eq!(first_keys(br#"{"a": {"b": 1}, "c\"": [{"d": 2}], "e": "f", "g"#), ["a", "c\\\"", "e"]);
        assert_eq!(first_keys(br#"{"a": 1} {"b": 2}"#), ["a"]);
    }
}
