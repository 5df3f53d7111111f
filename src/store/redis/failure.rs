//! What it means that the server turned a request away. The hazard: some servers repeat what they received, even a
//! password.

use super::address::Login;
use crate::store::StoreError;
use crate::store::error::in_short;

pub fn refused(place: &str, Login { place: written, user, password }: &Login, code: &str, said: &str) -> StoreError {
    let user = user.as_deref().unwrap_or("default");
    // "ERR unknown command 'AUTH', with args beginning with: 'PASSWORD'"
    let said = said.split(", with args beginning").next().unwrap_or_default();
    // "... used memory > 'maxmemory'. script: HASH, on @user_script:15."
    let said = said.split(" script: ").next().unwrap_or_default();
    // Hidden before the text is cut, which might leave a part of the password.
    let said = match password {
        Some(password) => in_short(&said.replace(password.expose(), "(secret)")),
        None => in_short(said),
    };
    match code {
        // Long commands are turned away as "unauthenticated".
        _ if code == "NOAUTH" || said.contains("unauthenticated") => {
            StoreError::denied(format!("{place} asks for a password: write it into the store URL, as {written}"))
        }
        // Servers before version 6 have no code for this.
        _ if code == "WRONGPASS" || said.contains("invalid password") => StoreError::denied(format!(
            "{place} does not accept this password of user {user}: see {written} in the store URL"
        )),
        "NOPERM" => StoreError::denied(format!("{place} denied user {user}: {said}")),
        "READONLY" => {
            StoreError::not_applied(format!("{place} is a replica and takes no leases: the store has to be the master"))
        }
        "LOADING" | "MASTERDOWN" | "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" => {
            StoreError::not_applied(format!("{place} accepts no writes now: {said}"))
        }
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => StoreError::misconfigured(format!(
            "{place} is a node of a Redis Cluster, which spreads keys over many servers: use a server of its own, or one \
             with Sentinels"
        )),
        "NORUNID" => StoreError::misconfigured(format!(
            "{place} does not say which run of the server it is (run_id in INFO), so a restart that forgets a lease could \
             not be noticed: use another server"
        )),
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
        _ => match said.split_once("LEADERRUN-DENIED ") {
            Some((_, what)) => StoreError::denied(format!("{place} denied user {user} {what}")),
            None => StoreError::unknown(format!("{place} answered with an error: {code} {said}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;
    use crate::store::url::Secret;

    fn told(code: &str, text: &str) -> StoreError {
        let password = Some(Secret::from("hunter2".to_owned()));
        let login = Login { place: "USER:PASSWORD@", user: Some("me".to_owned()), password };
        refused("redis at h:6379", &login, code, text)
    }

    #[test]
    fn a_server_that_repeats_the_password_is_not_repeated() {
        let error = told("ERR", "unknown command 'AUTH', with args beginning with: 'me' 'hunter2' ");
        assert_eq!(error.kind, ErrorKind::Misconfigured);
        assert!(!error.message.contains("hunter2"), "{error}");
        let error = told("ERR", "what is hunter2?\r\nand why");
        assert_eq!(error.message, "redis at h:6379 answered with an error: ERR what is (secret)? and why");
        // Also across the end of what is shown.
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
        assert_eq!(told("ERR", "invalid password"), told("WRONGPASS", "why"));
        for code in ["MOVED", "CLUSTERDOWN"] {
            let error = told(code, "why");
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{code}");
            assert!(error.message.contains("is a node of a Redis Cluster"), "{error}");
        }
        assert_eq!(told("ERR", "who knows").kind, ErrorKind::Unknown);
    }
}
