//! The server, as its clients see it: a real one, over real connections, with a tiny model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

mod bounds;
mod folder;
mod manners;
mod moving;
mod places;
mod queue;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::http::Server;
use crate::common::{repository, run, scratch, told};

/// Rows in OpenAI's form: a picture as a data URI, a question, an answer.
fn rows(count: usize) -> String {
    use base64::Engine as _;
    let picture = std::fs::read(repository("testdata/data/recorded/pictures").join(small_picture())).unwrap();
    let uri = format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(picture));
    let row = |number: usize| {
        json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": format!("Row {number}?")}, {"type": "image_url", "image_url": {"url": uri}}]},
            {"role": "assistant", "content": format!("answer {}", number % 5)},
        ]})
        .to_string()
            + "\n"
    };
    (0..count).map(row).collect()
}

/// The smallest picture of the recordings.
fn small_picture() -> String {
    let files = std::fs::read_dir(repository("testdata/data/recorded/pictures")).unwrap().flatten();
    let pngs = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "png"));
    let smallest = pngs.min_by_key(|file| (file.metadata().unwrap().len(), file.file_name())).unwrap();
    smallest.file_name().into_string().unwrap()
}

/// A job whose steps are quick: one thread, small pictures, a few rows at once.
fn order(file: &str, epochs: u32) -> Value {
    json!({
        "model": "tiny-model", "training_file": file, "seed": 11,
        "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 2}}},
        "model_garden": {"recipe": {"threads": 1, "max_pixels": 3136, "save_steps": 5, "warmup_steps": 1}},
    })
}

fn adapter(server: &Server, job: &str) -> Vec<u8> {
    std::fs::read(server.data.join("jobs").join(job).join("out/adapter_model.safetensors")).unwrap()
}

#[test]
fn files_come_and_go() {
    let server = Server::start(&scratch("serve-files"), &[]);
    let text = "{\"messages\": []}\n";
    let id = server.upload(text);
    let one = server.get(&format!("/v1/files/{id}")).expect(200);
    assert_eq!((&one["filename"], &one["bytes"], &one["object"]), (&json!("rows.jsonl"), &json!(17), &json!("file")));
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).text(), text);
    let second = server.upload("{}\n");
    let listed = server.get("/v1/files?limit=1").expect(200);
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&json!(second), &json!(true)));
    let next = server.get(&format!("/v1/files?limit=1&after={second}")).expect(200);
    assert_eq!((&next["data"][0]["id"], &next["has_more"]), (&json!(id), &json!(false)));
    assert_eq!(server.delete(&format!("/v1/files/{id}")).expect(200)["deleted"], json!(true));
    assert_eq!(server.get(&format!("/v1/files/{id}")).status, 404);
    assert_eq!(std::fs::read_dir(server.data.join("files")).unwrap().count(), 1);

    let expires: [(&str, Option<&str>, &[u8]); 4] = [
        ("file", Some("../../x.jsonl"), b"{}"),
        ("purpose", None, b"fine-tune"),
        ("expires_after[anchor]", None, b"created_at"),
        ("expires_after[seconds]", None, b"3600"),
    ];
    let file = server.form("/v1/files", &expires).expect(200);
    assert_eq!(file["filename"], json!("x.jsonl"), "a name never is a path");
    assert_eq!(file["expires_at"].as_i64().unwrap() - file["created_at"].as_i64().unwrap(), 3600);
    let wrong =
        |fields: &[(&str, Option<&str>, &[u8])]| server.form("/v1/files", fields).expect(400)["error"]["param"].clone();
    assert_eq!(wrong(&[("purpose", None, b"fine-tune")]), json!("file"));
    assert_eq!(wrong(&[("file", Some("a"), b"x")]), json!("purpose"));
    assert_eq!(wrong(&[("file", Some("a"), b"x"), ("purpose", None, b"fun")]), json!("purpose"));
    assert_eq!(
        wrong(&[("file", Some("a"), b"x"), ("purpose", None, b"fine-tune"), ("colour", None, b"red")]),
        json!("colour")
    );
    assert_eq!(std::fs::read_dir(server.data.join("incoming")).unwrap().count(), 0, "what was refused is gone");

    // In parts, in the order that the client says.
    let begun = json!({"filename": "rows.jsonl", "purpose": "fine-tune", "bytes": 6, "mime_type": "text/jsonl"});
    let upload = server.post("/v1/uploads", &begun).expect(200)["id"].as_str().unwrap().to_string();
    let part = |data: &[u8]| {
        let answer = server.form(&format!("/v1/uploads/{upload}/parts"), &[("data", Some("part"), data)]);
        answer.expect(200)["id"].as_str().unwrap().to_string()
    };
    let (end, start) = (part(b"def"), part(b"abc"));
    let complete = |body: Value| server.post(&format!("/v1/uploads/{upload}/complete"), &body);
    assert_eq!(complete(json!({"part_ids": [start]})).expect(400)["error"]["param"], json!("part_ids"));
    assert_eq!(complete(json!({"part_ids": [start, start]})).expect(400)["error"]["param"], json!("part_ids"));
    let wrong_digest = json!({"part_ids": [start, end], "md5": "00000000000000000000000000000000"});
    assert_eq!(complete(wrong_digest).expect(400)["error"]["param"], json!("md5"));
    // The digest of `abcdef`.
    let done = complete(json!({"part_ids": [start, end], "md5": "e80b5017098950fc58aad83c8c14978e"})).expect(200);
    assert_eq!(done["status"], json!("completed"));
    let file = done["file"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/files/{file}/content")).text(), "abcdef");
    assert_eq!(server.post(&format!("/v1/uploads/{upload}/cancel"), &json!({})).status, 400);
    assert_eq!(std::fs::read_dir(server.data.join("parts")).unwrap().count(), 0);
}

