//! Datasets of other tools that are not read: what they are, and the command that converts them.
//!
//! The commands need Python alone and write JSON Lines with `image`, `prompt` and `response`.

use std::path::Path;

use super::conversation::{is_known, is_meaning};
use super::stored::beginning;
use super::value::{Object, Value};

/// Whether a path is that of a picture, in Python.
const IS_PICTURE: &str = "p.suffix.lower() in ('.jpg', '.jpeg', '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff')";
/// The JSON beside a picture is looked at as far as this.
const LARGEST_ROW_BESIDE: u64 = 1 << 20;

/// What writes each row of a Python generator as JSON. All rows are made before the file is: one that lacks something leaves none behind.
fn rows_command(setup: &str, row: &str, each: &str, to: &str) -> String {
    format!(
        "python3 -c \"import csv, json, pathlib; {setup}pathlib.Path('{to}').write_text(''.join([json.dumps({row}) + '\\n' for {each}]))\""
    )
}

/// A path as a shell takes it inside of double quotes and Python of single ones.
fn inside(path: &Path) -> String {
    path.display().to_string().replace(['\'', '"', '$', '`', '\\'], "?")
}

/// The path beside a file, with another ending.
fn beside(path: &Path, ending: &str) -> String {
    inside(&path.with_extension(ending))
}

/// The command that converts a table in text form, for a file that begins like one.
pub(super) fn of_table(path: &Path, beginning: &[u8]) -> Option<String> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let text = String::from_utf8_lossy(beginning);
    let header = text.lines().next().unwrap_or_default();
    let separator = separator(header);
    let is_known_column = |name: &str| is_known(name.trim_matches(['"', ' ', '\u{feff}']));
    let has_names = header.contains(separator) && header.split(separator).any(is_known_column);
    let is_table = has_names || ["csv", "tsv", "tab"].contains(&ending.as_str());
    is_table.then(|| format!("tables as text have no types: convert it with `{}`", table_command(path, header)))
}

/// What separates the columns of a table's first line: the mark that is there most often.
fn separator(header: &str) -> char {
    [',', '\t', ';', '|'].into_iter().rev().max_by_key(|mark| header.matches(*mark).count()).unwrap_or(',')
}

/// The command that converts a table in text form.
pub(super) fn table_command(path: &Path, header: &str) -> String {
    let separator = match separator(header) {
        ',' => String::new(),
        mark => format!(", delimiter='{}'", mark.escape_default()),
    };
    let each = format!("row in csv.DictReader(open('{}', newline='', encoding='utf-8-sig'){separator})", inside(path));
    rows_command("", "{k: v for k, v in row.items() if v}", &each, &beside(path, "jsonl"))
}

/// The command for a folder with a row's JSON beside each picture, as img2dataset writes files.
pub(super) fn rows_beside_command(folder: &Path) -> String {
    let folder = inside(folder);
    let setup = format!("d = pathlib.Path('{folder}'); ");
    let row = "{**json.loads(p.with_suffix('.json').read_text()), 'file_name': str(p.relative_to(d))}";
    let each = format!("p in sorted(d.rglob('*')) if {IS_PICTURE} and p.with_suffix('.json').exists()");
    rows_command(&setup, row, &each, &format!("{folder}/metadata.jsonl"))
}

/// Whether a file is the JSON of one row.
pub(super) fn is_row(path: &Path) -> bool {
    let text = beginning(path, LARGEST_ROW_BESIDE).unwrap_or_default();
    let row: Result<Value, _> = serde_json::from_slice(&text);
    matches!(row, Ok(Value::Object(Object(fields))) if fields.iter().any(|(name, _)| is_meaning(name)))
}

/// The command for a folder with a folder of pictures for each class.
pub(super) fn classes_command(folder: &Path) -> String {
    let folder = inside(folder);
    let setup = format!("d = pathlib.Path('{folder}'); ");
    let row =
        "{'file_name': str(p.relative_to(d)), 'prompt': 'What does the picture show?', 'response': p.parent.name}";
    let each = format!("p in sorted(d.glob('*/*')) if {IS_PICTURE}");
    rows_command(&setup, row, &each, &format!("{folder}/metadata.jsonl"))
}

