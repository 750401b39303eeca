//! Datasets of each format, made by `testdata/data/make_datasets.py`, and each way in which they can be wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use garden_data::{Content, Dataset, Error, Message, Part, Record, Weight};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/data/datasets").join(name)
}

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(testdata("pictures").join(name)).unwrap()
}

/// The rows as they should be: messages and pictures.
fn expected() -> Vec<(Vec<Message>, Vec<Vec<u8>>)> {
    let (gate, receipt) = (picture("gate.jpg"), picture("receipt.png"));
    let answer = |text: &str| Message::text("assistant", text);
    vec![
        (vec![Message::with_images("user", 1, "Which gate is it?"), answer("Gate B14.")], vec![gate.clone()]),
        (
            vec![Message::with_images("user", 2, "What do the two have in common?"), answer("A number: 14.")],
            vec![receipt.clone(), gate],
        ),
        (vec![Message::text("user", "Wie heißt die Hauptstadt von Österreich?"), answer("Wien.")], vec![]),
        (
            vec![
                Message::text("system", "You read receipts."),
                Message::text("user", "Hello."),
                answer("Hello. Show me a receipt."),
                Message::with_images("user", 1, "What is the total?"),
                answer(r#"{"total": 14.2, "currency": "EUR"}"#),
            ],
            vec![receipt],
        ),
    ]
}

fn read_all(dataset: &Dataset) -> Vec<(Vec<Message>, Vec<Vec<u8>>)> {
    let plain = |record: Record| (record.messages, record.pictures.into_iter().map(|picture| picture.data).collect());
    (0..dataset.len()).map(|index| plain(dataset.read(index).unwrap())).collect()
}

#[test]
fn the_same_rows_from_every_format() {
    for (name, rows) in [
        ("questions.jsonl", 3),
        ("questions.json", 3),
        ("chat.jsonl", 4),
        ("chat_paths.jsonl", 4),
        ("chat_older.jsonl", 4),
        ("sharegpt.json", 4),
        ("snapshot", 4),
        ("parquet/snappy.parquet", 3),
        ("parquet/zstd.parquet", 3),
        ("parquet/gzip.parquet", 3),
        ("parquet/plain.parquet", 3),
    ] {
        let dataset = Dataset::open(&testdata(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read_all(&dataset), expected()[..rows], "{name}");
    }
}

#[test]
fn archives_have_the_same_rows_and_captions() {
    let dataset = Dataset::open(&testdata("shards")).unwrap();
    let rows = read_all(&dataset);
    assert_eq!((dataset.len(), dataset.files()), (4, 2));
    assert_eq!(rows[..3], expected()[..3]);
    let shown = Message::new("user", Content::Parts(vec![Part::Image]));
    assert_eq!(rows[3], (vec![shown, Message::text("assistant", "A sign at an airport.")], vec![picture("gate.jpg")]));
    assert!(dataset.read(1).unwrap().place.ends_with("train-000000.tar:rows/000001"));
}

#[test]
fn folders_of_pictures() {
    let dataset = Dataset::open(&testdata("folder")).unwrap();
    let rows = read_all(&dataset);
    assert_eq!(rows[0], expected()[0]);
    assert_eq!(rows[1].0[1], Message::text("assistant", "A sign at an airport."));
}

#[test]
fn splits_of_a_snapshot() {
    assert_eq!(Dataset::open_split(&testdata("snapshot"), "validation").unwrap().len(), 1);
    assert_eq!(Dataset::open_split(&testdata("snapshot"), "val").unwrap().len(), 1);
    let error = Dataset::open_split(&testdata("snapshot"), "test").unwrap_err();
    assert_eq!(error.hint(), Some("there is: train, validation"));
}

#[test]
fn names_say_where_a_row_and_a_picture_come_from() {
    let dataset = Dataset::open(&testdata("questions.jsonl")).unwrap();
    let record = dataset.read(1).unwrap();
    assert!(record.place.ends_with("questions.jsonl:2"));
    assert!(
        record.pictures[1].name.ends_with("questions.jsonl:2: images[1] (pictures/gate.jpg)"),
        "{}",
        record.pictures[1].name
    );
    assert_eq!(dataset.place(1), record.place);
    assert!(Dataset::open(&testdata("questions.json")).unwrap().place(1).ends_with("questions.json:8 (row 2)"));
}

/// A folder that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("datasets-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, data: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, data).unwrap();
        path
    }

    /// The error as it is printed, with paths from the folder on.
    fn told(&self, error: &Error) -> String {
        let hint = error.hint().map_or(String::new(), |hint| format!("\nhint: {hint}"));
        format!("{error}{hint}")
            .replace(&format!("{}/", self.0.display()), "")
            .replace(&self.0.display().to_string(), ".")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is said about the only row of a JSONL file.
fn complaint(row: &str) -> String {
    let scratch = Scratch::new();
    let dataset = Dataset::open(&scratch.write("a.jsonl", format!("\n{row}\n"))).unwrap();
    scratch.told(&dataset.read(0).unwrap_err())
}

/// What is said about a file when it is opened.
fn refusal(name: &str, data: impl AsRef<[u8]>) -> String {
    let scratch = Scratch::new();
    scratch.told(&Dataset::open(&scratch.write(name, data)).unwrap_err())
}

#[test]
fn bad_rows() {
    let cases = [
        (
            r#"{"prompt": "a", "response": "b""#,
            "`a.jsonl:2`: broken JSON at character 31 of the row: EOF while parsing an object\nhint: each line must be a whole row; rows that span several lines need a JSON array around them",
        ),
        (r#"{"prompt": a}"#, "`a.jsonl:2`: broken JSON at character 12 of the row: expected value"),
        (r#"[1]"#, "`a.jsonl:2 (row 1)`: is the number 1, not an object with fields"),
        (
            r#"{"id": 1}"#,
            "`a.jsonl:2`: no conversation in this row: it has `id`\nhint: rows need `messages`, `conversations`, or `prompt` and `response`",
        ),
        (
            r#"{"prompt": "a"}"#,
            "`a.jsonl:2`: field `response` is missing: `prompt` has no answer\nhint: call the answer `response`, `output`, `answer` or `completion`",
        ),
        (
            r#"{"text": "a", "response": null}"#,
            "`a.jsonl:2`: field `response` is missing: `text` has no answer\nhint: call the answer `response`, `output`, `answer` or `completion`",
        ),
        (r#"{"prompt": 7, "response": "b"}"#, "`a.jsonl:2`: field `prompt` is the number 7, not a string"),
        (
            r#"{"prompt": "a", "text": "c", "response": "b"}"#,
            "`a.jsonl:2`: field `text` means the same as `prompt`, and the row has both\nhint: `--ignore-field prompt` or `--ignore-field text` leaves one out",
        ),
        (
            r#"{"prompt": "a", "response": {"x": 1}}"#,
            "`a.jsonl:2`: field `response` is an object with `x`, not a string",
        ),
        (
            r#"{"prompt": "<image> a <image>", "image": "x.jpg", "response": "b"}"#,
            "`a.jsonl:2`: field `images` does not match: the row has 1 picture, but its messages show 2\nhint: use one `<image>` or part of type `image` for each",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "b"}]}"#,
            "`a.jsonl:2`: field `images` does not match: the row has 0 pictures, but its messages show 1\nhint: use one `<image>` or part of type `image` for each",
        ),
        (
            r#"{"prompt": "a", "image": "gone.jpg", "response": "b"}"#,
            "`a.jsonl:2`: field `image` names `gone.jpg`: No such file or directory (os error 2)\nhint: paths are relative to the folder of the file that names them",
        ),
        (
            r#"{"prompt": "a", "images": ["https://x.org/a.jpg"], "response": "b"}"#,
            "`a.jsonl:2`: field `images[0]` is a remote URL: `https://x.org/a.jpg`\nhint: nothing is downloaded: fetch the pictures first and use their paths",
        ),
        (
            r#"{"prompt": "a", "image": "s3://bucket/a.jpg", "response": "b"}"#,
            "`a.jsonl:2`: field `image` is a remote URL: `s3://bucket/a.jpg`\nhint: nothing is downloaded: fetch the pictures first and use their paths",
        ),
        (
            r#"{"prompt": "a", "image": "data:image/png;base64,iVBO*w0K", "response": "b"}"#,
            "`a.jsonl:2`: field `image` is not usable base64: byte 0x2a at character 5 is not a base64 digit",
        ),
        (
            r#"{"prompt": "a", "image": "data:image/png,iVBO", "response": "b"}"#,
            "`a.jsonl:2`: field `image` is a data URI without `;base64,`: `data:image/png,iVBO`",
        ),
        (
            r#"{"prompt": "a", "image": "data:image/png;base64,", "response": "b"}"#,
            "`a.jsonl:2`: field `image` is a picture without bytes",
        ),
        (
            r#"{"prompt": "a", "image": 3, "response": "b"}"#,
            "`a.jsonl:2`: field `image` is the number 3, not a picture\nhint: use a path, a data URI or an object with `bytes` or `url`",
        ),
        (
            r#"{"prompt": "a", "image": {"src": "b"}, "response": "b"}"#,
            "`a.jsonl:2`: field `image` has no picture in it: `src`\nhint: use `url`, `path` or `bytes`",
        ),
        (r#"{"messages": "hello"}"#, "`a.jsonl:2`: field `messages` is the string `hello`, not a list of messages"),
        (r#"{"messages": []}"#, "`a.jsonl:2`: field `messages` is an empty list"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "`a.jsonl:2`: field `messages` has no answer: the last message is from `user`\nhint: a row must end with an assistant message",
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#,
            "`a.jsonl:2`: field `messages[0].role` is missing: the message has `content`\nhint: `role` or `from`",
        ),
        (
            r#"{"messages": [{"role": "user"}]}"#,
            "`a.jsonl:2`: field `messages[0].content` is missing: the message has `role`\nhint: `content` or `value`",
        ),
        (
            r#"{"messages": [{"role": "narrator", "content": "a"}]}"#,
            "`a.jsonl:2`: field `messages[0].role` is `narrator`, an unknown role\nhint: use `system`, `user` (`human`), `assistant` (`gpt`), `tool` (`observation`, `tool_response`) or `function_call` (`tool_call`)",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 1}]}"#,
            "`a.jsonl:2`: field `messages[0].content` is the number 1, not a string or a list of parts",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "video", "video": "x"}]}]}"#,
            "`a.jsonl:2`: field `messages[0].content[0].type` is `video`, which is not supported\nhint: use `text`, `image_url` or `image`",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/a"}}]}, {"role": "assistant", "content": "b"}]}"#,
            "`a.jsonl:2`: field `messages[0].content[0].image_url.url` is a remote URL: `http://x/a`\nhint: nothing is downloaded: fetch the pictures first and use their paths",
        ),
    ];
    for (row, told) in cases {
        assert_eq!(complaint(row), told, "{row}");
    }
}

