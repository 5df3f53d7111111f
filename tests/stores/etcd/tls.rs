//! Encrypted connections, and certificates on both sides.

use super::*;
use crate::support::papers::Papers;

#[tokio::test]
async fn client_and_server_may_know_each_other_by_certificates() {
    let server = Server::start_with_tls();
    let store = open(&server.own_url()).await;
    store.prepare().await.unwrap();
    assert_eq!(texts(&store.check().await.unwrap(), Verdict::Bad), [""; 0]);
    let one = candidate("one");
    store.vouch().await.unwrap();
    let term = lead(&*store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_peer_that_cannot_be_verified_is_not_asked_and_the_reason_is_shown() {
    let server = Server::start_with_tls();
    let (tls, stranger) = (server.tls(), Papers::issue("IP:127.0.0.1"));
    let host = server.host();
    let one = candidate("one");
    for (what, url, sign) in [
        (
            "an authority that did not sign the server",
            format!("etcds://{host}?ca={}", stranger.path("ca.pem")),
            "certificate",
        ),
        ("no certificate of our own", format!("etcds://{host}?ca={}", tls.path("ca.pem")), "ertificate"),
        (
            "a certificate that the server does not trust",
            format!(
                "etcds://{host}?ca={}&cert={}&key={}",
                tls.path("ca.pem"),
                stranger.path("app.pem"),
                stranger.path("app.key")
            ),
            "ertificate",
        ),
        ("no encryption", format!("etcd://{host}"), "does it need TLS, by etcds://?"),
    ] {
        let error = open(&url).await.claim(&one).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::NotApplied | ErrorKind::Unknown), "{what}: {error:?}");
        assert!(error.message.contains(&host) && error.message.contains(sign), "{what}: {error}");
        assert!(!error.message.contains('\n'), "{error}");
    }
    let location = Location::from_url(&format!("etcds://{host}?ca=/nowhere")).unwrap();
    misconfigured(location.open(REQUEST_TIMEOUT).await, "/nowhere cannot be used for TLS");
    let location = Location::from_url(&format!("etcds://a..b?ca={}", tls.path("ca.pem"))).unwrap();
    misconfigured(location.open(REQUEST_TIMEOUT).await, "a..b is not a valid name for TLS");
    let plain = Server::start();
    let url = format!("etcds://{}?ca={}", plain.host(), tls.path("ca.pem"));
    not_applied(open(&url).await.claim(&one).await, &format!("cannot reach etcd at {}: ", plain.host()));
}
