//! The server's queue: wishes, kills, any command, and memory that stays as it is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{adapter, order, rows};
use crate::common::http::Server;
use crate::common::scratch;

fn act(server: &Server, id: &str, what: &str) -> crate::common::http::Answer {
    server.post(&format!("/v1/fine_tuning/jobs/{id}/{what}"), &json!({}))
}

fn finish(server: &Server, id: &str) -> crate::common::http::Answer {
    server.post(&format!("/api/jobs/{id}/finish"), &json!({}))
}

fn in_its_midst(job: &Value) -> bool {
    job["model_garden"]["step"].as_u64().is_some_and(|step| step > 3)
}

#[test]
fn a_pause_changes_nothing() {
    let server = Server::start(&scratch("serve-pause"), &[]);
    let file = server.upload(&rows(20));
    // What it would be if nobody had touched it.
    let whole = server.submit(&order(&file, 6));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));
    let id = server.submit(&order(&file, 6));
    server.wait(&id, in_its_midst);
    act(&server, &id, "pause").expect(200);
    let paused = server.wait(&id, |job| job["model_garden"]["status"] == "paused");
    assert_eq!(paused["status"], json!("queued"), "what their clients know comes closest");
    assert_eq!(act(&server, &id, "pause").status, 400);
    act(&server, &id, "resume").expect(200);
    assert_eq!(server.end_of(&id)["status"], json!("succeeded"));
    assert_eq!(adapter(&server, &id), adapter(&server, &whole), "a pause changes nothing");
    assert_eq!(act(&server, &id, "cancel").status, 400, "it is over");
}

#[test]
fn a_job_that_is_finished_early_has_a_result_if_it_has_learnt_something() {
    let server = Server::start(&scratch("serve-finish"), &[]);
    let file = server.upload(&rows(20));
    let kept = server.submit(&order(&file, 200));
    server.wait(&kept, in_its_midst);
    finish(&server, &kept).expect(200);
    let job = server.end_of(&kept);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    assert!(!adapter(&server, &kept).is_empty());
    // One that stands still before its first step.
    let early = (0..20).find_map(|_| {
        let id = server.submit(&order(&file, 200));
        let folder = server.data.join("jobs").join(&id);
        let supervisor = loop {
            server.wait(&id, |job| job["status"] == "running");
            if let (Some(pid), _) = workers(&server.data, &id) {
                break pid;
            }
        };
        std::process::Command::new("kill").args(["-STOP", &supervisor.to_string()]).status().unwrap();
        let trainer = crate::common::trainer_of(supervisor);
        let has_begun = trainer.is_some() || folder.join("out/log.jsonl").exists();
        if has_begun {
            act(&server, &id, "cancel").expect(200);
            act(&server, &id, "cancel").expect(200);
            server.end_of(&id);
        }
        (!has_begun).then_some(id)
    });
    let early = early.unwrap_or_else(|| panic!("each of twenty jobs had begun to train before it could be stopped"));
    finish(&server, &early).expect(200);
    assert_eq!(act(&server, &early, "pause").status, 400);
    let early = server.end_of(&early);
    assert_eq!((&early["status"], &early["fine_tuned_model"]), (&json!("cancelled"), &Value::Null), "{early:#}");
}

#[test]
fn what_is_being_cancelled_stays_so() {
    let server = Server::start(&scratch("serve-cancel"), &[]);
    let file = server.upload(&rows(20));
    let ended = server.submit(&order(&file, 200));
    server.wait(&ended, in_its_midst);
    act(&server, &ended, "cancel").expect(200);
    let refused = [act(&server, &ended, "pause"), act(&server, &ended, "resume"), finish(&server, &ended)];
    assert!(refused.iter().all(|answer| answer.status == 400), "{refused:?}");
    assert_eq!(server.wait(&ended, |job| job["status"] == "cancelled")["error"], Value::Null);
}