#[test]
fn a_job_runs_to_its_result() {
    let server = Server::start(&scratch("serve-job"), &["--alias", "gpt-4o-2024-08-06=tiny-model"]);
    let (file, held_out) = (server.upload(&rows(12)), server.upload(&rows(3)));
    let mut body = order(&file, 2);
    body["model"] = json!("gpt-4o-2024-08-06");
    body["validation_file"] = json!(held_out);
    body["suffix"] = json!("my colours");
    body["metadata"] = json!({"team": "vision"});
    let id = server.submit(&body);
    // The rows of a job are its own: deleting the file does not take them away.
    server.delete(&format!("/v1/files/{file}")).expect(200);
    let job = server.end_of(&id);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    assert_eq!(job["model"], json!("gpt-4o-2024-08-06"));
    assert_eq!(job["hyperparameters"], json!({"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 1.0}));
    let model = job["fine_tuned_model"].as_str().unwrap().to_string();
    assert!(model.starts_with("ft:tiny-model::my-colours:"), "{model}");
    assert!(job["trained_tokens"].as_u64().unwrap() > 0);

    let mut events = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=7&after={after}")).expect(200);
        events.extend(page["data"].as_array().unwrap().clone());
        after = page["last_id"].as_str().unwrap_or_default().to_string();
        if page["has_more"] != json!(true) {
            break;
        }
    }
    let messages: Vec<&str> = events.iter().rev().map(|event| event["message"].as_str().unwrap()).collect();
    assert!(messages[0].starts_with("Created fine-tuning job"), "{messages:?}");
    assert!(messages.last().unwrap().starts_with("The job has successfully completed"), "{messages:?}");
    let steps: Vec<u64> = events
        .iter()
        .rev()
        .filter(|event| event["data"]["train_loss"].is_number())
        .map(|event| event["data"]["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=12).collect::<Vec<u64>>(), "each step is told once");
    assert!(events.iter().any(|event| event["data"]["valid_loss"].is_number()));

    let checkpoints = server.get(&format!("/v1/fine_tuning/jobs/{id}/checkpoints")).expect(200);
    let numbers: Vec<u64> =
        checkpoints["data"].as_array().unwrap().iter().map(|one| one["step_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers.first(), Some(&12), "the newest first: {numbers:?}");
    assert!(checkpoints["data"][0]["metrics"]["valid_loss"].is_number(), "{checkpoints:#}");

    let table = server.get(&format!("/v1/files/{}/content", job["result_files"][0].as_str().unwrap())).text();
    assert_eq!(table.lines().next(), Some("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"));
    assert_eq!(table.lines().count(), 1 + 13, "a row for each step and one for the evaluation before:\n{table}");

    let found = server.get("/v1/fine_tuning/jobs?metadata%5Bteam%5D=vision").expect(200);
    assert_eq!(found["data"][0]["id"], json!(id));
    assert_eq!(server.get("/v1/fine_tuning/jobs?metadata%5Bteam%5D=other").expect(200)["data"], json!([]));
    assert_eq!(server.get("/v1/fine_tuning/jobs?metadata=null").expect(200)["data"], json!([]));

    // What is ours.
    assert_eq!(server.get(&format!("/api/jobs/{id}/plan")).expect(200)["fits"], json!(true));
    assert!(server.get(&format!("/api/jobs/{id}/diagnosis")).expect(200)["verdict"].is_string());
    assert!(server.get(&format!("/api/jobs/{id}/trace")).text().lines().count() > 2);
    assert!(server.get(&format!("/api/jobs/{id}/log")).text().contains("trained 12 steps"));
    assert!(server.get(&format!("/api/jobs/{id}/report.html")).text().starts_with("<!doctype html>"));
    let names = server.get("/v1/models").expect(200);
    let names: Vec<&str> =
        names["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiny-model", "gpt-4o-2024-08-06", model.as_str()]);
    let weights = server.get(&format!("/api/models/{model}/files/adapter_model.safetensors"));
    assert_eq!(weights.body, adapter(&server, &id));

    // A result can be trained on, and deleted.
    let mut more = order(&server.upload(&rows(4)), 1);
    more["model"] = json!(model);
    // So can a checkpoint.
    let named = checkpoints["data"][0]["fine_tuned_model_checkpoint"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/models/{named}")).expect(200)["id"], json!(named));
    let files = server.get(&format!("/api/models/{named}/files")).expect(200).to_string();
    assert!(files.contains("adapter_model.safetensors"), "{files}");
    assert_eq!(server.delete(&format!("/v1/models/{named}")).status, 403);
    let mut from_checkpoint = order(more["training_file"].as_str().unwrap(), 1);
    from_checkpoint["model"] = json!(named);
    let (second, third) = (server.submit(&more), server.submit(&from_checkpoint));
    assert_eq!(server.delete("/v1/models/tiny-model").status, 403);
    assert_eq!(server.delete(&format!("/v1/models/{model}")).expect(200)["deleted"], json!(true));
    assert_eq!(server.get(&format!("/v1/models/{model}")).status, 404);
    assert_eq!(server.get(&format!("/v1/models/{named}")).status, 404);
    assert!(!server.data.join("jobs").join(&id).join("out/adapter_model.safetensors").exists());
    // What tells of the job stays.
    for what in ["log", "trace", "report.html"] {
        assert_eq!(server.get(&format!("/api/jobs/{id}/{what}")).status, 200, "{what}");
    }
    let told = server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=1000")).expect(200);
    assert_eq!(told["data"].as_array().unwrap().len(), events.len());
    // Those that started from it have their own name for it.
    for job in [second, third] {
        let job = server.end_of(&job);
        assert_eq!(job["status"], json!("succeeded"), "{job:#}");
        let folder = server.data.join("jobs").join(job["id"].as_str().unwrap());
        // What it does not need is gone, a moment later.
        let deadline = Instant::now() + crate::common::http::PATIENCE;
        while folder.join("rows").exists() || folder.join("adapter").exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // All of it is there after a restart.
    let server = server.restart();
    assert_eq!(server.job(&id)["status"], json!("succeeded"));
    assert_eq!(server.get("/v1/fine_tuning/jobs").expect(200)["data"].as_array().unwrap().len(), 3);
}

#[test]
fn what_cannot_work_is_said_before_it_starts() {
    let server = Server::start(&scratch("serve-refusals"), &[]);
    let good = server.upload(&rows(4));
    let bad = server.upload(&format!(
        "{}{}\n{}\n",
        rows(1),
        json!({"messages": [{"role": "user", "content": "?"}]}),
        json!({"messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]},
            {"role": "assistant", "content": "no"},
        ]})
    ));
    let job = server.end_of(&server.submit(&order(&bad, 1)));
    assert_eq!((&job["status"], &job["error"]["code"]), (&json!("failed"), &json!("invalid_training_file")));
    assert_eq!(job["error"]["param"], json!("training_file"));
    let message = job["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("2 of 3 rows") && message.contains("training_file.jsonl:2, field `messages`"),
        "{message}"
    );
    let problems = job["model_garden"]["problems"].as_array().unwrap();
    assert_eq!(problems[0]["hint"], json!("a row must end with an assistant message"), "{problems:?}");
    assert!(problems[1]["problem"].as_str().unwrap().contains("/etc/passwd"), "no file of the server's: {problems:?}");
    let data = server.data.display().to_string();
    assert!(!job.to_string().contains(&data), "where our folder is is nobody's business: {job:#}");

    let mut large = order(&good, 1);
    large["model_garden"]["recipe"]["memory_limit"] = json!("2MiB");
    let refused = server.post("/v1/fine_tuning/jobs", &large).expect(400);
    assert_eq!(refused["error"]["code"], json!("does_not_fit"));
    assert_eq!(refused["error"]["model_garden"]["plan"]["fits"], json!(false));
    assert!(refused["error"]["model_garden"]["plan"]["advice"].is_object(), "with the changes that would help");
    assert_eq!(
        server.get("/v1/fine_tuning/jobs").expect(200)["data"].as_array().unwrap().len(),
        1,
        "a refused job is none"
    );

    let refused = |change: &dyn Fn(&mut Value), param: &str, words: &str| {
        let mut body = order(&good, 1);
        change(&mut body);
        let answer = server.post("/v1/fine_tuning/jobs", &body);
        assert!((400..500).contains(&answer.status), "{}", answer.text());
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], json!(param), "{error:#}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error:#}");
    };
    refused(&|body| body["model"] = json!("../tiny-model"), "model", "base models here: tiny-model");
    refused(&|body| body["training_file"] = json!("file-none"), "training_file", "no file `file-none`");
    refused(&|body| body["training_file"] = json!("dataset:../x"), "training_file", "no dataset");
    refused(&|body| body["method"] = json!({"type": "dpo"}), "method.type", "only `supervised`");
    refused(
        &|body| body["method"]["supervised"]["hyperparameters"]["n_epochs"] = json!(0),
        "method.supervised.hyperparameters.n_epochs",
        "from 1",
    );
    refused(&|body| body["colour"] = json!(1), "colour", "is not a parameter here");
    refused(&|body| body["integrations"] = json!([{"type": "wandb"}]), "integrations", "not supported");
    refused(&|body| body["metadata"] = json!({"a": 1}), "metadata", "texts");
    refused(&|body| body["suffix"] = json!("a:b"), "suffix", "letters");
    refused(
        &|body| body["model_garden"]["recipe"]["output_dir"] = json!("/tmp"),
        "model_garden.recipe.output_dir",
        "server's own",
    );
    refused(
        &|body| body["model_garden"]["recipe"]["resume_from_checkpoint"] = json!("/tmp"),
        "model_garden.recipe.resume_from_checkpoint",
        "server's own",
    );
    refused(
        &|body| body["model_garden"]["recipe"]["lora_rr"] = json!(4),
        "model_garden.recipe.lora_rr",
        "did you mean",
    );
    refused(&|body| body["hyperparameters"] = json!({"n_epochs": 1}), "hyperparameters", "send one of them");
    assert_eq!(
        server.post("/api/jobs", &json!({"command": ["true"]})).status,
        403,
        "commands only where they are allowed"
    );
    let planned = server.post("/api/plan", &order(&good, 1)).expect(200);
    assert_eq!((&planned["fits"], &planned["steps"]), (&json!(true), &json!(2)));
    let checked = server.post("/api/check", &json!({"model": "tiny-model", "training_file": bad})).expect(200);
    assert_eq!((&checked["rows"], &checked["bad"]), (&json!(3), &json!(2)));
    let trace: String = (0..40).map(|step| format!("{step},{}\n", 1000 + 5 * step)).collect();
    let judged =
        server.with_headers("POST", "/api/diagnose", "", format!("step,rss_mb\n{trace}").as_bytes()).expect(200);
    assert!(judged["verdict"].is_string());
    assert_eq!(server.with_headers("POST", "/api/diagnose", "", b"what").status, 400);
    assert_eq!(std::fs::read_dir(server.data.join("jobs")).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn keys_stay_with_the_server() {
    let key = "key-in-the-environment-0123456789";
    let server = Server::start_with(&scratch("serve-secret"), &["--allow-commands"], &[("MODEL_GARDEN_API_KEYS", key)]);
    let headers = format!("Authorization: Bearer {key}\r\nContent-Type: application/json\r\n");
    let ask = |method: &str, path: &str, body: &str| server.with_headers(method, path, &headers, body.as_bytes());
    assert_eq!(server.get("/v1/files").status, 401);
    let id = ask("POST", "/api/jobs", "{\"command\": [\"env\"]}").expect(200)["id"].as_str().unwrap().to_string();
    let deadline = Instant::now() + crate::common::http::PATIENCE;
    while ask("GET", &format!("/v1/fine_tuning/jobs/{id}"), "").expect(200)["status"] != json!("succeeded") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = ask("GET", &format!("/api/jobs/{id}/log"), "").text();
    assert!(log.contains("PATH=") && !log.contains(key), "{log}");
}

/// Pictures by address: fetched where the operator allows it, and from nowhere else.
#[test]
fn pictures_are_fetched_from_where_they_may_be() {
    let picture = std::fs::read(repository("testdata/data/recorded/pictures").join(small_picture())).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            drop(stream.read(&mut [0; 4096]));
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", picture.len());
            drop(stream.write_all(&[head.as_bytes(), &picture].concat()));
        }
    });
    let row = |url: &str| {
        let row = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]},
            {"role": "assistant", "content": "yes"},
        ]});
        row.to_string() + "\n"
    };
    // Some programs write a slash with a backslash.
    let rows =
        row(&format!("http://{host}/a.png")).repeat(3) + &row(&format!("http://{host}/b.png")).replace('/', "\\/");
    let run = |name: &str, more: &[&str]| {
        let server = Server::start(&scratch(name), more);
        let job = server.end_of(&server.submit(&order(&server.upload(&rows), 1)));
        (job["status"].clone(), job["error"]["message"].as_str().unwrap_or_default().to_string())
    };
    let (status, message) = run("serve-fetch-not", &[]);
    assert!(status == "failed" && message.contains("training_file.jsonl:1"), "{message}");
    let (status, message) = run("serve-fetch-public", &["--fetch-images"]);
    assert!(status == "failed" && message.contains("not a public address"), "{message}");
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 0, "nobody was asked");
    let (status, message) = run("serve-fetch", &["--fetch-images-from", "127.0.0.1"]);
    assert_eq!(status, json!("succeeded"), "{message}");
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2, "each picture once");
}

