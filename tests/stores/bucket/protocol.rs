//! What is asked, and what is in the bucket.

use super::*;
use std::sync::Mutex;

#[tokio::test]
async fn every_write_has_a_condition_and_no_shard_is_ever_deleted() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let unconditional = Arc::new(Mutex::new(Vec::new()));
    let found = Arc::clone(&unconditional);
    proxy.rule(move |request| {
        let has = |wanted: &str| request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let is_write = ["PUT", "POST", "DELETE"].contains(&&*request.action);
        if is_write && !has("if-match") && !has("if-none-match") {
            found.lock().unwrap().push(request.line.clone());
        }
        Fate::Pass
    });
    let store = store(&proxy.endpoint()).await;
    let (one, term) = one_leads(&store).await;
    store.renew(&one, term, 1).await.unwrap();
    store.revoke(&one.shard, term).await.unwrap();
    let term = granted(store.claim(&one).await.unwrap()).term;
    assert_eq!(store.release(&one, term).await.unwrap(), Release::Released);
    let term = granted(store.claim(&one).await.unwrap()).term;
    store.forget(&one, term).await.unwrap();
    assert_eq!(*unconditional.lock().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_conflict_is_looked_at_and_not_taken_for_an_answer() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    let (one, term) = one_leads(&store).await;
    let body = "<Error><Code>ConditionalRequestConflict</Code><Message>again</Message></Error>".to_owned();
    proxy.once("PUT", Fate::Answer(Response { status: 409, headers: Vec::new(), body }));
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    assert_eq!(proxy.actions().iter().filter(|action| *action == "PUT").count(), 5, "a claim of three, two renewals");
}
