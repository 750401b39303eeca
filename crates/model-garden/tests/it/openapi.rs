//! Answers of a real server are those that its OpenAPI description promises: status, kind of content, and every field with its type.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up must fail")]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::http::Server;
use crate::common::scratch;

/// Keywords that say nothing about the type of an answer, or that are about requests.
const UNCHECKED: [&str; 9] = [
    "description",
    "format",
    "minimum",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "propertyNames",
    "maxLength",
];

/// What is wrong with a value, by where: required fields, types, fixed values, and fields that are not described.
fn problems(description: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    // A schema of nothing and `true` allow anything, `false` nothing.
    let Some(keywords) = schema.as_object() else {
        return if schema == false { vec![format!("{place}: not described")] } else { found };
    };
    for (keyword, rule) in keywords {
        match keyword.as_str() {
            "$ref" => {
                let pointer = rule.as_str().unwrap().trim_start_matches('#');
                let target = description.pointer(pointer).unwrap_or_else(|| panic!("{rule} is not there"));
                found.extend(problems(description, target, value, place));
            }
            "anyOf" => {
                let all: Vec<_> =
                    rule.as_array().unwrap().iter().map(|one| problems(description, one, value, place)).collect();
                if all.iter().all(|one| !one.is_empty()) {
                    found.extend(all.into_iter().flatten());
                }
            }
            "type" => {
                let kinds: Vec<&str> = rule
                    .as_array()
                    .map_or_else(|| vec![rule], |list| list.iter().collect())
                    .iter()
                    .map(|kind| kind.as_str().unwrap())
                    .collect();
                if !kinds.iter().any(|kind| is_a(value, kind)) {
                    found.push(format!("{place}: {value} is not of type {rule}"));
                }
            }
            "const" if rule != value => found.push(format!("{place}: {value} is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => {
                found.push(format!("{place}: {value} is none of {rule}"));
            }
            "required" => {
                let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                let missing = names.filter(|name| value.is_object() && value.get(name).is_none());
                found.extend(missing.map(|name| format!("{place}.{name}: missing")));
            }
            "properties" => {
                for (name, inside) in value.as_object().into_iter().flatten() {
                    match (rule.get(name), keywords.get("additionalProperties")) {
                        (Some(schema), _) => {
                            found.extend(problems(description, schema, inside, &format!("{place}.{name}")))
                        }
                        (None, None) => found.push(format!("{place}.{name}: not described")),
                        (None, Some(_)) => {}
                    }
                }
            }
            "additionalProperties" => {
                let known = |name: &String| keywords.get("properties").is_some_and(|all| all.get(name).is_some());
                for (name, inside) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                    found.extend(problems(description, rule, inside, &format!("{place}.{name}")));
                }
            }
            "prefixItems" => {
                for (index, schema) in rule.as_array().unwrap().iter().enumerate() {
                    match value.get(index) {
                        Some(inside) => {
                            found.extend(problems(description, schema, inside, &format!("{place}[{index}]")))
                        }
                        None => found.push(format!("{place}[{index}]: missing")),
                    }
                }
            }
            "items" => {
                let described = keywords.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                for (index, inside) in value.as_array().into_iter().flatten().enumerate().skip(described) {
                    found.extend(problems(description, rule, inside, &format!("{place}[{index}]")));
                }
            }
            "const" | "enum" => {}
            other => assert!(UNCHECKED.contains(&other), "this test does not know the keyword {other}"),
        }
    }
    found
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}

/// A server, its description, and what of that was seen.
struct Described {
    server: Server,
    description: Value,
    seen: BTreeSet<(String, String)>,
}

