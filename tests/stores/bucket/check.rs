//! `leaderctl store init` and `leaderctl store check`, and candidates where neither has been.

use super::*;
use crate::support::bucket::denial;

fn run(mut command: Command, url: &str, words: &[&str]) -> Said {
    command.args(["--store", url]).args(words).envs(ENVIRONMENT.iter().copied());
    command.said()
}

#[tokio::test]
async fn init_tries_the_server_and_a_check_finds_nothing_wrong_afterwards() {
    let server = Server::start();
    let store = store(&server.endpoint()).await;
    let lines = store.prepare().await.unwrap();
    assert!(lines[0].ends_with("races had one winner"), "{lines:?}");
    assert_eq!(server.keys(), ["leaderrun.json"]);
    let findings = store.check().await.unwrap();
    all_good(&findings);
    let last = &findings.last().unwrap().text;
    assert!(last.contains("a round trip takes") && last.contains("clock is known to within"), "{last}");
    assert_eq!(server.keys(), ["leaderrun.json"]);
}

#[test]
fn a_server_that_lets_two_writers_win_is_refused_by_init_and_check_and_nobody_leads_on_it() {
    let server = Server::dishonest();
    // Moto may also answer a racing writer with an error of its own, which proves nothing.
    let init = || run(leaderctl(), &server.own_url(), &["store", "init"]);
    let refused = (0..20).map(|_| init()).find(|said| said.code != 69).expect("it is tried");
    refused.ended(78).tells("does not honour conditional writes");
    assert!(server.object("leaderrun.json").is_none());
    let check = || run(leaderctl(), &server.own_url(), &["store", "check"]);
    let refused = (0..20).map(|_| check()).find(|said| said.code != 69).expect("it is tried");
    refused.ended(78).tells("bad       s3://locks/a/b/ does not honour conditional writes");
    run(leaderrun(), &server.own_url(), &["-n", "shard", "true"]).ended(78);
}

#[test]
fn a_server_that_does_not_name_versions_is_refused_in_one_line() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    proxy.rule(|_| {
        Fate::Rewrite(Box::new(|response| {
            response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("etag"));
        }))
    });
    let why = format!("S3 at {} does not say which version of an object it read or wrote", proxy.endpoint());
    let url = crate::support::bucket::url(&proxy.endpoint());
    run(leaderctl(), &url, &["store", "init"]).refused(78, &why);
    run(leaderctl(), &url, &["store", "check"]).ended(78).tells(&format!("bad       {why}"));
    assert_eq!(server.object("leaderrun.json"), None);
}

#[test]
fn a_bucket_that_is_missing_is_named() {
    let server = Server::start();
    let url = server.own_url().replace("s3://locks/", "s3://nowhere/");
    for (command, words) in
        [(leaderrun(), &["-n", "shard", "true"][..]), (leaderctl(), &["store", "init"]), (leaderctl(), &["list"])]
    {
        run(command, &url, words).ended(78).tells("no such bucket: s3://nowhere/a/b/ in S3 at http://");
    }
}

#[tokio::test]
async fn a_check_names_every_permission_that_is_missing_and_a_claim_is_denied() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    for (method, action, verdict) in [
        ("PUT", "s3:PutObject", Verdict::Bad),
        ("GET", "s3:GetObject", Verdict::Bad),
        ("DELETE", "s3:DeleteObject", Verdict::Doubtful),
    ] {
        proxy.rule(move |request| if request.action == method { denial() } else { Fate::Pass });
        let findings = store.check().await.unwrap();
        let found = texts(&findings, verdict);
        assert!(
            found.iter().any(|text| text.starts_with("permission missing: ") && text.contains(action)),
            "{findings:#?}"
        );
    }
    proxy.rule(|request| if request.action == "PUT" { denial() } else { Fate::Pass });
    denied(store.claim(&candidate("one")).await, "denied s3:PutObject on s3://locks/a/b/: not allowed");
}
