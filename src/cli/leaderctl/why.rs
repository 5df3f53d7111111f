//! `leaderctl why`: why does this host not lead?
//!
//! The hazard: any process can listen on the name of a candidate's socket. So each answer is shown with the process and
//! the user that the kernel reports, and sockets without an answer are counted.

use super::jobs::words;
use super::prelude::*;
use super::shard_notes::ordered;
use super::shares;
use super::slots::listed;
use crate::election::Obstacle;
use crate::lease::host_name;
use crate::notes::hosts;
use crate::notes::jobs::index;
use crate::observe::query_socket::{self, Answer as Told, Statement, Survey};
use crate::sys;

#[derive(Debug, Args)]
pub struct WhyFlags {
    /// The name of the shard
    shard: Shard,

    /// Another host; its candidates cannot be asked [default: this host]
    #[arg(long, value_name = "NAME", value_parser = flags::line::<256>)]
    host: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const MOST_SILENT: usize = 5;

struct Known {
    report: Answer<Report>,
    /// None if the shard is led as a whole, or the store does not answer.
    slots: Option<Answer<Slots>>,
}

impl Known {
    async fn of(client: Client<'_>, shard: &Shard) -> Self {
        let report = client.inspect(shard).await;
        let slots = match &report {
            Ok(Report { holder: None, .. }) => Some(Slots::of(client, shard).await),
            Ok(Report { holder: Some(_), .. }) | Err(_) => None,
        };
        Self { report, slots }
    }

    fn away(&self) -> bool {
        is_silence(&self.report) || self.slots.as_ref().is_some_and(is_silence)
    }

    fn holders(&self) -> impl Iterator<Item = &Holder> {
        let whole = self.report.iter().filter_map(|report| report.holder.as_ref());
        whole.chain(self.slots.iter().flatten().flat_map(|slots| slots.led().map(|(_, holder)| holder)))
    }

    fn leads(&self, host: &str) -> bool {
        self.holders().any(|holder| holder.host.as_deref() == Some(host))
    }

    fn silence(&self, process: u32, host: &str) -> String {
        let is_it = |holder: &Holder| holder.pid == Some(process) && holder.host.as_deref() == Some(host);
        let who = if self.holders().any(is_it) { ", the leader," } else { "" };
        let state = sys::stat_of(process).and_then(|fields| fields.into_iter().next());
        let how = match state.as_deref() {
            Some("T" | "t") => format!("it is stopped: kill -CONT {process} lets it go on"),
            Some(_) => "it hangs, or is not a candidate".to_owned(),
            None => "it is gone by now".to_owned(),
        };
        format!("process {process}{who} does not answer: {how}")
    }

    fn tell(&self, causes: bool, because: &mut Vec<String>) {
        let cause = |error: &StoreError| if causes { format!(": {}", error.message) } else { String::new() };
        let (report, slots) = match (&self.report, &self.slots) {
            (Err(error), _) => return because.push(format!("{}{}", trouble(error), cause(error))),
            (Ok(Report { holder: Some(holder), .. }), _) => {
                return because.push(match Obstacle::from(holder.clone()) {
                    Obstacle::Holder(holder) => led(&holder, None),
                    doubt @ (Obstacle::Doubt(..) | Obstacle::Hold(_)) => doubt.to_string(),
                });
            }
            (Ok(_), Some(Err(error))) => {
                return because.push(format!("cannot tell whether its slots are led{}", cause(error)));
            }
            (Ok(report), Some(Ok(slots))) => (report, slots),
            (Ok(_), None) => return,
        };
        let before = because.len();
        because.extend(slots.led().map(|(slot, holder)| led(holder, Some(slot))));
        if because.len() == before {
            let names = listed(slots.names());
            because.push(match report.last_term {
                _ if !names.is_empty() => format!("nobody leads; there were leaders of {names}"),
                Some(term) => format!("nobody leads; the last term was {term}"),
                None if slots.hidden.is_some() => "nobody leads it as a whole".to_owned(),
                None => "nobody has ever led".to_owned(),
            });
        }
        because.extend(slots.hidden.as_ref().map(|hidden| hidden.message.clone()));
    }
}

fn is_silence<T>(answer: &Answer<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.exit_status() == exit::UNAVAILABLE)
}

