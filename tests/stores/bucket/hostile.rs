//! Servers that are broken, or not what one hopes for.

use super::*;

#[tokio::test]
async fn an_object_that_something_else_wrote_is_refused_and_stays() {
    let server = old_server();
    server.write("shard/db=main", "not ours");
    let store = store(&server.endpoint()).await;
    misconfigured(
        store.claim(&candidate("one")).await,
        "the object s3://locks/a/b/shard/db=main was written by another program",
    );
    assert_eq!(server.object("shard/db=main").as_deref(), Some("not ours"));
    misconfigured(store.observe(&shard()).await, "");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    proxy.rule(|request| {
        if !request.line.contains("/shard/") {
            return Fate::Pass;
        }
        let date = ("Last-Modified".to_owned(), "Mon, 23 Nov 2026 15:00:00 GMT".to_owned());
        let headers = vec![("ETag".to_owned(), "\"x\"".to_owned()), date];
        Fate::Answer(Response { status: 200, headers, body: "x".repeat(17 << 20) })
    });
    let named = "db=main was written by another program (it has more than 16 MiB)";
    misconfigured(store.claim(&candidate("one")).await, named);
}

#[tokio::test]
async fn a_page_of_a_web_server_is_no_answer_about_an_object() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    let (one, term) = one_leads(&store).await;
    proxy.rule(|_| {
        Fate::Answer(Response { status: 404, headers: Vec::new(), body: "<html>Not Found</html>".to_owned() })
    });
    misconfigured(store.renew(&one, term, 1).await, "is it an object store?");
    assert!(store.observe(&one.shard).await.is_err());
    proxy.pass();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}
