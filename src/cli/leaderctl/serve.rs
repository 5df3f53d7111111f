//! `leaderctl serve`: all shards of a store as a page, as JSON, and as metrics, over HTTP. It is read-only.
//!
//! The hazard: there is no password, and others wrote what is shown. So the server listens on this machine alone unless
//! an option says otherwise. There it refuses requests for another host name, which a foreign page could make a browser
//! send. It only reads, and it escapes each name from the store. The policy in each answer forbids a page to load
//! anything from elsewhere, or to run another script.

mod json;
mod metrics;
mod page;

use super::fleet::reader::{Reader, ReadingFlags};
use super::fleet::{Fleet, Picture};
use super::{PROGRAM, asked_to_stop};
use crate::lease::{Prefix, Shard, show};
use crate::observe::http::{self, Address, Answer, METRICS, Site, TEXT};
use crate::observe::{log, terminal};
use crate::store::{Store, StoreError};
use crate::text::in_words;
use clap::Args;
use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// What a page may do: load its style, its script and its icon from here, and ask here for what is new.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const OPENAPI: &str = include_str!("serve/openapi.yaml");

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
    /// Serves until a signal asks to stop.
    ///
    /// # Errors
    /// If the store refuses the first reading for good.
    pub async fn serve(self, store: Arc<dyn Store>, patience: Duration) -> Result<ExitCode, StoreError> {
        let (is_metered, interval) = (store.is_metered(), self.reading.interval(&*store));
        let reader = Reader::new(store, self.prefix.unwrap_or_default(), self.reading, patience);
        let is_loopback = matches!(&self.listen, Address::Tcp(address) if address.ip().is_loopback());
        let board = Board { fleet: reader.fleet(), is_loopback };
        let listening = match http::begin(&self.listen, Arc::new(board)).await {
            Ok(listening) => listening,
            Err(error) => {
                let why = format!("cannot listen on {}: {}", self.listen, in_words(&error));
                return Ok(super::fail(crate::exit::OS_ERROR, &why));
            }
        };
        if is_metered {
            let each = if self.reading.standbys { "two lists" } else { "one list" };
            log::warn(
                PROGRAM,
                &format!("this store charges for requests: {each} of all shards every {}", show(interval)),
            );
        }
        if !is_loopback && !matches!(self.listen, Address::Unix(_)) {
            log::warn(PROGRAM, &format!("{} is open to other machines, and there is no password", self.listen));
        }
        terminal::say(format_args!("{PROGRAM}: serving on {}", listening.address));
        tokio::select! {
            () = reader.run() => unreachable!("a reader goes on"),
            () = asked_to_stop() => Ok(ExitCode::SUCCESS),
        }
    }
}

/// What the server answers from.
struct Board {
    fleet: Arc<Fleet>,
    /// It listens on an address of this machine alone.
    is_loopback: bool,
}

impl Site for Board {
    /// A page of thousands of shards on a slow network.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn answer(&self, asked: &Parts) -> Answer {
        let mut answer = if self.is_foreign(asked) {
            Answer::new(StatusCode::MISDIRECTED_REQUEST, TEXT, "this host name is not one of this machine's loopback\n")
        } else {
            self.show(asked)
        };
        let policies = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        answer.more.extend(policies.map(|(name, value)| (name, HeaderValue::from_static(value))));
        answer
    }
}

impl Board {
    /// True if the request names another host: a page of that host may have made a browser send it.
    fn is_foreign(&self, asked: &Parts) -> bool {
        let Some(host) = asked.headers.get(header::HOST).filter(|_| self.is_loopback) else { return false };
        let host = host.to_str().unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        !(name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback()))
    }

    fn show(&self, asked: &Parts) -> Answer {
        let picture = self.fleet.picture();
        let (path, query) = (asked.uri.path(), asked.uri.query().unwrap_or_default());
        match path {
            "/" => page(asked, &picture, |picture, now| page::fleet(picture, &page::Wish::read(query), now)),
            "/page.css" => Answer::new(StatusCode::OK, "text/css; charset=utf-8", page::STYLE),
            "/page.js" => Answer::new(StatusCode::OK, "text/javascript; charset=utf-8", page::SCRIPT),
            "/icon.svg" => Answer::new(StatusCode::OK, "image/svg+xml", page::ICON),
            "/metrics" => Answer::new(StatusCode::OK, METRICS, metrics::text(&picture)),
            "/livez" => Answer::new(StatusCode::OK, TEXT, "alive\n"),
            "/readyz" => ready(&picture),
            "/api/openapi.yaml" => Answer::new(StatusCode::OK, "application/yaml", OPENAPI),
            "/api/shards" => Answer::new(StatusCode::OK, JSON, json::shards(&picture)),
            "/api/hosts" => Answer::new(StatusCode::OK, JSON, json::hosts(&picture)),
            _ => {
                let history = path.strip_prefix("/api/shards/").and_then(|rest| rest.strip_suffix("/history"));
                let shown = path.strip_prefix("/shards/");
                let named = |name: &str| percent_decode_str(name).decode_utf8().ok()?.parse::<Shard>().ok();
                let found = history.or(shown).and_then(named).and_then(|name| picture.shards.get_key_value(&name));
                match found {
                    Some((shard, seen)) if history.is_some() => {
                        Answer::new(StatusCode::OK, JSON, json::history_of(&picture, shard, seen))
                    }
                    Some((shard, seen)) => page(asked, &picture, |picture, now| {
                        page::shard(picture, shard, seen, &page::Wish::read(query), now)
                    }),
                    None => Answer::new(
                        StatusCode::NOT_FOUND,
                        TEXT,
                        "there are /, /shards/NAME, /metrics, /api/shards, /api/shards/NAME/history, /api/hosts, \
                         /api/openapi.yaml, /livez and /readyz\n",
                    ),
                }
            }
        }
    }
}

fn ready(picture: &Picture) -> Answer {
    match (&picture.reading, &picture.trouble) {
        (_, Some(trouble)) => {
            Answer::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("not ready: {}\n", trouble.message))
        }
        (None, None) => Answer::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, "not ready: the store was not read yet\n"),
        (Some(_), None) => Answer::new(StatusCode::OK, TEXT, "ready\n"),
    }
}

/// A page, or the answer that the browser already has it. Its timelines move, so a page changes every few seconds even
/// if nothing has happened.
fn page(asked: &Parts, picture: &Picture, draw: impl FnOnce(&Picture, u64) -> String) -> Answer {
    const MOVES: u64 = 10_000;
    let now = crate::time::wall_clock_millis();
    let reading = picture.reading.map_or(0, |reading| reading.at_millis / MOVES);
    let tag = format!("\"{}-{}-{}-{reading}\"", std::process::id(), picture.revision, now / MOVES);
    let known = asked.headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut answer = if known {
        Answer::new(StatusCode::NOT_MODIFIED, HTML, "")
    } else {
        Answer::new(StatusCode::OK, HTML, draw(picture, now))
    };
    answer.more.extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
    answer
}
