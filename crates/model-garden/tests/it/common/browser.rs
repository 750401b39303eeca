//! A headless Chromium, driven over two pipes: JSON messages that end with a zero byte, on descriptors 3 and 4.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up must fail")]
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scratch;

const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
/// What a browser of a test needs to start anywhere, and to keep quiet.
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe";
/// How long the browser may take for one answer; a busy machine takes a while to start it.
const PATIENCE: Duration = Duration::from_secs(90);

/// A browser with one page; it ends with the test.
pub struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    /// What the page told since it was opened last: console, exceptions, requests.
    pub events: Vec<Value>,
    count: u64,
}

impl Browser {
    /// Starts a browser; `None`, and a line that says so, if there is none.
    pub fn start(name: &str) -> Option<Browser> {
        let is_there = |name: &&&str| {
            let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            found.is_ok_and(|status| status.success())
        };
        let Some(program) = NAMES.iter().find(is_there) else {
            garden_testing::skip("no Chromium or Chrome is installed");
            return None;
        };
        let profile = scratch(&format!("browser-{name}"));
        // The shell puts our ends of its standard input and output where the browser looks for them.
        let script = format!(
            "exec {program} {FLAGS} --user-data-dir='{}' about:blank 3<&0 4>&1 >/dev/null 2>&1 </dev/null",
            profile.display()
        );
        let mut child =
            Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = listen(child.stdout.take().unwrap());
        let mut browser = Browser { child, orders, answers, session: None, events: Vec::new(), count: 0 };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let wanted = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", wanted)["sessionId"].as_str().map(str::to_string);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Gives an order and waits for its answer.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.count += 1;
        let mut order = json!({ "id": self.count, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).unwrap();
        loop {
            let message = self.answers.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == self.count {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a file at a width of the window, in `light` or `dark`, and waits until its charts are drawn.
    pub fn open(&mut self, file: &Path, width: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.events.clear();
        let address = format!("file://{}", file.canonicalize().unwrap().display());
        self.call("Page.navigate", json!({ "url": address }));
        let patience = Instant::now() + PATIENCE;
        while self.ask("document.readyState === 'complete' && location.protocol === 'file:'") != json!(true) {
            assert!(Instant::now() < patience, "{address} never opened");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of a JavaScript expression on the page.
    pub fn ask(&mut self, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", wanted);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text of an expression.
    pub fn text(&mut self, expression: &str) -> String {
        self.ask(expression).as_str().unwrap_or_else(|| panic!("{expression} is no text")).to_string()
    }

    /// A number that an expression has.
    pub fn number(&mut self, expression: &str) -> f64 {
        self.ask(expression).as_f64().unwrap_or_else(|| panic!("{expression} is no number"))
    }

    /// Moves, presses or releases the pointer at a place of the window.
    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let buttons = i32::from(kind != "mouseReleased");
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key.
    pub fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "code": key });
            if kind == "keyDown" && key.chars().count() == 1 {
                event["text"] = json!(key);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// What went wrong on the page since it was opened: messages of the console, exceptions, and requests besides its own.
    pub fn troubles(&mut self) -> Vec<String> {
        // An order and its answer pass after everything that happened before.
        self.ask("new Promise((done) => setTimeout(done, 50))");
        let told = |event: &Value| {
            let method = event["method"].as_str().unwrap_or_default();
            let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
            let is_own = event["params"]["type"] == "Document" || url.starts_with("data:") || url.starts_with("blob:");
            let is_bad = matches!(method, "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded")
                || (method == "Network.requestWillBeSent" && !is_own);
            is_bad.then(|| event.to_string())
        };
        self.events.iter().filter_map(told).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads messages in a thread of its own, so that a browser that hangs fails the test instead of stopping it.
fn listen(pipe: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            if sender.send(serde_json::from_slice(&message).unwrap_or(Value::Null)).is_err() {
                return;
            }
        }
    });
    receiver
}