impl Described {
    /// The answer to a request for a described path, which has to have this status and to be as described.
    fn ask(&mut self, status: u16, method: &str, path: &str, id: &str, kind: &str, body: &[u8]) -> Value {
        let (template, query) =
            path.split_once('?').map_or((path, String::new()), |(path, query)| (path, format!("?{query}")));
        let mut target = template.to_string();
        // The last name of a path may be that of a file.
        for (index, name) in id.split('/').enumerate() {
            if let (Some(from), Some(to)) = (target.find('{'), target.find('}')) {
                target.replace_range(from..=to, name);
            } else {
                assert!(index == 0, "{template} has no place for {id}");
            }
        }
        let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
        let answer = self.server.with_headers(method, &format!("{target}{query}"), &kind, body);
        let (head, text) = (answer.headers.to_lowercase(), answer.text());
        assert_eq!(answer.status, status, "{method} {target}: {text}");
        let operation = &self.description["paths"][template][method.to_lowercase()];
        let mut response = &operation["responses"][status.to_string()];
        if let Some(pointer) = response["$ref"].as_str() {
            response = self.description.pointer(pointer.trim_start_matches('#')).unwrap();
        }
        let content =
            response["content"].as_object().unwrap_or_else(|| panic!("{method} {template}: {status} is not described"));
        let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        let described = content.get(kind).unwrap_or_else(|| panic!("{method} {template}: {kind} is not described"));
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let is_there = head.contains(&format!("\r\n{}: ", name.to_lowercase()));
            assert!(is_there || header["required"] != true, "{method} {template}: no header {name}");
        }
        if status == 200 {
            self.seen.insert((template.to_string(), method.to_lowercase()));
        }
        if kind != "application/json" {
            return Value::Null;
        }
        let value = answer.json();
        let wrong = problems(&self.description, &described["schema"], &value, "");
        assert!(wrong.is_empty(), "{method} {template}: {wrong:#?}\n{value:#}");
        value
    }

    fn get(&mut self, path: &str, id: &str) -> Value {
        self.ask(200, "GET", path, id, "", b"")
    }

    fn post(&mut self, path: &str, id: &str, body: &Value) -> Value {
        self.ask(200, "POST", path, id, "application/json", body.to_string().as_bytes())
    }

    /// Sends a form of texts.
    fn form(&mut self, path: &str, id: &str, fields: &[(&str, &str)]) -> Value {
        let parts = fields.iter().map(|(name, text)| {
            let file = if ["file", "data"].contains(name) { "; filename=\"rows.jsonl\"" } else { "" };
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n")
        });
        let body = parts.collect::<String>() + "--b--\r\n";
        self.ask(200, "POST", path, id, "multipart/form-data; boundary=b", body.as_bytes())
    }

    /// Waits until a job is as it should be, and compares it then.
    fn wait(&mut self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.server.wait(id, is_so);
        self.get("/v1/fine_tuning/jobs/{job_id}", id)
    }

    fn end_of(&mut self, id: &str) -> Value {
        self.server.end_of(id);
        self.get("/v1/fine_tuning/jobs/{job_id}", id)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_string()
}

fn rows(count: usize) -> String {
    let row = |number: usize| json!({"messages": [{"role": "user", "content": format!("Number {number}?")}, {"role": "assistant", "content": "even"}]});
    (0..count).map(|number| row(number).to_string() + "\n").collect()
}

