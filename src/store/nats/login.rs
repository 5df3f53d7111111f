//! How to log in and connect: the options of the library, made from the store URL and the files that it names.
//!
//! The hazard: the files are read for each connection, on the thread that runs the election. A FIFO in the place of a
//! file must not block it.

use super::address::{Address, Login};
use crate::store::{StoreError, tls};
use crate::text::in_words;
use async_nats::ConnectOptions;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How many messages a subscription may hold: a list arrives faster than it is read. More are lost, and the gap shows.
const SUBSCRIPTION_CAPACITY: usize = 1 << 16;

/// Reads the files again each time: credentials are renewed while a candidate runs for months.
pub fn options(address: &Address, bound: Duration) -> Result<ConnectOptions, StoreError> {
    let options = match &address.login {
        Login::Nobody => ConnectOptions::new(),
        Login::User { name, password } => {
            ConnectOptions::with_user_and_password(name.clone(), password.expose().to_owned())
        }
        Login::Token(token) => ConnectOptions::with_token(token.expose().to_owned()),
        Login::Credentials(file) => ConnectOptions::with_credentials(&read(file)?).map_err(|_| {
            unusable(file, "it does not hold a user JWT and a seed between lines of dashes, as nsc writes them")
        })?,
        Login::Nkey(file) => {
            // The file may have other text in other lines.
            let text = read(file)?;
            let seed = text.split_whitespace().find(|word| word.len() == 58 && word.starts_with("SU"));
            let missing = || unusable(file, "it does not hold the seed of a user, SU...");
            ConnectOptions::with_nkey(seed.ok_or_else(missing)?.to_owned())
        }
    };
    let options = options
        .name("leaderrun")
        .connection_timeout(bound)
        .request_timeout(None)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        // We try our own hosts at the same time. Hosts that a server names may be out of reach.
        .ignore_discovered_servers()
        // The lowest limit that it accepts (zero means no limit). When it is used up, the connection ends for good.
        .max_reconnects(1);
    Ok(match &address.tls {
        Some(files) => options.require_tls(true).tls_client_config(tls::client_config(files)?),
        None => options,
    })
}

fn read(file: &Path) -> Result<String, StoreError> {
    if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(unusable(file, "it is not a regular file"));
    }
    fs::read_to_string(file).map_err(|error| unusable(file, &in_words(&error)))
}

fn unusable(file: &Path, why: &str) -> StoreError {
    StoreError::misconfigured(format!("{} cannot be used to log in: {why}", file.display()))
}