/// The examples of docs/serve.md, as somebody would paste them.
#[test]
fn the_examples_of_the_docs_work() {
    if std::process::Command::new("curl").arg("--version").stdout(std::process::Stdio::null()).status().is_err() {
        return garden_testing::missing("curl");
    }
    if !crate::common::has_python() {
        return;
    }
    let folder = scratch("serve-docs");
    let server = Server::start(&folder.join("data"), &[]);
    std::fs::write(folder.join("train.jsonl"), rows(6)).unwrap();
    let docs = std::fs::read_to_string(repository("docs/serve.md")).unwrap();
    let (_, tested) = docs.split_once("<!-- tested:").unwrap();
    let (tested, _) = tested.split_once("\n`GET /openapi.json`").unwrap();
    let lines: Vec<&str> = tested.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(lines.len() > 15, "{lines:?}");
    let script = format!("set -e\n{}\n", lines.join("\n"))
        .replace("http://127.0.0.1:8000", &format!("http://{}", server.address));
    let ran = std::process::Command::new("sh").args(["-c", &script]).current_dir(&folder).output().unwrap();
    assert!(ran.status.success(), "{script}\n{}", told(&ran));
    let weights = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    assert!(weights.len() > 1000);
}

#[test]
fn whoever_looks_sees_everything_from_any_place() {
    let server = Server::start(&scratch("serve-live"), &[]);
    let id = server.submit(&order(&server.upload(&rows(6)), 2));
    let first = server.get(&format!("/api/jobs/{id}/live"));
    assert_eq!(first.status, 200);
    let text = first.text();
    assert!(text.trim_end().ends_with("event: end\ndata: {}"), "it ends with the job: {text}");
    let frames: Vec<&str> = text.split("\n\n").filter(|frame| frame.starts_with("id: ")).collect();
    for kind in ["event: event", "event: sample", "event: log"] {
        assert!(frames.iter().any(|frame| frame.contains(kind)), "{kind}");
    }
    // From a place in its midst the rest comes again, and nothing else.
    let middle = frames.len() / 2;
    let place = frames[middle].lines().next().unwrap().trim_start_matches("id: ");
    let again =
        server.with_headers("GET", &format!("/api/jobs/{id}/live"), &format!("Last-Event-ID: {place}\r\n"), b"").text();
    let rest: std::collections::BTreeSet<&str> =
        again.split("\n\n").filter_map(|frame| frame.split_once("\nevent: ")).map(|(_, rest)| rest).collect();
    let expected: std::collections::BTreeSet<&str> =
        frames[middle + 1..].iter().filter_map(|frame| frame.split_once("\nevent: ")).map(|(_, rest)| rest).collect();
    assert_eq!(rest, expected);
    assert_eq!(server.get(&format!("/api/jobs/{id}/live?from=now")).text(), "event: end\ndata: {}\n\n");
    assert_eq!(server.get(&format!("/api/jobs/{id}/live?from=nowhere")).status, 400);
    assert!(
        first.headers.contains("\r\nx-accel-buffering: no\r\n"),
        "a proxy passes it on as it comes: {}",
        first.headers
    );

    // A job that is over: everything is said, and then the end. A viewer that waited for its next look would wait for a second, each time.
    let watch = || {
        let began = Instant::now();
        (server.get(&format!("/api/jobs/{id}/live")).text(), began.elapsed())
    };
    let (all, _) = watch();
    assert!((0..5).map(|_| watch().1).min() < Some(Duration::from_secs(1)), "it does not end at once");
    assert_eq!(all.matches("event: end").count(), 1);
    assert_eq!(all.split("\n\n").filter(|frame| frame.starts_with("id: ")).count(), frames.len());

    // A line end in a sample arrives as one: a client takes `\r` for the end of a line as well, and puts the lines of `data` together again.
    let mut trace = std::fs::File::options()
        .append(true)
        .open(server.data.join("jobs").join(&id).join("out").join(garden_run::TRACE))
        .unwrap();
    trace.write_all(b"{\"a\": 1,\r\"b\": 2}\n").unwrap();
    let all = server.get(&format!("/api/jobs/{id}/live")).text().replace('\r', "\n");
    assert!(all.contains("\nevent: sample\ndata: {\"a\": 1,\ndata: \"b\": 2}\n\n"), "{all}");
}

