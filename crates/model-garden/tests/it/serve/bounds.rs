//! What clients may take of the server: disk, connections, turns, and time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{adapter, order, rows};
use crate::common::http::{PATIENCE, Server};
use crate::common::{Killed, scratch};

fn id_of(answer: &Value) -> String {
    answer["id"].as_str().unwrap().to_string()
}

fn bytes_under(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_under(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_job_at_its_quota_waits_at_its_checkpoint() {
    let data = scratch("serve-quota");
    let server = Server::start(&data, &["--quota", "3MB"]);
    let file = server.upload(&rows(20));
    // Values that mean harm are refused by name.
    for (name, value) in
        [("epochs", json!(1e300)), ("save_total_limit", json!(1_000_000_000)), ("max_steps", json!(1e18))]
    {
        let mut body = order(&file, 1);
        body["method"] = Value::Null;
        body["model_garden"]["recipe"][name] = value;
        let refused = server.post("/v1/fine_tuning/jobs", &body).expect(400);
        assert!(refused["error"]["param"].as_str().unwrap().contains(name), "{refused}");
    }
    // Far more than the quota, however long it takes until it is asked to stop and has stopped.
    let mut greedy = order(&file, 600);
    greedy["model_garden"]["recipe"]["save_steps"] = json!(1);
    greedy["model_garden"]["recipe"]["save_total_limit"] = json!(1000);
    let id = server.submit(&greedy);
    let waiting = server.wait(&id, |job| job["model_garden"]["waits_for"] == "quota");
    assert_eq!(waiting["status"], json!("queued"));
    let events = server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=1000")).text();
    assert!(events.contains("The quota of this server is used up"), "{events}");
    let kept = server.get("/api/system").expect(200)["files"]["bytes"].clone();
    // It stops by itself, after the checkpoint that was too much; beside that there are its events, log and trace.
    let checkpoint = fs::read_dir(data.join("jobs").join(&id).join("out")).unwrap().flatten();
    let checkpoint = checkpoint.filter(|entry| entry.file_name().to_string_lossy().starts_with("checkpoint-"));
    let largest = checkpoint.map(|entry| bytes_under(&entry.path())).max().unwrap();
    let kept_bytes = kept.as_u64().unwrap();
    assert!(
        (3_000_000 - 2 * largest..4_000_000 + largest).contains(&kept_bytes),
        "{kept_bytes}, checkpoints of {largest}"
    );
    // It may wait a little below the quota, where its next checkpoints have no room: nothing is left with less.
    drop(server);
    let server = Server::start(&data, &["--quota", "1MB"]);
    assert_eq!(server.post("/v1/fine_tuning/jobs", &order(&file, 1)).status, 507, "no more jobs");
    assert_eq!(
        server.form("/v1/files", &[("purpose", None, b"fine-tune"), ("file", Some("a.jsonl"), b"{}\n")]).status,
        507
    );
    // With room it goes on from where it was.
    drop(server);
    let saved = |data: &Path| fs::read_dir(data.join("jobs").join(&id).join("out")).unwrap().count();
    let before = saved(&data);
    let server = Server::start(&data, &["--quota", "1GB"]);
    server.wait(&id, |job| job["status"] == "running" && saved(&data) > before + 5);
    server.post(&format!("/api/jobs/{id}/finish"), &json!({})).expect(200);
    assert_eq!(server.end_of(&id)["status"], json!("succeeded"), "{:#}", server.job(&id));
    // And all of it can be deleted.
    server.delete(&format!("/api/jobs/{id}")).expect(200);
    assert_eq!(server.get(&format!("/v1/fine_tuning/jobs/{id}")).status, 404);
    assert!(!data.join("jobs").join(&id).exists());
    assert!(bytes_under(&data.join("jobs")) == 0, "its folder is gone");
}

#[test]
fn jobs_are_deleted_when_their_time_is_over() {
    let data = scratch("serve-keep");
    let server = Server::start(&data, &["--allow-commands"]);
    let file = server.upload(&rows(4));
    let tuned = server.submit(&order(&file, 1));
    let model = server.end_of(&tuned)["fine_tuned_model"].as_str().unwrap().to_string();
    let command = id_of(&server.post("/api/jobs", &json!({"command": ["true"]})).expect(200));
    server.end_of(&command);
    let running = id_of(&server.post("/api/jobs", &json!({"command": ["sleep", "600"]})).expect(200));
    server.wait(&running, |job| job["status"] == "running");
    let refused = server.delete(&format!("/api/jobs/{running}")).expect(400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("cancel it first"), "{refused}");
    drop(server);
    let server = Server::start(&data, &["--allow-commands", "--keep", "1s"]);
    let deadline = Instant::now() + PATIENCE;
    while server.get(&format!("/v1/fine_tuning/jobs/{command}")).status != 404 {
        assert!(Instant::now() < deadline, "it is kept for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A model stays, without what it was made of; a job that runs stays as it is.
    let folder = data.join("jobs").join(&tuned).join("out");
    while folder.join("trace.jsonl").exists() {
        assert!(Instant::now() < deadline, "its trace is kept for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(
        fs::read_dir(&folder).unwrap().flatten().all(|entry| !entry
            .file_name()
            .to_str()
            .unwrap()
            .starts_with("checkpoint-"))
    );
    assert_eq!(server.get(&format!("/api/models/{model}/files/adapter_model.safetensors")).status, 200);
    assert_eq!(server.job(&tuned)["status"], json!("succeeded"));
    assert_eq!(server.job(&running)["status"], json!("running"));
    server.post(&format!("/v1/fine_tuning/jobs/{running}/cancel"), &json!({})).expect(200);
    server.end_of_any(&running);
}

/// A clock that jumps makes nothing old: by it this job ended long before the server has seen it end.
#[test]
fn a_clock_that_jumps_forward_deletes_nothing() {
    let data = scratch("serve-keep-clock");
    let server = Server::start(&data, &["--allow-commands"]);
    let command = id_of(&server.post("/api/jobs", &json!({"command": ["true"]})).expect(200));
    server.end_of(&command);
    let (due, kept) = (server.upload("{}\n"), server.upload("{}\n"));
    drop(server);
    let code = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute('UPDATE jobs SET finished_at = finished_at - 40 * 86400, created_at = created_at - 40 * 86400')
base.execute('UPDATE files SET expires_at = 1, kept_until = 3600')
base.execute('UPDATE files SET kept_until = 0 WHERE id = ?', [sys.argv[2]])
base.commit()";
    if !Command::new("python3")
        .args(["-c", code])
        .arg(data.join("garden.db"))
        .arg(&due)
        .status()
        .is_ok_and(|ended| ended.success())
    {
        return garden_testing::missing("python3 with sqlite3");
    }
    let server = Server::start(&data, &["--allow-commands", "--keep", "30d"]);
    // What has had its time is looked for: one file had. The other one has only by the clock, and nobody is given it as long as that is so.
    let deadline = Instant::now() + PATIENCE;
    let is_there = |file: &str| data.join("files").join(format!("{file}.jsonl")).exists();
    while is_there(&due) {
        assert!(Instant::now() < deadline, "nobody looks");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_there(&kept), "by the clock it was old");
    assert_eq!(server.get(&format!("/v1/files/{kept}")).status, 404);
    assert_eq!(server.get("/v1/files").expect(200)["data"], json!([]));
    assert_eq!(server.job(&command)["status"], json!("succeeded"));
}

/// A server that is killed after it has asked a job to wait: the next one knows why the job ended.
#[test]
fn a_job_that_was_asked_to_wait_says_so_after_a_restart() {
    let data = scratch("serve-asked");
    let server = Server::start(&data, &["--quota", "3MB", "--allow-commands"]);
    let script = "import signal, time
def leave(*_):
    time.sleep(4)
    raise SystemExit(1)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
open('large', 'wb').write(bytes(5_000_000))
time.sleep(600)";
    let id = id_of(&server.post("/api/jobs", &json!({"command": ["python3", "-c", script]})).expect(200));
    let events = |server: &Server| server.get(&format!("/v1/fine_tuning/jobs/{id}/events?limit=100")).text();
    let deadline = Instant::now() + PATIENCE;
    while !events(&server).contains("The job saves and waits") {
        assert!(Instant::now() < deadline, "{}", events(&server));
        std::thread::sleep(Duration::from_millis(50));
    }
    // With room for it: nothing but what was noted tells why the job was asked.
    drop(server);
    let server = Server::start(&data, &["--quota", "1GB", "--allow-commands"]);
    while !events(&server).contains("The job waits and will start then") {
        assert!(!events(&server).contains("stopped from outside"), "{}", events(&server));
        assert!(Instant::now() < deadline, "{}", events(&server));
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..2 {
        server.post(&format!("/v1/fine_tuning/jobs/{id}/cancel"), &json!({}));
    }
    server.end_of_any(&id);
}

/// What a command puts into its folder: pipes in the place of every file that the server reads.
#[test]
fn pipes_in_a_job_s_folder_hang_nothing() {
    let data = scratch("serve-pipes");
    let server = Server::start(&data, &["--allow-commands", "--slots", "2"]);
    let script = "for name in pipe log.jsonl trace.jsonl .guard/output.log .guard/state.json ../findings.json ../outcome.json ../job.log; do
rm -f $name; mkfifo $name; done; echo made; kill -9 $PPID; sleep 20";
    let id = id_of(&server.post("/api/jobs", &json!({"command": ["sh", "-c", script]})).expect(200));
    let deadline = Instant::now() + PATIENCE;
    while !data.join("jobs").join(&id).join("job.log").metadata().is_ok_and(|found| !found.is_file()) {
        assert!(Instant::now() < deadline, "no pipes were made");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The queue has looked at it, and others go on.
    let other = id_of(&server.post("/api/jobs", &json!({"command": ["sleep", "1"]})).expect(200));
    assert_eq!(server.end_of(&other)["status"], json!("succeeded"));
    for what in ["log", "trace", "diagnosis", "plan", "report.html"] {
        let refused = server.get(&format!("/api/jobs/{id}/{what}")).expect(400);
        assert_eq!(refused["error"]["code"], json!("wrong_state"), "{what}: {refused}");
    }
    let archive = data.with_extension("tar");
    let words = ["serve", "backup", archive.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    assert!(crate::common::model_garden(&words).output().unwrap().status.success());
    for _ in 0..2 {
        server.post(&format!("/v1/fine_tuning/jobs/{id}/cancel"), &json!({}));
    }
    server.end_of_any(&id);
    // Whoever follows it has its events, and the end of it.
    let followed = server.get(&format!("/api/jobs/{id}/live")).text();
    assert!(followed.contains("event: event") && followed.trim_end().ends_with("event: end\ndata: {}"), "{followed}");
    server.delete(&format!("/api/jobs/{id}")).expect(200);
    server.get("/health").expect(200);
}

/// The same in the places of results and of clients' files, which another command can reach: they are not there, and nobody waits for them. There are more requests
/// than threads that could wait.
#[test]
fn pipes_in_the_places_of_results_are_not_there() {
    let server = Server::start(&scratch("serve-pipes-results"), &[]);
    let file = server.upload(&rows(4));
    let job = server.end_of(&server.submit(&order(&file, 1)));
    let [id, model, table] =
        [&job["id"], &job["fine_tuned_model"], &job["result_files"][0]].map(|text| text.as_str().unwrap());
    let out = server.data.join("jobs").join(id).join("out");
    let files = fs::read_dir(server.data.join("files")).unwrap().flatten().map(|entry| entry.path());
    let results = ["adapter_model.safetensors", "README.md", garden_run::REPORT, garden_run::TRACE];
    for path in files.chain(results.map(|name| out.join(name))).chain([out.join("../job.log")]) {
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    }
    let asked = [
        (format!("/v1/files/{file}/content"), 404, "not_found"),
        (format!("/v1/files/{table}/content"), 404, "not_found"),
        (format!("/api/models/{model}/files/adapter_model.safetensors"), 404, "not_found"),
        (format!("/api/models/{model}/files/README.md"), 404, "not_found"),
        (format!("/api/jobs/{id}/log"), 400, "wrong_state"),
        (format!("/api/jobs/{id}/trace"), 400, "wrong_state"),
        (format!("/api/jobs/{id}/diagnosis"), 400, "wrong_state"),
        (format!("/api/jobs/{id}/report.html"), 400, "wrong_state"),
    ];
    let began = Instant::now();
    std::thread::scope(|all| {
        for (path, status, code) in std::iter::repeat_n(&asked, 20).flatten() {
            let server = &server;
            all.spawn(move || {
                let refused = server.get(path).expect(*status);
                assert_eq!(refused["error"]["code"], json!(code), "{path}: {refused}");
            });
        }
    });
    let archive = server.get(&format!("/api/models/{model}/archive"));
    let names = String::from_utf8_lossy(&archive.body).into_owned();
    assert!(archive.status == 200 && names.contains("adapter_config.json") && !names.contains("adapter_model"));
    server.get("/health").expect(200);
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
}

/// Stops one thread of a process for as long as the answer lives; nothing where that is not allowed.
fn stop_thread(pid: u32, name: &str) -> Option<Killed> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let is_named =
        |thread: &fs::DirEntry| fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
    let thread = { threads }.find(is_named).unwrap().file_name().into_string().unwrap();
    // PTRACE_SEIZE, PTRACE_INTERRUPT and __WALL. The thread goes on when its tracer ends.
    let script = "import ctypes, os, sys, time
call = ctypes.CDLL(None).ptrace
call.argtypes = [ctypes.c_long] * 4
thread = int(sys.argv[1])
if call(0x4206, thread, 0, 0) or call(0x4207, thread, 0, 0):
    sys.exit(1)
os.waitpid(thread, 0x40000000)
print('held', flush=True)
time.sleep(600)";
    let mut command = Command::new("python3");
    let child = command.args(["-c", script, &thread]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Killed(child.ok()?);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take()?).read_line(&mut line).ok()?;
    (line.trim() == "held").then_some(child)
}

/// A queue that has not ended a round for a minute; here, for three seconds.
#[test]
fn health_tells_of_a_queue_that_stands_still() {
    let server = Server::start(&scratch("serve-queue-hangs"), &["--patience", "1s"]);
    let queue = || {
        let health = server.get("/health");
        let parts = health.json();
        assert_eq!((&parts["database"], &parts["disk"]), (&json!("ok"), &json!("ok")), "{parts}");
        assert_eq!(health.status, if parts["queue"] == "ok" { 200 } else { 503 }, "{parts}");
        parts["queue"].as_str().unwrap().to_string()
    };
    assert_eq!(queue(), "ok");
    let Some(held) = stop_thread(server.process.0.id(), "queue") else {
        return garden_testing::skip("a thread of another process cannot be stopped here (ptrace)");
    };
    let deadline = Instant::now() + PATIENCE;
    let until = |state: &str| {
        while queue() != state {
            assert!(Instant::now() < deadline, "the queue never is `{state}`");
            std::thread::sleep(Duration::from_millis(250));
        }
    };
    until("hangs");
    drop(held);
    until("ok");
}

/// A disk of its own, where this machine lets us mount one.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn new(name: &str, megabytes: u32) -> Option<SmallDisk> {
        let place = scratch(name);
        fs::create_dir_all(&place).unwrap();
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&place)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk(place))
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        use std::io::Write as _;
        let mut ballast = fs::File::create(self.0.join("ballast")).unwrap();
        let block = vec![1_u8; 1 << 16];
        while ballast.write_all(&block).is_ok() {}
        while ballast.write_all(&[1]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    let Some(disk) = SmallDisk::new("serve-full", 96) else {
        return garden_testing::skip("a disk of its own cannot be mounted here");
    };
    let server = Server::start(&disk.0.join("data"), &["--patience", "2s"]);
    let (file, other) = (server.upload(&rows(20)), server.upload(&rows(1)));
    let whole = server.submit(&order(&file, 30));
    server.end_of(&whole);
    let expected = adapter(&server, &whole);
    // What could not be written to its end does not begin, and why is said in numbers.
    let mut large = order(&file, 600);
    large["model_garden"]["recipe"]["save_steps"] = json!(1);
    large["model_garden"]["recipe"]["save_total_limit"] = json!(1000);
    let large = server.submit(&large);
    let held = server.wait(&large, |job| job["model_garden"]["waits_for"] == "disk");
    assert_eq!(held["model_garden"]["started_at"], Value::Null);
    let events = server.get(&format!("/v1/fine_tuning/jobs/{large}/events")).text();
    assert!(
        events.contains("for its checkpoints and its result") && events.contains("MiB are left for it"),
        "{events}"
    );
    let id = server.submit(&order(&file, 30));
    server.wait(&id, |job| job["model_garden"]["step"].as_u64().is_some_and(|step| step > 6));
    let metric = |name: &str| -> f64 {
        let text = server.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).parse().unwrap()
    };
    let [free, failed] = ["model_garden_disk_free_bytes", "model_garden_responses_total{class=\"5xx\"}"];
    let before = [metric(free), metric(failed)];
    disk.fill();
    let full = server.get("/health");
    assert_eq!((full.status, full.json()["disk"].clone()), (503, json!("full")));
    assert_eq!(full.json()["database"], json!("ok"));
    assert!(metric(free) < 1e6 && before[0] > metric(free) && metric(failed) == before[1] + 1.0, "{before:?}");
    // What makes room can be done with nothing left, again and again.
    server.delete(&format!("/v1/files/{other}")).expect(200);
    let held =
        server.wait(&id, |job| job["model_garden"]["waits_for"] == "disk" || job["model_garden"]["status"] == "queued");
    assert_eq!(held["error"], Value::Null);
    std::thread::sleep(Duration::from_secs(3));
    assert!(server.job(&id)["finished_at"].is_null(), "it is not over");
    disk.empty();
    assert_eq!(server.end_of(&id)["status"], json!("succeeded"), "{:#}", server.job(&id));
    assert_eq!(adapter(&server, &id), expected, "the result is that of a job that nothing happened to");
    server.get("/health").expect(200);
}

/// A server that is started while the disk has no byte left, and with deletions to go on with.
#[test]
fn a_server_starts_with_nothing_left_on_the_disk() {
    let Some(disk) = SmallDisk::new("serve-full-start", 32) else {
        return garden_testing::skip("a disk of its own cannot be mounted here");
    };
    let data = disk.0.join("data");
    let server = Server::start(&data, &[]);
    let (gone, file, other) = (server.upload("{}\n"), server.upload("{}\n"), server.upload("{}\n"));
    drop(server);
    fs::rename(data.join(format!("files/{gone}.jsonl")), data.join("incoming").join(&gone)).unwrap();
    // What SQLite begins anew when the first process opens the database: others may take its space in that moment.
    fs::remove_file(data.join("garden.db-shm")).unwrap();
    disk.fill();
    let server = Server::start(&data, &[]);
    assert_eq!(server.get("/health").expect(503)["disk"], json!("full"));
    assert_eq!(server.get(&format!("/v1/files/{file}/content")).text(), "{}\n");
    assert_eq!(server.get(&format!("/v1/files/{gone}")).status, 404);
    server.delete(&format!("/v1/files/{other}")).expect(200);
}

/// More downloads that nobody reads than there may be connections, and others that say nothing, beside a client of another address that wants something. The server has
/// descriptors for fewer of them than come, so without a bound it could accept nobody. `make serve-hostile` has thousands of them.
#[test]
fn silent_clients_lock_nobody_out() {
    let server = Server::start_with_descriptors(&scratch("serve-silent"), 512);
    let mut large = rows(1);
    large.push_str(&" ".repeat(8 << 20));
    let file = server.upload(&large);
    let script = r#"
import resource, socket, sys, time
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
host, port = sys.argv[1].split(":")
def connect():
    for _ in range(50):
        try:
            one = socket.create_connection((host, int(port)), timeout=20)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            return one
        except OSError:
            time.sleep(0.05)
kept = []
for number in range(400):
    kept.append(connect())
    try:
        kept[-1].sendall(b"GET /v1/files/%s/content HTTP/1.1\r\nHost: localhost\r\n\r\n" % sys.argv[2].encode())
    except OSError:
        pass
for number in range(400):
    kept.append(connect())
print(len(kept), flush=True)
time.sleep(600)
"#;
    let command = Command::new("python3").args(["-c", script, &server.address, &file]).stdout(Stdio::piped()).spawn();
    let mut crowd = Killed(command.unwrap());
    let mut line = String::new();
    BufReader::new(crowd.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "800");
    let ordinary = r#"
import http.client, json, re, sys, time
most = 0
for _ in range(20):
    began = time.monotonic()
    for method, path, expected in [("GET", "/v1/models", 200), ("POST", "/v1/fine_tuning/jobs", 400), ("GET", "/metrics", 200)]:
        client = http.client.HTTPConnection(sys.argv[1], timeout=20, source_address=("127.0.0.2", 0))
        client.request(method, path, json.dumps({"model": "nothing"}) if method == "POST" else None)
        answer = client.getresponse()
        text = answer.read().decode()
        assert answer.status == expected, (path, answer.status, text)
        client.close()
    most = max(most, int(re.search(r"^model_garden_connections (\d+)", text, re.M)[1]))
    assert time.monotonic() - began < 20, time.monotonic() - began
print(most)
"#;
    let ended = Command::new("python3").args(["-c", ordinary, &server.address]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let most: u32 = String::from_utf8_lossy(&ended.stdout).trim().parse().unwrap();
    assert!((64..=192).contains(&most), "{most} connections: the crowd is there, and is bounded");
    assert!(server.resident() < 100.0, "{} MiB", server.resident());
}

fn signal(name: &str, pid: u64) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn supervisor(server: &Server, id: &str) -> u64 {
    let text = fs::read_to_string(server.data.join("jobs").join(id).join("supervisor/pid")).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn what_hangs_is_cancelled_all_the_same() {
    let server = Server::start(&scratch("serve-hangs"), &["--allow-commands", "--slots", "3"]);
    let file = server.upload(&rows(20));
    let cancel = |id: &str| server.post(&format!("/v1/fine_tuning/jobs/{id}/cancel"), &json!({})).expect(200);
    let midst = |job: &Value| job["model_garden"]["step"].as_u64().is_some_and(|step| step > 3);
    // The trainer was stopped: the second cancel does not wait for it.
    let trainer = server.submit(&order(&file, 1000));
    server.wait(&trainer, midst);
    let pid = crate::common::trainer_of(u32::try_from(supervisor(&server, &trainer)).unwrap()).unwrap();
    signal("-STOP", pid.into());
    cancel(&trainer);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(server.job(&trainer)["status"], json!("running"), "it is given time to save");
    let began = Instant::now();
    cancel(&trainer);
    assert_eq!(server.end_of(&trainer)["status"], json!("cancelled"));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(!super::queue::is_running(pid.into()), "the trainer is gone");
    // Its supervisor was: it goes on to hear it.
    let supervised = server.submit(&order(&file, 1000));
    server.wait(&supervised, midst);
    signal("-STOP", supervisor(&server, &supervised));
    cancel(&supervised);
    assert_eq!(server.end_of(&supervised)["status"], json!("cancelled"));
    // A program that does not care.
    let script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('Step 1', flush=True)\ntime.sleep(600)";
    let deaf = id_of(&server.post("/api/jobs", &json!({"command": ["python3", "-c", script]})).expect(200));
    server.wait(&deaf, |job| job["model_garden"]["memory_bytes"].is_number());
    cancel(&deaf);
    cancel(&deaf);
    assert_eq!(server.end_of(&deaf)["status"], json!("cancelled"));
}

/// As many looks that stand still as a client may have: the oldest makes way.
#[test]
fn slow_validations_do_not_keep_others_waiting() {
    let server = Server::start(&scratch("serve-slow-looks"), &["--patience", "1s"]);
    let (file, large) = (server.upload(&rows(4)), server.upload(&rows(4000)));
    let (mut slow, mut requests) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let known = || -> Vec<String> {
            let listed = server.get("/v1/fine_tuning/jobs").expect(200);
            listed["data"].as_array().unwrap().iter().map(id_of).collect()
        };
        let before = known();
        let (address, body) = (server.address.clone(), order(&large, 1).to_string());
        // The request is answered when the look is done, or after ten seconds.
        let request = std::thread::spawn(move || {
            let head = format!(
                "POST /v1/fine_tuning/jobs HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            std::io::Write::write_all(&mut stream, [head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
            drop(std::io::Read::read_to_string(&mut stream, &mut String::new()));
        });
        let deadline = Instant::now() + PATIENCE;
        let id = loop {
            let new = known().into_iter().find(|id| !before.contains(id));
            let pid = new.as_ref().and_then(|id| {
                let text = fs::read_to_string(server.data.join("jobs").join(id).join("supervisor/pid")).ok()?;
                text.trim().parse::<u64>().ok()
            });
            if let (Some(id), Some(pid)) = (new, pid) {
                signal("-STOP", pid);
                break id;
            }
            assert!(Instant::now() < deadline, "no look began");
        };
        requests.push(request);
        slow.push(id);
    }
    let quick = server.submit(&order(&file, 1));
    assert_eq!(server.end_of(&quick)["status"], json!("succeeded"));
    requests.into_iter().for_each(|request| request.join().unwrap());
    let events = server.get(&format!("/v1/fine_tuning/jobs/{}/events", slow[0])).text();
    assert!(events.contains("was stopped and begins again later"), "the oldest has made way: {events}");
    for id in &slow[1..] {
        assert_eq!(server.job(id)["status"], json!("validating_files"), "it has not had its time, or was begun again");
    }
    for id in slow {
        let cancel = || server.post(&format!("/v1/fine_tuning/jobs/{id}/cancel"), &json!({})).expect(200);
        cancel();
        cancel();
        assert_eq!(server.end_of(&id)["status"], json!("cancelled"));
    }
}
