//! The members of JSON of which leaderctl(1) and leaderrun-formats(5) tell.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("../../man/leaderctl.1");
const FORMATS: &str = include_str!("../../man/leaderrun-formats.5");

/// What a table says of a member: its types, and the members of an object.
#[derive(Default)]
struct Member {
    types: Vec<String>,
    inner: BTreeSet<String>,
}

/// The rows of the table in a section: `.It Va NAME Ta TYPE or TYPE Ta MEANING`, and after an object `.Va NAME` for each
/// member.
fn table(section: &str) -> BTreeMap<String, Member> {
    let (_, text) = FORMATS.split_once(&format!("\n.Sh {section}\n")).expect("there is such a section");
    let (_, text) = text.split_once("\n.Bl -column").expect("it has a table");
    let (text, _) = text.split_once("\n.El").expect("the table ends");
    let mut members: BTreeMap<String, Member> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(row) = line.strip_prefix(".It Va ") {
            let mut cells = row.split(" Ta ");
            last = String::from(cells.next().expect("a name"));
            let types = cells.next().expect("types").split(" or ").map(str::to_owned).collect();
            members.insert(last.clone(), Member { types, ..Member::default() });
        } else if let Some(name) = name(line) {
            members.get_mut(&last).expect("a member").inner.insert(name.to_owned());
        }
    }
    members
}

/// What the verb's `--json` says: `.Va NAME` for each member.
fn said_of(verb: &str) -> BTreeSet<&'static str> {
    let (_, text) = PAGE.split_once(&format!("\n.Ss {verb}\n")).expect("there is such a verb");
    let (_, text) = text.split_once("\n.It Fl -json\nPrint one JSON object").expect("it prints JSON");
    let (text, _) = text.split_once("\n.El").expect("the list ends");
    let names: BTreeSet<&str> = text.lines().filter_map(name).collect();
    assert!(names.len() > 3, "{names:?}");
    names
}

fn name(line: &str) -> Option<&str> {
    line.strip_prefix(".Va ")?.split(' ').next()
}

/// Each of these objects, a line each, has the members that the manual tells of `verb`, and no others.
pub fn assert_tells_of(verb: &str, objects: &str) {
    for object in objects.lines() {
        let object: Map<String, Value> = serde_json::from_str(object).expect("an object");
        let names: BTreeSet<&str> = object.keys().map(String::as_str).collect();
        let section = match verb {
            "verify" | "why" | "history" => {
                assert_eq!(names, said_of(verb), "{verb}");
                continue;
            }
            "jobs" => "JOB AS JSON",
            "selftest" => "SELFTEST AS JSON",
            _ => "STATUS AS JSON",
        };
        let members = table(section);
        assert_eq!(names, members.keys().map(String::as_str).collect(), "{verb}");
        for (name, value) in &object {
            let kind = match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(inner) => {
                    assert!(inner.keys().eq(&members[name].inner), "{verb}: {name}: {inner:?}");
                    "object"
                }
            };
            assert!(members[name].types.iter().any(|allowed| allowed == kind), "{verb}: {name} is {kind}");
        }
    }
}
