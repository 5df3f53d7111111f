//! Several members, of which some are gone.

use super::*;

fn url(members: &[Server]) -> String {
    let hosts: Vec<_> = members.iter().map(Server::host).collect();
    format!("etcd://{}", hosts.join(","))
}

/// Three members; on a busy machine they may take some elections until one of them leads for good.
async fn cluster() -> Vec<Server> {
    let mut members = Server::cluster();
    for member in 0..members.len() {
        let store = open(&url(&members[member..=member])).await;
        eventually("it is prepared", async || store.prepare().await.is_ok()).await;
    }
    members[0].grow_old();
    members
}

fn field(member: &Server, name: &str) -> u64 {
    let status = member.etcdctl(&["endpoint", "status", "-w", "fields"]);
    let value = status.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : ")));
    value.expect("etcdctl tells it").parse().expect("a number")
}

/// Which of them leads etcd, without one that is frozen.
async fn leading(members: &[Server], without: Option<usize>) -> usize {
    let leads = |member: &Server| field(member, "MemberID") == field(member, "Leader");
    let mut found = None;
    eventually("etcd has a leader", async || {
        found = (0..members.len()).find(|&index| Some(index) != without && leads(&members[index]));
        found.is_some()
    })
    .await;
    found.expect("there is one")
}

#[tokio::test]
async fn a_member_without_a_majority_is_an_outage_and_recovers() {
    let mut members = cluster().await;
    let store = open_with(&url(&members[..1]), Duration::from_secs(2)).await;
    let one = candidate("one");
    let term = granted_in_time(&*store, &one).await.term;
    members[1].kill();
    members[2].kill();
    for sequence in 1..5 {
        let error = store.renew(&one, term, sequence).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unknown | ErrorKind::NotApplied), "{error:?}");
    }
    eventually("the member knows that it is alone", async || field(&members[0], "Leader") == 0).await;
    assert_eq!(
        not_applied(store.renew(&one, term, 5).await, ""),
        format!("etcd at {} cannot serve: no leader", members[0].host())
    );
    finds(&store.check().await.unwrap(), Verdict::Bad, "has no leader");
    members[1].start_again();
    eventually("it recovers", async || store.renew(&one, term, 6).await == Ok(Renewal::Renewed)).await;
}

#[tokio::test]
async fn a_member_that_is_behind_shows_nothing_of_the_past() {
    let members = cluster().await;
    let leader = leading(&members, None).await;
    let follower = (leader + 1) % 3;
    let (behind, other) =
        (open(&url(&members[follower..=follower])).await, open(&url(&members[leader..=leader])).await);
    let (one, two) = (with_lease("one", Duration::from_mins(1)), with_lease("two", Duration::from_mins(1)));
    let term = granted_in_time(&*behind, &one).await.term;
    members[follower].freeze();
    let mut released = other.release(&one, term).await;
    while released.is_err() {
        released = other.release(&one, term).await;
    }
    let next = granted_in_time(&*other, &two).await.term;
    for number in 0..20 {
        members[leader].put("unrelated", &number.to_string());
    }
    let marker = members[leader].value("leaderrun/base");
    let renewal = renews(&behind, &one, term, 1);
    // It lies before the stopped one's door.
    tokio::time::sleep(Duration::from_millis(300)).await;
    members[follower].thaw();
    let mut renewal = renewal.await.unwrap();
    let begun = Instant::now();
    while renewal.is_err() {
        assert!(begun.elapsed() < PATIENCE, "{renewal:?}");
        renewal = behind.renew(&one, term, 1).await;
    }
    assert!(matches!(&renewal, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"), "{renewal:?}");
    assert_eq!(members[leader].value("leaderrun/base"), marker, "no other life of etcd has begun");
    assert_eq!(refused(behind.claim(&one).await.unwrap()).term, Some(next));
}

#[tokio::test]
async fn servers_of_different_clusters_are_called_what_they_are() {
    let servers = [Server::start(), Server::start()];
    finds(&open(&url(&servers)).await.check().await.unwrap(), Verdict::Bad, "different clusters");
}

#[tokio::test]
async fn a_renewal_that_a_former_leader_of_etcd_answers_does_not_count() {
    let members = cluster().await;
    let leader = leading(&members, None).await;
    // Long, so that the answer of the member that wakes up is waited for.
    let store = open_with(&url(&members[leader..=leader]), Duration::from_secs(20)).await;
    let one = with_lease("one", Duration::from_secs(12));
    let term = granted_in_time(&*store, &one).await.term;
    members[leader].freeze();
    let successor = leading(&members, Some(leader)).await;
    // The successor counts the lease from about now.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let sent = Instant::now();
    let renewal = renews(&store, &one, term, 1);
    // It lies before the frozen one's door.
    tokio::time::sleep(Duration::from_millis(500)).await;
    members[leader].thaw();
    let renewal = renewal.await.unwrap();
    println!("{renewal:?} after {:?}", sent.elapsed());
    if renewal == Ok(Renewal::Renewed) {
        let lease = members[successor].lease_of("leaderrun/lock/db/main");
        let told = members[successor].etcdctl(&["lease", "timetolive", &lease]);
        let left = told.split("remaining(").nth(1).and_then(|rest| rest.split('s').next()).expect("etcdctl tells it");
        let left = Duration::from_secs(left.parse::<u64>().expect("whole seconds") + 1);
        assert!(left + sent.elapsed() >= one.lease, "{left:?} left after {:?}", sent.elapsed());
    }
}