#[test]
fn strangers_stay_outside() {
    let folder = scratch("serve-gate");
    let (one, two) = ("key-number-one-0123456789", "key-number-two-0123456789");
    std::fs::write(folder.join("keys.txt"), format!("# ours\n{one}\n\n{two}\n")).unwrap();
    let keys = folder.join("keys.txt").display().to_string();
    let server = Server::start(
        &folder.join("data"),
        &[
            "--api-key-file",
            &keys,
            "--max-file-size",
            "64KiB",
            "--quota",
            "100KiB",
            "--rate-limit",
            "200",
            "--allow-host",
            "garden.lan",
        ],
    );
    let status = |method: &str, path: &str, headers: &str| server.with_headers(method, path, headers, b"").status;
    let key = |key: &str| format!("Authorization: Bearer {key}\r\n");
    assert_eq!(status("GET", "/v1/files", ""), 401);
    assert_eq!(status("GET", "/v1/files", &key("wrong")), 401);
    assert_eq!(status("GET", "/v1/files", "Authorization: Basic abc\r\n"), 401);
    assert_eq!((status("GET", "/v1/files", &key(one)), status("GET", "/v1/files", &key(two))), (200, 200));
    assert_eq!(status("GET", "/health", ""), 200);
    // A name that resolves to us but is not ours; pages of other sites.
    let hosted = |host: &str| status("GET", "/v1/files", &format!("{}Host: {host}\r\n", key(one)));
    assert_eq!((hosted("evil.example"), hosted("garden.lan:99"), hosted("localhost")), (403, 200, 200));
    assert_eq!(status("GET", "/v1/files", &format!("{}Host: localhost\r\nHost: evil.example\r\n", key(one))), 403);
    let from = |origin: &str| status("DELETE", "/v1/files/file-x", &format!("{}Origin: {origin}\r\n", key(one)));
    assert_eq!(
        (from("http://evil.example"), from("null"), from(&format!("http://{}", server.address))),
        (403, 403, 404)
    );
    assert_eq!(status("DELETE", "/v1/files/file-x", &format!("{}Sec-Fetch-Site: cross-site\r\n", key(one))), 403);
    // Names are never paths.
    for path in [
        "/v1/files/..%2f..%2fgarden.db/content",
        "/v1/files/%2e%2e%2fgarden.db",
        "/api/jobs/..%2f..%2flock/log",
        "/api/models/..%2f/files/x",
        "/v1/../garden.db",
        "/api/jobs/%00/log",
    ] {
        let answer = server.with_headers("GET", path, &key(one), b"");
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.text());
    }
    // Too large, by what it says and by what comes; too much together.
    let send = |bytes: usize| {
        let body = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{}\r\n--edge--\r\n",
            "x".repeat(bytes)
        );
        let headers = format!("{}Content-Type: multipart/form-data; boundary=edge\r\n", key(one));
        server.with_headers("POST", "/v1/files", &headers, body.as_bytes()).status
    };
    assert_eq!((send(70 << 10), send(60 << 10), send(60 << 10)), (413, 200, 507));
    let trace = server.with_headers("POST", "/api/diagnose", &key(one), &vec![b'1'; 60 << 10]);
    assert_eq!(trace.status, 507, "a trace to judge takes its part of the quota: {}", trace.text());
    // What comes before a file, or in a header, is not held without bounds.
    for start in ["", "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nX: "] {
        let body = format!("{start}{}", "x".repeat(8 << 20));
        let headers = format!("{}Content-Type: multipart/form-data; boundary=edge\r\n", key(one));
        let answer = server.with_headers("POST", "/v1/files", &headers, body.as_bytes());
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(server.resident() < 60.0);
    }
    let json = format!("{{\"model\": \"{}\"}}", "x".repeat(2 << 20));
    assert_eq!(server.with_headers("POST", "/v1/fine_tuning/jobs", &key(one), json.as_bytes()).status, 413);
    assert_eq!(std::fs::read_dir(server.data.join("incoming")).unwrap().count(), 0);
    // Guessing keys is slow, for whoever guesses.
    let guesses: Vec<u16> = (0..30).map(|guess| status("GET", "/v1/files", &key(&format!("guess-{guess}")))).collect();
    assert!(guesses.contains(&429), "{guesses:?}");
    assert_eq!(status("GET", "/v1/files", &key(one)), 200);
    let many: Vec<u16> = (0..1500).map(|_| status("GET", "/health", "")).collect();
    assert!(many.contains(&429) && many.iter().all(|status| [200, 429].contains(status)));

    // Addresses that others reach need a key.
    let open =
        run(&["serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", &folder.join("open").display().to_string()]);
    assert!(told(&open).contains("no API key is set") && told(&open).contains("--api-key-file"), "{}", told(&open));
    let second = run(&["serve", "--port", "0", "--data-dir", &server.data.display().to_string()]);
    assert!(told(&second).contains("another server uses the folder"), "{}", told(&second));
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::start(&scratch("serve-slow"), &[]);
    let began = Instant::now();
    let mut slow = TcpStream::connect(&server.address).unwrap();
    slow.write_all(
        format!("POST /v1/fine_tuning/jobs HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\n{{", server.address)
            .as_bytes(),
    )
    .unwrap();
    let mut silent = TcpStream::connect(&server.address).unwrap();
    silent.write_all(b"GET / HT").unwrap();
    // Others are answered meanwhile.
    assert_eq!(server.get("/health").status, 200);
    let mut text = String::new();
    slow.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    drop(slow.read_to_string(&mut text));
    assert!(text.contains(" 408 "), "{text}");
    silent.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    drop(silent.read_to_string(&mut String::new()));
    assert!(began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
}
