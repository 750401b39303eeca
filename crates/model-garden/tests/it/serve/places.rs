//! Where the server has its things is nobody's business: no answer says it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{order, rows, small_picture};
use crate::common::http::Server;
use crate::common::{repository, scratch};

/// What no answer may hold: this test's folder, in which data, models and datasets are, and the repository, in which the program and the model itself are.
fn places(place: &Path) -> Vec<String> {
    let root = repository(".").canonicalize().unwrap();
    vec![place.display().to_string(), root.display().to_string()]
}

/// All paths that are read of jobs and models, for these, by the API's own description.
fn paths(server: &Server, job: &str, models: &[String]) -> Vec<String> {
    let described = server.get("/openapi.json").expect(200);
    let paths = described["paths"].as_object().unwrap().iter().filter(|(_, methods)| methods["get"].is_object());
    let mut all: Vec<String> = Vec::new();
    for (path, _) in paths {
        if path.contains("{model}") {
            for model in models {
                let path = path.replace("{model}", model);
                match path.contains("{name}") {
                    true => all.extend(files(server, model).iter().map(|name| path.replace("{name}", name))),
                    false => all.push(path),
                }
            }
        } else {
            all.push(path.replace("{job_id}", job));
        }
    }
    // Of files there are those that a client has sent.
    all.retain(|path| !path.contains('{'));
    all
}

fn files(server: &Server, model: &str) -> Vec<String> {
    let listed = server.get(&format!("/api/models/{model}/files")).expect(200);
    listed["data"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap().to_string()).collect()
}

/// A folder of models, and one of datasets with pictures beside them.
fn folders(place: &Path) -> (PathBuf, PathBuf) {
    let (models, datasets) = (place.join("models-here"), place.join("datasets-here"));
    fs::create_dir_all(&models).unwrap();
    fs::create_dir_all(&datasets).unwrap();
    std::os::unix::fs::symlink(repository("testdata/tiny-model"), models.join("tiny-model")).unwrap();
    let picture = small_picture();
    fs::copy(repository("testdata/data/recorded/pictures").join(&picture), datasets.join(&picture)).unwrap();
    let row = |number: usize| json!({"image": picture, "question": format!("Row {number}?"), "answer": "yes"});
    let text: String = (0..4).map(|number| row(number).to_string() + "\n").collect();
    fs::write(datasets.join("checks.jsonl"), text).unwrap();
    (models, datasets)
}

#[test]
fn no_answer_about_a_job_names_a_place() {
    let place = scratch("serve-places");
    let (models, datasets) = folders(&place);
    let data = place.join("data");
    let [data_text, models, datasets] = [&data, &models, &datasets].map(|path| path.display().to_string());
    let words = ["--port", "0", "--device", "cpu", "--allow-commands", "--data-dir", &data_text];
    let words = [&words[..], &["--models", &models, "--datasets", &datasets]].concat();
    let server = Server::start_as(&data, &words);
    let mut body = order(&server.upload(&rows(12)), 2);
    body["validation_file"] = json!("dataset:checks.jsonl");
    body["model_garden"]["recipe"]["eval_steps"] = json!(3);
    body["model_garden"]["recipe"]["eval_answers"] = json!(2);
    let id = server.submit(&body);
    let ended = server.end_of(&id);
    assert_eq!(ended["status"], json!("succeeded"), "{ended:#}");
    let result = ended["fine_tuned_model"].as_str().unwrap().to_string();
    // One that begins from a result, and one that was cancelled while it ran.
    body["model"] = json!(result);
    let tuned = server.submit(&body);
    server.end_of(&tuned);
    body["method"]["supervised"]["hyperparameters"]["n_epochs"] = json!(900);
    let cancelled = server.submit(&body);
    server.wait(&cancelled, |job| job["model_garden"]["step"].as_u64().is_some_and(|step| step > 6));
    server.post(&format!("/v1/fine_tuning/jobs/{cancelled}/cancel"), &json!({})).expect(200);
    server.end_of(&cancelled);
    let command = server.post("/api/jobs", &json!({"command": ["ls", "nowhere"]})).expect(200);
    let command = command["id"].as_str().unwrap().to_string();
    server.end_of(&command);
    let hidden = places(&place);
    let (mut seen, mut names) = (Vec::new(), Vec::new());
    for job in [&id, &tuned, &cancelled, &command] {
        let checkpoints = server.get(&format!("/v1/fine_tuning/jobs/{job}/checkpoints")).expect(200);
        let checkpoints = checkpoints["data"].as_array().unwrap().iter();
        let mut models: Vec<String> = checkpoints
            .map(|checkpoint: &Value| checkpoint["fine_tuned_model_checkpoint"].as_str().unwrap().to_string())
            .collect();
        models.extend(server.job(job)["fine_tuned_model"].as_str().map(str::to_string));
        for path in paths(&server, job, &models) {
            let answer = server.get(&path);
            let text = answer.text();
            for place in &hidden {
                if let Some(at) = text.find(place.as_str()) {
                    let shown: String =
                        text[..at].chars().rev().take(80).collect::<Vec<_>>().into_iter().rev().collect();
                    names.push(format!("{path}: {shown}[{}]", text[at..].chars().take(160).collect::<String>()));
                }
            }
            if answer.status == 200 && !text.is_empty() {
                seen.push(path);
            }
        }
    }
    assert!(names.is_empty(), "{}", names.join("\n"));
    for end in [
        "/log",
        "/trace",
        "/live",
        "/diagnosis",
        "/plan",
        "/report.html",
        "/predictions.jsonl",
        "/trace.jsonl",
        "/archive",
    ] {
        assert!(seen.iter().any(|path| path.ends_with(end)), "nothing was asked for {end}: {seen:#?}");
    }
    for name in ["adapter_config.json", "garden_state.json", "trainer_state.json"] {
        let of_checkpoint = |path: &&String| path.contains(":ckpt-step-") && path.ends_with(name);
        assert!(
            seen.iter().any(|path| of_checkpoint(&path)),
            "nothing was asked for {name} of a checkpoint: {seen:#?}"
        );
    }
    // The base model has its name in what PEFT reads.
    let config = server.get(&format!("/api/models/{result}/files/adapter_config.json")).expect(200);
    assert_eq!(config["base_model_name_or_path"], json!("tiny-model"));
}
