//! The server, as its clients see it: a real one, over real connections, with a tiny model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
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
    assert_eq!(server.post(&format!("/v1/uploads/{upload}/cancel"), &json!({})).status, 409);
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
    let second = server.end_of(&server.submit(&more));
    assert_eq!(second["status"], json!("succeeded"), "{second:#}");
    assert_eq!(server.delete("/v1/models/tiny-model").status, 403);
    assert_eq!(server.delete(&format!("/v1/models/{model}")).expect(200)["deleted"], json!(true));
    assert_eq!(server.get(&format!("/v1/models/{model}")).status, 404);
    assert!(!server.data.join("jobs").join(&id).join("out/adapter_model.safetensors").exists());
    // All of it is there after a restart.
    let server = server.restart();
    assert_eq!(server.job(&id)["status"], json!("succeeded"));
    assert_eq!(server.get("/v1/fine_tuning/jobs").expect(200)["data"].as_array().unwrap().len(), 2);
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
fn jobs_pause_go_on_finish_and_end() {
    let server = Server::start(&scratch("serve-wishes"), &["--allow-commands"]);
    let file = server.upload(&rows(20));
    // What it would be if nobody had touched it.
    let whole = server.submit(&order(&file, 6));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));

    let id = server.submit(&order(&file, 6));
    let act = |id: &str, what: &str| server.post(&format!("/v1/fine_tuning/jobs/{id}/{what}"), &json!({}));
    let in_its_midst = |job: &Value| job["model_garden"]["step"].as_u64().is_some_and(|step| step > 3);
    server.wait(&id, in_its_midst);
    act(&id, "pause").expect(200);
    let paused = server.wait(&id, |job| job["model_garden"]["status"] == "paused");
    assert_eq!(paused["status"], json!("queued"), "what their clients know comes closest");
    assert_eq!(act(&id, "pause").status, 409);
    act(&id, "resume").expect(200);
    assert_eq!(server.end_of(&id)["status"], json!("succeeded"));
    assert_eq!(adapter(&server, &id), adapter(&server, &whole), "a pause changes nothing");
    assert_eq!(act(&id, "cancel").status, 409, "it is over");

    let kept = server.submit(&order(&file, 200));
    server.wait(&kept, in_its_midst);
    server.post(&format!("/api/jobs/{kept}/finish"), &json!({})).expect(200);
    let job = server.end_of(&kept);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    assert!(!adapter(&server, &kept).is_empty());

    // One slot: the second waits; more important ones come first.
    let long = server.submit(&order(&file, 200));
    let (mut later, mut sooner) = (order(&file, 1), order(&file, 1));
    later["model_garden"]["priority"] = json!(-1);
    sooner["model_garden"]["priority"] = json!(1);
    let (later, sooner) = (server.submit(&later), server.submit(&sooner));
    assert_eq!(server.job(&later)["status"], json!("queued"));
    server.wait(&long, in_its_midst);
    act(&long, "cancel").expect(200);
    assert_eq!(server.wait(&long, |job| job["status"] == "cancelled")["error"], Value::Null);
    let (later, sooner) = (server.end_of(&later), server.end_of(&sooner));
    let started = |job: &Value| job["model_garden"]["started_at"].as_i64().unwrap();
    assert!(started(&sooner) <= started(&later) && later["status"] == "succeeded");

    // Any command.
    let steps = "import time\nfor step in range(4): print('Step', step, flush=True); time.sleep(0.3)";
    let command = server.post("/api/jobs", &json!({"command": ["python3", "-c", steps]})).expect(200);
    let command = server.end_of(command["id"].as_str().unwrap());
    assert_eq!(command["status"], json!("succeeded"), "{command:#}");
    let id = command["id"].as_str().unwrap();
    assert!(server.get(&format!("/api/jobs/{id}/log")).text().contains("Step 3"));
    assert!(server.get(&format!("/api/jobs/{id}/trace")).text().lines().count() > 1);
    let failing = server.post("/api/jobs", &json!({"command": ["sh", "-c", "echo sorry; exit 3"]})).expect(200);
    let failing = server.end_of(failing["id"].as_str().unwrap());
    assert_eq!(failing["error"]["code"], json!("command_failed"));
    assert!(failing["error"]["message"].as_str().unwrap().contains("sorry"), "{failing:#}");
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

/// Processes that work for a server's jobs: (supervisor, trainer).
fn workers(data: &Path, job: &str) -> (Option<u32>, Option<u32>) {
    let pid = std::fs::read_to_string(data.join("jobs").join(job).join("supervisor/pid")).ok();
    let supervisor =
        pid.and_then(|pid| pid.trim().parse().ok()).filter(|pid: &u32| Path::new(&format!("/proc/{pid}")).exists());
    (supervisor, supervisor.and_then(crate::common::trainer_of))
}

