//! The policies of examples/infrastructure/s3.yaml: they allow what they are for, and no more.

use super::*;
use crate::support::bucket::{ENVIRONMENT, url};
use crate::support::denied::{self, User};
use crate::support::fleet::leaderrun;
use crate::support::wire::{Fate, Proxy, Response};
use yaml_rust2::{Yaml, YamlLoader};

/// What the policy of this name allows.
fn actions(policy: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/infrastructure/s3.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let template = YamlLoader::load_from_str(&text).unwrap().remove(0);
    let statements = template["Resources"][policy]["Properties"]["PolicyDocument"]["Statement"].clone();
    let named = statements.into_iter().flat_map(|statement| statement["Action"].clone().into_iter());
    named.filter_map(Yaml::into_string).collect()
}

/// What S3 calls a request.
fn action(line: &str) -> &'static str {
    let (method, path) = line.split_once(' ').expect("a request");
    match method {
        "GET" if path.contains("list-type=2") => "s3:ListBucket",
        "GET" if path.contains("?versioning") || path.contains("?lifecycle") => "s3:GetBucket",
        "GET" => "s3:GetObject",
        "PUT" => "s3:PutObject",
        _ => "s3:DeleteObject",
    }
}

fn limited(server: &Server, policy: &str) -> Proxy {
    let (allowed, proxy) = (actions(policy), Proxy::before(server));
    assert!(allowed.len() > 1, "{allowed:?}");
    proxy.rule(move |request| {
        let asked = action(&request.line);
        if allowed.iter().any(|action| action == asked) {
            return Fate::Pass;
        }
        let body = format!("<Error><Code>AccessDenied</Code><Message>not allowed: {asked}</Message></Error>");
        Fate::Answer(Response { status: 403, headers: Vec::new(), body })
    });
    proxy
}

#[test]
fn a_candidate_leads_and_a_reader_looks_with_the_policies_of_the_example() {
    let server = old_server();
    let (candidate, reader) = (limited(&server, "LeaderrunCandidate"), limited(&server, "LeaderrunReader"));
    let urls = [server.endpoint(), candidate.endpoint(), reader.endpoint()].map(|endpoint| url(&endpoint));
    let [owner, candidate, reader] = [0, 1, 2].map(|at| User { url: &urls[at], environment: ENVIRONMENT });
    let mut command = leaderrun();
    command.args(["--store", candidate.url, "-q", "job", "true"]).envs(ENVIRONMENT.iter().copied());
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    denied::assert_may_only_look(owner, reader, "s3:");
}
