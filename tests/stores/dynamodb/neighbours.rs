//! Other programs in the same table: the four requests of gurre/shardcoordinator, spoken by hand, and strangers.

use super::*;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;

/// A candidate of the Go library. Its clock is the machine's, in whole seconds.
struct Go {
    client: Client,
    owner: String,
}

/// A server with the table `locks`, a store of ours there, and one of theirs.
async fn beside_go() -> (Server, LeaseStore, Go) {
    let server = Server::start();
    let table = server.table("locks").await;
    let store = store(&server.endpoint(), &table).await;
    let go = Go::new(&server, "go");
    (server, store, go)
}

macro_rules! to_the_lock {
    ($request:expr) => {
        $request.table_name("locks").key("pk", text("SHARD#db/main")).key("sk", text("LOCK"))
    };
}

/// Whether it was done. The condition is all that may fail.
macro_rules! is_done {
    ($request:expr, $error:ident) => {
        match $request.send().await.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
            Ok(_) => true,
            Err($error::ConditionalCheckFailedException(_)) => false,
            Err(error) => panic!("{error}"),
        }
    };
}

impl Go {
    fn new(server: &Server, owner: &str) -> Self {
        Self { client: server.client(), owner: owner.to_owned() }
    }

    /// Takes the lock when it is absent or its `ttl` has passed. A negative lease is one that is over already.
    async fn acquire(&self, lease: i64) -> bool {
        let put = self.client.put_item().table_name("locks").item("pk", text("SHARD#db/main")).item("sk", text("LOCK"));
        let put = put.item("ownerId", text(&self.owner)).item("ttl", number(now() + lease));
        let put = put.condition_expression("attribute_not_exists(pk) OR (attribute_exists(pk) AND #t < :now)");
        let put = put.expression_attribute_names("#t", "ttl").expression_attribute_values(":now", number(now()));
        is_done!(put, PutItemError)
    }

    /// The same by an update, which leaves the attributes alone that it does not know.
    async fn acquire_by_update(&self, lease: i64) -> bool {
        self.update("SET ownerId = :me, #t = :n", "attribute_not_exists(pk) OR #t < :now", lease).await
    }

    async fn renew(&self, lease: i64) -> bool {
        self.update("SET #t = :n", "ownerId = :me AND #t >= :now", lease).await
    }

    async fn update(&self, change: &str, condition: &str, lease: i64) -> bool {
        let update = to_the_lock!(self.client.update_item()).update_expression(change).condition_expression(condition);
        let update = update.expression_attribute_names("#t", "ttl");
        let update = update.expression_attribute_values(":me", text(&self.owner));
        let update = update.expression_attribute_values(":n", number(now() + lease));
        is_done!(update.expression_attribute_values(":now", number(now())), UpdateItemError)
    }

    async fn release(&self) -> bool {
        let delete = to_the_lock!(self.client.delete_item()).condition_expression("ownerId = :me");
        is_done!(delete.expression_attribute_values(":me", text(&self.owner)), DeleteItemError)
    }

    async fn holder(&self) -> Option<String> {
        let item = item(&self.client, "locks", "LOCK").await?;
        let alive = millis_in(&item, "ttl") >= u64::try_from(now()).unwrap();
        alive.then(|| item["ownerId"].as_s().unwrap().clone())
    }
}

fn now() -> i64 {
    i64::try_from(millis_now() / 1000).unwrap()
}

#[tokio::test]
async fn while_we_lead_the_go_library_neither_acquires_nor_renews_nor_releases() {
    let (_server, store, go) = beside_go().await;
    let (one, term) = one_leads(&store).await;
    assert!(!go.acquire(15).await);
    assert!(!go.acquire_by_update(15).await);
    assert!(!go.renew(15).await);
    assert!(!go.release().await);
    assert_eq!(go.holder().await.as_deref(), Some("one"));
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    assert!(!go.acquire(15).await);
}

