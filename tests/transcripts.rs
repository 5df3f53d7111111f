//! Stories of the election that people can read: tests/transcripts/*.txt.
//!
//! A file begins with a few sentences that say what it shows. A line that begins with a time is an event, and the indented
//! lines below it are the actions that the machine answers, in the words of `leaderrun -vv`. Times are seconds from the
//! start. A line `timer` stands where the machine had asked to be woken: the test writes those lines too, so only the
//! other events are input.
//!
//! `TEST_GOLDEN=write cargo test --test transcripts` writes timers and actions into the files, and fails: read what
//! changed, and run it again without the variable.

#[path = "transcripts/events.rs"]
mod events;

use events::{event, settings, time};
use leaderrun::internals::election::{Action, Election, Event};
use leaderrun::internals::runner::trace;
use leaderrun::internals::time::BootInstant;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The same for each story, so that pauses which are spread at random are the same in each run.
const SEED: u64 = 42;

/// `12.5s`.
fn seconds(instant: BootInstant) -> String {
    let millis = instant.since(BootInstant::from_nanos(0)).as_millis();
    let tenths = format!("{}.{:03}", millis / 1000, millis % 1000);
    let digits = tenths.trim_end_matches('0');
    format!("{}{}s", digits, if digits.ends_with('.') { "0" } else { "" })
}

/// As `leaderrun -vv` logs it.
fn in_words(action: &Action, now: BootInstant) -> String {
    match action {
        Action::Say(notice) => format!("log: {notice}"),
        action => trace::done(action, now),
    }
}

struct Story {
    election: Election,
    text: String,
    /// When claims and renewals were sent.
    sent: Vec<String>,
    over: bool,
}

impl Story {
    fn tell(&mut self, now: BootInstant, said: &str, event: Event) {
        assert!(!self.over, "the election is over before this: {said}");
        if let Event::Claimed { sent, .. } | Event::Renewed { sent, .. } = &event {
            assert!(self.sent.contains(&seconds(*sent)), "nothing was sent then: {said}");
        }
        let timer = matches!(event, Event::Tick) && said == "timer";
        let actions = self.election.handle(now, event);
        if actions.is_empty() && timer {
            return;
        }
        writeln!(self.text, "{} {said}", seconds(now)).unwrap();
        for action in actions {
            writeln!(self.text, "  {}", in_words(&action, now)).unwrap();
            if matches!(action, Action::Claim | Action::Renew { .. }) {
                self.sent.push(seconds(now));
            }
            self.over |= matches!(action, Action::End(_));
        }
    }

    /// Wakes the machine as it asks to be, until `now`.
    fn pass_time(&mut self, now: BootInstant) {
        for _ in 0..1000 {
            let wake_at = self.election.wake_at();
            if self.over || wake_at >= now {
                return;
            }
            self.tell(wake_at, "timer", Event::Tick);
        }
        panic!("it wants to be woken again and again before {}", seconds(now));
    }
}

/// The same story, with the actions of this machine.
fn retold(text: &str) -> String {
    let (prose, events): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.is_empty() || line.starts_with(['#', 'w']));
    let wishes = prose.iter().filter_map(|line| line.strip_prefix("with "));
    let election = Election::new(settings(wishes), BootInstant::from_nanos(0), SEED);
    let mut story = Story { election, text: prose.join("\n") + "\n", sent: Vec::new(), over: false };
    for line in events.iter().filter(|line| !line.starts_with(' ') && !line.ends_with(" timer")) {
        let (at, said) = line.split_once(' ').unwrap_or_else(|| panic!("what happens? {line}"));
        let now = time(at);
        story.pass_time(now);
        story.tell(now, said, event(said));
    }
    story.text
}

#[track_caller]
fn is_told_as_in(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(format!("{name}.txt"));
    let before = fs::read_to_string(&path).unwrap();
    let now = retold(&before);
    if std::env::var_os("TEST_GOLDEN").is_some_and(|wish| wish == "write") {
        fs::write(&path, now).unwrap();
        panic!("{name}.txt was written, not compared: read it, and run this again without TEST_GOLDEN");
    }
    let differs = before.lines().zip(now.lines()).position(|(before, now)| before != now);
    let line = differs.unwrap_or_else(|| before.lines().count().min(now.lines().count()));
    let of = |text: &str| text.lines().nth(line).unwrap_or("(nothing)").to_owned();
    assert!(
        before == now,
        "{name}.txt, line {}:\nexpected: {}\n   found: {}\nTEST_GOLDEN=write writes the file again",
        line + 1,
        of(&before),
        of(&now)
    );
}

macro_rules! stories {
    ($($name:ident $file:literal)*) => {
        $(#[test]
        fn $name() {
            is_told_as_in($file);
        })*

        #[test]
        fn each_file_is_read_and_begins_with_what_it_shows() {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
            let mut found: Vec<String> = fs::read_dir(&directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter_map(|name| name.strip_suffix(".txt").map(str::to_owned))
                .collect();
            found.sort();
            let mut read = [$($file),*];
            read.sort_unstable();
            assert_eq!(found, read);
            for name in found {
                let text = fs::read_to_string(directory.join(format!("{name}.txt"))).unwrap();
                assert!(text.starts_with("# "), "{name}.txt does not say what it shows");
            }
        }
    };
}

stories! {
    a_leader_that_is_asked_to_stop_ends_command_and_releases_the_lease "clean-run"
    a_standby_takes_over_when_the_leader_has_died "takeover"
    a_claim_without_an_answer_is_asked_again "lost-answer"
    a_leader_that_cannot_renew_stops_command_at_its_deadline "lost-renewals-until-the-deadline"
    a_leader_whose_lease_was_taken_stops_command_at_once "taken-by-another"
    a_pause_stops_command_and_nobody_leads_until_it_ends "pause"
    a_leader_that_hands_over_lets_another_lead_first "handover"
    a_lease_is_renewed_while_command_drains "drain"
    a_command_that_fails_is_started_again_under_the_same_lease "restart"
    a_job_is_entered_before_it_starts_and_settled_before_the_release "job"
    a_standby_task_is_dead_before_command_starts "standby-task"
    a_guard_that_fails_loses_the_leadership "guard-fails"
    a_command_that_hangs_gives_the_lease_up "unhealthy"
}
