//! Who a candidate is for the server, and what happens when that changes.

use super::*;

/// Whole at once, as the kubelet does it.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, file).unwrap();
}

/// A server, its URL for who shows the token of a file, and that file with the first token.
fn with_a_token(scratch: &TempDir) -> (Server, String, PathBuf) {
    let server = server();
    let file = scratch.path().join("token");
    replace(&file, &server.token("first"));
    let user = format!("tokenFile: {}", file.display());
    let kubeconfig = server.kubeconfig_of(&format!("https://{}", server.address()), &user, "token");
    (server, format!("kubernetes:?kubeconfig={}", kubeconfig.display()), file)
}

/// The library would use the former token for up to a minute; the server refuses it within ten seconds.
#[test]
fn a_token_that_is_replaced_and_revoked_disturbs_no_leader() {
    let scratch = TempDir::new().unwrap();
    let (server, url, file) = with_a_token(&scratch);
    let mut fleet = Fleet::new();
    fleet.start("one", &["--store", &url], &[], &[]);
    let leader = fleet.leader();
    fleet.start("two", &["--store", &url], &[], &[]);
    for (former, next) in [("first", "second"), ("second", "third")] {
        replace(&file, &server.token(next));
        server.delete_secret(former);
        // The server goes by what it knows of the former one for ten seconds, and then a lease would have ended.
        std::thread::sleep(Duration::from_secs(10) + LEASE);
        let now = fleet.leader();
        assert_eq!((now.term, fleet.lives().len()), (leader.term, 1), "{}", fleet.logs());
    }
    fleet.conclude();
}

#[test]
fn a_token_that_is_revoked_is_named_and_the_tree_is_dead_before_the_lease_is_over() {
    let scratch = TempDir::new().unwrap();
    let (server, url, _) = with_a_token(&scratch);
    let mut fleet = Fleet::new();
    fleet.start("one", &["--stop-timeout", "1s", "--store", &url], &["ignore-term"], &[]);
    let leader = fleet.leader();
    fleet.start("two", &["--store", &server.url_with("")], &[], &[]);
    server.delete_secret("first");
    let next = fleet.leader_where(|life| life.term > leader.term);
    assert_eq!(next.owner, "two");
    assert!(fleet.logs().contains("does not accept the login"), "{}", fleet.logs());
    fleet.conclude();
}

#[test]
fn in_a_pod_its_account_and_its_namespace_are_used() {
    let server = server();
    let account = TempDir::new().unwrap();
    fs::write(account.path().join("token"), server.token("pod")).unwrap();
    let run = |words: &[&str]| {
        let output = server.in_a_pod(account.path(), words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let told = run(&[env!("CARGO_BIN_EXE_leaderctl"), "--store", "kubernetes:", "store", "check"]);
    assert!(told.contains(&format!("namespace {}", server.namespace)), "{told}");
    run(&[env!("CARGO_BIN_EXE_leaderrun"), "-q", "--store", "kubernetes:", "--owner", "pod-1", "db", "true"]);
    assert!(server.lease("db").is_some());
    // Another namespace may be named, and the account has no rights there.
    let command = [env!("CARGO_BIN_EXE_leaderctl"), "--store", "kubernetes://kube-system", "status", "db"];
    let output = server.in_a_pod(account.path(), &command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(77) && said.contains("get of leases in namespace kube-system"), "{said}");
}

#[test]
fn elsewhere_the_kubeconfig_is_found_as_kubectl_finds_it() {
    let server = server();
    let home = TempDir::new().unwrap();
    let user = format!("token: {}", server.token("user"));
    let kubeconfig = server.kubeconfig_of(&format!("https://{}", server.address()), &user, "home");
    fs::create_dir(home.path().join(".kube")).unwrap();
    let at_home = home.path().join(".kube/config");
    fs::copy(&kubeconfig, &at_home).unwrap();
    let status = |store: &str, variable: Option<&Path>| {
        let mut command = leaderctl();
        command.args(["--store", store, "status", "db"]).env("HOME", home.path()).env_remove("KUBECONFIG");
        command.envs(variable.map(|file| ("KUBECONFIG", file)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };

    let (free, told) = status("kubernetes:", None);
    assert!(told.contains("never led"), "{told}");
    assert_eq!(status("kubernetes:?context=test", None).0, free);
    fs::remove_file(&at_home).unwrap();
    assert_eq!(status("kubernetes:", Some(&kubeconfig)).0, free);
    for (store, variable) in [("kubernetes:", None), ("kubernetes:?context=else", Some(kubeconfig.as_path()))] {
        let (code, told) = status(store, variable);
        assert!(code == Some(78) && told.lines().count() == 1, "{store}: {code:?} {told}");
    }
}
