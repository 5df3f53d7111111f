//! Who led a shard when: its history as stretches of time, for the page of `serve`, for `top` and for `history
//! --timeline`.
//!
//! The hazard: a history is short, its times come from the clocks of several hosts, and a leader that crashed wrote no
//! end. So the time before the first entry is unknown, not "nobody led", times that overlap are cut, and a leadership
//! without a recorded end is drawn as such.

use super::history::ended;
use super::prelude::*;
use crate::election::Reason;
use crate::notes::history::Entry;
use crate::time::rfc3339_seconds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Led,
    /// A leader crashed in this stretch, or was cut off.
    Untold,
    Free,
    /// Nobody led, because an operator paused the shard.
    Paused,
    /// Nobody led, as between two runs of a job.
    Idle,
}

/// Why a leadership ended. The name is also a class of the page, and a word for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Mark {
    Killed,
    Lost,
    Failed,
    #[strum(serialize = "ordered")]
    Paused,
    #[strum(serialize = "handover")]
    HandedOver,
}

/// Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch<'a> {
    pub from: u64,
    pub to: u64,
    pub state: State,
    pub host: &'a str,
    /// None if the history does not have it.
    pub entry: Option<&'a Entry>,
    pub mark: Option<Mark>,
}

/// The stretches from the first entry to now, without overlaps.
pub fn stretches<'a>(shown: &'a Shown, history: &'a [Entry], now: u64) -> Vec<Stretch<'a>> {
    let holder = shown.report.holder.as_ref();
    let leads = holder.and_then(|holder| holder.term);
    let mut stretches = Vec::new();
    for (index, entry) in history.iter().enumerate() {
        let next = history.get(index + 1).map_or(now, |next| next.from_millis);
        let from = fill(&mut stretches, entry.from_millis, shown, now);
        let (state, to) = match (entry.to_millis, ended(entry, leads)) {
            (Some(to), _) => (State::Led, to),
            (None, None) => (State::Led, now),
            (None, Some(_)) => (State::Untold, next),
        };
        let to = to.min(next).clamp(from, now.max(from));
        let mark = mark(entry, leads);
        stretches.push(Stretch { from, to, state, host: &entry.host, entry: Some(entry), mark });
    }
    let known = |term: Term| history.iter().any(|entry| entry.term == term);
    match holder.filter(|holder| !holder.term.is_some_and(known)) {
        Some(Holder { since_millis: Some(since), host, .. }) => {
            let from = fill(&mut stretches, *since, shown, now);
            let host = host.as_deref().unwrap_or("?");
            stretches.push(Stretch { from, to: now, state: State::Led, host, entry: None, mark: None });
        }
        _ if leads.is_none() => {
            fill(&mut stretches, now, shown, now);
        }
        _ => {}
    }
    stretches
}

/// Adds the time without a leader between the last entry and `until`. Returns when the next stretch begins.
fn fill(stretches: &mut Vec<Stretch<'_>>, until: u64, shown: &Shown, now: u64) -> u64 {
    let until = until.min(now);
    let Some(&Stretch { to: from, entry: Some(entry), .. }) = stretches.last() else { return until };
    if from >= until {
        return from;
    }
    let is_paused = entry.known_reason() == Some(Reason::Paused) || (until == now && shown.is_paused());
    let state = match (is_paused, shown.is_job()) {
        (true, _) => State::Paused,
        (false, true) => State::Idle,
        (false, false) => State::Free,
    };
    stretches.push(Stretch { from, to: until, state, host: "", entry: None, mark: None });
    until
}

fn mark(entry: &Entry, leads: Option<Term>) -> Option<Mark> {
    if entry.ended.is_none() {
        return ended(entry, leads).map(|_| Mark::Lost);
    }
    match entry.known_reason() {
        Some(Reason::Asked | Reason::Interrupted | Reason::Hangup) => None,
        Some(Reason::Ended) if entry.is_success() => None,
        Some(Reason::Ended) if entry.signal.is_some() => Some(Mark::Killed),
        Some(Reason::Killed | Reason::MaxRun) => Some(Mark::Killed),
        Some(Reason::Lost | Reason::Revoked) => Some(Mark::Lost),
        Some(Reason::Paused) => Some(Mark::Paused),
        Some(Reason::SteppedDown | Reason::Relinquished) => Some(Mark::HandedOver),
        Some(Reason::Ended | Reason::NotStarted | Reason::Failed | Reason::Unhealthy | Reason::GaveUp) | None => {
            Some(Mark::Failed)
        }
    }
}