/// Kills at random while jobs run; every job ends once, with the result of one that nothing happened to. `GARDEN_KILLS` is how often.
#[test]
fn kills_change_nothing() {
    let kills: usize = std::env::var("GARDEN_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let seed = garden_testing::seed();
    let mut random = garden_random::SplitMix64(seed);
    let mut server = Server::start(&scratch("serve-kills"), &["--slots", "2"]);
    let file = server.upload(&rows(20));
    let whole = server.submit(&order(&file, 8));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));
    let expected = adapter(&server, &whole);
    let mut done = 0;
    let mut ids: Vec<String> = Vec::new();
    while done < kills {
        ids = [order(&file, 8), order(&file, 8)].iter().map(|body| server.submit(body)).collect();
        while done < kills && ids.iter().any(|id| !is_over(&server, id)) {
            std::thread::sleep(Duration::from_millis(300 + random.draw() % 2500));
            let (supervisor, trainer) = workers(&server.data, &ids[(random.draw() % 2) as usize]);
            let (name, victim) = match random.draw() % 3 {
                0 => ("server", Some(server.process.0.id())),
                1 => ("supervisor", supervisor),
                _ => ("trainer", trainer),
            };
            let Some(victim) = victim else { continue };
            done += 1;
            eprintln!("seed {seed}: kill {done} of {kills}: {name} {victim}");
            std::process::Command::new("kill").args(["-9", &victim.to_string()]).status().unwrap();
            if name == "server" {
                server = server.restart();
            }
        }
        for id in &ids {
            let job = server.end_of(id);
            assert_eq!(job["status"], json!("succeeded"), "seed {seed}: {job:#}");
            assert_eq!(adapter(&server, id), expected, "seed {seed}: {id} has another result");
            let events = server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=1000")).expect(200);
            let ends =
                events["data"].as_array().unwrap().iter().filter(|event| {
                    event["message"].as_str().unwrap().starts_with("The job has successfully completed")
                });
            assert_eq!(ends.count(), 1, "seed {seed}: a job ends once");
        }
    }
    assert!(!ids.is_empty());
}

/// Resident memory of a process in MiB.
fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Many jobs, and a day of samples: what they are does not stay in the server's memory. `GARDEN_JOBS` is how many.
#[test]
fn memory_does_not_grow_with_what_is_kept() {
    use garden_server::job::JobRecord;
    use garden_server::store::{NewEvent, Store};
    let count: usize = std::env::var("GARDEN_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let data = scratch("serve-many");
    let server = Server::start(&data, &["--rate-limit", "1000000"]);
    drop(server);
    let record = |number: usize| -> JobRecord {
        let work = json!({"kind": "command", "command": ["true"], "memory_limit": null, "checkpoint_dir": null});
        serde_json::from_value(json!({
            "order": {"id": format!("ftjob-{number:024}"), "work": work, "memory": null}, "created_at": number, "status": "succeeded", "priority": 0, "model": "m",
            "base": "m", "suffix": null, "seed": 1, "asked": {"n_epochs": null, "batch_size": null, "learning_rate_multiplier": null},
            "training_file": "file-x", "validation_file": null, "metadata": {"number": number.to_string()},
        }))
        .unwrap()
    };
    {
        let store = Store::open(&data.join("garden.db")).unwrap();
        (0..count).for_each(|number| store.add_job(&record(number)).unwrap());
        let events: Vec<NewEvent> =
            (0..10_000).map(|step| NewEvent::of(format!("step:{step}"), format!("Step {step}"))).collect();
        store.add_events(record(0).id(), 1, &events).unwrap();
    }
    let output = data.join("jobs").join(record(0).id()).join("out");
    std::fs::create_dir_all(&output).unwrap();
    let mut trace = String::from("{\"model_garden_trace\":1}\n");
    (0..86_400).for_each(|second| {
        trace
            .push_str(&format!("{{\"time_s\":{second},\"rss\":{},\"step\":{second}}}\n", 1_000_000_000 + second % 1000))
    });
    std::fs::write(output.join("trace.jsonl"), &trace).unwrap();
    let server = Server::start(&data, &["--rate-limit", "1000000"]);
    let pid = server.process.0.id();
    let mut after_pass = Vec::new();
    for _ in 0..3 {
        let (mut seen, mut after) = (0, String::new());
        loop {
            let page = server.get(&format!("/v1/fine_tuning/jobs?limit=100&after={after}")).expect(200);
            seen += page["data"].as_array().unwrap().len();
            if page["has_more"] != json!(true) {
                break;
            }
            after = page["last_id"].as_str().unwrap().to_string();
        }
        assert_eq!(seen, count);
        let first = record(0);
        let live = server.get(&format!("/api/jobs/{}/live", first.id())).text();
        assert_eq!((live.matches("event: sample").count(), live.matches("event: event").count()), (86_401, 10_000));
        assert_eq!(server.get(&format!("/api/jobs/{}/trace", first.id())).body.len(), trace.len());
        assert_eq!(server.get(&format!("/api/jobs/{}/diagnosis", first.id())).expect(200)["verdict"], json!("flat"));
        after_pass.push(resident(pid));
    }
    eprintln!("{count} jobs, a day of samples: {after_pass:.1?} MiB");
    assert!(after_pass.iter().all(|resident| *resident < 60.0), "{after_pass:?}");
    // A pass reads more than 14 MiB. Threads that are used for the first time take some of their own, until all of them were.
    assert!(after_pass[2] < after_pass[0] + 8.0, "it grows: {after_pass:?}");
}

fn is_over(server: &Server, id: &str) -> bool {
    ["succeeded", "failed", "cancelled"].iter().any(|status| server.job(id)["status"] == *status)
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
