//! `leaderctl balance`: leaders move until each host leads about as many shards as the others.
//!
//! The hazards: two of these at once would undo each other's moves, and a move may not fit any more when its turn
//! comes. So `balance` holds its own lease while it moves, and reads again before each move; if a leader is not where
//! the plan has it, it stops. Safety does not depend on that lease: each move is an order to step down, which names the
//! term that it ends.

mod drain;
mod plan;

use super::operator::takes_no_orders;
use super::own_lease::{OwnLease, Taking};
use super::prelude::*;
use super::shard_notes::{add_notes, pauses};
use super::slots::Waiting;
use super::step_down::{Handover, Progress};
use super::{asked_to_stop, list, shares};
use crate::lease::BALANCE;
use crate::notes::hosts;
use crate::time::whole_millis;
pub use drain::{Drain, resume};
pub use plan::unevenness;
use plan::{Family, Led, Move, loads, plan};
use std::io::{IsTerminal, Write, stdout};
use tokio::time::sleep;

/// After a `balance` that was killed, the next one waits for its lease to end.
const LEASE: Duration = Duration::from_secs(30);
/// How long a move holds back candidates on other hosts than its target.
const HOLD: Duration = Duration::from_secs(30);
/// A younger leader stays, because it may just have been moved.
const YOUNG: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub struct BalanceFlags {
    /// Balance only shards whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: Prefix,

    /// Print the moves, and make none
    #[arg(long)]
    pub dry_run: bool,

    /// Make at most this many moves [default: all]
    #[arg(long, value_name = "N")]
    max: Option<usize>,

    /// Do nothing unless one host leads this many more than another
    #[arg(long, value_name = "N", default_value_t = 2)]
    if_uneven: usize,

    /// How long one move may take
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = flags::duration,
          allow_hyphen_values = true)]
    wait: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct LeftAlone {
    shard: String,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Even,
    Impossible,
    Planned,
    Moved,
    Stopped,
}