#[test]
fn more_important_jobs_come_first() {
    let server = Server::start(&scratch("serve-order"), &[]);
    let file = server.upload(&rows(20));
    // One slot: the others wait.
    let long = server.submit(&order(&file, 200));
    let (mut later, mut sooner) = (order(&file, 1), order(&file, 1));
    later["model_garden"]["priority"] = json!(-1);
    sooner["model_garden"]["priority"] = json!(1);
    let (later, sooner) = (server.submit(&later), server.submit(&sooner));
    assert_eq!(server.job(&later)["status"], json!("queued"));
    server.wait(&long, in_its_midst);
    act(&server, &long, "cancel").expect(200);
    assert_eq!(server.wait(&long, |job| job["status"] == "cancelled")["error"], Value::Null);
    let (later, sooner) = (server.end_of(&later), server.end_of(&sooner));
    let moment = |job: &Value, name: &str| job[name].as_i64().or(job["model_garden"][name].as_i64()).unwrap();
    assert!(moment(&sooner, "finished_at") <= moment(&later, "started_at"), "{sooner:#} {later:#}");
    assert_eq!(later["status"], json!("succeeded"));
}

#[test]
fn any_command_is_a_job() {
    let server = Server::start(&scratch("serve-commands"), &["--allow-commands"]);
    let submit = |words: &[&str]| {
        let made = server.post("/api/jobs", &json!({"command": words})).expect(200);
        made["id"].as_str().unwrap().to_string()
    };
    let steps = "import time\nfor step in range(4): print('Step', step, flush=True); time.sleep(0.3)";
    let id = submit(&["python3", "-c", steps]);
    let command = server.end_of(&id);
    assert_eq!(command["status"], json!("succeeded"), "{command:#}");
    assert!(server.get(&format!("/api/jobs/{id}/log")).text().contains("Step 3"));
    assert!(server.get(&format!("/api/jobs/{id}/trace")).text().lines().count() > 1);
    let failing = server.end_of(&submit(&["sh", "-c", "echo sorry; exit 3"]));
    assert_eq!(failing["error"]["code"], json!("command_failed"));
    assert!(failing["error"]["message"].as_str().unwrap().contains("sorry"), "{failing:#}");
    // How it ended is known without the file that says so to others.
    let unwritten = server.end_of(&submit(&["sh", "-c", "mkdir -p .guard/exit.json/in-its-place"]));
    assert_eq!(unwritten["status"], json!("succeeded"), "{unwritten:#}");
    // A code that looks like a signal is a code, unless somebody has asked for the end.
    let failing = server.end_of(&submit(&["sh", "-c", "exit 143"]));
    assert_eq!((&failing["status"], &failing["error"]["code"]), (&json!("failed"), &json!("command_failed")));
    let asked = submit(&["sleep", "600"]);
    server.wait(&asked, |job| job["model_garden"]["memory_bytes"].is_number());
    act(&server, &asked, "pause").expect(200);
    server.wait(&asked, |job| job["model_garden"]["status"] == "paused");
    act(&server, &asked, "cancel").expect(200);
    assert_eq!(server.end_of(&asked)["status"], json!("cancelled"));
}

/// Who kills a program may be anybody: nothing is said about a limit that nobody has seen it at.
#[test]
fn a_command_that_is_killed_has_failed_and_one_at_its_limit_is_told_apart() {
    let server = Server::start(&scratch("serve-killed"), &["--allow-commands", "--slots", "2"]);
    let made = server.post("/api/jobs", &counting(600)).expect(200);
    let killed = made["id"].as_str().unwrap();
    server.wait(killed, |job| job["model_garden"]["memory_bytes"].is_number());
    let program = program_of(&server, killed);
    std::process::Command::new("kill").args(["-9", &program.to_string()]).status().unwrap();
    let job = server.end_of(killed);
    assert_eq!((&job["status"], &job["error"]["code"]), (&json!("failed"), &json!("command_failed")), "{job:#}");
    assert!(job["error"]["message"].as_str().unwrap().contains("killed (signal 9"), "{job:#}");
    let count = std::fs::read_to_string(server.data.join("jobs").join(killed).join("out/count")).unwrap();
    assert_eq!(count, "begin\n", "it is not started again");
    let script = "import time\nheld = []\nwhile True: held.append(b'x' * (16 << 20)); time.sleep(0.05)";
    let body = json!({"command": ["python3", "-c", script], "memory_limit": "300MB"});
    let large = server.post("/api/jobs", &body).expect(200);
    let job = server.end_of(large["id"].as_str().unwrap());
    assert_eq!((&job["status"], &job["error"]["code"]), (&json!("failed"), &json!("memory_limit")), "{job:#}");
}

/// The process of a command's own program.
fn program_of(server: &Server, id: &str) -> u64 {
    let state = std::fs::read(server.data.join("jobs").join(id).join("out/.guard/state.json")).unwrap();
    serde_json::from_slice::<Value>(&state).unwrap()["program_pid"].as_u64().unwrap()
}