/// The command for a folder with a text beside each picture, as trainers of picture generators have it.
pub(super) fn captions_command(folder: &Path) -> String {
    let folder = inside(folder);
    let setup = format!("d = pathlib.Path('{folder}'); ");
    let row = "{'file_name': p.name, 'response': p.with_suffix('.txt').read_text().strip()}";
    let each = format!("p in sorted(d.iterdir()) if {IS_PICTURE} and p.with_suffix('.txt').exists()");
    rows_command(&setup, row, &each, &format!("{folder}/metadata.jsonl"))
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
        () if ["info", "licenses", "categories", "annotations"].into_iter().any(has)
            || begins_rows(beginning, "images") =>
        {
            match () {
                () if shows("\"multiple_choice_answer\"") => Whole::Annotations,
                () if shows("\"caption\"") => Whole::CocoCaptions,
                () if shows("\"bbox\"") || shows("\"supercategory\"") => Whole::CocoBoxes,
                () => return None,
            }
        }
        () => {
            let is_one = |name: &&str| has(name) && begins_rows(beginning, name) && !begins_turns(beginning, name);
            let name = AROUND_ROWS.into_iter().find(is_one)?;
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
        // LVIS has addresses alone, whose ends are COCO's folders and names.
        let read = format!(
            "d = json.load(open('{file}')); n = {{i['id']: i.get('file_name') or '/'.join(i['coco_url'].split('/')[-2:]) for i in d['images']}}; "
        );
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
                     [b.setdefault(a['image_id'], []).append({{'bbox_2d': [round(v) for v in (s['bbox'][0], s['bbox'][1], s['bbox'][0] + s['bbox'][2], s['bbox'][1] + s['bbox'][3])], 'label': c[s['category_id']]}}) for a in d['annotations'] for s in a.get('segments_info', [a])]; "
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
                    "q = json.load(open('{file}')); s = q['data_subtype']; \
                     a = {{x['question_id']: x['multiple_choice_answer'] for x in json.load(open('ANNOTATIONS.json'))['annotations']}}; "
                );
                let row = "{'image': 'COCO_%s_%012d.jpg' % (s, x['image_id']), 'prompt': x['question'], 'response': a[x['question_id']]}";
                let command = rows_command(&setup, row, "x in q['questions']", &to);
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

/// Whether the objects of such a list are the turns of one conversation.
fn begins_turns(text: &[u8], key: &str) -> bool {
    let place = memchr::memmem::find(text, format!("\"{key}\"").as_bytes()).unwrap_or(text.len());
    let first = memchr::memchr(b'{', &text[place..]).unwrap_or(0);
    is_turn(first_keys(&text[place + first..]).iter().map(String::as_str))
}

/// Whether the fields of an object are those of a message.
fn is_turn<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    names.into_iter().any(|name| name == "from" || name == "role")
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
    let (name, list) = object.0.iter().find(|(name, value)| AROUND_ROWS.contains(&name.as_ref()) && is_rows(value))?;
    let is_conversation = matches!(list, Value::List(list) if matches!(list.first(), Some(Value::Object(Object(first))) if is_turn(first.iter().map(|(name, _)| name.as_ref()))));
    if is_conversation {
        return Some(format!("`--field messages={name}` if that is the conversation"));
    }
    Some(unwrap_command(name, "FILE.json", "ROWS.json"))
}

/// How to take the rows out of one object.
fn unwrap_command(name: &str, from: &str, to: &str) -> String {
    format!(
        "are the rows in `{name}`? `python3 -c \"import json, pathlib; pathlib.Path('{to}').write_text(json.dumps(json.load(open('{from}'))['{name}']))\"` writes that list as a file of its own"
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