fn trouble(error: &StoreError) -> &'static str {
    match error.kind {
        ErrorKind::NotApplied | ErrorKind::Unknown => "the store does not answer here",
        ErrorKind::Denied => "the store denied this",
        ErrorKind::Misconfigured => "the store cannot be used",
    }
}

impl WhyFlags {
    /// Answers even if the store does not, because the candidates of this host may know since when.
    pub async fn answer(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let here = host_name().unwrap_or_default();
        let host = self.host.clone().unwrap_or_else(|| here.clone());
        let asked = async { if host == here { self.candidates(client).await } else { Survey::default() } };
        let (survey, known) = tokio::join!(asked, Known::of(client, &self.shard));
        let Survey { answers: candidates, others, silent, silent_processes, silent_others } = survey;
        let mut because = Vec::new();
        // Standard error has the cause, and a terminal shows both.
        known.tell(self.json, &mut because);
        // A store that did not answer once is not asked again.
        if let Ok(report) = &known.report
            && !known.away()
        {
            let slots = known.slots.as_ref().and_then(|slots| slots.as_ref().ok());
            if let Err(error) = self.orders(client, slots, &mut because).await {
                because.push(format!("the orders cannot be read: {}", error.message));
            }
            let held = client.ask(hosts::held(client.store, [host.as_str()])).await.unwrap_or_default();
            because.extend(held.get(&host).filter(|order| order.is_for(&self.shard)).map(|order| {
                format!("{host} is {}: leaderctl resume --host {host} ends that", shares::held_back(order))
            }));
            let jobs = client.ask(index::read(client.store, &self.shard, None)).await.unwrap_or_default();
            because.extend(jobs.first().map(|job| words(job, report)));
        }
        for candidate in &candidates {
            self.by_candidate(candidate, "", &mut because);
        }
        if candidates.is_empty() {
            let announced = if known.away() { None } else { self.announced(client, &host).await };
            because.push(match announced {
                Some(true) => format!("a standby of {host} has announced itself"),
                Some(false) | None if host == here => {
                    let runs = if silent > 0 { "answers" } else { "runs" };
                    let here = if others.is_empty() { "" } else { " with this store's URL" };
                    format!("no candidate for it {runs} on {host}{here}")
                }
                Some(false) => format!("no standby of {host} has announced itself"),
                None => format!("whether a standby waits on {host} is not known: that store was not asked"),
            });
        }
        for other in &others {
            let store = format!(", whose store has another URL ({}),", other.statement.store);
            self.by_candidate(other, &store, &mut because);
        }
        because.extend(silent_processes.iter().take(MOST_SILENT).map(|&process| known.silence(process, &host)));
        let sockets = |count: usize| if count == 1 { "1 socket".to_owned() } else { format!("{count} sockets") };
        let unnamed = silent.saturating_sub(silent_processes.len().min(MOST_SILENT));
        because.extend((unnamed > 0).then(|| {
            let sockets = sockets(unnamed);
            format!("{sockets} of its candidates on {host} did not answer: these are frozen, or another program's")
        }));
        because.extend((silent_others > 0).then(|| {
            let sockets = sockets(silent_others);
            format!("{sockets} of candidates for other shards, or in other stores, did not answer on {host}")
        }));
        let leads = known.leads(&host);
        let because: Vec<String> = because.into_iter().map(on_one_line).collect();
        if self.json {
            print_lines([as_json(&object! {
                shard: self.shard.as_str(),
                host: &host,
                leads,
                because,
                silent,
            })])?;
        } else {
            let verdict = if leads { "leads" } else { "does not lead" };
            let because = because.iter().map(|line| format!("  {line}"));
            print_lines([format!("{}: {host} {verdict}", self.shard)].into_iter().chain(because))?;
        }
        known.report?;
        known.slots.transpose()?;
        Ok(ExitCode::SUCCESS)
    }