/// A program that tells when it begins and when it ends.
fn counting(seconds: u32) -> Value {
    let script = format!("echo begin >> count; sleep {seconds}; echo end >> count");
    json!({"command": ["sh", "-c", script]})
}

/// A process that has ended and that nobody has waited for has no command line any more.
pub(super) fn is_running(pid: u64) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

#[test]
fn a_command_whose_guard_is_killed_runs_once_at_a_time() {
    let server = Server::start(&scratch("serve-orphan"), &["--allow-commands"]);
    let id = server.post("/api/jobs", &counting(4)).expect(200)["id"].as_str().unwrap().to_string();
    let folder = server.data.join("jobs").join(&id);
    server.wait(&id, |job| job["model_garden"]["memory_bytes"].is_number());
    let program = program_of(&server, &id);
    let (guard, _) = workers(&server.data, &id);
    std::process::Command::new("kill").args(["-9", &guard.unwrap().to_string()]).status().unwrap();
    let job = server.end_of(&id);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    assert!(!is_running(program), "the first one has ended");
    assert_eq!(std::fs::read_to_string(folder.join("out/count")).unwrap(), "begin\nbegin\nend\n");
    // The same where no file tells of the program: the disk had no room for it, say.
    let script = "if [ -e pid ]; then exit 0; fi; echo $$ > pid
(while :; do rm -f .guard/state.json; sleep 0.05; done) & sleep 1; kill -9 $PPID; sleep 600";
    let job = server.post("/api/jobs", &json!({"command": ["sh", "-c", script]})).expect(200);
    let id = job["id"].as_str().unwrap().to_string();
    let job = server.end_of(&id);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    let first = std::fs::read_to_string(server.data.join("jobs").join(&id).join("out/pid")).unwrap();
    assert!(!is_running(first.trim().parse().unwrap()), "the first one goes on beside the second");
    // Cancelled while nobody guards it, its program ends, too.
    let id = server.post("/api/jobs", &counting(600)).expect(200)["id"].as_str().unwrap().to_string();
    server.wait(&id, |job| job["model_garden"]["memory_bytes"].is_number());
    let program = program_of(&server, &id);
    let (guard, _) = workers(&server.data, &id);
    server.post(&format!("/v1/fine_tuning/jobs/{id}/cancel"), &json!({})).expect(200);
    std::process::Command::new("kill").args(["-9", &guard.unwrap().to_string()]).status().unwrap();
    assert_eq!(server.end_of(&id)["status"], json!("cancelled"));
    assert!(!is_running(program));
}

/// Processes that work for a server's jobs: (supervisor, trainer).
fn workers(data: &Path, job: &str) -> (Option<u32>, Option<u32>) {
    let pid = std::fs::read_to_string(data.join("jobs").join(job).join("supervisor/pid")).ok();
    let supervisor =
        pid.and_then(|pid| pid.trim().parse().ok()).filter(|pid: &u32| Path::new(&format!("/proc/{pid}")).exists());
    (supervisor, supervisor.and_then(crate::common::trainer_of))
}

/// A scheduler that runs the server warns its jobs, too: they stop with a checkpoint and go on, as after SIGTERM.
#[test]
fn a_job_that_a_scheduler_warns_goes_on() {
    let server = Server::start(&scratch("serve-warned"), &["--allow-commands"]);
    let file = server.upload(&rows(20));
    let whole = server.submit(&order(&file, 6));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));
    let warn = |id: &str, name: &str| {
        let (guard, _) = workers(&server.data, id);
        std::process::Command::new("kill").args([name, &guard.unwrap().to_string()]).status().unwrap();
    };
    let check = |id: &str| {
        let job = server.end_of(id);
        assert_eq!(job["status"], json!("succeeded"), "{job:#}");
        let events = server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=1000")).expect(200);
        assert!(events.to_string().contains("The job was stopped from outside: stopped "), "{events:#}");
    };
    let id = server.submit(&order(&file, 6));
    server.wait(&id, |job| job["model_garden"]["step"].as_u64().is_some_and(|step| step > 3));
    warn(&id, "-USR1");
    check(&id);
    assert_eq!(adapter(&server, &id), adapter(&server, &whole));
    let id = server.post("/api/jobs", &counting(2)).expect(200)["id"].as_str().unwrap().to_string();
    server.wait(&id, |job| job["model_garden"]["memory_bytes"].is_number());
    warn(&id, "-USR2");
    check(&id);
}

