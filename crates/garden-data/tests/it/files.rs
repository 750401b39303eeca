//! What rows name and hold that is no picture: pipes, devices, files of others, links in archives, rows of any length.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use garden_data::{Dataset, Error, ImagePaths, MAX_PIXELS, TemplateFile, read_picture};

/// Longer than anything here takes, even on a busy machine: a pipe without a writer is waited for for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of one test, emptied first.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("garden-files-{}-{name}", std::process::id()));
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn picture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/data/datasets/pictures/gate.jpg").canonicalize().unwrap()
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Does something that may never end.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (give, take) = channel();
    std::thread::spawn(move || drop(give.send(work())));
    take.recv_timeout(PATIENCE).expect("it does not end")
}

/// Rows that name these pictures.
fn rows(path: &Path, pictures: &[&str]) {
    let row =
        |name: &&str| serde_json::json!({"prompt": "What?", "image": name, "response": "That."}).to_string() + "\n";
    fs::write(path, pictures.iter().map(row).collect::<String>()).unwrap();
}

/// What comes of each row, read as a whole and by its headers, which must agree.
fn outcomes(path: &Path, paths: Option<ImagePaths>) -> Vec<String> {
    let path = path.to_path_buf();
    in_time(move || {
        let dataset = Dataset::open_with(&path, "train", paths).unwrap();
        let words = |error: Error| format!("{error} [{}]", error.hint().unwrap_or("no hint"));
        let outcome = |row: usize| {
            let whole = dataset.read(row).map(|_| ()).map_err(words);
            assert_eq!(dataset.outline(row, MAX_PIXELS).map(|_| ()).map_err(words), whole);
            whole.err().unwrap_or("read".to_string())
        };
        (0..dataset.len()).map(outcome).collect()
    })
}

#[test]
fn only_regular_files_are_pictures() {
    let folder = folder("pipes");
    pipe(&folder.join("pipe.jpg"));
    fs::create_dir(folder.join("folder.jpg")).unwrap();
    rows(&folder.join("rows.jsonl"), &["pipe.jpg", "folder.jpg", "/dev/zero", "nothing.jpg"]);
    let found = outcomes(&folder.join("rows.jsonl"), None);
    assert!(found[0].contains("pipe.jpg`: it is a pipe, not a regular file"), "{}", found[0]);
    assert!(found[1].contains("folder.jpg`: it is a folder, not a regular file"), "{}", found[1]);
    assert!(found[2].contains("`/dev/zero`: it is a device, not a regular file"), "{}", found[2]);
    assert!(found[3].contains("No such file"), "{}", found[3]);
    let (dataset, template, image) = (folder.join("pipe.jpg"), folder.join("pipe.jpg"), folder.join("pipe.jpg"));
    let error = in_time(move || Dataset::open(&dataset).unwrap_err().to_string());
    assert!(error.contains("it is a pipe"), "{error}");
    let error = in_time(move || TemplateFile::read(&template).unwrap_err().to_string());
    assert!(error.contains("it is a pipe"), "{error}");
    assert!(in_time(move || read_picture(&image).unwrap_err().to_string()).contains("it is a pipe"));
}

#[test]
fn rows_of_others_stay_in_their_folder() {
    let outside = folder("outside");
    let data = outside.join("data");
    fs::create_dir_all(data.join("images")).unwrap();
    for path in [outside.join("secret.jpg"), data.join("images/own.jpg")] {
        fs::copy(picture(), path).unwrap();
    }
    symlink("../secret.jpg", data.join("link.jpg")).unwrap();
    symlink("images/own.jpg", data.join("inner.jpg")).unwrap();
    symlink("..", data.join("up")).unwrap();
    let secret = outside.join("secret.jpg").to_str().unwrap().to_string();
    let own = data.join("images/own.jpg").to_str().unwrap().to_string();
    let address = format!("file://{secret}");
    let inside = ["images/own.jpg", "images/../images/own.jpg", "inner.jpg", &own, "up/data/images/own.jpg"];
    let leaving = ["../secret.jpg", &secret, "link.jpg", &address, "up/secret.jpg", "../missing.jpg", "/missing.jpg"];
    let file = data.join("rows.jsonl");
    rows(&file, &inside);
    assert_eq!(outcomes(&file, Some(ImagePaths::Inside)), ["read"; 5]);
    rows(&file, &leaving);
    for found in outcomes(&file, Some(ImagePaths::Inside)) {
        assert!(found.contains("which is outside `") && found.contains("--image-paths anywhere"), "{found}");
    }
    // Those of one's own may name anything, and so may all if that is said.
    assert_eq!(outcomes(&file, None)[..5], ["read"; 5]);
    assert_eq!(outcomes(&file, Some(ImagePaths::Anywhere))[..5], ["read"; 5]);
    // The folder that was given counts, not the one that the file is in.
    fs::remove_file(&file).unwrap();
    fs::remove_file(data.join("up")).unwrap();
    fs::create_dir(data.join("lists")).unwrap();
    rows(&data.join("lists/train.jsonl"), &["../images/own.jpg", "../../secret.jpg"]);
    let found = outcomes(&data, Some(ImagePaths::Inside));
    assert!(found[0] == "read" && found[1].contains("is outside"), "{found:?}");
}

#[test]
fn a_row_has_a_length_that_memory_is_good_for() {
    garden_testing::alone("files::a_row_has_a_length_that_memory_is_good_for", || {
        let folder = folder("long");
        let path = folder.join("rows.jsonl");
        let file = fs::File::create(&path).unwrap();
        let length = 300 << 20;
        file.write_all_at(b"{\"prompt\": \"", 0).unwrap();
        file.write_all_at(b"\", \"response\": \"b\"}\n", length).unwrap();
        let found = outcomes(&path, None);
        assert!(found[0].contains("the row has 314572819 bytes; the maximum is 134217728"), "{}", found[0]);
        fs::write(&path, format!("{{\"prompt\": \"a\", \"response\": [{}0]}}", "0,".repeat(30_000_000))).unwrap();
        let found = outcomes(&path, None);
        assert!(found[0].contains("the row has more than 4000000 values"), "{}", found[0]);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(peak < 512 << 10, "{peak} KiB");
        fs::remove_dir_all(&folder).unwrap();
    });
}

/// A member of an archive.
fn member(name: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header.extend_from_slice(data);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

#[test]
fn links_in_archives_are_named() {
    let folder = folder("links");
    let data = fs::read(picture()).unwrap();
    let archive = [
        member("1.jpg", b'0', "", &data),
        member("1.txt", b'0', "", b"One"),
        member("2.jpg", b'2', "1.jpg", &[]),
        member("2.txt", b'0', "", b"Two"),
        member("3.txt", b'0', "", b"Three"),
        member("3.jpg", b'1', "1.jpg", &[]),
        vec![0; 1024],
    ];
    let path = folder.join("rows.tar");
    fs::write(&path, archive.concat()).unwrap();
    let found = outcomes(&path, None);
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], "read");
    for found in &found[1..] {
        assert!(found.contains(".jpg` is a link to `1.jpg`: links in archives are not followed"), "{found}");
    }
}
