//! How the server behaves towards clients and operators.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{order, rows};
use crate::common::http::Server;
use crate::common::{model_garden, repository, scratch};

#[test]
fn a_request_sent_twice_is_one_and_another_body_is_an_error() {
    let data = scratch("serve-twice");
    let keys = data.with_extension("keys");
    fs::write(&keys, "first-key-of-this-server\nsecond-key-of-this-server\n").unwrap();
    let server = Server::start(&data, &["--allow-commands", "--api-key-file", keys.to_str().unwrap()]);
    let send = |key: &str, body: &Value| {
        let headers = format!(
            "Content-Type: application/json\r\nIdempotency-Key: once\r\nAuthorization: Bearer {key}-key-of-this-server\r\n"
        );
        server.with_headers("POST", "/api/jobs", &headers, body.to_string().as_bytes())
    };
    let (one, other) = (json!({"command": ["true"]}), json!({"command": ["false"]}));
    let id = send("first", &one).expect(200)["id"].clone();
    assert_eq!(send("first", &one).expect(200)["id"], id);
    let refused = send("first", &other).expect(422);
    assert_eq!(refused["error"]["code"], json!("idempotency_key_reused"));
    assert_ne!(send("second", &other).expect(200)["id"], id, "a key belongs to its client");
}

#[test]
fn models_have_the_names_that_the_operator_gave_them() {
    let place = scratch("serve-names");
    for folder in ["one", "two"] {
        fs::create_dir_all(place.join(folder)).unwrap();
    }
    let tiny = repository("testdata/tiny-model");
    std::os::unix::fs::symlink(&tiny, place.join("one/production")).unwrap();
    let one = place.join("one").display().to_string();
    let server = Server::start_as(
        &place.join("data"),
        &["--port", "0", "--device", "cpu", "--data-dir", place.join("data").to_str().unwrap(), "--models", &one],
    );
    assert_eq!(server.get("/v1/models").expect(200)["data"][0]["id"], json!("production"));
    let file = server.upload(&rows(4));
    let mut body = order(&file, 1);
    body["model"] = json!("production");
    let job = server.end_of(&server.submit(&body));
    assert!(job["fine_tuned_model"].as_str().unwrap().starts_with("ft:production:"), "{job:#}");
    drop(server);
    let refused = |more: &[&str]| {
        let data = place.join("refused").display().to_string();
        let mut words = vec!["serve", "--port", "0", "--device", "cpu", "--data-dir", &data, "--models", &one];
        words.extend(more);
        let ended = model_garden(&words).stdout(Stdio::null()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let told = refused(&["--alias", "gpt=nothing"]);
    assert!(told.contains("`gpt`") && told.contains("`nothing`") && told.contains("production"), "{told}");
    fs::create_dir_all(place.join("two/production")).unwrap();
    fs::copy(tiny.join("config.json"), place.join("two/production/config.json")).unwrap();
    let told = refused(&["--models", place.join("two").to_str().unwrap()]);
    assert!(told.contains("two models have the name `production`"), "{told}");
}

#[test]
fn answers_carry_what_clients_and_proxies_look_for() {
    let server = Server::start(&scratch("serve-headers"), &[]);
    let file = server.upload(&rows(4));
    let id = server.submit(&order(&file, 1));
    let model = server.end_of(&id)["fine_tuned_model"].as_str().unwrap().to_string();
    // Names of requests: ours, or the client's own.
    let named = |headers: &str| server.with_headers("GET", "/v1/models", headers, b"").headers.to_lowercase();
    assert!(named("").contains("x-request-id: req_"));
    assert!(named("X-Request-Id: mine-7\r\n").contains("x-request-id: mine-7"));
    // What Azure's clients send, and empty filters.
    for path in ["/v1/files?api-version=2025-01-01", "/v1/fine_tuning/jobs?metadata=", "/v1/models?api-version=x"] {
        server.get(path).expect(200);
    }
    assert_eq!(server.get("/v1/files?colour=red").status, 400);
    // Where they look with an `azure_endpoint`, and with the newer kind of address.
    for path in ["/openai/files?api-version=2024-10-21", "/openai/v1/files"] {
        assert_eq!(server.get(path).expect(200), server.get("/v1/files").expect(200), "{path}");
    }
    assert_eq!(
        server.get(&format!("/openai/fine_tuning/jobs/{id}?api-version=2024-10-21")).expect(200)["id"],
        json!(id)
    );
    assert_eq!(server.get("/openai/deployments/x/chat/completions").status, 404);
    // Ranges and tags.
    let path = format!("/api/models/{model}/files/adapter_model.safetensors");
    let whole = server.get(&path);
    let header = |headers: &str, name: &str| {
        let line = headers.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.map(|line| line.split_once(':').unwrap().1.trim().to_string())
    };
    let tag = header(&whole.headers, "etag").unwrap();
    let part = server.with_headers("GET", &path, "Range: bytes=100-199\r\n", b"");
    assert_eq!((part.status, part.body.as_slice()), (206, &whole.body[100..200]));
    assert_eq!(header(&part.headers, "content-range").unwrap(), format!("bytes 100-199/{}", whole.body.len()));
    assert_eq!(server.with_headers("GET", &path, &format!("If-None-Match: {tag}\r\n"), b"").status, 304);
    assert_eq!(server.with_headers("GET", &path, "Range: bytes=99999999-\r\n", b"").status, 416);
    let stale = server.with_headers("GET", &path, "Range: bytes=0-9\r\nIf-Range: \"old\"\r\n", b"");
    assert_eq!((stale.status, stale.body.len()), (200, whole.body.len()));
    // A result as one archive, which tar reads.
    let archive = server.get(&format!("/api/models/{model}/archive"));
    assert_eq!(header(&archive.headers, "content-length").unwrap(), archive.body.len().to_string());
    let place = scratch("serve-archive");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("model.tar"), &archive.body).unwrap();
    assert!(Command::new("tar").args(["-xf", "model.tar"]).current_dir(&place).status().unwrap().success());
    assert_eq!(fs::read(place.join("adapter_model.safetensors")).unwrap(), whole.body);
    assert!(place.join("adapter_config.json").exists());
    // The default of `files.list` is OpenAI's.
    (0..25).for_each(|_| drop(server.upload("{}\n")));
    let listed = server.get("/v1/files").expect(200);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["has_more"]), (27, &json!(false)));
}