/// An upgrade takes the program away, if only for a moment: a trainer that is started again then, and a job that begins then, are started from what runs.
#[test]
fn jobs_start_while_the_program_is_taken_away() {
    let place = scratch("serve-upgrade");
    std::fs::create_dir_all(&place).unwrap();
    let program = place.join("model-garden");
    std::fs::hard_link(env!("CARGO_BIN_EXE_model-garden"), &program).unwrap();
    let server = Server::start_from(&program, &place.join("data"));
    let file = server.upload(&rows(20));
    let id = server.submit(&order(&file, 12));
    server.wait(&id, in_its_midst);
    std::fs::remove_file(&program).unwrap();
    let (_, trainer) = workers(&server.data, &id);
    std::process::Command::new("kill").args(["-9", &trainer.unwrap().to_string()]).status().unwrap();
    let job = server.end_of(&id);
    assert_eq!(job["status"], json!("succeeded"), "{job:#}");
    let begun = server.end_of(&server.submit(&order(&file, 1)));
    assert_eq!(begun["status"], json!("succeeded"), "{begun:#}");
}

/// Kills at random while jobs run; every job ends once, with the result of one that nothing happened to. `GARDEN_KILLS` is how often.
#[test]
fn kills_change_nothing() {
    let kills: usize = std::env::var("GARDEN_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let seed = garden_testing::seed();
    let mut random = garden_random::SplitMix64(seed);
    let mut server = Server::start(&scratch("serve-kills"), &["--slots", "3", "--allow-commands"]);
    let file = server.upload(&rows(20));
    let whole = server.submit(&order(&file, 8));
    assert_eq!(server.end_of(&whole)["status"], json!("succeeded"));
    let expected = adapter(&server, &whole);
    let mut done = 0;
    let mut ids: Vec<String> = Vec::new();
    while done < kills {
        ids = [order(&file, 8), order(&file, 8)].iter().map(|body| server.submit(body)).collect();
        let command = server.post("/api/jobs", &counting(6)).expect(200)["id"].as_str().unwrap().to_string();
        while done < kills && ids.iter().any(|id| !is_over(&server, id)) {
            std::thread::sleep(Duration::from_millis(300 + random.draw() % 2500));
            let id = &ids[(random.draw() % 2) as usize];
            let (supervisor, trainer) = workers(&server.data, id);
            let (name, victim) = match random.draw() % 5 {
                0 => ("server", Some(server.process.0.id())),
                1 => ("supervisor", supervisor),
                2 => ("supervisor of a command", workers(&server.data, &command).0),
                3 => {
                    // Somebody may pause it, too, and think better of it.
                    let paused = server.post(&format!("/v1/fine_tuning/jobs/{id}/pause"), &json!({})).status;
                    std::thread::sleep(Duration::from_millis(random.draw() % 1000));
                    let resumed = server.post(&format!("/v1/fine_tuning/jobs/{id}/resume"), &json!({})).status;
                    eprintln!("seed {seed}: paused {paused}, resumed {resumed}");
                    ("server", Some(server.process.0.id()))
                }
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
        // Never two of it at once; one that came to its end while nobody saw it is started again.
        let job = server.end_of(&command);
        assert_eq!(job["status"], json!("succeeded"), "seed {seed}: {job:#}");
        let count = std::fs::read_to_string(server.data.join("jobs").join(&command).join("out/count")).unwrap();
        assert!(count.ends_with("end\n") && !count.contains("end\nend"), "seed {seed}: {count}");
    }
    assert!(!ids.is_empty());
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
        (0..count).for_each(|number| drop(store.add_job(&record(number), &[], None).unwrap()));
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
        after_pass.push(server.resident());
    }
    eprintln!("{count} jobs, a day of samples: {after_pass:.1?} MiB");
    assert!(after_pass.iter().all(|resident| *resident < 60.0), "{after_pass:?}");
    // A pass reads more than 14 MiB. Threads that are used for the first time take some of their own, until all of them were.
    assert!(after_pass[2] < after_pass[0] + 8.0, "it grows: {after_pass:?}");
}

fn is_over(server: &Server, id: &str) -> bool {
    ["succeeded", "failed", "cancelled"].iter().any(|status| server.job(id)["status"] == *status)
}