    /// This host's candidates for this shard in this store; in `others`, those in other stores.
    async fn candidates(&self, client: Client<'_>) -> Survey {
        // A standby of a slot waits for any slot of the shard; a leader of one leads in no other.
        let is_meant = |shard: &str| slots::is_waited_for(&self.shard, shard);
        let is_meant = |Told { statement, .. }: &Told| {
            is_meant(&statement.shard) || statement.slot_of.as_deref().is_some_and(is_meant)
        };
        let shards = std::iter::once(self.shard.clone()).chain(self.shard.parent());
        let beginnings: Vec<String> = shards.map(|shard| query_socket::beginning(&shard, client.location)).collect();
        let mut told = query_socket::ask_all(&beginnings, client.patience).await;
        told.answers.retain(is_meant);
        told.others.retain(is_meant);
        for answers in [&mut told.answers, &mut told.others] {
            answers.sort_by(|one, other| one.statement.owner.cmp(&other.statement.owner));
        }
        told
    }

    /// The orders that apply: also those of its parent and of its own slots.
    async fn orders(&self, client: Client<'_>, slots: Option<&Slots>, because: &mut Vec<String>) -> Answer<()> {
        for shard in [&self.shard].into_iter().chain(slots.into_iter().flat_map(Slots::names)) {
            let of = if *shard == self.shard { String::new() } else { format!("{shard}: ") };
            let orders = Some(client.ask(orders::read(client.store, shard)).await?);
            let shown = Shown { orders, ..Shown::default() };
            because.extend(ordered(&shown, since).map(|words| format!("{of}{words}")));
        }
        let parent_pause = slots::parent_pause(client, &self.shard).await?;
        because.extend(ordered(&Shown { parent_pause, ..Shown::default() }, since));
        Ok(())
    }

    /// None if that is unknown: it costs money, or the store does not answer.
    async fn announced(&self, client: Client<'_>, host: &str) -> Option<bool> {
        if client.store.is_metered() {
            return None;
        }
        let standbys = slots::announced(client, self.shard.as_str()).await.ok()?.standbys;
        let waits = |shard: &Shard| slots::is_waited_for(&self.shard, shard.as_str());
        Some(standbys.iter().any(|(shard, standby)| waits(shard) && standby.host == host))
    }

    fn by_candidate(&self, candidate: &Told, elsewhere: &str, because: &mut Vec<String>) {
        let Statement { shard, owner, standing, leadership, containment, .. } = &candidate.statement;
        let process = candidate.process();
        let term = leadership.as_ref().map(|leads| format!(", term {}", leads.term)).unwrap_or_default();
        let of =
            if leadership.is_some() && *shard != self.shard.as_str() { format!(" of {shard}") } else { String::new() };
        let obstacle = standing.obstacle.as_ref().map(|obstacle| format!(": {obstacle}")).unwrap_or_default();
        because.push(format!("the candidate {owner} ({process}){elsewhere} is {}{of}{term}{obstacle}", standing.role));
        if let Some((message, lasting)) = &standing.trouble {
            because.push(format!("{owner} has had trouble with the store for {}: {message}", show(*lasting)));
        }
        if let Some(takeover_warning) = &standing.takeover_warning {
            because.push(format!("{owner}: {takeover_warning}"));
        }
        if let Some([backstop, guard]) = leadership.as_ref().and_then(|leads| leads.helpers) {
            because.push(format!("{owner}: its backstop is process {backstop}, its guard process {guard}"));
        }
        if let Some(late) = leadership.as_ref().and_then(|leads| leads.late.as_ref()) {
            because.push(format!("{owner}: {late}"));
        }
        because.push(format!("{owner} kills a tree by {containment}"));
    }
}

fn led(holder: &Holder, slot: Option<&Shard>) -> String {
    let slot = slot.map(|slot| format!(" {slot}")).unwrap_or_default();
    let on = holder.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let since = holder.since_millis.map(|since| format!(" since {}", rfc3339(since))).unwrap_or_default();
    let until = holder.expires_in.map(|left| format!(", with {} to go unless it renews", show(left)));
    let until = until.unwrap_or_default();
    format!("{holder} leads{slot}{on}{since}{until}")
}
