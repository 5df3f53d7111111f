//! What is said where a right is missing.

use super::*;
use crate::support::denied::{self, User};
use std::process::Output;

const ALL: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];

fn check(url: &str) -> (Output, String) {
    let output = leaderctl().args(["--store", url, "store", "check"]).output().unwrap();
    let text = String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap();
    (output, text)
}

#[test]
fn a_check_names_each_verb_that_is_missing_and_the_resource() {
    for missing in ALL {
        let server = server();
        let verbs: Vec<&str> = ALL.into_iter().filter(|verb| *verb != missing).collect();
        let url = server.url_of_other(&verbs);
        let named = |verb: &str| {
            format!("permission missing: {verb} of leases (coordination.k8s.io) in namespace {}", server.namespace)
        };
        let mut last = None;
        // RBAC hears of the role some time later.
        let is_told = || {
            let (output, text) = check(&url);
            let is_told = ALL.into_iter().all(|verb| text.contains(&named(verb)) == (verb == missing));
            last = Some((output, text));
            is_told
        };
        wait_until_or(&format!("the check says that {missing} is missing"), String::new, is_told);
        let (output, text) = last.unwrap();
        let is_needed = ["get", "create", "update"].contains(&missing);
        assert_eq!(output.status.success(), !is_needed, "{missing}: {text}");
    }
}

#[test]
fn with_the_rights_of_the_example_a_check_finds_nothing() {
    let server = server();
    let (output, text) = check(&server.url_with(""));
    assert!(output.status.success() && !text.contains("permission"), "{text}");
    assert!(text.contains("v1.20"), "{text}");
}

#[test]
fn a_candidate_that_may_not_write_ends_with_77_and_one_line_that_names_verb_and_resource() {
    let server = server();
    let url = server.url_of_other(&["get", "list", "watch"]);
    let lead = || leaderrun().args(["--store", &url, "-q", "-n", "db", "true"]).output().unwrap();
    let mut output = lead();
    wait_until_or("it may read", String::new, || {
        output = lead();
        !String::from_utf8_lossy(&output.stderr).contains(" get of leases")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(77), 1), "{said}");
    assert!(said.contains("create of leases") && said.contains(&server.namespace), "{said}");
}

#[test]
fn who_may_only_look_changes_nothing() {
    let server = server();
    let (owner, looker) = (server.url_with(""), server.url_of_other(&["get", "list", "watch"]));
    wait_until_or("it may look", String::new, || check(&looker).1.contains("create of leases"));
    denied::assert_may_only_look(User::at(&owner), User::at(&looker), " of leases");
}
