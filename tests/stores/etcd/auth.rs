//! Users, roles and passwords.

use super::*;

const ROOT: [&str; 2] = ["--user", "root:root"];

/// A server that lets in `app`, whose role is readwrite on the prefix, `reader` and `writer` with half of it, and
/// `nobody` without any role.
fn guarded() -> Server {
    let server = Server::start();
    for (role, permission) in [("app", "readwrite"), ("reader", "read"), ("writer", "write")] {
        server.etcdctl(&["role", "add", role]);
        server.etcdctl(&["role", "grant-permission", role, "--prefix=true", permission, "leaderrun/"]);
        server.etcdctl(&["user", "add", &format!("{role}:hunter2"), "--interactive=false"]);
        server.etcdctl(&["user", "grant-role", role, role]);
    }
    server.etcdctl(&["user", "add", "nobody:hunter2", "--interactive=false"]);
    server.etcdctl(&["user", "add", "root:root", "--interactive=false"]);
    server.etcdctl(&["user", "grant-role", "root", "root"]);
    server.etcdctl(&["auth", "enable"]);
    server
}

fn url(server: &Server, user: &str) -> String {
    format!("etcd://{user}@{}", server.host())
}

#[tokio::test]
async fn what_is_denied_is_named_and_how_to_grant_it() {
    let server = guarded();
    open(&url(&server, "app:hunter2")).await.vouch().await.unwrap();
    let one = candidate("one");
    let store = open(&url(&server, "nobody:hunter2")).await;
    let message = denied(store.observe(&one.shard).await, "denied user nobody a Txn");
    assert!(message.contains("--prefix=true readwrite leaderrun/"), "{message}");
    denied(store.claim(&one).await, "denied user nobody a Txn");
    denied(store.changed(&one.shard).await, "denied user nobody");
    denied(store.prepare().await, "denied user nobody");
    let reader = open(&url(&server, "reader:hunter2")).await;
    assert!(reader.observe(&one.shard).await.is_ok());
    denied(reader.claim(&one).await, "denied user reader a Txn");
    let other = open(&format!("{}/other", url(&server, "app:hunter2"))).await;
    denied(other.claim(&one).await, "keys that begin with other/");

    for user in ["app:hunter2x", "stranger:hunter2"] {
        let name = user.split(':').next().unwrap();
        denied(open(&url(&server, user)).await.claim(&one).await, &format!("denied user {name} the login"));
    }
    let anonymous = open(&format!("etcd://{}", server.host())).await;
    denied(anonymous.claim(&one).await, "requires a login");

    for user in ["reader", "writer"] {
        let findings = open(&url(&server, &format!("{user}:hunter2"))).await.check().await.unwrap();
        finds(&findings, Verdict::Bad, "permission missing … readwrite leaderrun/");
        assert!(!format!("{findings:?}").contains("hunter2"), "{findings:?}");
    }
}

#[tokio::test]
async fn authentication_may_be_turned_on_and_off_under_a_leader_and_its_token_be_forgotten() {
    let mut server = guarded();
    server.etcdctl(&[&ROOT[..], &["auth", "disable"]].concat());
    let store = open(&url(&server, "app:hunter2")).await;
    // The check and the programs of etcd take their time.
    let one = with_lease("one", Duration::from_mins(2));
    store.vouch().await.unwrap();
    let term = lead(&*store, &one).await;
    server.etcdctl(&["auth", "enable"]);
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    // Simple tokens live in memory.
    server.kill();
    server.start_again();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    // Permissions that change make all tokens stale.
    server.etcdctl(&[&ROOT[..], &["role", "add", "another"]].concat());
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    server.etcdctl(&[&ROOT[..], &["auth", "disable"]].concat());
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
}

/// It may do all but read and write orders.
#[tokio::test]
async fn a_candidate_that_may_not_read_orders_is_told_so_and_renews_all_the_same() {
    let server = guarded();
    let root = |arguments: &[&str]| server.etcdctl(&[&ROOT[..], arguments].concat());
    root(&["role", "add", "leases"]);
    for keys in ["base", "young", "shard/", "lock/", "led/"].map(|keys| format!("leaderrun/{keys}")) {
        root(&["role", "grant-permission", "leases", "--prefix=true", "readwrite", &keys]);
    }
    root(&["user", "add", "unordered:hunter2", "--interactive=false"]);
    root(&["user", "grant-role", "unordered", "leases"]);
    open(&url(&server, "app:hunter2")).await.vouch().await.unwrap();
    let store = open(&url(&server, "unordered:hunter2")).await;
    let (one, term) = one_leads_for(&*store, Duration::from_mins(1)).await;
    for sequence in 1..4 {
        let renewed = store.renew_and_read(&one, term, sequence, &[shard()]).await.unwrap();
        assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None));
    }
    denied(store.read(&shard(), &Page::Orders).await, "denied user unordered a Txn");
}
