//! What examples/infrastructure makes is enough for an election, and not too much: each file is applied to a real server,
//! a candidate leads with what it grants, and a reader looks and changes nothing.

use crate::support::denied::{self, User};
use crate::support::prelude::*;
use crate::support::server::Server;
use crate::support::wire::{Fate, Proxy, Request};
use crate::support::{bucket, dynamo, etcd, mysql, nats, postgres, redis};
use std::collections::BTreeSet;
use yaml_rust2::{Yaml, YamlLoader};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/infrastructure").join(name)
}

fn text(name: &str) -> String {
    crate::text(&format!("examples/infrastructure/{name}"))
}

fn succeeds(mut command: Command, user: User) {
    command.envs(user.environment.iter().copied()).said().good();
}

fn ctl(user: User, words: &[&str]) {
    let mut command = leaderctl();
    // A server on a busy machine takes its time.
    command.args(["--request-timeout", "1m", "--store", user.url]).args(words);
    succeeds(command, user);
}

/// `owner` prepares the store, and `candidate` has all that an election and its orders take.
fn leads(owner: User, candidate: User) {
    ctl(owner, &["store", "init", "--new"]);
    may_lead(owner, candidate);
}

/// It leads, is waited for, is revoked, and is followed once its lease would have ended.
fn may_lead(owner: User, candidate: User) {
    ctl(candidate, &["store", "check"]);
    let run = |words: &[&str]| {
        let mut command = leaderrun();
        // It outlasts a stall of the machine, and its end is waited for.
        command.args(["--store", candidate.url, "-q", "--lease", "10s", "--renew", "1s", "--kill-after", "1s", "job"]);
        command.args(words).envs(candidate.environment.iter().copied()).envs([ANNOUNCED]);
        Process::start(&mut command)
    };
    let status = || {
        let mut command = leaderctl();
        command.args(["--store", owner.url, "status", "--standbys", "--json", "job"]);
        let said = command.envs(owner.environment.iter().copied()).said();
        serde_json::from_str::<serde_json::Value>(&said.out).unwrap_or_default()
    };
    let leader = run(&["sleep", "1000"]);
    wait_until("it leads", || status()["held"] == true);
    let mut standby = run(&["true"]);
    wait_until("another one waits", || status()["standbys"] == 1);
    ctl(candidate, &["revoke", "--force", "--term", &status()["term"].to_string(), "job"]);
    drop(leader);
    assert!(standby.ends().success());
    ctl(candidate, &["pause", "--force", "job"]);
    ctl(candidate, &["resume", "job"]);
}

#[test]
fn the_users_for_redis_may_do_what_they_are_for() {
    let file = path("redis.conf");
    let server = redis::Server::with(&["--include", file.to_str().unwrap()]);
    let url = |user: &str| format!("redis://{user}:PASSWORD@127.0.0.1:{}", server.port());
    let (owner, candidate, reader) = (server.own_url(), url("leaderrun"), url("operator"));
    leads(User::at(&owner), User::at(&candidate));
    denied::assert_may_only_look(User::at(&owner), User::at(&reader), "denied user operator the command ");
}

#[test]
fn the_roles_for_postgres_may_do_what_they_are_for() {
    // A check finds fault with a server that does not wait for its disk.
    let server = postgres::Server::start_with(&["fsync=on"]);
    let owner = server.url_with("");
    ctl(User::at(&owner), &["store", "init", "--new"]);
    server.sql(&text("postgres.sql"));
    let url = |user: &str| owner.replace("//postgres@", &format!("//{user}:PASSWORD@"));
    let (candidate, reader) = (url("app"), url("reader"));
    may_lead(User::at(&owner), User::at(&candidate));
    denied::assert_may_only_look(User::at(&owner), User::at(&reader), "GRANT ");
}

#[test]
fn the_users_for_mysql_may_do_what_they_are_for() {
    // A check finds fault with a server that does not wait for its disk.
    let server = mysql::Server::start_with(&["--innodb-flush-log-at-trx-commit=1"]);
    let owner = server.url_with("");
    ctl(User::at(&owner), &["store", "init", "--new"]);
    server.sql(&text("mysql.sql"));
    let url = |user: &str| owner.replace(&format!("//{}@", mysql::ADMIN), &format!("//{user}:PASSWORD@"));
    let (candidate, reader) = (url("app"), url("reader"));
    may_lead(User::at(&owner), User::at(&candidate));
    denied::assert_may_only_look(User::at(&owner), User::at(&reader), "GRANT ");
}

