//! Writes that arrive after later ones do no harm: the tests of stores that keep a row for each shard.

use super::proxy::{NetworkFault, Proxy};
use std::time::Duration;

/// Sends it through the proxy, and gives up on it before it has arrived.
pub async fn hold_up<T>(proxy: &Proxy, request: impl Future<Output = T>) {
    proxy.set(NetworkFault::Partition);
    let cut_off = tokio::time::timeout(Duration::from_millis(200), request).await;
    assert!(cut_off.is_err(), "nothing answers through a black hole");
}

/// The tests. `Table` and `Detour` are those of the module, and `$store` opens a store on `$table`. The server's client
/// shows `$true`, and `$between` two columns.
macro_rules! late_writes {
    ($table:ident => $store:expr, $true:literal, $between:literal) => {
        #[tokio::test]
        async fn a_claim_that_arrives_after_our_release_takes_nothing() {
            let $table = Table::new().await;
            let (detour, store) = (Detour::to(&$table).await, $store);
            let one = candidate("one");
            let term = lead(&store, &one).await;
            hold_up(&detour.proxy, detour.store.claim(&one)).await;
            assert_eq!(store.release(&one, term).await, Ok(Release::Released));
            detour.let_arrive(&$table).await;
            assert_eq!($table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), $true);
            lead(&store, &candidate("two")).await;
        }

        #[tokio::test]
        async fn a_claim_that_arrives_after_a_later_one_changes_neither_term_nor_beat() {
            let $table = Table::new().await;
            let (detour, store) = (Detour::to(&$table).await, $store);
            let one = candidate("one");
            lead(&store, &one).await;
            hold_up(&detour.proxy, detour.store.claim(&one)).await;
            let term = lead(&store, &one).await;
            assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
            detour.let_arrive(&$table).await;
            assert_eq!($table.sql("SELECT term, beat FROM $T WHERE shard = 'db/main'"), format!("{term}{}3", $between));
            assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
        }

        #[tokio::test]
        async fn a_release_that_arrives_after_our_next_claim_frees_nothing() {
            let $table = Table::new().await;
            let (detour, store) = (Detour::to(&$table).await, $store);
            let one = candidate("one");
            lead(&store, &one).await;
            hold_up(&detour.proxy, detour.store.release(&one, Term(0))).await;
            let term = lead(&store, &one).await;
            detour.let_arrive(&$table).await;
            assert_eq!(refused(store.claim(&candidate("two")).await.unwrap()).owner, "one");
            assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
        }

        #[tokio::test]
        async fn a_renewal_of_an_earlier_leadership_does_not_overtake_those_of_the_next() {
            let $table = Table::new().await;
            let (detour, store) = (Detour::to(&$table).await, $store);
            let one = candidate("one");
            let earlier = lead(&store, &one).await;
            hold_up(&detour.proxy, detour.store.renew(&one, earlier, 99)).await;
            let term = lead(&store, &one).await;
            detour.let_arrive(&$table).await;
            assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
        }

        #[tokio::test]
        async fn a_renewal_that_arrives_after_a_release_or_a_takeover_changes_nothing() {
            let $table = Table::new().await;
            let (detour, store) = (Detour::to(&$table).await, $store);
            let (one, two) = (candidate("one"), candidate("two"));
            let term = lead(&store, &one).await;
            hold_up(&detour.proxy, detour.store.renew(&one, term, 1)).await;
            store.release(&one, term).await.unwrap();
            detour.let_arrive(&$table).await;
            assert_eq!($table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), $true);
            assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));

            let next = lead(&store, &two).await;
            let renewal = store.renew(&one, term, 3).await;
            assert!(matches!(renewal, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
            assert_eq!(store.release(&one, Term(0)).await, Ok(Release::NotHeld));
            assert_eq!(store.renew(&two, next, 1).await, Ok(Renewal::Renewed));
        }

        #[tokio::test]
        async fn a_renewal_that_was_overtaken_says_so_and_takes_nothing_back() {
            let $table = Table::new().await;
            let store = $store;
            let one = candidate("one");
            let term = lead(&store, &one).await;
            assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Renewed));
            let row = $table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'");
            assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Overtaken));
            assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Overtaken));
            assert_eq!($table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'"), row);
        }

        #[tokio::test]
        async fn a_release_of_another_term_frees_nothing() {
            let $table = Table::new().await;
            let store = $store;
            let one = candidate("one");
            let earlier = lead(&store, &one).await;
            let term = lead(&store, &one).await;
            assert!(term > earlier);
            assert_eq!(store.release(&one, earlier).await, Ok(Release::NotHeld));
            assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
            assert_eq!(store.release(&one, term).await, Ok(Release::Released));
        }
    };
}
