//! Metrics and JSON.

use crate::runs::assert_is_good_to_promtool;
use crate::server::Serve;
use crate::support::prelude::*;
use std::collections::BTreeSet;
use yaml_rust2::{Yaml, YamlLoader};

const OPENAPI: &str = include_str!("../../src/cli/leaderctl/serve/openapi.yaml");

fn run(place: &Place, words: &[&str], command: &[&str]) -> Option<i32> {
    leaderrun().args(["--store", &place.url]).args(words).args(command).stderr(Stdio::null()).status().unwrap().code()
}

#[test]
fn jobs_that_lived_for_a_moment_show_with_their_last_status_and_their_last_success() {
    let place = Place::local();
    let serve = Serve::start(&place, &["--interval", "200ms"]);
    assert_eq!(run(&place, &["--every", "1h", "nightly"], &["true"]), Some(0));
    assert_eq!(run(&place, &["--once", "schema-7", "migrate"], &["sh", "-c", "exit 3"]), Some(3));
    let of = |name: &str, shard: &str, once: &str| {
        serve.metric(&format!("leaderrun_job_{name}{{shard=\"{shard}\",once=\"{once}\"}}"))
    };
    serve.wait_for("both jobs show", || {
        of("last_status", "nightly", "") == Some(0.0) && of("last_status", "migrate", "schema-7") == Some(3.0)
    });
    assert!(of("last_success_timestamp_seconds", "nightly", "") > Some(1.7e9));
    assert_eq!(of("last_success_timestamp_seconds", "migrate", "schema-7"), None);
    assert_eq!(of("period_seconds", "nightly", ""), Some(3600.0));
    assert!(of("last_duration_seconds", "nightly", "").is_some());
    serve.wait_for("neither is led any more", || {
        // A job's outcome is noted before its lease is released.
        serve.shard("nightly")["condition"] == "idle" && serve.shard("migrate")["condition"] == "failed"
    });
    assert_is_good_to_promtool(&serve.get("/metrics"));
}

#[test]
fn it_only_reads_and_hears_no_foreign_host() {
    let place = Place::local();
    let serve = Serve::start(&place, &[]);
    for method in ["POST", "DELETE"] {
        let answer = serve.send(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("\r\nallow: get, head"), "{answer:?}");
    }
    for host in ["evil.example:9101", "127.0.0.1.evil.example", ""] {
        for path in ["/", "/metrics", "/api/shards"] {
            let answer = serve.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
            assert_eq!(answer.status, 421, "{host}{path}: {answer:?}");
        }
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9101"] {
        assert_eq!(serve.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap().status, 200, "{host}");
    }
    let answer = serve.try_get("/").unwrap();
    assert!(answer.head.contains("content-security-policy: default-src 'none';"), "{answer:?}");
    assert_eq!(serve.try_get("/shards/none").unwrap().status, 404);
    assert_eq!(serve.try_get("/api/shards/%ff/history").unwrap().status, 404);
    // Other machines do not reach it: it listens on the loopback address alone.
    let listening = std::fs::read_to_string("/proc/net/tcp").unwrap();
    assert!(listening.contains(&format!(" 0100007F:{:04X} ", serve.port)), "{listening}");
}

/// The schema that a reference or an inline one means.
fn resolve<'a>(document: &'a Yaml, schema: &'a Yaml) -> &'a Yaml {
    match schema["$ref"].as_str() {
        Some(reference) => reference.trim_start_matches("#/").split('/').fold(document, |at, key| &at[key]),
        None => schema,
    }
}

/// Breaches of the description by a value.
fn breaches(document: &Yaml, schema: &Yaml, value: &Value, place: &str, found: &mut Vec<String>) {
    let schema = resolve(document, schema);
    assert!(!schema.is_badvalue(), "{place} is described by nothing");
    let kinds: Vec<&str> = match &schema["type"] {
        Yaml::String(kind) => vec![kind],
        Yaml::Array(kinds) => kinds.iter().filter_map(Yaml::as_str).collect(),
        other => panic!("{place} has no type: {other:?}"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() || !kinds.contains(&"integer") => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.contains(&kind) {
        found.push(format!("{place} is {kind}, not {kinds:?}"));
    }
    if let Some(all) = value.as_array() {
        for one in all {
            breaches(document, &schema["items"], one, &format!("{place}[]"), found);
        }
    }
    let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_hash()) else { return };
    let described: BTreeSet<&str> = properties.keys().filter_map(Yaml::as_str).collect();
    for name in schema["required"].as_vec().into_iter().flatten().filter_map(Yaml::as_str) {
        if !object.contains_key(name) {
            found.push(format!("{place}.{name} is missing"));
        }
        assert!(described.contains(name), "{place}.{name} is required and not described");
    }
    for (name, value) in object {
        if described.contains(name.as_str()) {
            breaches(document, &schema["properties"][name.as_str()], value, &format!("{place}.{name}"), found);
        } else {
            found.push(format!("{place}.{name} is not described"));
        }
    }
}

#[test]
fn each_answer_is_as_the_openapi_file_describes_it() {
    let document = &YamlLoader::load_from_str(OPENAPI).unwrap()[0];
    let mut place = Place::local();
    place.launch_with("one", &[], &[]);
    assert_eq!(run(&place, &["--every", "1h", "nightly"], &["true"]), Some(0));
    assert_eq!(run(&place, &["idle"], &["true"]), Some(0));
    place.order(&["pause", "idle", "--for", "1h"]);
    let serve = Serve::start(&place, &["--interval", "200ms"]);
    serve.wait_for("all is read", || {
        serve.shard("shard")["held"] == true
            && serve.shard("idle")["paused"] == true
            && serve.shard("nightly")["last_run"].is_object()
            && !serve.json("/api/shards/nightly/history")["history"].as_array().unwrap().is_empty()
    });
    let mut compared = 0;
    for (path, item) in document["paths"].as_hash().unwrap() {
        let (path, get) = (path.as_str().unwrap(), &item["get"]);
        let answer = serve.try_get(&path.replace("{name}", "nightly")).unwrap();
        let described = &get["responses"][answer.status.to_string().as_str()];
        let (kind, content) = described["content"].as_hash().unwrap().front().unwrap();
        let kind = format!("\r\ncontent-type: {}", kind.as_str().unwrap());
        assert!(answer.head.contains(&kind), "{path}: {answer:?}");
        if kind.ends_with("json") {
            let value: Value = serde_json::from_str(&answer.body).unwrap();
            let mut found = Vec::new();
            breaches(document, &content["schema"], &value, path, &mut found);
            assert!(found.is_empty(), "{path}: {found:#?}\n{value:#}");
            compared += 1;
        }
    }
    assert_eq!(compared, 3);
    assert_eq!(serve.get("/api/openapi.yaml"), OPENAPI);
    let told = serve.try_get("/nothing").unwrap().body;
    for path in document["paths"].as_hash().unwrap().keys() {
        let path = path.as_str().unwrap().replace("{name}", "NAME");
        assert!(told.contains(&path), "{path} is not named in: {told}");
    }
    // It has the name of our directory among its words, as what is left of a tree has.
    drop(serve);
    place.fleet.conclude();
}