/// A line for each host, and one for the time without a leader.
pub fn as_text(stretches: &[Stretch<'_>], width: usize) -> Vec<String> {
    let now = stretches.last().map_or_else(wall_clock_millis, |last| last.to);
    let Some(from) = stretches.first().map(|first| first.from) else { return Vec::new() };
    let mut hosts: Vec<&str> = Vec::new();
    for host in stretches.iter().map(|stretch| stretch.host) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    // What nobody led has no host.
    hosts.sort_by_key(|host| host.is_empty());
    let label = hosts.iter().map(|host| host.chars().count()).chain(["nobody".len()]).max().unwrap_or(0).min(24);
    let cells = width.saturating_sub(label + 2).max(10);
    let span = (now - from).max(1);
    let place = |time: u64| usize::try_from(u128::from(time - from) * cells as u128 / u128::from(span)).unwrap_or(0);
    let mut lines = Vec::new();
    for host in hosts {
        let mut row = vec![' '; cells];
        for stretch in stretches.iter().filter(|stretch| stretch.host == host) {
            let (begin, end) = (place(stretch.from).min(cells - 1), place(stretch.to).min(cells));
            let end = end.max(begin + 1);
            row[begin..end].fill(match stretch.state {
                State::Led => '=',
                State::Untold => '?',
                State::Free => '#',
                State::Paused => '-',
                State::Idle => '.',
            });
            if let Some(mark) = stretch.mark {
                row[end - 1] = sign(mark);
            }
        }
        let name = if host.is_empty() { "nobody" } else { host };
        let name: String = on_one_line(name.to_owned()).chars().take(label).collect();
        lines.push(format!("{name:<label$}  {}", row.into_iter().collect::<String>()).trim_end().to_owned());
    }
    let (begin, end) = (rfc3339_seconds(from), rfc3339_seconds(now));
    let gap = cells.saturating_sub(begin.len() + end.len());
    if gap > 0 {
        lines.push(format!("{:label$}  {begin}{:gap$}{end}", "", ""));
    }
    lines
}

pub const LEGEND: &str = "= leads  # nobody leads  - paused  . between runs  ? end unknown;  ends: K killed, L lost, F failed, P paused, H handed over";

fn sign(mark: Mark) -> char {
    match mark {
        Mark::Killed => 'K',
        Mark::Lost => 'L',
        Mark::Failed => 'F',
        Mark::Paused => 'P',
        Mark::HandedOver => 'H',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::leaderctl::slots::ParentPause;
    use crate::election::{CommandEnd, Ended, HookEnd, Loss};
    use crate::notes::jobs::index::{Indexed, Name};
    use crate::notes::orders;

    fn entry(term: u64, host: &str, from: u64, end: Option<(u64, &Ended)>) -> Entry {
        let mut entry = Entry::begun(Term(term), host.to_owned(), host.to_owned(), 7, from);
        if let Some((to, how)) = end {
            entry.close(to, how, None);
        }
        entry
    }

    fn states(history: &[Entry], shown: &Shown) -> Vec<(u64, u64, State, Option<Mark>)> {
        stretches(shown, history, 1000).iter().map(|it| (it.from, it.to, it.state, it.mark)).collect()
    }

    #[test]
    fn a_history_is_drawn_with_its_gaps_its_marks_and_ends_that_nobody_knows() {
        let mut killed = entry(4, "b", 700, None);
        killed.close_killed(650);
        let history = [
            entry(1, "a", 100, Some((200, &Ended::ByItself(CommandEnd::Exited(0))))),
            entry(2, "b", 300, Some((400, &Ended::Paused))),
            entry(3, "a", 500, None),
            killed,
        ];
        let expected = [
            (100, 200, State::Led, None),
            (200, 300, State::Free, None),
            (300, 400, State::Led, Some(Mark::Paused)),
            (400, 500, State::Paused, None),
            (500, 700, State::Untold, Some(Mark::Lost)),
            // The clocks of two hosts differ.
            (700, 700, State::Led, Some(Mark::Killed)),
            (700, 1000, State::Free, None),
        ];
        assert_eq!(states(&history, &Shown::default()), expected);
        let run = Indexed {
            job: Name::Every { millis: 1 },
            term: Term(1),
            attempts: 1,
            from_millis: 100,
            to_millis: Some(200),
            status: Some(0),
            host: "a".to_owned(),
        };
        let job = states(&history, &Shown { jobs: vec![run], ..Shown::default() });
        assert_eq!((job[1].2, job[3].2, job[6].2), (State::Idle, State::Paused, State::Idle));
        let above = ParentPause { parent: "db".parse().unwrap(), pause: orders::pause(None, false, None).unwrap() };
        let paused = Shown { parent_pause: Some(above), ..Shown::default() };
        assert_eq!(states(&history, &paused)[6].2, State::Paused);
    }

    #[test]
    fn the_mark_of_an_end_follows_from_its_reason_and_status_whatever_its_words_are() {
        let (exited, failed) = (|status| Ended::ByItself(CommandEnd::Exited(status)), HookEnd::TimedOut);
        for (how, expected) in [
            (exited(0), None),
            (exited(3), Some(Mark::Failed)),
            (Ended::ByItself(CommandEnd::Signalled(9)), Some(Mark::Killed)),
            (Ended::Unready(failed), Some(Mark::Failed)),
            (Ended::Asked(15), None),
            (Ended::SteppedDown, Some(Mark::HandedOver)),
            (Ended::Overran, Some(Mark::Killed)),
            (Ended::GaveUp { end: CommandEnd::Exited(0), restarts: 5 }, Some(Mark::Failed)),
            (Ended::Lost(Loss::DeadlinePassed), Some(Mark::Lost)),
        ] {
            let words = "exited with 0".to_owned();
            let entry = Entry { ended: Some(words), ..entry(1, "a", 1, Some((2, &how))) };
            assert_eq!(mark(&entry, None), expected, "{how}");
        }
    }
}
