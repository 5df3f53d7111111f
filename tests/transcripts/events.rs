//! The events of a story, read from its words.

use leaderrun::internals::election::{
    Booked, Booking, CommandEnd, Directives, Event, Handover, HookEnd, Pause, Restart, RestartWhen, Settings, Skipped,
    TreeEvent, Unhealthy,
};
use leaderrun::internals::lease::{Term, Timing, TimingRequest};
use leaderrun::internals::store::{
    Claim, Delivery, Grant, Holder, Observation, Release, Renewal, StoreError, Takeover,
};
use leaderrun::internals::time::BootInstant;
use std::time::Duration;

/// Those of `leaderrun --kill-after 5s` on a store that is polled, changed by `wishes`.
pub fn settings<'a>(wishes: impl Iterator<Item = &'a str>) -> Settings {
    let timing = TimingRequest { stop_grace: Duration::from_secs(5), ..TimingRequest::default() };
    let mut settings = Settings::new(Timing::new(timing).unwrap(), true, Delivery::Poll);
    for wish in wishes {
        match wish {
            "a store that tells of changes" => settings.delivery = Delivery::Push,
            "a stop timeout of 60s" => settings.stop_timeout = Some(Duration::from_mins(1)),
            "a job" => settings.job_gate = true,
            "a standby task" => settings.standby_tasks = true,
            "one restart after a failure" => {
                settings.restart = Some(Restart {
                    when: RestartWhen::OnFailure,
                    limit: 1,
                    delay: Duration::from_secs(1),
                    healthy: Duration::from_mins(1),
                });
            }
            other => panic!("no such setting: with {other}"),
        }
    }
    settings
}

/// `12.5s`.
pub fn time(words: &str) -> BootInstant {
    BootInstant::from_nanos(0).plus(duration(words))
}

fn duration(words: &str) -> Duration {
    let seconds = words.strip_suffix('s').and_then(|number| number.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or_else(|| panic!("no time: {words}")))
}

fn number<T: std::str::FromStr>(words: &str) -> T {
    words.parse().unwrap_or_else(|_| panic!("no number: {words}"))
}

/// `web-2 leads term 6 for another 9s`.
fn holder(words: &str) -> Holder {
    let (owner, rest) = words.split_once(" leads term ").unwrap_or_else(|| panic!("who leads? {words}"));
    let (term, left) = rest.split_once(" for another ").unwrap_or_else(|| panic!("for how long? {words}"));
    Holder {
        owner: owner.to_owned(),
        term: Some(Term(number(term))),
        expires_in: Some(duration(left)),
        ..Holder::default()
    }
}

fn no_answer() -> StoreError {
    StoreError::unknown("the store did not answer within 2s")
}

/// What is said of an answer to a request that was sent at a time.
fn answer(said: &str, sent: BootInstant) -> Option<Event> {
    Some(match said.split_once(": ").map_or((said, ""), |(what, rest)| (what, rest)) {
        ("the claim is granted", term) => {
            let term = Term(number(term.strip_prefix("term ")?));
            Event::Claimed {
                sent,
                answer: Ok(Claim::Granted(Grant { term, start_after: None, takeover: Takeover::Expired })),
            }
        }
        ("the claim is refused", who) => Event::Claimed { sent, answer: Ok(Claim::Refused(holder(who))) },
        ("the claim has no answer", "") => Event::Claimed { sent, answer: Err(no_answer()) },
        ("renewed", "") => Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: None },
        ("renewed, with orders", said) => {
            Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: Some(orders(said)?) }
        }
        ("the renewal has no answer", "") => Event::Renewed { sent, answer: Err(no_answer()), orders: None },
        ("the renewal is refused", who) => {
            Event::Renewed { sent, answer: Ok(Renewal::Lost(Some(holder(who)))), orders: None }
        }
        _ => return None,
    })
}

fn orders(said: &str) -> Option<Directives> {
    if said == "none" {
        return Some(Directives::default());
    }
    if let Some(said) = said.strip_prefix("paused ") {
        let pause = Pause { keep: false, left: None, said: said.to_owned() };
        return Some(Directives { pause: Some(pause), handover: None });
    }
    let (term, rest) = said.strip_prefix("hand over term ")?.split_once(' ')?;
    let (said, hold) = rest.split_once(", others first for ")?;
    let (term, hold) = (Term(number(term)), duration(hold));
    let handover = Handover { term, welcome: false, hold, said: said.to_owned() };
    Some(Directives { pause: None, handover: Some(handover) })
}

pub fn event(said: &str) -> Event {
    parse(said).unwrap_or_else(|| panic!("no such event: {said}"))
}

fn parse(said: &str) -> Option<Event> {
    if let Some((said, sent)) = said.strip_suffix(')').and_then(|said| said.split_once(" (sent ")) {
        return answer(said, time(sent));
    }
    if let Some(said) = said.strip_prefix("orders: ") {
        return orders(said).map(|directives| Event::Ordered { answer: Ok(directives) });
    }
    if let Some(who) = said.strip_prefix("seen held: ") {
        return Some(Event::Observed { answer: Ok(Observation::Held(holder(who))) });
    }
    if let Some(term) = said.strip_prefix("the job is entered: term ") {
        return Some(Event::Booked { term: Term(number(term)), answer: Ok(Booking::Booked(Booked::default())) });
    }
    if let Some(said) = said.strip_prefix("the job is done: term ") {
        let (term, said) = said.split_once(", ")?;
        let skipped = Skipped { said: said.to_owned(), status: 0, failed: false };
        return Some(Event::Booked { term: Term(number(term)), answer: Ok(Booking::Done(skipped)) });
    }
    if let Some(term) = said.strip_prefix("the job is settled: term ") {
        return Some(Event::Settled { term: Term(number(term)), answer: Ok(()) });
    }
    if let Some(status) = said.strip_prefix("command exited with ") {
        return Some(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(number(status)))));
    }
    if let Some(signal) = said.strip_prefix("command ended by signal ") {
        return Some(Event::Tree(TreeEvent::Ended(CommandEnd::Signalled(number(signal)))));
    }
    if let Some(failures) = said.strip_prefix("command is unhealthy: this many checks hung: ") {
        let unhealthy = Unhealthy { last: HookEnd::TimedOut, failures: number(failures) };
        return Some(Event::Tree(TreeEvent::Unhealthy(unhealthy)));
    }
    if let Some(signal) = said.strip_prefix("asked to stop by signal ") {
        return Some(Event::Asked { signal: number(signal) });
    }
    Some(match said {
        "started" | "time passes" => Event::Tick,
        "seen free" => Event::Observed { answer: Ok(Observation::Free) },
        "the store reports a change" => Event::Changed(Ok(())),
        "released" => Event::Released { answer: Ok(Release::Released) },
        "the release has no answer" => Event::Released { answer: Err(no_answer()) },
        "the orders have no answer" => Event::Ordered { answer: Err(no_answer()) },
        "command started" => Event::Tree(TreeEvent::Started),
        "the guard stopped the command after its longest run" => Event::Tree(TreeEvent::Overran),
        "the guard sent the stop signal at its deadline" => Event::Tree(TreeEvent::DeadlineReached),
        "the guard failed" => Event::Tree(TreeEvent::GuardFailed),
        "the tree is dead" => Event::Tree(TreeEvent::Dead),
        "the standby task is dead" => Event::StandbyTasksDead,
        _ => return None,
    })
}
