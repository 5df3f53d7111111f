//! An endpoint with `https://`, whose certificate `ca=FILE` names.

use super::*;
use crate::support::papers::Papers;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Speaks TLS for a server that does not. Returns its port.
async fn encrypted(server: &Server, papers: &Papers) -> u16 {
    let own = CertificateDer::from_pem_file(papers.file("own.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(papers.file("own.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![own], key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, upstream) = (listener.local_addr().unwrap().port(), server.port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut upstream = TcpStream::connect(("127.0.0.1", upstream)).await.expect("it listens");
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
            });
        }
    });
    port
}

async fn run(url: &str) -> Said {
    let mut command = leaderrun();
    command.args(["--store", url, "-n", "-q", "job", "true"]).envs(ENVIRONMENT.iter().copied());
    tokio::task::spawn_blocking(move || command.said()).await.unwrap()
}

#[tokio::test]
async fn a_candidate_leads_over_tls_where_it_trusts_the_certificate_and_nowhere_else() {
    let (server, papers) = (old_server(), Papers::none());
    papers.add_self_signed("own");
    let port = encrypted(&server, &papers).await;
    let url = url(&format!("https://127.0.0.1:{port}"));
    let named = format!("{url}&ca={}", papers.path("own.pem"));
    assert_eq!(run(&named).await.ended(0).err, "");
    run(&url).await.ended(69).tells("its certificate is self-signed");
    run(&named.replace("127.0.0.1", "localhost")).await.ended(69);
    run(&format!("{url}&ca=/no/such/file")).await.ended(78).tells("/no/such/file");
}
