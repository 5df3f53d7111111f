//! What a failed request means: unknown once its first byte may have been sent, unless the server itself says that it
//! turned the request away. Servers repeat what they received; some of them repeat a password.

use super::address::Login;
use crate::lease::show;
use crate::store::StoreError;
use crate::store::allowance::{MOST_OF_REDIS, complaint};
use crate::store::error::{in_short, innermost};
use redis::{ErrorKind, RedisError};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Refused { code: String, text: String },
    Broken(String),
    Silent(Duration),
    Nonsense,
    Endless,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                let code = error.code().unwrap_or("ERR").to_owned();
                Self::Refused { code, text: error.detail().unwrap_or_default().to_owned() }
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Nonsense,
            _ => Self::Broken(innermost(&error)),
        }
    }
}

impl Failure {
    pub fn has_code(&self, expected: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == expected)
    }

    /// The error of a request to `place` that was under way.
    pub fn conclude(&self, place: &str, login: &Login) -> StoreError {
        match self {
            Self::Refused { code, text } => refused(place, login, code, &login.conceal(text)),
            Self::Broken(why) => StoreError::unknown(format!("the connection to {place} broke: {why}{}", hint(why))),
            Self::Silent(time) => StoreError::unknown(format!("{place} did not answer within {}", show(*time))),
            Self::Nonsense => StoreError::unknown(format!("{place} does not speak the Redis protocol")),
            Self::Endless => StoreError::unknown(complaint(place, "redis", MOST_OF_REDIS)),
        }
    }

    /// The error of a request that was not sent yet: it failed while logging in.
    pub fn conclude_unsent(&self, place: &str, login: &Login) -> StoreError {
        let error = self.conclude(place, login);
        match self {
            Self::Refused { .. } => error,
            Self::Broken(why) => StoreError::not_applied(format!("cannot reach {place}: {why}{}", hint(why))),
            Self::Silent(time) => {
                StoreError::not_applied(format!("cannot reach {place}: no answer within {}", show(*time)))
            }
            Self::Nonsense | Self::Endless => StoreError::not_applied(error.message),
        }
    }
}

impl Login {
    /// `text` without our password, without the text that follows it, on one line.
    fn conceal(&self, text: &str) -> String {
        // "ERR unknown command 'AUTH', with args beginning with: 'PASSWORD'"
        let text = text.split(", with args beginning").next().unwrap_or_default();
        // "... used memory > 'maxmemory'. script: HASH, on @user_script:15."
        let text = text.split(" script: ").next().unwrap_or_default();
        // Hidden before the text is cut: a cut might leave a part of the password that would not be recognised.
        match &self.password {
            Some(password) => in_short(&text.replace(password.expose(), "(secret)")),
            None => in_short(text),
        }
    }

    fn name(&self) -> &str {
        self.user.as_deref().unwrap_or("default")
    }
}

