//! A client that sends exactly what it is told, and a real server to send it to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Killed, model_garden, repository};

/// How long anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON of an answer that has to be this status.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

/// A server that ends with its test.
pub struct Server {
    pub process: Killed,
    pub address: String,
    pub data: PathBuf,
    words: Vec<String>,
}

impl Server {
    /// Starts one on a free port, with the tiny model.
    pub fn start(data: &Path, more: &[&str]) -> Server {
        Server::start_with(data, more, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(data: &Path, more: &[&str], environment: &[(&str, &str)]) -> Server {
        let mut words: Vec<String> = vec!["serve".into(), "--port".into(), "0".into(), "--device".into(), "cpu".into()];
        words.extend(["--data-dir".to_string(), data.display().to_string()]);
        words.extend(["--models".to_string(), repository("testdata/tiny-model").display().to_string()]);
        words.extend(more.iter().map(ToString::to_string));
        Server::run(words, data, environment)
    }

    /// Starts one with exactly these arguments.
    pub fn start_as(data: &Path, words: &[&str]) -> Server {
        let words = std::iter::once("serve").chain(words.iter().copied()).map(str::to_string).collect();
        Server::run(words, data, &[])
    }

    fn run(words: Vec<String>, data: &Path, environment: &[(&str, &str)]) -> Server {
        let command = model_garden(&words.iter().map(String::as_str).collect::<Vec<_>>());
        Server::begin(command, words, data, environment)
    }

    /// Starts one whose program is in another place.
    pub fn start_from(program: &Path, data: &Path) -> Server {
        let words = ["serve", "--port", "0", "--device", "cpu", "--data-dir", data.to_str().unwrap(), "--models"];
        let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
        words.push(repository("testdata/tiny-model").display().to_string());
        let mut command = Command::new(program);
        command.args(&words).stdin(Stdio::null());
        Server::begin(command, words, data, &[])
    }

    /// Starts one that may have so many file descriptors.
    pub fn start_with_descriptors(data: &Path, descriptors: u32) -> Server {
        let limit = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        let words = ["serve", "--port", "0", "--device", "cpu", "--data-dir", data.to_str().unwrap(), "--models"];
        let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
        words.push(repository("testdata/tiny-model").display().to_string());
        let mut command = Command::new("sh");
        command.args(["-c", &limit, env!("CARGO_BIN_EXE_model-garden")]).args(&words).stdin(Stdio::null());
        Server::begin(command, words, data, &[])
    }

    fn begin(mut command: Command, words: Vec<String>, data: &Path, environment: &[(&str, &str)]) -> Server {
        let mut child =
            command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap_or_else(|| panic!("the server said nothing")).unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{first}")).to_string();
        // Whoever does not read would stop whoever writes.
        std::thread::spawn(move || lines.for_each(drop));
        Server { process: Killed(child), address, data: data.to_path_buf(), words }
    }

    /// Kills it and starts it again.
    pub fn restart(self) -> Server {
        let (words, data) = (self.words.clone(), self.data.clone());
        drop(self);
        Server::run(words, &data, &[])
    }

    /// Sends bytes and reads the answer.
    pub fn send(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that refuses may close before it has read everything.
        drop(stream.write_all(request));
        let mut all = Vec::new();
        drop(stream.read_to_end(&mut all));
        let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("no answer: {all:?}"));
        let headers = String::from_utf8_lossy(&all[..at]).into_owned();
        let status = headers.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let mut body = all[at + 4..].to_vec();
        if headers.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            body = joined(&body);
        }
        Answer { status, headers, body }
    }

    /// A request with these headers, each with its line end.
    pub fn with_headers(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let host = if headers.to_ascii_lowercase().contains("host:") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.with_headers("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.with_headers("POST", path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.with_headers("DELETE", path, "", b"")
    }

    /// Sends a form: fields with their values, those with a file's name as files.
    pub fn form(&self, path: &str, fields: &[(&str, Option<&str>, &[u8])]) -> Answer {
        let mut body = Vec::new();
        for (name, file, value) in fields {
            let file = file.map_or_else(String::new, |file| {
                format!("; filename=\"{file}\"\r\nContent-Type: application/octet-stream")
            });
            body.extend_from_slice(
                format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").as_bytes(),
            );
            body.extend_from_slice(value);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--edge--\r\n");
        self.with_headers("POST", path, "Content-Type: multipart/form-data; boundary=edge\r\n", &body)
    }

    /// Sends rows; the file's name.
    pub fn upload(&self, rows: &str) -> String {
        let fields: [(&str, Option<&str>, &[u8]); 2] =
            [("purpose", None, b"fine-tune"), ("file", Some("rows.jsonl"), rows.as_bytes())];
        self.form("/v1/files", &fields).expect(200)["id"].as_str().unwrap().to_string()
    }

    /// Makes a job; its name.
    pub fn submit(&self, body: &Value) -> String {
        self.post("/v1/fine_tuning/jobs", body).expect(200)["id"].as_str().unwrap().to_string()
    }

    /// Its resident memory in MiB.
    pub fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/fine_tuning/jobs/{id}")).expect(200)
    }

    /// Waits until a job is as it should be.
    pub fn wait(&self, id: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if is_there(&job) {
                return job;
            }
            assert!(Instant::now() < deadline, "still {job:#}");
            let is_over = ["succeeded", "failed", "cancelled"].iter().any(|status| job["status"] == *status);
            assert!(!is_over, "it ended otherwise: {job:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a job is over, or gone.
    pub fn end_of_any(&self, id: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(&format!("/v1/fine_tuning/jobs/{id}"));
            if answer.status == 404 || !answer.json()["finished_at"].is_null() {
                return;
            }
            assert!(Instant::now() < deadline, "still {}", answer.text());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a job is over.
    pub fn end_of(&self, id: &str) -> Value {
        self.wait(id, |job| ["succeeded", "failed", "cancelled"].iter().any(|status| job["status"] == *status))
    }
}

/// A body that came in chunks.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(at) = body.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(String::from_utf8_lossy(&body[..at]).trim(), 16).unwrap_or(0);
        let end = (at + 2 + length).min(body.len());
        all.extend_from_slice(&body[at + 2..end]);
        body = &body[(end + 2).min(body.len())..];
        if length == 0 {
            break;
        }
    }
    all
}
