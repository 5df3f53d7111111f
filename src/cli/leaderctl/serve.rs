//! `leaderctl serve`: all shards of a store as a page, as JSON, and as metrics, over HTTP. It is read-only.
//!
//! The hazard: there is no password, and others wrote what is shown. So by default the server listens on this machine
//! alone, and there refuses requests for another host name, which a foreign page could make a browser send. It only
//! reads, and it escapes each name from the store. The policy in each answer forbids a page to load anything from
//! elsewhere, or to run another script.

mod json;
mod metrics;
mod page;

use super::fleet::reader::{Reader, ReadingFlags};
use super::fleet::{Fleet, Seen, Snapshot};
use super::prelude::*;
use super::{PROGRAM, asked_to_stop};
use crate::observe::http::{self, METRICS};
use crate::observe::listen::Address;
use crate::observe::log;
use crate::text::in_words;
use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::header::{self, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use percent_encoding::percent_decode_str;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A page may load its style, script and icon from here, and ask here for news.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const OPENAPI: &str = include_str!("serve/openapi.yaml");
const NOTHING: (StatusCode, &str) = (
    StatusCode::NOT_FOUND,
    "there are /, /shards/NAME, /metrics, /api/shards, /api/shards/NAME/history, /api/hosts, /api/openapi.yaml, /livez \
     and /readyz\n",
);
/// Enough for a page of thousands of shards on a slow network.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct ServeFlags {
    /// Listen on this address
    #[arg(long, value_name = "ADDR", default_value_t = Address::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9101)))]
    listen: Address,

    /// Show only shards whose names begin with this
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<Prefix>,

    #[command(flatten)]
    reading: ReadingFlags,
}

impl ServeFlags {
    pub async fn serve(self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let (is_metered, interval) = (client.store.is_metered(), self.reading.interval(client.store));
        let reader = Reader::new(client, self.prefix.unwrap_or_default(), self.reading);
        let is_loopback = matches!(&self.listen, Address::Tcp(address) if address.ip().is_loopback());
        let board = Arc::new(Board { fleet: reader.fleet(), is_loopback });
        let refused = |error| Failure::of_os(format!("cannot listen on {}: {}", self.listen, in_words(&error)));
        let listening = http::begin(&self.listen, routes(&board), PATIENCE).await.map_err(refused)?;
        if is_metered {
            let each = if self.reading.standbys { "two lists" } else { "one list" };
            let (interval, why) = (show(interval), "on this store that costs money or burdens the cluster");
            log::warn(PROGRAM, &format!("{each} of all shards every {interval}: {why}; --interval changes it"));
        }
        if !is_loopback && !matches!(self.listen, Address::Unix(_)) {
            log::warn(PROGRAM, &format!("{} is open to other machines, and there is no password", self.listen));
        }
        say(format_args!("serving on {}", listening.address));
        tokio::select! {
            () = reader.run() => unreachable!("a reader goes on"),
            () = asked_to_stop() => Ok(ExitCode::SUCCESS),
        }
    }
}

struct Board {
    fleet: Arc<Fleet>,
    /// It listens on an address of this machine alone.
    is_loopback: bool,
}

impl Board {
    /// Whether the request names another host, whose page may have made a browser send it.
    fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(header::HOST).filter(|_| self.is_loopback) else { return false };
        let host = host.to_str().unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        !(name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback()))
    }
}

type Asked = State<Arc<Board>>;

fn routes(board: &Arc<Board>) -> Router {
    Router::new()
        .route("/", get(fleet_page))
        .route("/shards/{*shard}", get(shard_page))
        .route("/page.css", get(of_type("text/css; charset=utf-8", page::STYLE)))
        .route("/page.js", get(of_type("text/javascript; charset=utf-8", page::SCRIPT)))
        .route("/icon.svg", get(of_type("image/svg+xml", page::ICON)))
        .route("/metrics", get(async |State(board): Asked| of_type(METRICS, metrics::text(&board.fleet.lock()))))
        .route("/livez", get("alive\n"))
        .route("/readyz", get(async |State(board): Asked| ready(&board.fleet.lock())))
        .route("/api/openapi.yaml", get(of_type("application/yaml", OPENAPI)))
        .route("/api/shards", get(async |State(board): Asked| of_type(JSON, json::shards(&board.fleet.lock()))))
        .route("/api/hosts", get(async |State(board): Asked| of_type(JSON, json::hosts(&board.fleet.lock()))))
        .route("/api/shards/{*history}", get(history))
        .method_not_allowed_fallback(http::REFUSED)
        .fallback(NOTHING)
        .layer(from_fn_with_state(Arc::clone(board), refuse_foreigners))
        .layer(map_response(with_policies))
        .with_state(Arc::clone(board))
}

async fn refuse_foreigners(State(board): Asked, asked: Request, next: Next) -> Response {
    if board.is_foreign(asked.headers()) {
        return (StatusCode::MISDIRECTED_REQUEST, "only requests for localhost or a loopback address are answered\n")
            .into_response();
    }
    next.run(asked).await
}

async fn with_policies(mut answer: Response) -> Response {
    let policies = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    answer.headers_mut().extend(policies.map(|(name, value)| (name, HeaderValue::from_static(value))));
    answer
}

async fn fleet_page(State(board): Asked, RawQuery(query): RawQuery) -> Response {
    let wish = page::Wish::read(&query.unwrap_or_default());
    of_type(HTML, page::fleet(&board.fleet.lock(), &wish, wall_clock_millis())).into_response()
}

async fn shard_page(State(board): Asked, uri: Uri) -> Response {
    let (snapshot, wish) = (board.fleet.lock(), page::Wish::read(uri.query().unwrap_or_default()));
    let named = uri.path().strip_prefix("/shards/").and_then(|name| find(&snapshot, name));
    let Some((shard, seen)) = named else { return NOTHING.into_response() };
    of_type(HTML, page::shard(&snapshot, shard, seen, &wish, wall_clock_millis())).into_response()
}

async fn history(State(board): Asked, uri: Uri) -> Response {
    let snapshot = board.fleet.lock();
    let name = uri.path().strip_prefix("/api/shards/").and_then(|rest| rest.strip_suffix("/history"));
    let Some((shard, seen)) = name.and_then(|name| find(&snapshot, name)) else { return NOTHING.into_response() };
    of_type(JSON, json::history_of(&snapshot, shard, seen)).into_response()
}

fn of_type<T>(kind: &'static str, body: T) -> ([(HeaderName, &'static str); 1], T) {
    ([(CONTENT_TYPE, kind)], body)
}

/// Names have slashes, so routes cannot tell where one ends.
fn find<'a>(snapshot: &'a Snapshot, name: &str) -> Option<(&'a Shard, &'a Seen)> {
    snapshot.shards.get_key_value(&percent_decode_str(name).decode_utf8().ok()?.parse::<Shard>().ok()?)
}

fn ready(snapshot: &Snapshot) -> (StatusCode, String) {
    match (&snapshot.reading, &snapshot.trouble) {
        (_, Some(trouble)) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", trouble.message)),
        (None, None) => (StatusCode::SERVICE_UNAVAILABLE, "not ready: the store was not read yet\n".to_owned()),
        (Some(_), None) => (StatusCode::OK, "ready\n".to_owned()),
    }
}
