//! Who is let in, what they may do, and what is said when they may not.

use super::*;

#[tokio::test]
async fn each_missing_grant_is_named() {
    for missing in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
        let table = Table::new().await;
        let role = format!("role_{}", table.name);
        table.sql(&format!("CREATE ROLE {role} LOGIN"));
        let others = ["SELECT", "INSERT", "UPDATE", "DELETE"].into_iter().filter(|&grant| grant != missing);
        table.sql(&format!("GRANT {} ON TABLE $T TO {role}", others.collect::<Vec<_>>().join(", ")));
        let store = open(&table.url().replace("//postgres@", &format!("//{role}@")));
        let use_all = async || {
            let page = Page::Standby(candidate("one").session);
            let claimed = store.claim(&Candidate { shard: "new".parse().unwrap(), ..candidate("one") }).await?;
            store.release(&candidate("one"), granted(claimed).term).await?;
            store.replace(&shard(), &page, None, Some(&Note::for_ever("one"))).await?;
            store.replace(&shard(), &page, Some("one"), None).await
        };
        let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON public.\"{}\" TO {role}", table.name);
        denied(use_all().await, &grant);
        let findings = store.check().await.unwrap();
        assert!(
            findings.iter().any(|finding| finding.verdict != Verdict::Good && finding.text.contains(&grant)),
            "{findings:?}"
        );
    }
}

#[tokio::test]
async fn a_user_who_may_not_create_the_table_hears_what_is_missing() {
    let server = shared();
    server.sql("CREATE ROLE poor LOGIN");
    let url = server.url_with("table=never").replace("//postgres@", "//poor@");
    denied(open(&url).prepare().await, "GRANT CREATE ON SCHEMA public TO poor");
    let error = open(&format!("{url}&schema=nowhere")).prepare().await.unwrap_err();
    assert!(error.message.contains("GRANT CREATE ON DATABASE \"postgres\" TO poor"), "{error}");
    misconfigured(open(&url).claim(&candidate("one")).await, "leaderctl store init");
}

#[tokio::test]
async fn a_user_who_may_only_read_does_not_say_that_held_leases_can_be_deleted() {
    let server = Server::start();
    open(&server.own_url()).prepare().await.unwrap();
    server.sql(&format!("CREATE ROLE reader LOGIN; GRANT SELECT ON {LOCKS} TO reader"));
    let reader = open(&server.own_url().replace("//postgres@", "//reader@"));
    let lines = reader.prepare().await.unwrap().join("\n");
    assert!(lines.contains("a lease that is held can perhaps be deleted by hand"), "{lines}");
}

#[tokio::test]
async fn a_database_or_a_role_that_does_not_exist_is_named() {
    let server = shared();
    let one = candidate("one");
    let url = server.url_with("table=x");
    misconfigured(open(&url.replace("/postgres?", "/nothing?")).claim(&one).await, "no database nothing");
    denied(open(&url.replace("//postgres@", "//nobody_here@")).claim(&one).await, "nobody_here");
}

#[tokio::test]
async fn a_password_lets_in_and_is_never_shown() {
    // It wants one of everybody but its administrator.
    let server = Server::prepared_with(&[], |data| {
        let rules = "host all postgres all trust\nhost all all all scram-sha-256\n";
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
    });
    server.sql("CREATE ROLE app LOGIN PASSWORD 'hunter2'; GRANT CREATE ON SCHEMA public TO app");
    let url = |password: &str| format!("postgres://app:{password}@127.0.0.1:{}/postgres", server.port());
    let store = open(&url("hunter2"));
    store.prepare().await.unwrap();
    store.vouch().await.unwrap();
    lead(&store, &candidate("one")).await;
    let store = open(&url("hunter3"));
    for error in [store.claim(&candidate("one")).await.unwrap_err(), store.prepare().await.unwrap_err()] {
        denied(Err::<(), _>(error), "user app");
    }
    a_password_is_in_the_environment_too_and_a_missing_one_is_asked_for(&server);
}

fn a_password_is_in_the_environment_too_and_a_missing_one_is_asked_for(server: &Server) {
    let port = server.port();
    let scratch = tempfile::TempDir::new().unwrap();
    let url = format!("postgres://app@127.0.0.1:{port}/postgres");
    let init = |environment: &[(&str, &str)]| {
        let mut command = leaderctl();
        command.args(["--store", &url, "store", "init"]).env_remove("PGPASSWORD").env_remove("PGPASSFILE");
        command.env("HOME", scratch.path()).envs(environment.iter().copied());
        command.said()
    };
    init(&[]).ended(77).tells("asks for the password of user app: write it in the URL, or in PGPASSWORD");
    let file = scratch.path().join(".pgpass");
    std::fs::write(&file, format!("127.0.0.1:{port}:*:app:hunter2\n")).unwrap();
    for environment in [&[][..], &[("PGPASSWORD", "hunter3")]] {
        init(environment).ended(77).tells(&format!("leaderrun does not read {}", file.display()));
    }
    init(&[("PGPASSWORD", "hunter2")]).good();
}

#[tokio::test]
async fn a_unix_socket_is_as_good() {
    let table = Table::new().await;
    let server = table.server;
    let directory = server.directory().display().to_string();
    let one = candidate("one");
    let url = format!("postgres://postgres@/postgres?host={directory}&port={}&table={}", server.port(), table.name);
    let first = open(&url);
    let term = lead(&first, &one).await;
    let second = open(&url);
    refused(second.claim(&candidate("two")).await.unwrap());
    let waiting = tokio::spawn(async move { second.changed(&shard()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    first.release(&one, term).await.unwrap();
    // It has to be found out that there is no pooler at the other end.
    tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("it is told").unwrap().unwrap();
    let nowhere = open("postgres://postgres@/postgres?host=/nonexistent");
    not_applied(nowhere.claim(&one).await, "/nonexistent/.s.PGSQL.5432");
}
