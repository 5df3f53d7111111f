//! What programs say, and how they end.

use serde_json::Value;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

/// Of a program that has ended.
#[derive(Clone, Debug)]
pub struct Said {
    /// As a shell has it: more than 128 where a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub trait Runs {
    fn said(&mut self) -> Said;
}

impl Runs for Command {
    #[track_caller]
    fn said(&mut self) -> Said {
        let output = self.output().unwrap_or_else(|error| panic!("{self:?} does not start: {error}"));
        println!("{self:?}");
        output.into()
    }
}

impl From<Output> for Said {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).expect("it has ended");
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("it says text"));
        Self { code, out, err }
    }
}

impl Said {
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// It succeeded. What it printed.
    #[track_caller]
    pub fn good(self) -> String {
        self.ended(0).out
    }

    /// Has these parts, which are separated by …, among all that it said.
    #[track_caller]
    pub fn tells(self, parts: &str) -> Self {
        assert!(has_all(&self.all(), parts), "{self:?} lacks something of {parts}");
        self
    }

    /// It ended so, with one line on standard error that has these parts, and nothing else.
    #[track_caller]
    pub fn refused(self, code: i32, parts: &str) -> Self {
        let said = self.ended(code).tells(parts);
        // A server that takes its time is told of first.
        let lines = said.err.lines().filter(|line| !line.contains(" has not answered yet")).count();
        assert!(said.out.is_empty() && lines == 1, "{said:?} is not one line");
        said
    }

    pub fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// JSON, an object a line.
#[track_caller]
pub fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {lines}"))).collect()
}

/// No part is in it that a test uses for a password.
pub fn has_all(text: &str, parts: &str) -> bool {
    parts.split(" … ").all(|part| text.contains(part)) && !text.contains("hunter")
}