#[test]
fn the_users_for_nats_may_do_what_they_are_for() {
    let data = TempDir::new().unwrap();
    // A busy machine takes its time to log in.
    let users = text("nats.conf").replace("authorization {", "authorization {\n  timeout: 60");
    std::fs::write(data.path().join("leaderrun.conf"), users).unwrap();
    let lines = "jetstream: enabled\ninclude leaderrun.conf";
    let server = nats::Server::prepared(data, lines, r#"{"user":"admin","pass":"PASSWORD"}"#);
    let url = |user: &str| format!("nats://{user}:PASSWORD@{}/{}", server.address(), nats::BUCKET);
    let (owner, candidate, reader) = (url("admin"), url("leaderrun"), url("reader"));
    leads(User::at(&owner), User::at(&candidate));
    denied::assert_may_only_look(User::at(&owner), User::at(&reader), "for Publish to \"$KV.locks.");
}

#[test]
fn the_roles_for_etcd_may_do_what_they_are_for() {
    let server = etcd::Server::start();
    let mut script = Command::new("sh");
    script.arg(path("etcd.sh")).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", format!("http://{}", server.host()));
    succeeds(script, User::at(""));
    server.etcdctl(&["user", "add", "root:root", "--interactive=false"]);
    server.etcdctl(&["user", "grant-role", "root", "root"]);
    server.etcdctl(&["auth", "enable"]);
    let url = |user: &str| format!("etcd://{user}:PASSWORD@{}/{}", server.host(), etcd::PREFIX);
    let (candidate, reader) = (url("candidate"), url("reader"));
    leads(User::at(&candidate), User::at(&candidate));
    denied::assert_may_only_look(User::at(&candidate), User::at(&reader), "--prefix=true readwrite leaderrun/");
}

/// What the policy of this name allows in the file of this service of AWS.
fn actions(service: &str, policy: &str) -> BTreeSet<String> {
    let template = YamlLoader::load_from_str(&text(&format!("{service}.yaml"))).unwrap().remove(0);
    let statements = template["Resources"][policy]["Properties"]["PolicyDocument"]["Statement"].clone();
    let named = statements.into_iter().flat_map(|statement| statement["Action"].clone().into_iter());
    named.filter_map(Yaml::into_string).collect()
}

/// Both policies, before a server that a candidate can use. `action` is what AWS calls a request.
fn the_policies_may_do_what_they_are_for(
    server: &dyn Server,
    service: &'static str,
    action: fn(&Request) -> String,
    denial: fn() -> Fate,
) {
    let limited = |policy: &str| {
        let (allowed, proxy) = (actions(service, policy), Proxy::before(server));
        assert!(allowed.len() > 1, "{allowed:?}");
        proxy.rule(move |request| if allowed.contains(&action(request)) { Fate::Pass } else { denial() });
        proxy
    };
    let (candidate, reader) = (limited("LeaderrunCandidate"), limited("LeaderrunReader"));
    let url = |proxy: &Proxy| server.url(proxy.endpoint().trim_start_matches("http://").parse().unwrap());
    let urls = [server.own_url(), url(&candidate), url(&reader)];
    let [owner, candidate, reader] = [0, 1, 2].map(|at| User { url: &urls[at], environment: server.environment() });
    let mut command = leaderrun();
    command.args(["--store", candidate.url, "-q", "job", "true"]);
    succeeds(command, candidate);
    ctl(candidate, &["pause", "--force", "job"]);
    ctl(candidate, &["resume", "job"]);
    denied::assert_may_only_look(owner, reader, &format!("{service}:"));
}

#[test]
fn the_policies_for_dynamodb_may_do_what_they_are_for() {
    let server = dynamo::Server::start();
    let owner = User { url: &server.own_url(), environment: dynamo::ENVIRONMENT };
    ctl(owner, &["store", "init", "--new"]);
    ctl(owner, &["store", "check"]);
    let action = |request: &Request| format!("dynamodb:{}", request.action);
    the_policies_may_do_what_they_are_for(&server, "dynamodb", action, dynamo::denial);
}

#[test]
fn the_policies_for_s3_may_do_what_they_are_for() {
    let mut server = bucket::Server::durable();
    server.grow_old();
    let action = |request: &Request| match &*request.action {
        "GET" if request.line.contains("list-type=2") => "s3:ListBucket".to_owned(),
        "GET" => "s3:GetObject".to_owned(),
        "PUT" => "s3:PutObject".to_owned(),
        _ => "s3:DeleteObject".to_owned(),
    };
    the_policies_may_do_what_they_are_for(&server, "s3", action, bucket::denial);
}

#[test]
fn terraform_and_cloudformation_allow_the_same() {
    for (service, resource) in [("dynamodb", ".arn"), ("s3", ".arn}/leaderrun/*\"")] {
        let terraform = text(&format!("{service}.tf"));
        for (policy, name) in [("LeaderrunCandidate", "leaderrun_candidate"), ("LeaderrunReader", "leaderrun_reader")] {
            let (_, block) = terraform.split_once(&format!("\"{name}\" {{")).expect("a policy of that name");
            let (block, _) = block.split_once("\n}\n").expect("it ends");
            let named = block.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
            assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), actions(service, policy), "{policy}");
            assert!(block.contains(resource), "{policy}");
        }
    }
}

/// Each rule of a file that the manual has as well.
#[test]
fn the_manual_has_the_same_grants() {
    let page =
        crate::text("man/leaderrun-stores.7").replace("\\e\n", "").split_whitespace().collect::<Vec<_>>().join(" ");
    let candidate = actions("dynamodb", "LeaderrunCandidate");
    assert!(candidate.iter().all(|action| page.contains(action)), "{candidate:?}");
    let (redis, sql) = (text("redis.conf"), text("postgres.sql") + &text("mysql.sql"));
    let users = redis.lines().filter_map(|line| line.strip_prefix("user ")).map(|rule| format!("ACL SETUSER {rule}"));
    let grants = sql.lines().filter(|line| line.starts_with("GRANT ") && line.ends_with(" TO app;"));
    let mut seen = 0;
    for rule in users.chain(grants.map(str::to_owned)) {
        assert!(page.contains(&rule), "leaderrun-stores(7) lacks {rule}");
        seen += 1;
    }
    assert_eq!(seen, 5);
    let file = text("nats.conf");
    let quoted = file.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix('"'));
    let subjects = quoted.collect::<BTreeSet<_>>();
    assert_eq!(subjects.len(), 4, "{subjects:?}");
    for subject in subjects {
        let of_manual = subject.replace("locks", "BUCKET");
        assert!(page.contains(&of_manual), "leaderrun-stores(7) lacks {of_manual}");
    }
    assert!(page.contains("etcdctl role grant-permission candidate --prefix=true readwrite PREFIX/"));
    assert!(text("etcd.sh").contains("role grant-permission candidate --prefix=true readwrite leaderrun/"));
}
