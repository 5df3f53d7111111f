//! A real browser (Chromium without a window), driven by its DevTools protocol over two pipes.

use crate::support::process::Process;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

pub struct Browser {
    _child: Process,
    pipe: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    /// The page, to which commands go.
    session: String,
    number: RefCell<u64>,
    /// What a person would see in the console as an error.
    errors: RefCell<Vec<String>>,
    _profile: TempDir,
}

impl Browser {
    pub fn open(address: &str) -> Self {
        let profile = TempDir::new().unwrap();
        // The protocol is on descriptors 3 and 4.
        let script = "exec chromium --headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions \
                      --disable-background-networking --disable-dev-shm-usage --remote-debugging-pipe \
                      --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>\"$0/log\"";
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).arg(profile.path()).env("TMPDIR", profile.path());
        let mut child = Process::start(sh.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let pipe = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Self {
            _child: child,
            pipe: RefCell::new(pipe),
            session: String::new(),
            number: RefCell::new(0),
            errors: RefCell::default(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", &attach);
        browser.session = String::from(attached["sessionId"].as_str().unwrap());
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.ask(&format!("{domain}.enable"), &json!({}));
        }
        browser.go(address);
        browser
    }

    pub fn go(&self, address: &str) {
        let answer = self.ask("Page.navigate", &json!({"url": address}));
        assert!(answer.get("errorText").is_none(), "{address}: {answer}");
        while self.evaluate("document.readyState") != "complete" {}
    }

    /// The value of an expression in the page.
    pub fn evaluate(&self, expression: &str) -> Value {
        let wish = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", &wish);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub fn text(&self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// The width and the colours of the window.
    pub fn window(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        let media = json!({"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", &media);
    }

    /// A page of this size, as it is printed.
    pub fn paper(&self, width: u32, height: u32) {
        self.window(width, height, "light");
        self.ask("Emulation.setEmulatedMedia", &json!({"media": "print"}));
    }

    pub fn press(&self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" && key.len() == 1 { key } else { "" };
            self.ask("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "text": text}));
        }
    }

    /// A picture in target/screenshots, for people.
    pub fn picture(&self, name: &str) -> PathBuf {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../screenshots");
        fs::create_dir_all(&directory).unwrap();
        let shot = self.ask("Page.captureScreenshot", &json!({"format": "png"}));
        let path = directory.join(format!("{name}.png"));
        fs::write(&path, base64(shot["data"].as_str().unwrap())).unwrap();
        path
    }

    pub fn errors(&self) -> Vec<String> {
        // What was printed before this question has arrived with the answer.
        self.evaluate("1");
        self.errors.borrow().clone()
    }

    fn ask(&self, method: &str, parameters: &Value) -> Value {
        let number = {
            let mut number = self.number.borrow_mut();
            *number += 1;
            *number
        };
        let mut message = json!({"id": number, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let (input, output) = &mut *self.pipe.borrow_mut();
        input.write_all(format!("{message}\0").as_bytes()).expect("the browser runs");
        loop {
            let mut text = Vec::new();
            output.read_until(0, &mut text).expect("the browser answers");
            let text = text.strip_suffix(b"\0").expect("the browser runs");
            let answer: Value = serde_json::from_slice(text).expect("it speaks JSON");
            if answer["id"] == number {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&self, event: &Value) {
        let parameters = &event["params"];
        let is_error = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => parameters["type"] == "error" || parameters["type"] == "warning",
            Some("Log.entryAdded") => parameters["entry"]["level"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.borrow_mut().push(parameters.to_string());
        }
    }
}

/// By openssl(1), which `tests/run` installs.
fn base64(text: &str) -> Vec<u8> {
    let mut openssl = Command::new("openssl");
    openssl.args(["base64", "-d", "-A"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut openssl = openssl.spawn().expect("openssl starts");
    let mut input = openssl.stdin.take().unwrap();
    // It reads in step with what it writes, and nobody reads that yet.
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = openssl.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}
