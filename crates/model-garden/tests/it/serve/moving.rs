//! A data folder moves, is backed up while jobs run, and is put back elsewhere; one record that cannot be read spoils nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{adapter, order, rows};
use crate::common::http::Server;
use crate::common::{model_garden, repository, scratch};

fn in_its_midst(job: &Value) -> bool {
    job["model_garden"]["step"].as_u64().is_some_and(|step| step > 6)
}

/// What a command says that does its work.
fn done(words: &[&str]) -> String {
    let ended = model_garden(words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{words:?}: {told}");
    told
}

/// A folder of models with a link to the tiny one: another place, and the link's name.
fn models_elsewhere(name: &str) -> PathBuf {
    let folder = scratch(name);
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(repository("testdata/tiny-model"), folder.join("tiny-model")).unwrap();
    folder
}

fn start_elsewhere(data: &Path, models: &Path) -> Server {
    let words =
        ["--port", "0", "--device", "cpu", "--data-dir", data.to_str().unwrap(), "--models", models.to_str().unwrap()];
    Server::start_as(data, &words)
}

#[test]
fn a_backup_of_a_running_job_finishes_elsewhere_with_the_same_bytes() {
    let place = scratch("serve-backup");
    let server = Server::start(&place.join("here"), &[]);
    let file = server.upload(&rows(20));
    let whole = server.submit(&order(&file, 12));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));
    // From a result, so that its second name moves, too.
    let model = server.job(&whole)["fine_tuned_model"].as_str().unwrap().to_string();
    let mut tuned = order(&file, 12);
    tuned["model"] = json!(model);
    let undisturbed = server.submit(&tuned);
    server.end_of(&undisturbed);
    let expected = adapter(&server, &undisturbed);
    let running = server.submit(&tuned);
    let waiting = server.submit(&order(&file, 12));
    server.wait(&running, in_its_midst);
    let (archive, elsewhere) = (place.join("garden.tar"), place.join("elsewhere"));
    let told = done(&["serve", "backup", archive.to_str().unwrap(), "--data-dir", server.data.to_str().unwrap()]);
    // It may have ended meanwhile, with its table of results.
    assert!(told.contains("backed up 4 jobs and 3 files") || told.contains("backed up 4 jobs and 4 files"), "{told}");
    // It holds what the folder does, which its owner alone reads.
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&archive).unwrap().permissions());
    assert_eq!(format!("{:o}", mode & 0o777), "600");
    let names = fs::read_dir(&server.data).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.starts_with("backup-")), "nothing is left behind");
    // Into a folder that holds something it is not put back.
    let refused =
        model_garden(&["serve", "restore", archive.to_str().unwrap(), "--data-dir", server.data.to_str().unwrap()]);
    let refused = { refused }.output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    done(&["serve", "restore", archive.to_str().unwrap(), "--data-dir", elsewhere.to_str().unwrap()]);
    // The rows of a job are a second name of the file there, too, and take no space of their own.
    let number = |path: PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let of_job = elsewhere.join("jobs").join(&waiting).join("rows/training_file.jsonl");
    assert_eq!(number(of_job), number(elsewhere.join("files").join(format!("{file}.jsonl"))));
    let other = start_elsewhere(&elsewhere, &models_elsewhere("serve-backup-models"));
    assert_eq!(other.end_of(&running)["status"], json!("succeeded"), "{:#}", other.job(&running));
    assert_eq!(adapter(&other, &running), expected, "the restored one has another result");
    assert_eq!(other.end_of(&waiting)["status"], json!("succeeded"));
    assert_eq!(adapter(&other, &waiting), adapter(&server, &whole));
    assert_eq!(other.get(&format!("/v1/files/{file}/content")).body, rows(20).into_bytes());
    // The first server's jobs have heard nothing of it.
    assert_eq!(server.end_of(&running)["status"], json!("succeeded"));
    assert_eq!(adapter(&server, &running), expected);
    // What clients are given names no place on the server.
    let result = server.job(&running)["fine_tuned_model"].as_str().unwrap().to_string();
    for name in ["adapter_config.json", "recipe.toml", "README.md"] {
        let text = server.get(&format!("/api/models/{result}/files/{name}")).text();
        assert!(!text.contains(place.to_str().unwrap()) && !text.contains("/testdata/"), "{name}: {text}");
    }
}

