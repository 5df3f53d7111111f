//! Who is let in: the policies of examples/infrastructure/s3.yaml and s3.tf allow what they are for and no more, and
//! credentials are replaced.

use super::*;
use crate::support::denied::{self, User};
use crate::support::fleet::wait_until;
use crate::support::process::Process;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
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

#[test]
fn terraform_and_cloudformation_allow_the_same() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/infrastructure/s3.tf");
    let terraform = std::fs::read_to_string(path).unwrap();
    for (policy, name) in [("LeaderrunCandidate", "leaderrun_candidate"), ("LeaderrunReader", "leaderrun_reader")] {
        let (_, block) = terraform.split_once(&format!("\"{name}\" {{")).expect("a policy of that name");
        let (block, _) = block.split_once("\n}\n").expect("it ends");
        let named = block.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
        assert_eq!(named.collect::<Vec<_>>(), actions(policy), "{policy}");
        assert!(block.contains(".arn}/leaderrun/*\""), "{policy}");
    }
}

/// What S3 calls a request.
fn action(line: &str) -> &'static str {
    let (method, path) = line.split_once(' ').expect("a request");
    match method {
        "GET" if path.contains("list-type=2") => "s3:ListBucket",
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

#[test]
fn credentials_that_a_file_replaces_are_used_once_the_old_ones_are_refused() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("credentials");
    let write = |key: &str| {
        let new = file.with_extension("new");
        std::fs::write(&new, format!("[default]\naws_access_key_id={key}\naws_secret_access_key=x\n")).unwrap();
        // Whole at once: half of a file has no credentials.
        std::fs::rename(&new, &file).unwrap();
    };
    write("FIRST");
    let mut command = leaderrun();
    command.args(["--store", &url(&proxy.endpoint()), "--lease", "30s", "--renew", "1s", "job", "sleep", "1000"]);
    command.envs(ENVIRONMENT.iter().copied()).env("AWS_SHARED_CREDENTIALS_FILE", &file);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    let mut candidate = Process::start(command.stderr(Stdio::null()));
    // However many renewals pass between two looks.
    let renewed = |text: String| text.contains("\"sequence\":") && !text.contains("\"sequence\":0,");
    wait_until("it leads", || server.object("shard/job").is_some_and(renewed));
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    proxy.rule(move |request| {
        let has = |key: &str| request.headers.iter().any(|(_, value)| value.contains(&format!("Credential={key}/")));
        if has("SECOND") {
            counted.fetch_add(1, Ordering::Relaxed);
            return Fate::Pass;
        }
        let body = "<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>".to_owned();
        Fate::Answer(Response { status: 403, headers: Vec::new(), body })
    });
    write("SECOND");
    wait_until("it asks with the other key", || accepted.load(Ordering::Relaxed) > 2);
    assert!(candidate.try_wait().unwrap().is_none(), "it ended");
    candidate.stops();
}
