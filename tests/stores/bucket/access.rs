//! Credentials that are replaced. (What the policies of examples/infrastructure allow is in tests/recipes.)

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

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