#[test]
fn a_bad_row_says_so_in_its_structure_and_others_are_read() {
    let scratch = Scratch::new();
    let good = r#"{"prompt": "a", "response": "b"}"#;
    let dataset = Dataset::open(&scratch.write("a.jsonl", format!("{good}\n\n{{oops}}\r\n{good}"))).unwrap();
    assert_eq!(dataset.len(), 3);
    assert!(dataset.read(0).is_ok() && dataset.read(2).unwrap().place.ends_with("a.jsonl:4"));
    let Error::Row { place, field, .. } = dataset.read(1).unwrap_err() else { panic!("a row") };
    assert!(place.ends_with("a.jsonl:3") && field.is_empty());
}

#[test]
fn bad_files() {
    assert_eq!(refusal("a.jsonl", ""), "dataset `a.jsonl`: is empty");
    assert_eq!(refusal("a.jsonl", "\n \n"), "dataset `a.jsonl`: has no rows");
    assert_eq!(refusal("a.json", "[]"), "dataset `a.json`: has no rows");
    let hint = "hint: was the file written or copied completely?";
    let ends = format!("dataset `a.json`: the JSON array ends too early, in row 2 that begins on line 3\n{hint}");
    assert_eq!(refusal("a.json", "[\n{\"a\": \"]}\\\"\"},\n{\"a\""), ends);
    assert_eq!(
        refusal("a.json", "[{}\n{}]"),
        "dataset `a.json`: line 2: `,` is missing between two rows of the JSON array"
    );
    assert_eq!(
        refusal("a.json", "[{}] {}"),
        "dataset `a.json`: line 1: unexpected text after the end of the JSON array"
    );
    assert!(refusal("a.txt", "hello").contains("hint: it begins with \"hello\"; each line must be a row"));
    assert!(
        refusal("a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").contains("`git lfs pull`")
    );
    assert!(refusal("a.jsonl.gz", b"\x1f\x8b\x08").contains("`gunzip`"));
    assert!(refusal("a.arrow", b"ARROW1\0\0").contains("to_parquet"));
    let shard = std::fs::read(testdata("shards/train-000000.tar")).unwrap();
    let cut = "hint: was it downloaded or copied completely?";
    assert_eq!(
        refusal("a.tar", &shard[..3000]),
        format!("dataset `a.tar`: is truncated: the file at byte 2048 of the archive is incomplete\n{cut}")
    );
    let mut broken = shard.clone();
    broken[2048] ^= 1;
    assert_eq!(refusal("a.tar", broken), "dataset `a.tar`: is broken at byte 2048: no archive header there");
    let mut fifo = shard.clone();
    fifo[156] = b'6';
    // The header's sum, in octal.
    let sum: u32 = fifo[..148].iter().chain(&fifo[156..512]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    fifo[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let told = refusal("a.tar", &fifo);
    assert!(told.contains("that is a FIFO, at byte 0\nhint: only files, folders and links are read"), "{told}");
    let table = std::fs::read(testdata("parquet/snappy.parquet")).unwrap();
    let told = format!("dataset `a.parquet`: is truncated: parquet files end with `PAR1`\n{cut}");
    assert_eq!(refusal("a.parquet", &table[..5000]), told);
    assert_eq!(refusal("a.parquet", &table[..6]), told);
}

#[test]
fn bad_rows_of_archives_and_tables() {
    let error = Dataset::open(&testdata("parquet/brotli.parquet")).unwrap().read(0).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "brotli.parquet:1`: field `images` cannot be read: compression with Brotli; only Snappy, Zstandard, gzip and none are supported"
        ),
        "{error}"
    );
    let scratch = Scratch::new();
    // The header of the first page of pictures.
    let mut table = std::fs::read(testdata("parquet/pages.parquet")).unwrap();
    table[4] ^= 0xff;
    let dataset = Dataset::open(&scratch.write("a.parquet", table)).unwrap();
    assert!(scratch.told(&dataset.read(0).unwrap_err()).contains(" cannot be read: broken parquet"));
}