#[tokio::test]
async fn while_the_go_library_leads_we_neither_claim_nor_renew_nor_release() {
    let (_server, store, go) = beside_go().await;
    let one = candidate("one");
    let begun = Instant::now();
    assert!(go.acquire(60).await);
    let holder = refused(store.claim(&one).await.unwrap());
    let took = begun.elapsed();
    assert_eq!((holder.owner.as_str(), holder.session.clone(), holder.is_foreign()), ("go", None, true));
    let is_so = |left: Duration| left + took > Duration::from_secs(58) && left < Duration::from_secs(65);
    assert!(holder.expires_in.is_some_and(is_so), "{holder:?} after {took:?}");
    assert!(matches!(store.observe(&one.shard).await.unwrap(), Observation::Held(_)));
    assert!(
        matches!(store.renew(&one, Term(1), 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "go")
    );
    assert_eq!(store.release(&one, Term(0)).await.unwrap(), Release::NotHeld);
    assert!(go.renew(15).await);
    assert_eq!(go.holder().await.as_deref(), Some("go"));
}

#[tokio::test]
async fn an_expired_lease_of_the_go_library_is_taken_over_and_not_a_moment_before() {
    let (_server, store, go) = beside_go().await;
    let one = candidate("one");
    let ttl = now() + 1;
    assert!(go.acquire(1).await);
    let start = Instant::now();
    while matches!(store.claim(&one).await.unwrap(), Claim::Refused(_)) {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(now() > ttl);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(!go.renew(15).await);
    assert!(!go.release().await);
}

/// By a put, or by an update, which leaves our attributes behind.
#[tokio::test]
async fn our_expired_lease_is_acquired_by_the_go_library_and_not_a_moment_before() {
    for is_update in [false, true] {
        let (_server, store, go) = beside_go().await;
        let one = with_lease("one", Duration::from_secs(1));
        let start = Instant::now();
        let term = lead(&store, &one).await;
        while !(if is_update { go.acquire_by_update(15).await } else { go.acquire(15).await }) {
            sleep(Duration::from_millis(50)).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        let lost = store.renew(&one, term, 1).await.unwrap();
        assert!(matches!(lost, Renewal::Lost(Some(holder)) if holder.owner == "go"));
        assert_eq!(store.release(&one, term).await.unwrap(), Release::NotHeld);
        let holder = refused(store.claim(&one).await.unwrap());
        assert_eq!((holder.owner.as_str(), holder.session), ("go", None));
        assert!(go.renew(-5).await);
        // Its lease is over. Nothing tells whether our last tree is dead, so it is waited for.
        let next = granted(store.claim(&one).await.unwrap());
        assert!(next.term > term && next.start_after.is_some(), "{next:?}");
        assert_eq!(store.renew(&one, next.term, 1).await.unwrap(), Renewal::Renewed);
    }
}

#[tokio::test]
async fn the_go_library_waits_for_a_tree_that_a_candidate_of_ours_has_to_wait_for() {
    let (server, store, go) = beside_go().await;
    let (client, table) = (server.client(), "locks");
    lead(&store, &candidate("one")).await;
    delete(&client, table, "SHARD#db/main", "LOCK").await;
    let two = candidate("two");
    let grant = granted(store.claim(&two).await.unwrap());
    assert!(wait_of(&grant) > LEASE / 2, "{grant:?}");
    assert!(!go.acquire(15).await);
    assert_eq!(store.release(&two, grant.term).await.unwrap(), Release::Released);
    assert!(!go.acquire(15).await, "the tree may still run");
}

#[tokio::test]
async fn a_record_that_nobody_can_read_is_named_and_left_alone() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (leader, standby) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&leader, &one).await;
    let garbage = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("LOCK"));
    garbage.item("ttl", text("tomorrow")).send().await.unwrap();

    let named = "the item pk=SHARD#db/main, sk=LOCK of table locks was written by another program";
    misconfigured(leader.renew(&one, term, 1).await, named);
    misconfigured(standby.claim(&two).await, named);
    assert_eq!(item(&client, &table, "LOCK").await.unwrap()["ttl"], text("tomorrow"));
}