#[test]
fn a_folder_that_was_moved_goes_on() {
    let place = scratch("serve-moved");
    let server = Server::start(&place.join("here"), &[]);
    let file = server.upload(&rows(20));
    let whole = server.submit(&order(&file, 12));
    server.end_of(&whole);
    let expected = adapter(&server, &whole);
    let id = server.submit(&order(&file, 12));
    server.wait(&id, in_its_midst);
    server.post(&format!("/v1/fine_tuning/jobs/{id}/pause"), &json!({})).expect(200);
    server.wait(&id, |job| job["model_garden"]["status"] == "paused");
    server.delete(&format!("/v1/files/{file}")).expect(200);
    drop(server);
    let elsewhere = place.join("there");
    fs::rename(place.join("here"), &elsewhere).unwrap();
    // Without its model it waits, and says so; with it, it goes on.
    let server =
        Server::start_as(&elsewhere, &["--port", "0", "--device", "cpu", "--data-dir", elsewhere.to_str().unwrap()]);
    server.post(&format!("/v1/fine_tuning/jobs/{id}/resume"), &json!({})).expect(200);
    server.wait(&id, |job| job["model_garden"]["waits_for"] == "files");
    drop(server);
    let server = start_elsewhere(&elsewhere, &models_elsewhere("serve-moved-models"));
    assert_eq!(server.end_of(&id)["status"], json!("succeeded"), "{:#}", server.job(&id));
    assert_eq!(adapter(&server, &id), expected);
}

#[test]
fn a_record_that_cannot_be_read_is_shown_and_stops_nothing() {
    let data = scratch("serve-unreadable");
    let server = Server::start(&data, &["--allow-commands"]);
    let file = server.upload(&rows(4));
    let tuned = server.submit(&order(&file, 1));
    let model = server.end_of(&tuned)["fine_tuned_model"].as_str().unwrap().to_string();
    let weights = adapter(&server, &tuned);
    let broken =
        server.post("/api/jobs", &json!({"command": ["sleep", "0"]})).expect(200)["id"].as_str().unwrap().to_string();
    let ended = server.end_of(&broken)["finished_at"].clone();
    let paused = server.post("/api/jobs", &json!({"command": ["sleep", "600"]})).expect(200);
    let paused = paused["id"].as_str().unwrap().to_string();
    drop(server.post(&format!("/v1/fine_tuning/jobs/{paused}/pause"), &json!({})).expect(200));
    server.wait(&paused, |job| job["model_garden"]["status"] == "paused");
    drop(server);
    let code = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.execute(\"UPDATE jobs SET record = '{', status = 'queued'\"); base.commit()";
    let changed = Command::new("python3").args(["-c", code]).arg(data.join("garden.db")).status();
    if !changed.is_ok_and(|status| status.success()) {
        return garden_testing::missing("python3 with sqlite3");
    }
    let server = Server::start(&data, &["--allow-commands"]);
    let good = server.post("/api/jobs", &json!({"command": ["true"]})).expect(200)["id"].as_str().unwrap().to_string();
    assert_eq!(server.end_of(&good)["status"], json!("succeeded"));
    let listed = server.get("/v1/fine_tuning/jobs").expect(200);
    // When it ended is told where that is known, and nothing is made up where it is not.
    for (row, id, finished) in [(1, &paused, &Value::Null), (2, &broken, &ended)] {
        let shown = &listed["data"][row];
        assert_eq!((&shown["id"], &shown["status"]), (&json!(id), &json!("failed")));
        assert_eq!(&shown["finished_at"], finished, "{shown:#}");
        assert_eq!((&shown["fine_tuned_model"], &shown["result_files"]), (&Value::Null, &json!([])));
        assert_eq!((&shown["error"]["code"], &shown["error"]["param"]), (&json!("unreadable_record"), &Value::Null));
        assert!(shown["error"]["message"].as_str().unwrap().contains("cannot be read"), "{shown:#}");
        assert_eq!(server.job(id), *shown);
        // As with any other that has failed, and with a status that clients do not send again.
        for wish in ["cancel", "pause", "resume"] {
            let refused = server.post(&format!("/v1/fine_tuning/jobs/{id}/{wish}"), &json!({})).expect(400);
            assert_eq!(refused["error"]["code"], json!("wrong_state"), "{refused}");
        }
        server.get(&format!("/v1/fine_tuning/jobs/{id}/events")).expect(200);
        server.get(&format!("/v1/fine_tuning/jobs/{id}/checkpoints")).expect(200);
    }
    assert!(ended.is_number());
    assert!(data.join("jobs").join(&broken).exists(), "nothing of it was deleted");
    server.get("/health").expect(200);
    // A result is there and can be trained on, and is deleted with its job only.
    assert_eq!(server.get(&format!("/v1/models/{model}")).expect(200)["id"], json!(model));
    assert_eq!(server.get(&format!("/api/models/{model}/files/adapter_model.safetensors")).body, weights);
    let refused = server.delete(&format!("/v1/models/{model}")).expect(400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("cannot be read"), "{refused}");
    let mut more = order(&file, 1);
    more["model"] = json!(model);
    let more = server.submit(&more);
    assert_eq!(server.end_of(&more)["status"], json!("succeeded"));
    server.delete(&format!("/api/jobs/{more}")).expect(200);
    server.delete(&format!("/api/jobs/{tuned}")).expect(200);
    assert_eq!(server.get(&format!("/v1/models/{model}")).status, 404);
    // Whoever does not want it any more deletes it.
    server.delete(&format!("/api/jobs/{broken}")).expect(200);
    server.delete(&format!("/api/jobs/{paused}")).expect(200);
    assert_eq!(server.get("/v1/fine_tuning/jobs").expect(200)["data"].as_array().unwrap().len(), 1);
}