#[test]
fn health_and_metrics_tell_what_is() {
    let data = scratch("serve-health");
    let server = Server::start(&data, &["--allow-commands"]);
    let metric = |name: &str| -> f64 {
        let text = server.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).parse().unwrap()
    };
    let counted = [
        "model_garden_responses_total{class=\"2xx\"}",
        "model_garden_responses_total{class=\"4xx\"}",
        "model_garden_request_seconds_count",
        "model_garden_request_seconds_bucket{le=\"+Inf\"}",
        "model_garden_requests_total",
        "model_garden_queue_wait_seconds_count",
        "model_garden_jobs{status=\"succeeded\"}",
        "model_garden_files_bytes",
    ];
    let read = || counted.map(metric);
    let before = read();
    server.upload(&rows(4));
    (0..7).for_each(|_| drop(server.get("/v1/files/nothing")));
    let job = server.post("/api/jobs", &json!({"command": ["true"]})).expect(200);
    server.end_of(job["id"].as_str().unwrap());
    let after = read();
    let more: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    // Those that read these numbers are answered well, too, and so are those that wait for the job.
    let read_between = counted.len() as f64;
    assert!(more[0] >= read_between + 3.0 && more[1] == 7.0, "{more:?}");
    assert!(more[2] >= more[0] + 7.0 - 1.0 && more[3] >= more[2] && more[4] >= more[2], "{more:?}");
    assert!(more[5] == 1.0 && more[6] == 1.0 && more[7] >= rows(4).len() as f64, "{more:?}");
    assert_eq!(metric("model_garden_quota_bytes"), (200_u64 << 30) as f64);
    assert!(metric("model_garden_disk_free_bytes") > 0.0 && metric("model_garden_server_resident_bytes") > 1e6);
    let health = server.get("/health").expect(200);
    assert_eq!([&health["status"], &health["database"], &health["queue"], &health["disk"]], [&json!("ok"); 4]);
    // A disk that has damaged the database under a server that runs.
    for name in ["garden.db", "garden.db-wal"] {
        let length = fs::metadata(data.join(name)).map_or(0, |found| found.len());
        let file = fs::File::options().write(true).open(data.join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; length as usize], 0).unwrap();
    }
    let health = server.get("/health");
    assert_eq!((health.status, &health.json()["database"]), (503, &json!("fails")), "{}", health.text());
}