fn refused(place: &str, login: &Login, code: &str, said: &str) -> StoreError {
    let user = login.name();
    match code {
        "NOAUTH" => StoreError::denied(format!(
            "{place} asks for a password: write it into the store URL, as in redis://USER:PASSWORD@HOST"
        )),
        // Long commands are turned away in other words.
        _ if said.contains("unauthenticated") => refused(place, login, "NOAUTH", said),
        "WRONGPASS" => StoreError::denied(format!(
            "{place} does not accept this password of user {user}: see USER:PASSWORD@ in the store URL"
        )),
        "NOPERM" => StoreError::denied(format!("{place} denied user {user}: {said}")),
        "READONLY" => {
            StoreError::not_applied(format!("{place} is a replica and takes no leases: the store has to be the master"))
        }
        "LOADING" | "MASTERDOWN" | "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" => {
            StoreError::not_applied(format!("{place} takes no writes now: {said}"))
        }
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => node_of_a_cluster(place),
        _ if said.contains("LEADERRUN-CLUSTER") => node_of_a_cluster(place),
        _ if said.contains("without any password configured") || said.contains("no password is set") => {
            StoreError::misconfigured(format!("{place} has no password: leave it out of the store URL"))
        }
        _ if said.contains("max number of clients") => {
            StoreError::not_applied(format!("{place} has as many clients as its maxclients allows"))
        }
        _ if said.contains("DB index is out of range") || said.contains("invalid DB index") => {
            StoreError::misconfigured(format!("{place} has no database of that number: see its setting databases"))
        }
        _ if said.contains("unknown command") => {
            StoreError::misconfigured(format!("{place} lacks a command that is needed: {said}"))
        }
        _ if said.contains("LEADERRUN-DENIED-") => {
            let (_, what) = said.split_once("LEADERRUN-DENIED-").unwrap_or_default();
            let what = what.split(' ').next().unwrap_or_default();
            let what = match what.strip_prefix("KEYS-") {
                Some(command) => format!("the keys of the command {command}"),
                None => format!("the command {what}"),
            };
            StoreError::denied(format!("{place} denied user {user} {what}"))
        }
        _ if said.contains("LEADERRUN-ANONYMOUS") => StoreError::misconfigured(format!(
            "{place} does not say which run of the server it is (run_id in INFO), so a restart that forgets a lease could \
             not be noticed: use another server"
        )),
        _ => StoreError::unknown(format!("{place} answered with an error: {code} {said}")),
    }
}

fn node_of_a_cluster(place: &str) -> StoreError {
    StoreError::misconfigured(format!(
        "{place} is a node of a Redis Cluster, which spreads keys over many servers: use a server of its own, or one \
         with Sentinels"
    ))
}

/// A hint about the configuration, from a failure of TLS.
fn hint(why: &str) -> &'static str {
    // With TLS 1.3, a server looks at certificates after the handshake, or later.
    if why.contains("CertificateRequired") || why.contains("certificate required") {
        ": it asks for a certificate: add cert=FILE and key=FILE to the store URL"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;
    use crate::store::url::Secret;

    fn told(code: &str, text: &str) -> StoreError {
        let login = Login { user: Some("me".to_owned()), password: Some(Secret::from("hunter2".to_owned())) };
        Failure::Refused { code: code.to_owned(), text: text.to_owned() }.conclude("redis at h:6379", &login)
    }

    #[test]
    fn a_server_that_repeats_the_password_is_not_repeated() {
        let error = told("ERR", "unknown command 'AUTH', with args beginning with: 'me' 'hunter2' ");
        assert_eq!(error.kind, ErrorKind::Misconfigured);
        assert!(!error.message.contains("hunter2"), "{error}");
        let error = told("ERR", "what is hunter2?\r\nand why");
        assert_eq!(error.message, "redis at h:6379 answered with an error: ERR what is (secret)? and why");
    }

    #[test]
    fn a_password_across_the_end_of_what_is_shown_is_not_shown_in_part() {
        for length in 380..410 {
            let error = told("ERR", &format!("{}hunter2", "x".repeat(length)));
            assert!(!error.message.contains("hun"), "{error}");
        }
    }

    #[test]
    fn a_request_that_the_server_turned_away_was_not_applied() {
        for code in ["READONLY", "LOADING", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS"] {
            assert_eq!(told(code, "why").kind, ErrorKind::NotApplied, "{code}");
        }
        assert_eq!(told("ERR", "max number of clients reached").kind, ErrorKind::NotApplied);
        assert_eq!(told("NOPERM", "why").kind, ErrorKind::Denied);
        assert_eq!(
            told("WRONGPASS", "why").message,
            "redis at h:6379 does not accept this password of user me: see USER:PASSWORD@ in the store URL"
        );
        for code in ["MOVED", "CLUSTERDOWN"] {
            let error = told(code, "why");
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{code}");
            assert!(error.message.contains("is a node of a Redis Cluster"), "{error}");
        }
        assert_eq!(told("ERR", "who knows").kind, ErrorKind::Unknown);
    }
}
