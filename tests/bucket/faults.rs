//! Answers that are lost, late, or not what one hopes for.

use super::*;
use crate::support::ports::free_port;

/// A server, and a store that reaches it through a proxy.
async fn behind_a_proxy() -> (Server, Proxy, Bucket) {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    (server, proxy, store)
}

#[tokio::test]
async fn a_conflict_is_looked_at_and_not_taken_for_an_answer() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let body = "<Error><Code>ConditionalRequestConflict</Code><Message>again</Message></Error>".to_owned();
    proxy.once("PUT", Fate::Answer(Response { status: 409, headers: Vec::new(), body }));
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    assert_eq!(proxy.actions().iter().filter(|action| *action == "PUT").count(), 5, "a claim of three, two renewals");
}

#[tokio::test]
async fn what_was_never_sent_was_not_applied_and_what_the_server_failed_at_may_have_been() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for (status, code, kind) in [
        (503, "SlowDown", ErrorKind::NotApplied),
        (500, "InternalError", ErrorKind::Unknown),
        (403, "ExpiredToken", ErrorKind::Denied),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>because</Message></Error>");
        proxy.rule(move |_| Fate::Answer(Response { status, headers: Vec::new(), body: body.clone() }));
        assert_eq!(store.renew(&one, term, 1).await.unwrap_err().kind, kind, "{code}");
    }
    proxy.pass();
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    let nobody = super::store(&format!("http://127.0.0.1:{}", free_port())).await;
    not_applied(nobody.claim(&one).await, "connection refused");
}

#[tokio::test]
async fn without_dates_a_lease_ends_after_standing_unchanged_and_not_before() {
    let (server, proxy, one_store) = behind_a_proxy().await;
    proxy.rule(|_| {
        Fate::Rewrite(Box::new(|response| response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("date"))))
    });
    let lease = Duration::from_secs(3);
    let (one, two) = (with_lease("one", lease), with_lease("two", lease));
    granted(one_store.claim(&one).await.unwrap());
    let other = store(&proxy.endpoint()).await;
    refused(other.claim(&two).await.unwrap());
    let begun = std::time::Instant::now();
    granted_in_time(&other, &two).await;
    assert!(begun.elapsed() > lease * 9 / 10, "{:?}", begun.elapsed());
    drop(server);
}
