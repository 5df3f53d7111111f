//! `leaderctl verify`: does a term still lead, and for long enough?
//!
//! The hazard: an answer is old when it arrives, so a step that must be safe needs a fencing token. And another process
//! may answer in the candidate's place: [`query_socket::ask_own`] finds that out, and then there is no answer.

use super::prelude::*;
use super::{PROGRAM, Target, finish};
use crate::cli::start;
use crate::observe::query_socket::{self, Key};
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

/// The socket of the candidate that this runs under, and the key that proves its answer.
type Own = (String, Key);

impl VerifyFlags {
    /// Asks the candidate that this runs under; if there is none or it does not answer, the store.
    pub fn answer(&self, Target { named, patience }: Target) -> Result<ExitCode, Failure> {
        let (shard, term, own) = self.question().map_err(Failure::usage)?;
        if own.is_none() {
            named.confirm(PROGRAM)?;
        }
        let runtime = start::runtime(&named.location)?;
        let (told_by, leads) = finish(runtime, async {
            let own = match own {
                Some((query_socket, key)) => Some(query_socket::ask_own(&query_socket, &key).await),
                None => None,
            };
            // For how long the term leads, None where a lease does not expire; or why it does not lead.
            Ok(match own {
                Some(Ok(statement)) => {
                    let is_ours = statement.shard == shard.as_str();
                    let leads = match statement.leadership.filter(|told| is_ours && told.term == term) {
                        Some(told) if told.left.is_some_and(|left| left.is_zero()) => {
                            Err("it is being stopped".to_owned())
                        }
                        Some(told) => Ok(told.left),
                        None => Err("it has ended".to_owned()),
                    };
                    ("candidate", leads)
                }
                Some(Err(error)) if named.url.is_none() => {
                    return Err(Failure::from(StoreError::unknown(format!(
                        "leaderrun of shard {shard} does not answer: {error}: it is gone, frozen, or in another network \
                         namespace; name a store to ask it instead"
                    ))));
                }
                Some(Err(_)) | None => {
                    let store = named.location.open(patience).await?;
                    let client = Client { store: &*store, location: &named.location, patience };
                    let leads = match client.inspect(&shard).await?.holder {
                        None => Err("nobody does".to_owned()),
                        Some(holder) if holder.term != Some(term) => Err(format!("{holder} does")),
                        Some(holder) => Ok(holder.expires_in),
                    };
                    ("store", leads)
                }
            })
        })?;
        let least = self.least.unwrap_or_default();
        let left = leads.as_ref().ok().copied().flatten();
        let refusal = match leads {
            Err(why) => Some(format!("does not lead: {why}")),
            Ok(Some(left)) if left < least => {
                let (left, least) = (show(left), show(least));
                Some(format!("does not lead for long enough: it has {left} to go, not {least}"))
            }
            Ok(_) => None,
        };
        if self.json {
            print_lines([as_json(&object! {
                shard: shard.as_str(),
                term,
                verified: refusal.is_none(),
                seconds_left: left.map(|left| left.as_secs_f64()),
                told_by,
            })])?;
        } else if let Some(refusal) = &refusal {
            say(format_args!("term {term} of shard {shard} {refusal}"));
        }
        Ok(if refusal.is_none() { ExitCode::SUCCESS } else { ExitCode::from(exit::LOST) })
    }

    fn question(&self) -> Result<(Shard, Term, Option<Own>), String> {
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
        Ok((shard, Term(term), query_socket))
    }
}
