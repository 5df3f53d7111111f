//! A real browser (Chromium without a window), driven by its DevTools protocol over two pipes.

use crate::support::process::Process;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
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