#[test]
fn every_answer_is_as_described() {
    let description = serde_json::from_str(garden_server::openapi::text()).unwrap();
    let more = ["--alias", "gpt-4o-2024-08-06=tiny-model", "--allow-commands"];
    let server = Server::start(&scratch("openapi"), &more);
    let mut server = Described { server, description, seen: BTreeSet::new() };
    let jobs = "/v1/fine_tuning/jobs";

    // Files and uploads.
    let purpose = ("purpose", "fine-tune");
    let rows = rows(16);
    let file = text(&server.form("/v1/files", "", &[purpose, ("file", &rows)])["id"]);
    let expiring =
        [purpose, ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600"), ("file", "{}\n")];
    let bad = text(&server.form("/v1/files", "", &expiring)["id"]);
    server.get("/v1/files?limit=1", "");
    server.get("/v1/files/{file_id}", &bad);
    server.get("/v1/files/{file_id}/content", &file);
    let upload = json!({"filename": "a.jsonl", "purpose": "fine-tune", "bytes": 4, "mime_type": "text/plain"});
    let first = text(&server.post("/v1/uploads", "", &upload)["id"]);
    let part = text(&server.form("/v1/uploads/{upload_id}/parts", &first, &[("data", "{}{}")])["id"]);
    let whole = server.post("/v1/uploads/{upload_id}/complete", &first, &json!({"part_ids": [part]}));
    assert_eq!(whole["file"]["bytes"], 4);
    let second = text(&server.post("/v1/uploads", "", &upload)["id"]);
    server.post("/v1/uploads/{upload_id}/cancel", &second, &json!({}));

    // A job to its end, with everything that is told about it.
    let order = json!({
        "model": "gpt-4o-2024-08-06", "training_file": file, "validation_file": file, "suffix": "a", "metadata": {"team": "b"},
        "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 8}}},
    });
    let done = text(&server.post(jobs, "", &order)["id"]);
    let job = server.end_of(&done);
    assert_eq!(job["status"], "succeeded", "{job:#}");
    let model = text(&job["fine_tuned_model"]);
    let events = server.get("/v1/fine_tuning/jobs/{job_id}/events?limit=100", &done);
    assert!(events["data"].as_array().unwrap().iter().any(|event| event["type"] == "metrics"), "{events:#}");
    let checkpoints = server.get("/v1/fine_tuning/jobs/{job_id}/checkpoints", &done);
    assert!(!checkpoints["data"].as_array().unwrap().is_empty(), "{checkpoints:#}");
    server.get("/v1/files/{file_id}/content", &text(&job["result_files"][0]));
    for what in ["trace", "diagnosis", "plan", "log", "report.html", "live"] {
        server.get(&format!("/api/jobs/{{job_id}}/{what}"), &done);
    }

    // Its result.
    let models = server.get("/v1/models", "");
    assert_eq!(models["data"].as_array().map(Vec::len), Some(3), "a base model, its alias and a result: {models:#}");
    server.get("/v1/models/{model}", "tiny-model");
    server.get("/v1/models/{model}", &model);
    let files = server.get("/api/models/{model}/files", &model);
    let name = text(&files["data"][0]["name"]);
    server.get("/api/models/{model}/files/{name}", &format!("{model}/{name}"));
    server.get("/api/models/{model}/archive", &model);
    server.ask(200, "DELETE", "/v1/models/{model}", &model, "", b"");

    // Rows that cannot be used, a plan, and a job that does not fit.
    let failed = server.post(jobs, "", &json!({"model": "tiny-model", "training_file": bad}));
    let failed = server.end_of(&text(&failed["id"]));
    assert!(
        failed["error"].is_object() && !failed["model_garden"]["problems"].as_array().unwrap().is_empty(),
        "{failed:#}"
    );
    let check = server.post("/api/check", "", &json!({"model": "tiny-model", "training_file": bad}));
    assert_eq!(check["bad"], 1, "{check:#}");
    let plan = server.post("/api/plan", "", &json!({"model": "tiny-model", "training_file": file}));
    assert_eq!(plan["fits"], true, "{plan:#}");
    let large =
        json!({"model": "tiny-model", "training_file": file, "model_garden": {"recipe": {"memory_limit": "1MiB"}}});
    let refused = server.ask(400, "POST", jobs, "", "application/json", large.to_string().as_bytes());
    assert!(refused["error"]["model_garden"]["plan"]["advice"]["savings"].is_array(), "{refused:#}");

    // A command that takes the only slot, and jobs that wait behind it.
    let sleep = json!({"command": ["sleep", "600"], "priority": 1, "memory_limit": "1GiB"});
    let running = text(&server.post("/api/jobs", "", &sleep)["id"]);
    server.wait(&running, |job| !job["model_garden"]["memory_bytes"].is_null());
    let waiting = text(&server.post(jobs, "", &json!({"model": "tiny-model", "training_file": file}))["id"]);
    server.wait(&waiting, |job| job["status"] == "queued");
    let paused = server.post("/v1/fine_tuning/jobs/{job_id}/pause", &waiting, &json!({}));
    assert_eq!(paused["model_garden"]["status"], "paused");
    server.post("/v1/fine_tuning/jobs/{job_id}/resume", &waiting, &json!({}));
    server.post("/v1/fine_tuning/jobs/{job_id}/pause", &waiting, &json!({}));
    server.post("/api/jobs/{job_id}/finish", &waiting, &json!({}));
    server.ask(400, "POST", "/v1/fine_tuning/jobs/{job_id}/resume", &waiting, "", b"");
    server.ask(400, "GET", "/api/jobs/{job_id}/trace", &waiting, "", b"");
    server.get("/v1/fine_tuning/jobs?limit=100", "");
    server.get("/metrics", "");
    let system = server.get("/api/system", "");
    assert_eq!(system["jobs"]["running"], 1, "{system:#}");
    for id in [&waiting, &running] {
        server.post("/v1/fine_tuning/jobs/{job_id}/cancel", id, &json!({}));
        server.end_of(id);
    }

    // Traces from outside.
    let trace: String = (0..40).map(|number| format!("{}\n", 100 + number)).collect();
    server.ask(200, "POST", "/api/diagnose?unit=MiB", "", "text/plain", format!("rss\n{trace}").as_bytes());
    server.ask(400, "POST", "/api/diagnose", "", "text/plain", b"no trace");

    // What goes wrong.
    for path in ["/v1/files/{file_id}", "/v1/models/{model}", "/v1/fine_tuning/jobs/{job_id}", "/api/jobs/{job_id}/log"]
    {
        server.ask(404, "GET", path, "nothing", "", b"");
        server.ask(400, "GET", path, "%ff", "", b"");
    }
    server.ask(400, "GET", "/v1/files?purpose=%00", "", "", b"");
    let filters: String = (0..300).map(|number| format!("&metadata[{number}]=x")).collect();
    server.ask(400, "GET", &format!("{jobs}?{}", &filters[1..]), "", "", b"");
    server.ask(403, "DELETE", "/v1/models/{model}", "tiny-model", "", b"");
    server.ask(413, "POST", "/api/plan", "", "application/json", &vec![b' '; 2 << 20]);
    let wrong = server.server.with_headers("PUT", "/v1/files", "", b"");
    assert!(wrong.status == 405 && wrong.headers.contains("\r\nallow: "), "{wrong:?}");

    server.ask(200, "DELETE", "/api/jobs/{job_id}", &text(&failed["id"]), "", b"");
    server.ask(200, "DELETE", "/v1/files/{file_id}", &file, "", b"");
    server.get("/health", "");
    server.get("/openapi.json", "");
    let paths = server.description["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|method| (path.clone(), method.clone())))
        .filter(|(_, method)| method != "parameters")
        .collect();
    assert_eq!(server.seen, described, "each operation has an answer that was compared");
}

#[test]
fn a_wrong_answer_is_found() {
    let description: Value = serde_json::from_str(garden_server::openapi::text()).unwrap();
    let schema = json!({"$ref": "#/components/schemas/File"});
    let file = json!({
        "id": "file-1", "object": "file", "bytes": 1, "created_at": 1, "filename": "a", "purpose": "fine-tune", "status": "processed",
        "expires_at": 7,
    });
    let wrong = |name: &str, value: Value| {
        let mut file = file.clone();
        file[name] = value;
        problems(&description, &schema, &file, "")
    };
    assert!(wrong("bytes", json!(1)).is_empty());
    assert_eq!(wrong("bytes", json!("1")), [".bytes: \"1\" is not of type \"integer\""]);
    assert_eq!(wrong("object", json!("model")), [".object: \"model\" is not \"file\""]);
    assert_eq!(wrong("more", json!(1)), [".more: not described"]);
    assert_eq!(wrong("expires_at", json!(1.5)).len(), 1, "not a time");
    assert_eq!(wrong("purpose", json!("fun")).len(), 1);
    let mut short = file.clone();
    short.as_object_mut().unwrap().remove("id");
    assert_eq!(problems(&description, &schema, &short, ""), [".id: missing"]);
}
