//! What a failed request means, in one line.
//!
//! The hazard: etcd distinguishes many failures by their words alone. A failure with unknown words is an unknown
//! outcome. And etcd's words may name anything, but never the password, which travels in one request only.

use super::connection::{Client, Connection};
use super::proto::Method;
use crate::store::StoreError;
use crate::store::allowance::{MOST, complaint};
use crate::store::error::{causes, in_short, innermost_of};
use std::error::Error;
use std::sync::atomic::Ordering;
use tonic::{Code, Status};

pub fn explain(client: &Client, connection: &Connection, method: Method, status: &Status) -> StoreError {
    let (server, prefix) = (&connection.server, &client.address.prefix);
    // The library reports that in words alone.
    if status.message().contains("decoded message length too large") {
        return StoreError::unknown(complaint(&format!("etcd at {server}"), "etcd", MOST));
    }
    // The library made this status, not etcd.
    if let Some(source) = status.source() {
        return broken(client, connection, source);
    }
    let request = method.rsplit('/').next().unwrap_or(method);
    let whom =
        client.address.user.as_ref().map_or_else(|| "this client".to_owned(), |(user, _)| format!("user {user}"));
    let told = status.message().trim_start_matches("etcdserver: ");
    let said = in_short(if told.is_empty() { status.code().description() } else { told });
    let says = |sign: &str| said.contains(sign);
    match status.code() {
        code if code == Code::PermissionDenied || says("permission denied") => StoreError::denied(format!(
            "etcd at {server} denied {whom} a {request} of keys that begin with {prefix}/: grant a role of that user \
             readwrite on them (etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/)"
        )),
        _ if says("user name is empty") => {
            StoreError::denied(format!("etcd at {server} requires a login: write {{etcd,etcds}}://USER:PASSWORD@HOST"))
        }
        _ if says("invalid user ID or password") => {
            StoreError::denied(format!("etcd at {server} denied {whom} the login: wrong user or password"))
        }
        Code::Unauthenticated => StoreError::denied(format!("etcd at {server} denied {whom} a {request}: {said}")),
        Code::ResourceExhausted if says("database space exceeded") => StoreError::not_applied(format!(
            "etcd at {server} is out of space and accepts no writes: compact and defragment it, then \
             etcdctl alarm disarm"
        )),
        Code::Unavailable if ["no leader", "not capable", "learner"].into_iter().any(says) => {
            StoreError::not_applied(format!("etcd at {server} cannot serve: {said}"))
        }
        Code::Unimplemented => {
            StoreError::misconfigured(format!("{server} does not know {request}: it is not etcd 3.4 or later"))
        }
        Code::DataLoss => StoreError::misconfigured(format!("etcd at {server} is damaged: {said}")),
        // Turned away before the server handled it.
        Code::ResourceExhausted | Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
            StoreError::not_applied(format!("etcd at {server} refused a {request}: {said}"))
        }
        _ => StoreError::unknown(format!("etcd at {server} failed at a {request}: {said}")),
    }
}

/// The error of a connection that could not be made, or has ended.
fn broken(client: &Client, connection: &Connection, source: &(dyn Error + 'static)) -> StoreError {
    let server = &connection.server;
    let mut cause = innermost_of(source, "etcd");
    let is_connected = !causes(source).any(<dyn Error>::is::<tonic::ConnectError>);
    if is_connected && !connection.proven.load(Ordering::Relaxed) {
        // With TLS 1.3 a server rejects a client after the handshake, and may close the connection without a word.
        let doubt = match &client.address.tls {
            Some(files) if files.cert.is_some() => "does it trust the certificate in cert=?",
            Some(_) => "does it need a certificate, by cert= and key=?",
            None => "is it etcd, and does it need TLS, by etcds://?",
        };
        cause = format!("{} ({doubt})", cause.trim_end_matches(": is it etcd?"));
    }
    let error = if !is_connected || cause.contains("received fatal alert") {
        StoreError::not_applied(format!("cannot reach etcd at {server}: {cause}"))
    } else {
        StoreError::unknown(format!("the connection to etcd at {server} broke: {cause}"))
    };
    error.because(source)
}
