//! What a lease and the notes beside it look like on the server, as its own tools show it: another version of leaderrun,
//! and people, read the same records.

use crate::golden::golden;
use crate::plain::Plain;
use crate::support::claims::granted_in_time;
use crate::support::prelude::*;
use leaderrun::internals::lease::{Candidate, Session, Term};
use leaderrun::internals::notes::orders::{self, PauseOrder};
use leaderrun::internals::store::{Location, Note, Page, Release, Renewal, Store};
#[cfg(feature = "dynamodb")]
use std::collections::BTreeMap;

fn candidate() -> Candidate {
    Candidate {
        shard: "db/main".parse().expect("a shard"),
        owner: "one".to_owned(),
        session: session(1),
        host: "here".to_owned(),
        pid: 7,
        lease: Duration::from_secs(15),
    }
}

fn session(number: u8) -> Session {
    Session::from_record(&format!("SESSION-{number}"))
}

/// Leads, renews, pauses, releases, leaves every kind of note, and has the shard forgotten. `show` tells what the server
/// then has, a line each.
fn pin(name: &str, url: &str, plain: &Plain, show: impl Fn() -> Vec<String>) {
    let candidate = candidate();
    let location = Location::from_url(url).expect("a store URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let run = runtime.block_on(async {
        let store = location.open(Duration::from_secs(10)).await.expect("it opens");
        let mut told = Story { text: String::new(), known: Vec::new(), plain, show: &show };
        told.tell("store init");
        let term = claim(&*store, &candidate).await;
        told.tell("claimed");
        assert_eq!(store.renew(&candidate, term, 1).await, Ok(Renewal::Renewed));
        told.tell("renewed");
        pause(&*store, &candidate).await;
        told.tell("paused");
        assert_eq!(store.release(&candidate, term).await, Ok(Release::Released));
        told.tell("released");
        for (page, text) in [
            (Page::History, "history"),
            (Page::Standby(session(2)), "standby"),
            (Page::Runs, "runs"),
            (Page::Jobs, "jobs"),
            (Page::Once("a.job".parse().expect("a job")), "once"),
        ] {
            let note = Note::lasting(text.to_owned(), (text == "standby").then_some(Duration::from_secs(100)));
            assert_eq!(store.replace(&candidate.shard, &page, None, Some(&note)).await, Ok(true));
        }
        told.tell("every kind of note");
        let term = claim(&*store, &candidate).await;
        told.tell("claimed again");
        assert_eq!(store.forget(&candidate, term).await, Ok(Release::Released));
        told.tell("forgotten");
        told.text
    });
    golden(&format!("records-{name}"), &run);
}

struct Story<'a> {
    text: String,
    known: Vec<String>,
    plain: &'a Plain,
    show: &'a dyn Fn() -> Vec<String>,
}

impl Story<'_> {
    /// What is there now and was not before, and the other way round.
    fn tell(&mut self, what: &str) {
        let mut lines: Vec<String> = (self.show)().iter().map(|line| self.plain.text(line)).collect();
        lines.sort();
        let gone = self.known.iter().filter(|line| !lines.contains(line)).map(|line| format!("- {line}\n"));
        let new = lines.iter().filter(|line| !self.known.contains(line)).map(|line| format!("+ {line}\n"));
        self.text.extend([format!("== {what}\n{}{}", gone.collect::<String>(), new.collect::<String>())]);
        self.known = lines;
    }
}

/// Where a lock is the kernel's, a program that another test is just starting has it as well for a moment.
async fn claim(store: &dyn Store, candidate: &Candidate) -> Term {
    granted_in_time(store, candidate).await.term
}

fn ready(server: &mut dyn crate::support::server::Server) -> String {
    prepare(server);
    server.grow_old();
    server.own_url()
}

async fn pause(store: &dyn Store, candidate: &Candidate) {
    let pause = PauseOrder {
        id: session(3),
        by: "operator@here".to_owned(),
        since_millis: 1_800_000_000_000,
        reason: Some("a \"reason\"".to_owned()),
        keep: true,
        prefix: None,
        left: Some(Duration::from_hours(1)),
    };
    let order = |orders: &mut orders::Orders| {
        orders.pause.replace(pause.clone());
        true
    };
    orders::change(store, &candidate.shard, order).await.expect("it is written");
}

#[test]
fn the_records_of_the_file_store_stay_as_they_are() {
    let place = Place::local();
    place.order(&["store", "init"]);
    let directory = place.path("store");
    pin("file", &place.url, &Plain::new(), || files(&directory));
}

/// Every file below a directory, with its mode and what it says.
fn files(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(path) = left.pop() {
        let name = path.strip_prefix(directory).expect("it is below").display().to_string();
        let data = fs::symlink_metadata(&path).expect("nobody else is here");
        let mode = data.permissions().mode() & 0o7777;
        if data.is_dir() {
            lines.push(format!("{name}/ {mode:o}"));
            left.extend(fs::read_dir(&path).expect("it can be read").flatten().map(|entry| entry.path()));
        } else if data.is_file() {
            let text = String::from_utf8_lossy(&fs::read(&path).expect("it can be read")).into_owned();
            lines.push(format!("{name} {mode:o} {text}"));
        } else {
            lines.push(format!("{name} {:?}", data.file_type()));
        }
    }
    lines
}

