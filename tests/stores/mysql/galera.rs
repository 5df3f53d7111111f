//! A Galera cluster: nodes that all accept writes, with a clock each. Skipped where its library is missing.

use super::*;
use crate::support::ports::free_port;

const SHORT: Duration = Duration::from_secs(4);
const LIBRARY: &str = "/usr/lib/galera/libgalera_smm.so";

/// Two nodes of one cluster. None where there is no Galera.
async fn cluster() -> Option<(Server, Server)> {
    if !is_mariadb() || !Path::new(LIBRARY).exists() || !Path::new("/usr/bin/rsync").exists() {
        println!("skipped: install the packages galera-4 and rsync");
        return None;
    }
    let group = free_port();
    let first = node(group, "");
    let nodes = (first, node(free_port(), &format!("127.0.0.1:{group}")));
    eventually("both are members", async || {
        let asked = nodes.1.ask("SHOW STATUS LIKE 'wsrep_local_state_comment'");
        asked.is_ok_and(|state| state.ends_with("Synced"))
    })
    .await;
    open(&nodes.0.url_with("")).prepare().await.unwrap();
    nodes.0.age("leaderrun");
    Some(nodes)
}

/// A node that joins those at `others`, or begins a cluster.
fn node(group: u16, others: &str) -> Server {
    let (base, transfer, catch_up) = (free_port(), free_port(), free_port());
    let options = [
        "--binlog-format=ROW".to_owned(),
        "--innodb-autoinc-lock-mode=2".to_owned(),
        "--wsrep-on=1".to_owned(),
        format!("--wsrep-provider={LIBRARY}"),
        "--wsrep-cluster-name=leases".to_owned(),
        format!("--wsrep-cluster-address=gcomm://{others}"),
        format!("--wsrep-node-address=127.0.0.1:{base}"),
        format!("--wsrep-sst-receive-address=127.0.0.1:{transfer}"),
        "--wsrep-sst-method=rsync".to_owned(),
        format!(
            "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group};base_port={base};\
             ist.recv_addr=127.0.0.1:{catch_up};gcache.size=8M;evs.keepalive_period=PT0.4S;evs.suspect_timeout=PT2S;\
             evs.inactive_timeout=PT5S;evs.install_timeout=PT4S"
        ),
    ];
    Server::start_with(&options.each_ref().map(String::as_str))
}

fn of(shard: &str, owner: &str) -> Candidate {
    Candidate { shard: shard.parse().unwrap(), ..candidate(owner) }
}

fn short(shard: &str, owner: &str) -> Candidate {
    Candidate { lease: SHORT, ..of(shard, owner) }
}

#[tokio::test]
async fn a_cluster_never_lets_two_lead() {
    let Some((here, mut there)) = cluster().await else { return };
    let (first, second) = (open(&here.url_with("")), open(&there.url_with("")));
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));

    // A clock that is an hour ahead makes nothing of a lease that is held: the other node remembers nothing yet.
    let term = lead(&first, &one).await;
    here.sql("UPDATE leaderrun SET ends = ends - 3600000 WHERE part = 'lease'");
    refused(second.claim(&two).await.unwrap());
    // And no renewal counts beside a marker of that node.
    let named = "SELECT session FROM leaderrun WHERE part = 'marker'";
    let elsewhere = there.sql(named);
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_ne!(here.sql(named), elsewhere);
    refused(second.claim(&two).await.unwrap());
    let grant = granted_in_time(&second, &two).await;
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
    assert!(matches!(first.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    assert_eq!(second.release(&two, grant.term).await, Ok(Release::Released));
    // The first node's clock is not believed at once either.
    assert!(refused(first.claim(&one).await.unwrap()).doubt.is_some());

    // A leader whose node is gone renews at the other one, and the first one grants nothing from then on.
    let both = format!("@127.0.0.1:{},127.0.0.1:{}/", here.port(), there.port());
    let proxy = crate::support::proxy::Proxy::to(([127, 0, 0, 1], here.port()).into());
    let roaming = here.url_with("").replace(&format!("@127.0.0.1:{}/", here.port()), &both);
    let roaming = open_for(&roaming.replace(&here.port().to_string(), &proxy.address.port().to_string()), LEASE / 5);
    let three = of("db/three", "three");
    let term = granted_in_time(&roaming, &three).await.term;
    proxy.set(crate::support::proxy::NetworkFault::Reset);
    let mut sequence = 0;
    eventually("it is renewed at the other one", async || {
        sequence += 1;
        let renewal = roaming.renew(&three, term, sequence).await;
        assert!(!matches!(renewal, Ok(Renewal::Lost(_) | Renewal::Revoked)), "{renewal:?}");
        renewal.is_ok()
    })
    .await;
    assert!(refused(first.claim(&of("db/four", "one")).await.unwrap()).doubt.is_some());

    // At once, at both nodes: one of two writes fails when it is committed.
    for round in 0..30 {
        let shard = format!("race/{round}");
        let (one, two) = (short(&shard, "one"), short(&shard, "two"));
        let claims = tokio::join!(first.claim(&one), second.claim(&two));
        let is_granted = |claim: &Result<Claim, _>| matches!(claim, Ok(Claim::Granted(_)));
        assert!(!(is_granted(&claims.0) && is_granted(&claims.1)), "{claims:?}");
    }
    // They do not keep each other out for ever.
    let (one, two) = (short("race/last", "one"), short("race/last", "two"));
    eventually("one of them leads", async || {
        tokio::time::sleep(SHORT / 8).await;
        let claims = tokio::join!(first.claim(&one), second.claim(&two));
        let granted = [&claims.0, &claims.1].map(|claim| matches!(claim, Ok(Claim::Granted(_))));
        assert_ne!(granted, [true, true], "{claims:?}");
        granted != [false, false]
    })
    .await;

    // One of two is no majority.
    there.kill();
    eventually("it is no majority", async || {
        let claim = first.claim(&of("db/six", "one")).await;
        let failure = claim.as_ref().err().map(|error| error.kind);
        assert!(matches!(failure, None | Some(ErrorKind::NotApplied | ErrorKind::Unknown)), "{claim:?}");
        failure.is_some()
    })
    .await;
    eventually("it knows", async || here.ask("SELECT 1 FROM leaderrun").is_err()).await;
    not_applied(first.claim(&of("db/six", "one")).await, "WSREP has not yet prepared");
}