impl BalanceFlags {
    pub fn check(&self) -> Result<(), String> {
        if self.wait.is_zero() || self.max == Some(0) || self.if_uneven == 0 {
            return Err("--wait, --max and --if-uneven must be more than 0".to_owned());
        }
        Ok(())
    }

    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        if self.dry_run {
            let fleet = Fleet::read(client, &self.prefix, None).await?;
            return self.report(&fleet, &self.moves(&fleet), None);
        }
        let mut done = None;
        let work = async {
            let (fleet, made) = done.insert((Fleet::read(client, &self.prefix, None).await?, Vec::new()));
            fleet.carry_out(self.moves(fleet), self.wait, self.json, made).await
        };
        let stopped = in_turn(client, work).await;
        match done {
            Some((fleet, moves)) => self.report(&fleet, &moves, stopped.err()),
            None => stopped.map(|()| unreachable!("the fleet was read")),
        }
    }

    fn moves(&self, fleet: &Fleet<'_>) -> Vec<Move> {
        if unevenness(&fleet.loads()) < self.if_uneven {
            return Vec::new();
        }
        let mut moves = plan(fleet.hosts.len(), &fleet.families, None);
        moves.truncate(self.max.unwrap_or(usize::MAX));
        moves
    }

    /// `moves` are those that were made, or that a dry run shows.
    fn report(&self, fleet: &Fleet<'_>, moves: &[Move], stopped: Option<Failure>) -> Result<ExitCode, Failure> {
        let (before, after) = (fleet.loads(), fleet.after(moves));
        let result = match moves {
            _ if stopped.is_some() => Verdict::Stopped,
            [_, ..] if self.dry_run => Verdict::Planned,
            [_, ..] => Verdict::Moved,
            [] if unevenness(&before) < self.if_uneven.max(2) => Verdict::Even,
            [] => Verdict::Impossible,
        };
        let mut lines = Vec::new();
        let name = |host: usize| fleet.hosts[host].as_str();
        // From cron, each line would be a mail.
        let is_news = self.dry_run || !moves.is_empty() || stdout().is_terminal();
        if self.json {
            let by_host = |loads: &[usize]| fleet.hosts.iter().zip(loads.iter().copied()).collect::<BTreeMap<_, _>>();
            lines.push(as_json(&object! {
                result,
                why: stopped.as_ref().map(|failure| failure.message.as_str()),
                before: by_host(&before),
                after: by_host(&after),
                moves: fleet.objects_of(moves),
                left_alone: &fleet.left_alone,
            }));
        } else if is_news {
            let (before, after) = (fleet.told(&before), fleet.told(&after));
            match result {
                Verdict::Even => lines.push(format!("even enough: {before}")),
                Verdict::Impossible => lines.push(format!("uneven, and no shard can be moved now: {before}")),
                Verdict::Planned => {
                    lines.push(format!("now {before}"));
                    lines.extend(moves.iter().map(|Move { shard, from, to }| {
                        on_one_line(format!("{shard}: moves from {} to {}", name(*from), name(*to)))
                    }));
                    lines.push(format!("then {after}"));
                }
                Verdict::Moved => lines.push(format!("before {before}; now {after}")),
                Verdict::Stopped => {}
            }
            if result == Verdict::Impossible || self.dry_run {
                let alone = |LeftAlone { shard, why }: &LeftAlone| on_one_line(format!("{shard}: stays: {why}"));
                lines.extend(fleet.left_alone.iter().map(alone));
            }
        }
        print_lines(lines)?;
        let nobody_waits = fleet.families.iter().all(|family| family.waiting.iter().all(|&count| count == 0));
        if fleet.client.store.is_metered() && result == Verdict::Impossible && nobody_waits {
            say("no standby is known: on this store they announce themselves only with leaderrun --announce always");
        }
        match stopped {
            Some(failure) => Err(failure.and(&counted(moves.len()))),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

fn counted(moves: usize) -> String {
    match moves {
        1 => "1 move was made".to_owned(),
        count => format!("{count} moves were made"),
    }
}

struct Fleet<'a> {
    client: Client<'a>,
    prefix: &'a Prefix,
    /// Hosts that lead what is counted, or wait for it and may lead it.
    hosts: Vec<String>,
    /// All hosts that lead or wait.
    known: BTreeSet<String>,
    families: Vec<Family>,
    left_alone: Vec<LeftAlone>,
}

impl<'a> Fleet<'a> {
    /// With `emptied`, only what that host leads may move, and `left_alone` names what stays there.
    async fn read(client: Client<'a>, prefix: &'a Prefix, emptied: Option<&str>) -> Answer<Self> {
        let standbys = slots::announced(client, prefix.as_str()).await?.standbys;
        let mut list = list::shown(client.store.list(prefix.as_str()).await?, None);
        add_notes(client.store, &mut list, true).await?;
        let holders = || list.iter().filter_map(|(_, shown)| shown.report.holder.as_ref());
        let all_waiting = Waiting::of(&standbys, holders());
        // A cron job that balances must not move itself.
        let own: Option<Shard> = std::env::var("LEADERRUN_SHARD").ok().and_then(|name| name.parse().ok());
        let mut led: BTreeMap<Shard, Vec<(&Shard, &Holder, &str, bool)>> = BTreeMap::new();
        let mut left_alone = Vec::new();
        for (shard, shown) in &list {
            let family = shard.parent().unwrap_or_else(|| shard.clone());
            let Some(holder) = shown.report.holder.as_ref().filter(|_| family.as_str() != BALANCE) else { continue };
            let is_own = own.as_ref() == Some(shard) || own.as_ref() == Some(&family);
            let goes = emptied.is_some() && holder.host.as_deref() == emptied;
            let uncounted = match (is_own, shown.is_job()) {
                (true, _) => Some("this command runs under it"),
                (false, true) => Some("a job runs, and ends by itself"),
                (false, false) => None,
            };
            let why = uncounted.map(str::to_owned).or_else(|| stays(holder, shown, emptied.is_some()));
            let stays = why.is_some() || emptied.is_some() && !goes;
            let is_told = goes || emptied.is_none() && uncounted.is_none();
            left_alone.extend(why.filter(|_| is_told).map(|why| LeftAlone { shard: shard.to_string(), why }));
            if let Some(host) = holder.host.as_deref().filter(|_| uncounted.is_none()) {
                led.entry(family).or_default().push((shard, holder, host, stays));
            }
        }
        let held = hosts::held(client.store, standbys.iter().map(|(_, standby)| standby.host.as_str())).await?;
        let waiting = |family: &Shard| -> Vec<&str> {
            let hosts = all_waiting.at(family).into_iter().map(|standby| standby.host.as_str());
            hosts.filter(|host| !held.get(*host).is_some_and(|order| order.is_for(family))).collect()
        };
        let waiters = standbys.iter().map(|(_, standby)| standby.host.clone());
        let known = holders().filter_map(|holder| holder.host.clone()).chain(waiters).collect();
        let leading = led.values().flatten().map(|(_, _, host, _)| *host);
        let hosts: BTreeSet<&str> = leading.chain(led.keys().flat_map(waiting)).collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let index = |host: &str| hosts.binary_search(&host).expect("all hosts were collected");
        let families = led.iter().map(|(family, led)| {
            let mut counts = vec![0; hosts.len()];
            for host in waiting(family) {
                counts[index(host)] += 1;
            }
            let led = led.iter().map(|&(shard, holder, host, stays)| {
                let (shard, on, term) = (shard.clone(), index(host), holder.term);
                Led { shard, on, stays, term }
            });
            Family { led: led.collect(), waiting: counts }
        });
        Ok(Self {
            client,
            prefix,
            families: families.collect(),
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            known,
            left_alone,
        })
    }

    fn loads(&self) -> Vec<usize> {
        loads(self.hosts.len(), &self.families)
    }

    fn after(&self, moves: &[Move]) -> Vec<usize> {
        let mut loads = self.loads();
        for Move { from, to, .. } in moves {
            loads[*from] -= 1;
            loads[*to] += 1;
        }
        loads
    }

    fn objects_of(&self, moves: &[Move]) -> Vec<impl Serialize + use<>> {
        let of = |Move { shard, from, to }: &Move| {
            object! {
                shard: shard.to_string(),
                from: self.hosts[*from].clone(),
                to: self.hosts[*to].clone(),
            }
        };
        moves.iter().map(of).collect()
    }

    fn told(&self, loads: &[usize]) -> String {
        shares::in_words(self.hosts.iter().map(String::as_str).zip(loads.iter().copied()))
    }

    /// Adds each move that was made to `made`.
    async fn carry_out(
        &self,
        moves: Vec<Move>,
        wait: Duration,
        json: bool,
        made: &mut Vec<Move>,
    ) -> Result<(), Failure> {
        for next in moves {
            let holder = self.still_fits(made, &next).await?;
            let operator = Operator { client: self.client, shard: &next.shard, json };
            let target = self.hosts[next.to].as_str();
            let hold = HOLD.min(wait);
            let handover = Handover { to: Some(target), force: false, hold, wait: Some(wait) };
            let why = match handover.order(&operator, &holder).await? {
                Progress::Followed { successor, told } if successor.host.as_deref() == Some(target) => {
                    if !json {
                        let _ = writeln!(stdout(), "{}: {}", next.shard, on_one_line(told));
                    }
                    made.push(next);
                    continue;
                }
                Progress::Followed { successor, .. } => format!("{successor} leads, and no candidate on {target}"),
                Progress::Refused(why) => why,
                Progress::Ordered(_) | Progress::NotYet => {
                    let wait = show_seconds(wait);
                    format!("no candidate on {target} leads after {wait}; the order stays in force")
                }
            };
            return Err(operator.refusal(&why));
        }
        Ok(())
    }

    /// The leader that is to move, if each shard is still led where the plan has it after the moves made.
    async fn still_fits(&self, made: &[Move], next: &Move) -> Result<Holder, Failure> {
        let Self { client, prefix, .. } = *self;
        let changed = |shard: &Shard, how: &str| {
            let why = format!("{shard}: {how} since the moves were planned: run this again");
            Failure::of(exit::NOT_ACQUIRED, why)
        };
        let planned = self.families.iter().flat_map(|family| &family.led);
        let mut expected: BTreeMap<&Shard, usize> = planned.clone().map(|led| (&led.shard, led.on)).collect();
        expected.extend(made.iter().map(|made| (&made.shard, made.to)));
        let list: BTreeMap<Shard, Report> = client.store.list(prefix.as_str()).await?.into_iter().collect();
        for (shard, host) in expected {
            let holder = list.get(shard).and_then(|report| report.holder.as_ref());
            if holder.and_then(|holder| holder.host.as_ref()) != Some(&self.hosts[host]) {
                return Err(changed(shard, "its leader has changed"));
            }
        }
        let operator = Operator { client, shard: &next.shard, json: false };
        let holder = operator.inspect().await?.holder.ok_or_else(|| changed(&next.shard, "its leader has ended"))?;
        if planned.clone().all(|led| (&led.shard, led.term) != (&next.shard, holder.term)) {
            return Err(changed(&next.shard, "its term has changed"));
        }
        let above = slots::parent_pause(client, &next.shard).await?;
        if above.is_some() || operator.orders().await?.pause.is_some() {
            return Err(changed(&next.shard, "it was paused"));
        }
        let target = &self.hosts[next.to];
        if !operator.standbys(&holder).await?.iter().any(|standby| standby.host == *target) {
            return Err(changed(&next.shard, &format!("no standby on {target} waits any more")));
        }
        Ok(holder)
    }
}

/// Why it does not move.
fn stays(holder: &Holder, shown: &Shown, even_if_young: bool) -> Option<String> {
    if holder.term.is_none() || holder.session.is_none() {
        return Some(takes_no_orders(holder));
    }
    if let Some(trouble) = &shown.trouble {
        return Some(format!("its orders cannot be read: {trouble}"));
    }
    if let Some((_, paused)) = pauses(shown, ago).next() {
        return Some(paused);
    }
    let handover = shown.orders.as_ref().and_then(|orders| orders.handover.as_ref());
    if handover.is_some_and(|handover| Some(handover.term) == holder.term) {
        return Some("it has been ordered to step down".to_owned());
    }
    let age = wall_clock_millis().saturating_sub(holder.since_millis?);
    let is_young = !even_if_young && age < whole_millis(YOUNG);
    is_young.then(|| format!("it has had this leader for less than {}", show_seconds(YOUNG)))
}

/// Does `work` while it leads the shard [`BALANCE`], so that nobody else balances.
async fn in_turn(client: Client<'_>, work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let stop = |why: String| Err(Failure::of(exit::NOT_ACQUIRED, why));
    let own = BALANCE.parse().expect("it is the name of a shard");
    let mut turn = match OwnLease::take(client, &own, LEASE, "balance").await? {
        Taking::Taken(turn) => turn,
        Taking::Held(Holder { owner, .. }) => {
            return stop(on_one_line(format!("{owner} is balancing already")));
        }
        Taking::Later(wait) => {
            let wait = show_seconds(wait);
            return stop(format!("another one may be balancing for {wait}: try again after that"));
        }
    };
    // An order that was given is obeyed even if nobody waits any more.
    let cut_off = |why: String| stop(format!("{why}; a move that has begun goes on"));
    let done = tokio::select! {
        biased;
        () = asked_to_stop() => cut_off("a signal asked it to stop".to_owned()),
        why = keep(&mut turn) => cut_off(why),
        done = work => done,
    };
    turn.give_back().await;
    done
}

async fn keep(turn: &mut OwnLease<'_>) -> String {
    loop {
        sleep(LEASE / 5).await;
        match turn.renew().await {
            Ok(true) => {}
            Ok(false) => return format!("the lease of {BALANCE} was lost"),
            Err(_) if BootInstant::now().since(turn.sent) < LEASE * 3 / 4 => {}
            Err(error) => return format!("the lease of {BALANCE} could not be renewed: {}", error.message),
        }
    }
}
