//! For a load balancer that sends requests only to the leader: `GET /` answers 200 if this replica leads, otherwise 503.
//!
//! `cargo run --example health_endpoint [STORE [ADDRESS]]`

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leaderrun::Member;
use std::convert::Infallible;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let store = words.next().or_else(|| std::env::var("LEADERRUN_STORE").ok());
    let listener = TcpListener::bind(words.next().unwrap_or("127.0.0.1:8080".into())).await?;
    let member =
        Member::builder(store.unwrap_or("file:/tmp/leaderrun-examples".into()), "examples/health").join().await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        never = serve(listener, &member) => never?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        // As service managers and containers stop a program.
        _ = terminated.recv() => {}
    }
    Ok(member.stop().await?)
}

/// Serves one connection at a time, to keep the example short.
async fn serve(listener: TcpListener, member: &Member) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let answer = service_fn(|_: Request<Incoming>| {
            let answer = health(member);
            async { Ok::<_, Infallible>(answer) }
        });
        if let Err(error) = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), answer).await
        {
            eprintln!("{error}");
        }
    }
}

fn health(member: &Member) -> Response<Full<Bytes>> {
    let (status, says) = match (member.is_leader(), member.leader()) {
        (true, _) => (StatusCode::OK, "leading\n".to_owned()),
        (false, Some(leader)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{} leads\n", leader.owner)),
        (false, None) => (StatusCode::SERVICE_UNAVAILABLE, "nobody is known to lead\n".to_owned()),
    };
    let mut response = Response::new(Full::from(says));
    *response.status_mut() = status;
    response
}