/// What the programs themselves write into notes: the same text in every store.
#[test]
fn the_notes_that_the_programs_write_stay_as_they_are() {
    let place = Place::local();
    let run = |words: &[&str]| {
        let mut command = leaderrun();
        command.args(["-q", "--store", &place.url, "--owner", "one"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        command
    };
    let ends = |words: &[&str], status| assert_eq!(run(words).status().expect("it starts").code(), Some(status));
    ends(&["history", "true"], 0);
    ends(&["history", "-c", "exit 3"], 3);
    ends(&["--once", "a.job", "once", "true"], 0);
    ends(&["--every", "366days", "runs", "false"], 1);
    place.order(&["pause", "paused", "--for", "1h", "--reason", "a \"reason\""]);
    let mut leader = run(&["led", "sleep", "1000"]).spawn().expect("it starts");
    let status = || place.order(&["status", "--json", "--standbys", "led"]);
    wait_until("it leads", || status().contains("\"held\":true"));
    wait_until("that is written down", || !place.order(&["history", "led"]).is_empty());
    place.order(&["step-down", "led", "--to", "nobody", "--for", "1h", "--force"]);
    wait_until("it is written down", || place.order(&["history", "led"]).contains("stepped down"));
    wait_until("it waits", || status().contains("\"standbys\":1"));
    let lines = files(&place.path("store"));
    leader.kill().expect("it can be killed");
    leader.wait().expect("it can be reaped");
    let plain = Plain::new().after("\"pid\":", "PID").after("\"pid\\\":", "PID");
    let mut lines: Vec<String> = lines.iter().map(|line| plain.text(line)).collect();
    lines.sort();
    golden("notes", &lines.join("\n"));
}

#[test]
#[cfg(feature = "redis")]
fn the_records_of_redis_stay_as_they_are() {
    use crate::support::redis::Server;
    let mut server = Server::start();
    let url = ready(&mut server);
    let ask = |words: &[&str]| server.cli(words);
    pin("redis", &url, &Plain::new(), || {
        let keys = ask(&["KEYS", "*"]);
        let mut lines = Vec::new();
        for key in keys.lines() {
            let lasts = if ask(&["PTTL", key]) == "-1" { "for ever" } else { "ends" };
            let kind = ask(&["TYPE", key]);
            lines.push(format!("{key}: {kind}, {lasts}"));
            let fields = ask(&["HKEYS", key]);
            lines.extend(fields.lines().map(|name| format!("{key} . {name} = {}", ask(&["HGET", key, name]))));
        }
        lines
    });
}

#[test]
#[cfg(feature = "postgres")]
fn the_records_of_postgresql_stay_as_they_are() {
    use crate::support::postgres::Server;
    let mut server = Server::start();
    let url = ready(&mut server);
    let plain = Plain::new().after("\"session\":\"", "TRANSACTION");
    pin("postgres", &url, &plain, || {
        let mut lines = Vec::new();
        let ask = |statement: &str| server.sql(statement).lines().map(str::to_owned).collect::<Vec<_>>();
        for table in ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'") {
            let columns = ask(&format!(
                "SELECT column_name || ' ' || data_type || ' nullable ' || is_nullable || \
                 coalesce(' default ' || column_default, '') FROM information_schema.columns \
                 WHERE table_schema = 'public' AND table_name = '{table}' ORDER BY ordinal_position"
            ));
            let numbered = columns.iter().enumerate();
            lines.extend(numbered.map(|(index, column)| format!("{table} column {}: {column}", index + 1)));
            lines.extend(ask(&format!("SELECT indexdef FROM pg_indexes WHERE tablename = '{table}'")));
            lines.extend(ask(&format!("SELECT '{table} row ' || row_to_json(r) FROM {table} r")));
        }
        lines
    });
}

#[test]
#[cfg(feature = "mysql")]
fn the_records_of_mysql_stay_as_they_are() {
    use crate::support::mysql::{DATABASE, Server};
    let mut server = Server::start();
    let url = ready(&mut server);
    pin("mysql", &url, &Plain::new(), || {
        let mut lines = Vec::new();
        let ask = |statement: &str| server.sql(statement).lines().map(str::to_owned).collect::<Vec<_>>();
        let of = |table: &str| format!("table_schema = '{DATABASE}' AND table_name = '{table}'");
        for table in ask(&format!("SELECT table_name FROM information_schema.tables WHERE table_schema = '{DATABASE}'"))
        {
            let columns = ask(&format!(
                "SELECT CONCAT(column_name, ' ', column_type, ' nullable ', is_nullable, ' ', column_key) \
                 FROM information_schema.columns WHERE {} ORDER BY ordinal_position",
                of(&table)
            ));
            let numbered = columns.iter().enumerate();
            lines.extend(numbered.map(|(index, column)| format!("{table} column {}: {column}", index + 1)));
            let names = ask(&format!(
                "SELECT GROUP_CONCAT(QUOTE(column_name), ', ', column_name ORDER BY ordinal_position) \
                 FROM information_schema.columns WHERE {}",
                of(&table)
            ));
            lines.extend(ask(&format!("SELECT CONCAT('{table} row ', JSON_OBJECT({})) FROM {table}", names.concat())));
        }
        lines.extend(ask("SELECT action_statement FROM information_schema.triggers"));
        lines
    });
}

#[test]
#[cfg(feature = "nats")]
fn the_records_of_nats_stay_as_they_are() {
    use crate::support::nats::{BUCKET, Client, Server};
    let mut server = Server::start();
    let url = ready(&mut server);
    pin("nats", &url, &Plain::new(), || {
        let client = Client::connect(server.address(), &server.admin).expect("it lets us in");
        let stream = format!("KV_{BUCKET}");
        let info = client.api(&format!("STREAM.INFO.{stream}"), &serde_json::json!({ "subjects_filter": ">" }));
        // Newer servers tell more of it.
        let ours = ["subjects", "retention", "max_msgs_per_subject", "max_age", "discard", "allow_direct"];
        let mut lines: Vec<String> =
            ours.iter().map(|name| format!("stream {name} {}", info["config"][name])).collect();
        for subject in info["state"]["subjects"].as_object().into_iter().flat_map(serde_json::Map::keys) {
            let get = serde_json::json!({ "last_by_subj": subject }).to_string();
            let answer = client.request(&format!("$JS.API.DIRECT.GET.{stream}"), "", get.as_bytes());
            let answer = answer.expect("it answers");
            // The others are the server's.
            let ours = |name: &str| ["KV-", "Nats-Expected-", "Leaderrun"].iter().any(|start| name.starts_with(start));
            let headers = answer.headers.iter().flat_map(|headers| headers.iter());
            let headers = headers.filter(|(name, _)| ours(name.as_ref()));
            let mut headers: Vec<String> =
                headers.map(|(name, values)| format!("{subject} header {name}: {}", values[0])).collect();
            headers.sort();
            lines.append(&mut headers);
            lines.push(format!("{subject} = {}", String::from_utf8_lossy(&answer.payload)));
        }
        lines
    });
}

#[test]
#[cfg(feature = "etcd")]
fn the_records_of_etcd_stay_as_they_are() {
    use crate::support::etcd::Server;
    let mut server = Server::start();
    let url = ready(&mut server);
    let base = server.value("leaderrun/base").expect("it was made");
    let base: serde_json::Value = serde_json::from_str(&base).expect("JSON");
    let plain = Plain::new().with(base["incarnation"].as_str().expect("it has one"), "LIFE");
    pin("etcd", &url, &plain, || {
        let keys = server.etcdctl(&["get", "", "--prefix", "--keys-only"]);
        let mut lines = Vec::new();
        for key in keys.lines().filter(|line| !line.is_empty()) {
            let lease = if server.lease_of(key) == "0" { "for ever" } else { "with a lease" };
            let value = server.value(key).unwrap_or_default();
            let document: Option<serde_json::Value> = serde_json::from_str(&value).ok();
            let named = document.as_ref().and_then(|document| document["lease"].as_str()).unwrap_or("0");
            let value = if named == "0" { value } else { value.replace(named, "LEASE") };
            lines.push(format!("{key}, {lease} = {value}"));
        }
        lines
    });
}

#[test]
#[cfg(feature = "dynamodb")]
fn the_records_of_dynamodb_stay_as_they_are() {
    use crate::support::dynamo::{Server, client};
    use aws_sdk_dynamodb::types::AttributeValue;
    let mut server = Server::durable();
    let (endpoint, url) = (server.endpoint(), ready(&mut server));
    let shown = |value: &AttributeValue| match value {
        AttributeValue::S(text) => format!("S {text}"),
        AttributeValue::N(number) => format!("N {number}"),
        AttributeValue::Bool(truth) => format!("BOOL {truth}"),
        other => format!("{other:?}"),
    };
    pin("dynamodb", &url, &Plain::new(), || {
        let items = std::thread::scope(|scope| {
            let scan = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let scan = client(&endpoint).scan().table_name("locks").consistent_read(true);
                runtime.block_on(scan.send()).expect("it can be read").items().to_vec()
            });
            scan.join().expect("it does not panic")
        });
        let mut lines = Vec::new();
        for item in items {
            let item: BTreeMap<String, String> =
                item.iter().map(|(name, value)| (name.clone(), shown(value))).collect();
            let key = format!("{} {}", item["pk"], item["sk"]);
            lines.extend(item.iter().map(|(name, value)| format!("{key}: {name} = {value}")));
        }
        lines
    });
}