#[test]
fn a_file_that_changes_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.write("a.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    let dataset = Dataset::open(&path).unwrap();
    scratch.write("a.jsonl", "{}\n");
    assert_eq!(
        scratch.told(&dataset.read(0).unwrap_err()),
        "dataset `a.jsonl`: changed while it was in use: 33 bytes, now 3"
    );
}

#[test]
fn folders_that_are_not_clear() {
    let scratch = Scratch::new();
    let told = |name: &str| scratch.told(&Dataset::open(&scratch.0.join(name)).unwrap_err());
    scratch.write("empty/a.jpg", "x");
    assert!(told("empty").starts_with(
        "dataset `empty`: has no rows: no .jsonl, .json, .parquet or .tar file\nhint: a folder of pictures needs"
    ));
    scratch.write("mixed/train.jsonl", "{}");
    scratch.write("mixed/train.json", "[]");
    assert!(told("mixed").starts_with("dataset `mixed`: has several kinds of files: .json, .jsonl\n"));
    scratch.write("several/one/train.jsonl", "{}");
    scratch.write("several/two/train.jsonl", "{}");
    assert_eq!(
        told("several"),
        "dataset `several`: contains several datasets, in 2 folders\nhint: pass one of them: `several/one`, `several/two`"
    );
    scratch.write("saved/state.json", "{}");
    assert!(told("saved").contains("save_to_disk"));
    assert_eq!(told("gone.jsonl"), "dataset `gone.jsonl`: no such file or folder");
}

