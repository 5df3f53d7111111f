//! Who is let in, what they may do, and what is said when they may not.

use super::*;

#[tokio::test]
async fn each_missing_grant_is_named() {
    for missing in ["SELECT", "INSERT", "UPDATE"] {
        let table = Table::new().await;
        let user = table.user();
        let others = ["SELECT", "INSERT", "UPDATE", "DELETE"].into_iter().filter(|&grant| grant != missing);
        table.sql(&format!("GRANT {} ON $T TO {user}", others.collect::<Vec<_>>().join(", ")));
        let store = open(&table.url_as(&user));
        let needed = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{DATABASE}`.`{}` TO {user} (", table.name);
        denied(store.claim(&candidate("one")).await, &format!("{needed} … {missing}"));
        // Nothing is held.
        denied(store.claim(&candidate("two")).await, "");
    }
}

#[tokio::test]
async fn a_check_by_a_user_who_may_not_delete_says_so() {
    let table = Table::new().await;
    let user = table.user();
    table.sql(&format!("GRANT SELECT, INSERT, UPDATE ON $T TO {user}"));
    finds(&open(&table.url_as(&user)).check().await.unwrap(), Verdict::Doubtful, "permission missing");
}

#[tokio::test]
async fn a_user_who_may_not_create_the_table_hears_what_is_missing() {
    let table = Table::new().await;
    let user = table.candidate();
    let url = table.url_as(&user).replace(&format!("table={}&", table.name), "table=never&");
    denied(
        open(&url).prepare().await,
        &format!("GRANT CREATE, TRIGGER, SELECT, INSERT, UPDATE, DELETE ON `{DATABASE}`.*"),
    );
    let never = table.url().replace(&format!("table={}&", table.name), "table=never&");
    misconfigured(open(&never).claim(&candidate("one")).await, "leaderctl store init");
}

#[tokio::test]
async fn a_user_without_trigger_makes_the_table_without_it_and_another_user_adds_it() {
    let table = Table::new().await;
    let user = table.user();
    table.sql(&format!("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.* TO {user}"));
    let plain = |url: String| url.replace(&format!("table={}&", table.name), &format!("table={}_plain&", table.name));
    let store = open(&plain(table.url_as(&user)));
    let lines = store.prepare().await.unwrap().join("\n");
    assert!(lines.contains("a lease that is held can still be deleted by hand"), "{lines}");
    let says = async |words: &str| store.check().await.unwrap().iter().any(|finding| finding.text.contains(words));
    assert!(says("can be deleted by hand").await);
    open(&plain(table.url())).prepare().await.unwrap();
    assert!(says("a lease that is held cannot be deleted by hand").await);
}

#[tokio::test]
async fn a_database_a_user_or_a_password_that_is_wrong_is_named_and_the_password_is_not() {
    let table = Table::new().await;
    let one = candidate("one");
    misconfigured(
        open(&table.url().replace(&format!("/{DATABASE}?"), "/nothing?")).claim(&one).await,
        "no database nothing",
    );
    denied(open(&table.url_as("nobody_here:hunter2")).claim(&one).await, "nobody_here");
    let user = table.candidate();
    table.sql(&format!("ALTER USER {user} IDENTIFIED BY 'hunter2'"));
    lead(&open(&table.url_as(&format!("{user}:hunter2"))), &one).await;
    denied(open(&table.url_as(&format!("{user}:hunter3"))).claim(&one).await, &user);
}

#[tokio::test]
async fn a_password_comes_from_the_environment_too() {
    let table = Table::new().await;
    let user = table.candidate();
    table.sql(&format!("ALTER USER {user} IDENTIFIED BY 'hunter2'"));
    let run = |password: Option<&str>| {
        let mut command = leaderrun();
        command.args(["--store", &table.url_as(&user), "-n", "db/main", "true"]).env_remove("MYSQL_PWD");
        command.envs(password.map(|password| ("MYSQL_PWD", password))).said().code
    };
    assert_eq!((run(None), run(Some("hunter2")), run(Some("hunter3"))), (77, 0, 77));
}

#[tokio::test]
async fn a_server_without_a_connection_left_says_which_limit_that_is_and_its_leader_goes_on() {
    let table = Table::new().await;
    let user = table.candidate();
    table.sql(&format!("ALTER USER {user} WITH MAX_USER_CONNECTIONS 1"));
    let leader = open(&table.url_as(&user));
    let (one, term) = one_leads(&leader).await;
    not_applied(
        open(&table.url_as(&user)).claim(&candidate("two")).await,
        "does not take connections … max_user_connections",
    );
    assert_eq!(leader.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_unix_socket_is_as_good() {
    let table = Table::new().await;
    let user = table.candidate();
    let socket = table.server.socket().display().to_string();
    let url = format!("mariadb://{user}@/{DATABASE}?socket={socket}&table={}", table.name);
    let one = candidate("one");
    let store = open(&url);
    let term = lead(&store, &one).await;
    refused(table.store().claim(&candidate("two")).await.unwrap());
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    not_applied(open(&url.replace(&socket, "/nowhere/sock")).claim(&one).await, "cannot reach MySQL at /nowhere/sock");
}