#[test]
fn jobs_get_a_named_environment_and_errors_name_no_places() {
    let data = scratch("serve-environment");
    let environment = [("SECRET_OF_THE_OPERATOR", "hunter2"), ("PASSED_ON", "yes"), ("LANG", "C")];
    let server = Server::start_with(&data, &["--allow-commands", "--pass-env", "PASSED_ON"], &environment);
    let job = server.post("/api/jobs", &json!({"command": ["sh", "-c", "env | sort"]})).expect(200);
    let id = job["id"].as_str().unwrap();
    server.end_of(id);
    let log = server.get(&format!("/api/jobs/{id}/log")).text();
    assert!(
        !log.contains("hunter2") && log.contains("PASSED_ON=yes") && log.contains("LANG=C") && log.contains("PATH="),
        "{log}"
    );
    // Whose rows are wrong is said, without a place on the server's disk and without flags.
    let (good, bad) = (server.upload(&rows(4)), server.upload("{\"messages\": []}\n"));
    let mut body = order(&good, 1);
    body["validation_file"] = json!(bad);
    let failed = server.end_of(&server.submit(&body));
    assert_eq!(
        (&failed["error"]["code"], &failed["error"]["param"]),
        (&json!("invalid_validation_file"), &json!("validation_file"))
    );
    assert_eq!(failed["model_garden"]["problems"][0]["param"], json!("validation_file"));
    let broken = server.upload("not JSON\n");
    let mut body = order(&good, 1);
    body["validation_file"] = json!(broken);
    let failed = server.end_of(&server.submit(&body));
    assert_eq!(failed["error"]["code"], json!("invalid_validation_file"), "{failed:#}");
    let long = {
        let mut body = order(&good, 1);
        body["model_garden"]["recipe"]["max_length"] = json!(8);
        server.end_of(&server.submit(&body))
    };
    let message = long["error"]["message"].as_str().unwrap();
    assert!(message.contains("max_length") && !message.contains("--") && !message.contains('/'), "{message}");
    let mut body = order(&good, 1);
    body["model_garden"]["recipe"]["batch_tokens"] = json!(8);
    let refused = server.post("/v1/fine_tuning/jobs", &body).expect(400);
    assert_eq!(refused["error"]["param"], json!("model_garden.recipe.batch_size"), "{refused}");
}

#[test]
fn errors_name_parameters_and_no_flags() {
    let data = scratch("serve-flags");
    let server = Server::start(&data, &[]);
    let root = repository(".").canonicalize().unwrap().display().to_string();
    let is_clean = |text: &str| !text.contains("--") && !text.contains(&root) && !text.contains(data.to_str().unwrap());
    let trace: String = (1..60).map(|step| format!("{step},{}\n", 5000 + 10 * step)).collect();
    let judge =
        |query: &str, trace: &str| server.with_headers("POST", &format!("/api/diagnose{query}"), "", trace.as_bytes());
    let named = format!("step,rss_mib\n{trace}");
    for (query, param) in [
        ("?unit=parsecs", "unit"),
        ("?memory_limit=much", "memory_limit"),
        ("?steps_per_epoch=0", "steps_per_epoch"),
        ("?leak_after=soon", "leak_after"),
        ("?column=nothing", "column"),
        ("?select=nobody", "select"),
        ("?examples=100", "batch_size"),
        ("?examples=100&batch_size=2&steps_per_epoch=7", "examples"),
        ("?no_epochs=perhaps", "no_epochs"),
    ] {
        let refused = judge(query, &named).expect(400);
        let message = refused["error"]["message"].as_str().unwrap();
        assert_eq!(refused["error"]["param"], json!(param), "{refused}");
        assert!(is_clean(message) && !message.contains("help") && message.contains(param), "{message}");
    }
    let refused = judge("", "a,b\n1,2\n3,4\n5,6\n").expect(400);
    assert!(is_clean(&refused.to_string()), "{refused}");
    // What a verdict says of settings, too: one that needs to know an epoch's length says how to pass it.
    let verdict = judge("", &named).expect(200).to_string();
    assert!(verdict.contains("steps_per_epoch") && is_clean(&verdict), "{verdict}");
    judge("?no_epochs=true&leak_after=1h", &named).expect(200);
    assert!(!judge("?steps_per_epoch=5", &named).expect(200).to_string().contains("pass steps_per_epoch"));
    let unnamed = judge("", &format!("step,rss\n{}", trace.replace(",5", ",5000"))).text();
    assert!(is_clean(&unnamed), "{unnamed}");
    let check = |rows: &str| {
        let file = server.upload(rows);
        server.post("/api/check", &json!({"model": "tiny-model", "training_file": file}))
    };
    assert!(is_clean(&check(&rows(4)).expect(200).to_string()));
    assert!(is_clean(&check("{\"messages\": []}\n").expect(200).to_string()));
    let refused = check("not JSON\n").expect(400);
    assert_eq!(refused["error"]["param"], json!("training_file"), "{refused}");
    assert!(is_clean(&refused.to_string()), "{refused}");
    // Settings of a job are spelt as they were sent.
    let file = server.upload(&rows(4));
    for (name, value) in [("on_long_row", json!("sing")), ("lora_r", json!(-1)), ("max_length", json!("x"))] {
        let mut body = order(&file, 1);
        body["model_garden"]["recipe"][name] = value;
        let refused = server.post("/v1/fine_tuning/jobs", &body).expect(400);
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(name) && is_clean(message) && !message.contains(&name.replace('_', "-")), "{message}");
    }
}