#[test]
fn addresses_and_names_of_the_hub() {
    let told = |name: &str| Dataset::open(Path::new(name)).unwrap_err();
    assert_eq!(told("s3://bucket/train").to_string(), "dataset `s3://bucket/train`: is a remote URL (`s3`)");
    let error = told("no-such-owner/no-such-dataset");
    assert!(error.to_string().contains("not in the hub's cache"), "{error}");
    assert_eq!(
        error.hint(),
        Some("nothing is downloaded here: run `hf download --repo-type dataset no-such-owner/no-such-dataset`")
    );
}

#[test]
fn ways_to_name_a_picture() {
    let scratch = Scratch::new();
    let gate = picture("gate.jpg");
    let path = scratch.write("my pictures/gate.jpg", &gate);
    let url = format!("file://{}", path.display()).replace(' ', "%20");
    let names = ["my pictures/gate.jpg".to_string(), path.display().to_string(), url];
    for name in names {
        let text = format!(
            r#"{{"messages": [{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": "{name}"}}}}]}}, {{"role": "assistant", "content": "b"}}]}}"#
        );
        let record = Dataset::open(&scratch.write("a.jsonl", text)).unwrap().read(0).unwrap();
        assert_eq!(record.pictures[0].data, gate, "{name}");
        assert_eq!(record.messages[0].content, Content::Parts(vec![Part::Image]));
    }
}

