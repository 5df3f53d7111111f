//! `leaderctl verify`: does a term still lead, and for long enough?
//!
//! The hazard: an answer is old when it arrives, so a step that must be safe needs a fencing token. And another process
//! may answer in the candidate's place: [`query_socket::ask_own`] finds that out, and then there is no answer.

use super::prelude::*;
use crate::cli::flags::{self, NamedStore};
use crate::observe::query_socket::{self, Key, Statement};
use std::str::FromStr;

#[derive(Debug, Args)]
pub struct VerifyFlags {
    /// The shard [default: that of the leadership this runs under]
    shard: Option<Shard>,

    /// The term that must still lead [default: that of the same leadership]
    #[arg(long, value_name = "N")]
    term: Option<u64>,

    /// Require at least this much time if the lease is not renewed again
    #[arg(long = "for", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    least: Option<Duration>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub struct Question {
    shard: Shard,
    term: Term,
    least: Duration,
    json: bool,
    /// The socket of the candidate that this runs under, and the key that proves its answer.
    pub query_socket: Option<(String, Key)>,
}

impl VerifyFlags {
    pub fn question(&self) -> Result<Question, String> {
        let own = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let own_shard = own("LEADERRUN_SHARD").map(|name| Shard::from_str(&name)).transpose()?;
        let shard = self.shard.clone().or_else(|| own_shard.clone());
        let shard = shard.ok_or("no SHARD: name one, as this does not run under leaderrun")?;
        let own_term = own("LEADERRUN_TERM").filter(|_| own_shard.as_ref() == Some(&shard));
        let own_term = own_term
            .map(|term| term.parse::<u64>().map_err(|_| "LEADERRUN_TERM is not a number: unset it, or give --term"))
            .transpose()?;
        let missing = || format!("--term is missing: give the term of {shard} that must lead");
        let term = self.term.or(own_term).ok_or_else(missing)?;
        let variable = query_socket::KEY_VARIABLE;
        let unreadable = || format!("{variable} is not the value that leaderrun set: leave it as it is, or unset it");
        let key = own(variable).map(|key| Key::read(&key).ok_or_else(unreadable)).transpose()?;
        let query_socket = own(query_socket::VARIABLE).filter(|_| own_term == Some(term)).zip(key);
        Ok(Question { shard, term: Term(term), least: self.least.unwrap_or_default(), json: self.json, query_socket })
    }
}

impl Question {
    /// Asks the candidate that this runs under; if there is none or it does not answer, the store.
    pub async fn answer(&self, named: NamedStore, patience: Duration) -> Result<ExitCode, Failure> {
        let own = match &self.query_socket {
            Some((query_socket, key)) => Some(query_socket::ask_own(query_socket, key).await),
            None => None,
        };
        // For how long the term leads, None where a lease does not expire; or why it does not lead.
        let (told_by, leads) = match own {
            Some(Ok(Statement { shard, leadership, .. })) => {
                let is_ours = shard == self.shard.as_str();
                let leads = match leadership.filter(|told| is_ours && told.term == self.term) {
                    Some(told) if told.left.is_some_and(|left| left.is_zero()) => Err("it is being stopped".to_owned()),
                    Some(told) => Ok(told.left),
                    None => Err("it has ended".to_owned()),
                };
                ("candidate", leads)
            }
            Some(Err(error)) if named.url.is_none() => {
                return Err(StoreError::unknown(format!(
                    "leaderrun of shard {} does not answer: {error}: it is gone, frozen, or in another network \
                     namespace; name a store to ask it instead",
                    self.shard
                ))
                .into());
            }
            Some(Err(_)) | None => {
                let store = named.location.open(patience).await?;
                let client = Client { store: &*store, location: &named.location, patience };
                let leads = match client.inspect(&self.shard).await?.holder {
                    None => Err("nobody does".to_owned()),
                    Some(holder) if holder.term != Some(self.term) => Err(format!("{holder} does")),
                    Some(holder) => Ok(holder.expires_in),
                };
                ("store", leads)
            }
        };
        self.tell(told_by, leads)
    }

    fn tell(&self, told_by: &'static str, leads: Result<Option<Duration>, String>) -> Result<ExitCode, Failure> {
        let left = leads.as_ref().ok().copied().flatten();
        let refusal = match leads {
            Err(why) => Some(format!("does not lead: {why}")),
            Ok(Some(left)) if left < self.least => {
                let (left, least) = (show(left), show(self.least));
                Some(format!("does not lead for long enough: it has {left} to go, not {least}"))
            }
            Ok(_) => None,
        };
        if self.json {
            print_lines([as_json(&object! {
                shard: self.shard.as_str(),
                term: self.term,
                verified: refusal.is_none(),
                seconds_left: left.map(|left| left.as_secs_f64()),
                told_by,
            })])?;
        } else if let Some(refusal) = &refusal {
            say(format_args!("term {} of shard {} {refusal}", self.term, self.shard));
        }
        Ok(if refusal.is_none() { ExitCode::SUCCESS } else { ExitCode::from(exit::LOST) })
    }
}
