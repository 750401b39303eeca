//! The server's folder: whatever it holds, nothing of it is deleted; a folder that is not a server's is not touched.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{adapter, order, rows};
use crate::common::http::Server;
use crate::common::{Killed, model_garden, repository, scratch};

/// All files under a folder, with their contents; permissions of the folder itself.
fn held(folder: &Path) -> (u32, BTreeMap<String, Vec<u8>>) {
    use std::os::unix::fs::PermissionsExt;
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap().flatten() {
            let name = entry.path().strip_prefix(folder).unwrap().display().to_string();
            match entry.file_type().unwrap().is_dir() {
                true => {
                    folders.push(entry.path());
                    files.insert(name, Vec::new());
                }
                false => drop(files.insert(name, fs::read(entry.path()).unwrap())),
            }
        }
    }
    (fs::metadata(folder).unwrap().permissions().mode(), files)
}

/// What a server says that does not start: its exit code and its words.
fn refused(data: &Path, more: &[&str]) -> String {
    let folder = data.display().to_string();
    let mut words = vec!["serve", "--port", "0", "--device", "cpu", "--data-dir", &folder];
    words.extend(more);
    let ended = model_garden(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{told}");
    told
}

const DATABASE: [&str; 3] = ["garden.db", "garden.db-wal", "garden.db-shm"];

/// The files of the database, as an operator would copy them from a server that has ended.
fn database(data: &Path) -> Vec<(&'static str, Vec<u8>)> {
    DATABASE.into_iter().filter_map(|name| Some((name, fs::read(data.join(name)).ok()?))).collect()
}

fn put_back(data: &Path, database: &[(&'static str, Vec<u8>)]) {
    DATABASE.into_iter().for_each(|name| drop(fs::remove_file(data.join(name))));
    database.iter().for_each(|(name, bytes)| fs::write(data.join(name), bytes).unwrap());
}

/// Somebody's project that happens to have folders of these names.
#[test]
fn a_folder_that_is_not_ours_is_not_touched() {
    let project = scratch("serve-foreign");
    for (name, text) in [
        ("files/thesis.tex", "years of work"),
        ("jobs/job-1/weights.bin", "0"),
        ("parts/a", "b"),
        ("incoming/c", "d"),
        ("notes.md", "e"),
    ] {
        fs::create_dir_all(project.join(name).parent().unwrap()).unwrap();
        fs::write(project.join(name), text).unwrap();
    }
    fs::set_permissions(&project, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let before = held(&project);
    let told = refused(&project, &[]);
    assert!(told.contains("is not a folder of `model-garden serve`") && told.contains("`notes.md`"), "{told}");
    assert!(told.contains("hint:") && told.contains("empty or new"), "{told}");
    refused(&project, &["--set-unknown-aside"]);
    assert_eq!(held(&project), before, "something was changed");
    // A database of something else makes it no more ours.
    fs::write(project.join("garden.db"), "not a database at all").unwrap();
    let before = held(&project);
    refused(&project, &[]);
    assert_eq!(held(&project), before);
}

/// A folder of a newer version.
#[test]
fn a_newer_folder_is_refused() {
    let data = scratch("serve-newer");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("garden-server.json"), "{\"what\": \"data of model-garden serve\", \"format\": 7}\n").unwrap();
    let before = held(&data);
    let told = refused(&data, &[]);
    assert!(told.contains("newer version") && told.contains("format 7"), "{told}");
    assert_eq!(held(&data), before);
}

/// An empty or an older database in the place of the one that knew of everything: nothing is deleted, and what to do is said.
#[test]
fn a_database_that_knows_less_than_its_folder_is_refused() {
    let data = scratch("serve-less");
    let server = Server::start(&data, &[]);
    let file = server.upload(&rows(4));
    drop(server);
    let early = database(&data);
    let server = Server::start(&data, &[]);
    let job = server.post("/v1/fine_tuning/jobs", &order(&file, 1)).expect(200)["id"].as_str().unwrap().to_string();
    server.wait(&job, |job| job["status"] == "succeeded");
    let result = adapter(&server, &job);
    drop(server);
    // What has come in that nobody was told of is ours to remove; what somebody else put there is not.
    fs::write(data.join("incoming/file-zHGYNKb2JzB2D0nyMO1RD3qb"), "half a file").unwrap();
    fs::write(data.join("incoming/somebody's"), "kept").unwrap();
    let known = database(&data);
    for other in [Vec::new(), early] {
        put_back(&data, &other);
        let told = refused(&data, &[]);
        assert!(told.contains("does not know what the folder holds"), "{told}");
        assert!(told.contains(&format!("`jobs/{job}`")), "{told}");
        assert!(told.contains("--set-unknown-aside") && told.contains("put back the newest `garden.db`"), "{told}");
        assert_eq!(fs::read(data.join("jobs").join(&job).join("out/adapter_model.safetensors")).unwrap(), result);
    }
    assert!(data.join("incoming/file-zHGYNKb2JzB2D0nyMO1RD3qb").exists(), "a start that is refused removes nothing");
    // The database is put back, and all is there.
    put_back(&data, &known);
    let server = Server::start(&data, &[]);
    assert_eq!(server.get(&format!("/v1/fine_tuning/jobs/{job}")).expect(200)["status"], json!("succeeded"));
    assert!(data.join("incoming/somebody's").exists() && !data.join("incoming/file-zHGYNKb2JzB2D0nyMO1RD3qb").exists());
    drop(server);
    // Or one starts anew, with everything aside.
    put_back(&data, &[]);
    let server = Server::start(&data, &["--set-unknown-aside"]);
    assert_eq!(server.get("/v1/fine_tuning/jobs").expect(200)["data"], json!([]));
    let aside = fs::read_dir(data.join("unknown")).unwrap().flatten().next().unwrap().path();
    assert_eq!(fs::read(aside.join("jobs").join(&job).join("out/adapter_model.safetensors")).unwrap(), result);
    assert!(
        fs::read_dir(aside.join("files"))
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with(&file))
    );
}

/// Waits until the server has said outside of its database how far that is.
fn noted(data: &Path, changes: impl Fn(u64) -> bool) -> u64 {
    let deadline = std::time::Instant::now() + crate::common::http::PATIENCE;
    loop {
        let text = fs::read_to_string(data.join("numbers.json")).unwrap_or_default();
        let found = serde_json::from_str::<Value>(&text).ok().and_then(|numbers| numbers["changes"].as_u64());
        if let Some(found) = found.filter(|found| changes(*found)) {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "nobody notes what the database has seen: {text}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// An older database that lacks little: a file, or only that something it knows was deleted.
#[test]
fn an_older_database_is_refused_however_little_it_lacks() {
    let data = scratch("serve-older");
    let server = Server::start(&data, &["--allow-commands"]);
    let (file, gone) = (server.upload("{}\n"), server.upload("{}\n"));
    let job = server.post("/api/jobs", &json!({"command": ["true"]})).expect(200)["id"].as_str().unwrap().to_string();
    server.end_of(&job);
    drop(server);
    let older = database(&data);
    let server = Server::start(&data, &[]);
    let known = noted(&data, |_| true);
    let second = server.upload("{}\n");
    noted(&data, |changes| changes > known);
    drop(server);
    let newest = database(&data);
    put_back(&data, &older);
    let told = refused(&data, &[]);
    assert!(told.contains(&format!("`files/{second}.jsonl`")) && told.contains("put back the newest"), "{told}");
    assert!(data.join("files").join(format!("{second}.jsonl")).exists());
    put_back(&data, &newest);
    let server = Server::start(&data, &[]);
    server.delete(&format!("/v1/files/{second}")).expect(200);
    drop(server);
    put_back(&data, &older);
    let told = refused(&data, &[]);
    assert!(told.contains("is older than the folder, which has seen 1 more change"), "{told}");
    // Who wants it all the same says so once.
    let server = Server::start(&data, &["--set-unknown-aside"]);
    assert_eq!(noted(&data, |changes| changes <= known), known, "it is taken for the newest now");
    drop(server);
    // What the older one knows would be listed again, without its contents.
    for path in [format!("/v1/files/{gone}"), format!("/api/jobs/{job}")] {
        let server = Server::start(&data, &[]);
        let before = noted(&data, |_| true);
        let older = database(&data);
        server.delete(&path).expect(200);
        noted(&data, |changes| changes > before);
        drop(server);
        let newest = database(&data);
        put_back(&data, &older);
        let told = refused(&data, &[]);
        assert!(told.contains("is older than the folder") && told.contains("put back the newest"), "{path}: {told}");
        put_back(&data, &newest);
    }
    let server = Server::start(&data, &[]);
    assert_eq!(server.get("/v1/files").expect(200)["data"][0]["id"], json!(file));
}

/// A note that a kill has left behind the database is no reason to refuse it, and neither is one of a version that counted something else.
#[test]
fn a_note_that_is_behind_its_database_refuses_nothing() {
    let data = scratch("serve-behind");
    let server = Server::start(&data, &[]);
    let file = server.upload("{}\n");
    drop(server);
    for note in ["{\"changes\":0}\n", "{\"files\":1,\"uploads\":0,\"jobs\":0}\n", "{"] {
        fs::write(data.join("numbers.json"), note).unwrap();
        let server = Server::start(&data, &[]);
        assert_eq!(server.get("/v1/files").expect(200)["data"][0]["id"], json!(file));
        noted(&data, |changes| changes > 0);
    }
}

/// A database that was put back half.
#[test]
fn a_damaged_database_is_refused() {
    let data = scratch("serve-damaged");
    let mut server = Server::start(&data, &[]);
    (0..40).for_each(|_| drop(server.upload("{}\n")));
    // One that ends by itself leaves all of it in one file.
    assert!(Command::new("kill").args(["-TERM", &server.process.0.id().to_string()]).status().unwrap().success());
    server.process.0.wait().unwrap();
    let whole = database(&data);
    assert_eq!(whole.len(), 1, "{:?}", whole.iter().map(|(name, _)| name).collect::<Vec<_>>());
    let half = vec![(whole[0].0, whole[0].1[..whole[0].1.len() / 2].to_vec())];
    put_back(&data, &half);
    let told = refused(&data, &[]);
    assert!(told.contains("it is damaged") && told.contains("put back the newest backup"), "{told}");
    assert_eq!(fs::read(data.join("garden.db")).unwrap(), half[0].1);
    put_back(&data, &whole);
    assert_eq!(Server::start(&data, &[]).get("/v1/files").expect(200)["data"].as_array().unwrap().len(), 40);
}

/// A server that was killed between putting something out of sight and forgetting it.
#[test]
fn what_was_being_deleted_is_deleted() {
    let data = scratch("serve-half-deleted");
    let server = Server::start(&data, &["--allow-commands"]);
    let (file, kept) = (server.upload("{}\n"), server.upload("{}\n"));
    let tuned = server.submit(&order(&server.upload(&rows(4)), 1));
    let table = server.end_of(&tuned)["result_files"][0].as_str().unwrap().to_string();
    drop(server);
    fs::rename(data.join("files").join(format!("{file}.jsonl")), data.join("incoming").join(&file)).unwrap();
    fs::rename(data.join("jobs").join(&tuned), data.join("jobs").join(format!("gone-{tuned}"))).unwrap();
    let server = Server::start(&data, &["--allow-commands"]);
    for path in [format!("/v1/files/{file}"), format!("/v1/files/{table}"), format!("/v1/fine_tuning/jobs/{tuned}")] {
        assert_eq!(server.get(&path).status, 404, "{path} is listed without its contents");
    }
    server.get(&format!("/v1/files/{kept}/content")).expect(200);
    assert_eq!(
        fs::read_dir(data.join("jobs")).unwrap().count() + fs::read_dir(data.join("incoming")).unwrap().count(),
        0
    );
}

/// What a kill leaves between a rename and a transaction is named and left, and hinders nothing: also on a server that knows nothing yet.
#[test]
fn what_nobody_knows_is_named_and_left() {
    for knows_something in [true, false] {
        let data = scratch(&format!("serve-unknown-{knows_something}"));
        let server = Server::start(&data, &[]);
        let file = knows_something.then(|| server.upload("{}\n"));
        drop(server);
        let stray = data.join("files/file-00000000000000000000stra.jsonl");
        fs::write(&stray, "rows").unwrap();
        // Rows that were looked at, and a job whose folder was made and that nobody was told of.
        fs::create_dir_all(data.join("jobs/check-00000000000000000000look/rows")).unwrap();
        if knows_something {
            fs::create_dir_all(data.join("jobs/ftjob-00000000000000000000anew/out")).unwrap();
            fs::create_dir_all(data.join("jobs/ftjob-00000000000000000000anew/supervisor")).unwrap();
        }
        let folder = data.display().to_string();
        let mut command = model_garden(&["serve", "--port", "0", "--device", "cpu", "--data-dir", &folder]);
        let mut child = Killed(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let told = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        let named = told.take(5).find(|line| line.contains("does not know")).unwrap();
        assert!(
            named.contains("`files/file-00000000000000000000stra.jsonl`") && named.contains("nothing was deleted"),
            "{named}"
        );
        assert!(!named.contains("check-"), "{named}");
        drop(child);
        let server = Server::start(&data, &[]);
        if let Some(file) = file {
            assert_eq!(server.get("/v1/files").expect(200)["data"][0]["id"], json!(file));
            assert!(data.join("jobs/ftjob-00000000000000000000anew").exists());
        }
        assert_eq!(fs::read(&stray).unwrap(), b"rows");
        assert!(!data.join("jobs/check-00000000000000000000look").exists());
    }
}

/// Whatever somebody has put there, by whatever name: the server starts, leaves it, and can move it aside.
#[test]
fn odd_names_hinder_nothing() {
    use std::os::unix::ffi::OsStrExt;
    let data = scratch("serve-odd");
    Server::start(&data, &[]).upload("{}\n");
    let letters = "0".repeat(24);
    let no_text = data.join("jobs").join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    fs::create_dir_all(&no_text).unwrap();
    fs::create_dir_all(data.join("jobs/two\nlines\u{1b}[31m")).unwrap();
    // Named as what a kill leaves, and something else.
    fs::create_dir_all(data.join("incoming").join(format!("file-{letters}"))).unwrap();
    for name in ["gone-ftjob", "check"] {
        fs::write(data.join("jobs").join(format!("{name}-{letters}")), "a file").unwrap();
    }
    drop(Server::start(&data, &["--allow-commands"]));
    assert!(no_text.exists());
    let folder = data.display().to_string();
    let words = ["serve", "--port", "0", "--device", "cpu", "--data-dir", &folder, "--set-unknown-aside"];
    let mut child = Killed(model_garden(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let told = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let moved = told.take(5).find(|line| line.contains("moved aside")).unwrap();
    assert!(moved.contains("`jobs/two\u{fffd}lines\u{fffd}[31m`"), "what a terminal obeys is not printed: {moved}");
    assert_eq!(fs::read_dir(data.join("jobs")).unwrap().count(), 0);
}

/// Folders of the folder on another disk: jobs could not have their own names for files there.
#[test]
fn a_folder_on_two_disks_is_refused() {
    let (data, elsewhere) = (scratch("serve-two-disks"), Path::new("/dev/shm"));
    let [here, there] = [Path::new(env!("CARGO_TARGET_TMPDIR")), elsewhere].map(|path| fs::metadata(path).ok());
    if here.zip(there).is_none_or(|(here, there)| {
        std::os::unix::fs::MetadataExt::dev(&here) == std::os::unix::fs::MetadataExt::dev(&there)
    }) {
        return garden_testing::skip("a second file system is needed, at /dev/shm");
    }
    let jobs = elsewhere.join(format!("serve-two-disks-{}", std::process::id()));
    fs::create_dir_all(&jobs).unwrap();
    drop(Server::start(&data, &[]));
    fs::remove_dir(data.join("jobs")).unwrap();
    std::os::unix::fs::symlink(&jobs, data.join("jobs")).unwrap();
    let told = refused(&data, &[]);
    assert!(told.contains("hard links") && told.contains("on one file system"), "{told}");
    fs::remove_dir_all(&jobs).unwrap();
}

/// A first start that failed half-way.
#[test]
fn a_folder_that_was_begun_is_taken() {
    let data = scratch("serve-begun");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("garden-server.json"), "{\"what\": \"data of model-garden serve\", \"format\": 1}\n").unwrap();
    Server::start(&data, &[]).get("/v1/files").expect(200);
}

/// The adapters of jobs that have one, as they are on the disk.
fn results_of(data: &Path, jobs: &serde_json::Map<String, Value>) -> Vec<(String, Vec<u8>)> {
    let over = jobs.iter().filter(|(_, status)| *status == "succeeded");
    over.map(|(job, _)| {
        (job.clone(), fs::read(data.join("jobs").join(job).join("out/adapter_model.safetensors")).unwrap())
    })
    .collect()
}

/// The events of each job, as the database has them; the oldest first.
fn events_of(data: &Path) -> Option<Value> {
    let code = "import json, sqlite3, sys
base = sqlite3.connect('file:%s?mode=ro' % sys.argv[1], uri=True)
events = {job: [] for job, in base.execute('SELECT id FROM jobs')}
for job, *event in base.execute('SELECT jobs.id, events.created_at, level, message FROM events JOIN jobs ON job = jobs.seq ORDER BY events.seq'):
    events[job].append(event)
print(json.dumps(events))";
    let ended = Command::new("python3").args(["-c", code]).arg(data.join("garden.db")).output().ok()?;
    serde_json::from_slice(&ended.stdout).ok().filter(|_| ended.status.success())
}

/// A folder as 0.1.0 wrote it: without a marker, and with nearly all of its database in the journal beside that.
fn folder_of_an_earlier_version(name: &str) -> Option<PathBuf> {
    let place = scratch(name);
    fs::create_dir_all(&place).unwrap();
    let archive = repository("testdata/server/data-dir-0.1.0.tar.xz");
    let code = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])";
    let unpacked = Command::new("python3").args(["-c", code]).arg(archive).arg(&place).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        garden_testing::skip("python3 with lzma is needed to unpack a data dir");
        return None;
    }
    Some(place.join("garden-data"))
}

/// One that was copied without its database, or without the journal: what to do is said, and with both it is opened. So is one in which nothing is.
#[test]
fn the_folder_of_an_earlier_version_without_its_database_is_refused() {
    let Some(data) = folder_of_an_earlier_version("serve-earlier-cut") else { return };
    let whole = database(&data);
    let without_journal: Vec<_> = whole.iter().filter(|(name, _)| *name == "garden.db").cloned().collect();
    let nothing = vec![("garden.db", Vec::new())];
    for cut in [without_journal, nothing, Vec::new()] {
        put_back(&data, &cut);
        let before = held(&data);
        let told = refused(&data, &[]);
        assert!(told.contains("looks like a folder of model-garden 0.1.0"), "{told}");
        assert!(told.contains("hint: put its `garden.db` back, with the `garden.db-wal` beside it"), "{told}");
        assert!(told.contains("Nothing was touched") && held(&data) == before, "{told}");
    }
    put_back(&data, &whole);
    let expected: Value = serde_json::from_slice(&fs::read(data.join("expected.json")).unwrap()).unwrap();
    let server = Server::start(&data, &[]);
    let listed = server.get("/v1/fine_tuning/jobs").expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), expected["jobs"].as_object().unwrap().len());
    drop(server);

    let Some(data) = folder_of_an_earlier_version("serve-earlier-empty") else { return };
    let code = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
for table in ['files', 'uploads', 'parts', 'jobs', 'metadata', 'events']:
    base.execute('DELETE FROM ' + table)
base.commit()";
    let emptied = Command::new("python3").args(["-c", code]).arg(data.join("garden.db")).status();
    if !emptied.is_ok_and(|status| status.success()) {
        return garden_testing::missing("python3 with sqlite3");
    }
    for folder in ["files", "jobs"] {
        fs::remove_dir_all(data.join(folder)).unwrap();
        fs::create_dir(data.join(folder)).unwrap();
    }
    let server = Server::start(&data, &[]);
    assert_eq!(server.get("/v1/fine_tuning/jobs").expect(200)["data"], json!([]));
    server.upload("{}\n");
}

/// The folder of 0.1.0, which has no marker: it is opened as it is, and what was under way goes on.
#[test]
fn the_folder_of_an_earlier_version_is_opened() {
    let Some(data) = folder_of_an_earlier_version("serve-earlier") else { return };
    let expected: Value = serde_json::from_slice(&fs::read(data.join("expected.json")).unwrap()).unwrap();
    let jobs = expected["jobs"].as_object().unwrap();
    let before = held(&data.join("files")).1;
    let results = results_of(&data, jobs);
    let Some(events) = events_of(&data) else { return garden_testing::skip("python3 with sqlite3 is needed") };
    let server = Server::start(&data, &["--slots", "3"]);
    assert!(data.join("garden-server.json").exists());
    assert_eq!(held(&data.join("files")).1, before);
    for (job, status) in jobs {
        let found = server.get(&format!("/v1/fine_tuning/jobs/{job}")).expect(200);
        let now = found["model_garden"]["status"].as_str().unwrap();
        if let was @ ("succeeded" | "failed" | "paused") = status.as_str().unwrap() {
            assert_eq!(now, was, "{found}");
        }
        if status == "paused" {
            server.post(&format!("/v1/fine_tuning/jobs/{job}/resume"), &json!({})).expect(200);
        }
    }
    // What clients had sent is given out as it was.
    for file in expected["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()) {
        let kept = &before[&format!("{file}.jsonl")];
        assert_eq!(server.get(&format!("/v1/files/{file}/content")).body, *kept, "{file}");
        assert_eq!(server.get(&format!("/v1/files/{file}")).expect(200)["bytes"], json!(kept.len()), "{file}");
    }
    // What is over is as it was, for whoever asks: results, their tables, and all that happened.
    assert!(!results.is_empty(), "nothing was over");
    for (job, result) in &results {
        let found = server.job(job);
        let model = found["fine_tuned_model"].as_str().unwrap();
        assert!(server.get(&format!("/api/models/{model}/files/adapter_model.safetensors")).body == *result, "{job}");
        let table = found["result_files"][0].as_str().unwrap();
        let kept = fs::read_dir(data.join("files")).unwrap().flatten().map(|entry| entry.path());
        let kept = kept.into_iter().find(|path| path.file_stem().is_some_and(|name| name == table)).unwrap();
        assert_eq!(server.get(&format!("/v1/files/{table}/content")).body, fs::read(kept).unwrap());
    }
    for (job, status) in jobs.iter().filter(|(_, status)| *status == "succeeded" || *status == "failed") {
        let listed = server.get(&format!("/v1/fine_tuning/jobs/{job}/events?limit=1000")).expect(200);
        let listed = listed["data"].as_array().unwrap().iter().rev();
        let found: Vec<Value> =
            listed.map(|event| json!([event["created_at"], event["level"], event["message"]])).collect();
        assert_eq!(json!(found), events[job], "{job}, {status}");
    }
    // Its folder and its model are in other places now; what was under way goes on, and what is over stays.
    for (job, status) in jobs {
        let ended = server.end_of(job);
        let expected = if status == "failed" { "failed" } else { "succeeded" };
        assert_eq!(ended["status"], json!(expected), "was {status}: {ended:#}");
    }
    // Two of them had waited with the same settings, and have the same result.
    let waited: Vec<&String> = jobs.iter().filter(|(_, status)| *status == "queued").map(|(job, _)| job).collect();
    assert!(waited.len() > 1 && waited.iter().all(|job| adapter(&server, job) == adapter(&server, waited[0])));
}