#[test]
fn pictures_go_where_the_text_says() {
    let scratch = Scratch::new();
    scratch.write("a.jpg", "a");
    scratch.write("b.jpg", "b");
    let text = r#"{"prompt": "First <image>\nthen\n<image>", "images": ["a.jpg", "b.jpg"], "response": "r"}"#;
    let record = Dataset::open(&scratch.write("a.jsonl", text)).unwrap().read(0).unwrap();
    let parts = [Part::Text("First ".into()), Part::Image, Part::Text("then".into()), Part::Image];
    assert_eq!(record.messages[0].content, Content::Parts(parts.to_vec()));
    assert_eq!(record.messages[1], Message::text("assistant", "r"));
    let messages = r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}], "images": ["a.jpg"]}"#;
    let record = Dataset::open(&scratch.write("a.jsonl", messages)).unwrap().read(0).unwrap();
    assert_eq!(record.messages[1], Message::with_images("user", 1, "q"));
}

#[test]
fn a_refusal_is_the_answer() {
    let scratch = Scratch::new();
    let row = |answer: &str| {
        format!(r#"{{"messages": [{{"role": "user", "content": "q"}}, {{"role": "assistant", {answer}}}]}}"#)
    };
    let whole = Message::text("assistant", "No.");
    for answer in [
        r#""refusal": "No.""#,
        r#""content": null, "refusal": "No.""#,
        r#""content": "", "refusal": "No.""#,
        r#""content": [{"type": "refusal", "refusal": "No."}]"#,
        r#""content": "No.", "refusal": null"#,
    ] {
        let dataset = Dataset::open(&scratch.write("a.jsonl", row(answer))).unwrap();
        assert_eq!(dataset.read(0).unwrap().messages[1], whole, "{answer}");
        assert!(dataset.outline(0, 1).unwrap().ignored.is_empty(), "{answer}");
    }
    let both = row(r#""content": "Yes.", "refusal": "No.""#);
    let told = "`a.jsonl:2`: field `messages[1].refusal` means the same as `content`, and the message has both";
    assert_eq!(complaint(&both), told);
    let asked = r#"{"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "assistant", "content": "r"}]}"#;
    assert!(complaint(asked).contains("is `refusal`, which is not supported"));
    let empty = row(r#""content": [{"type": "refusal"}]"#);
    assert!(complaint(&empty).contains("field `messages[1].content[0].refusal` is missing"));
}

#[test]
fn tables_hold_tools_calls_and_numbers_as_json_does() {
    let of_json = Dataset::open(&testdata("tools.jsonl")).unwrap();
    for name in ["tools.parquet", "tools-v2.parquet"] {
        let table = Dataset::open(&testdata(name)).unwrap();
        for row in 0..3 {
            let (one, other) = (of_json.read(row).unwrap(), table.read(row).unwrap());
            assert_eq!((&one.messages, &one.tools), (&other.messages, &other.tools), "{name}, row {row}");
            assert_eq!(one.messages[3].weight == Weight::Zero, row % 2 == 0);
            assert_eq!((one.tools.len(), one.messages[1].calls().len()), (1, 1));
        }
        // Columns of other names are not read, and named.
        assert_eq!(table.outline(0, 1).unwrap().ignored, ["score", "taken"]);
    }
    assert_eq!(of_json.outline(0, 1).unwrap().ignored, ["score", "taken"]);
}
