//! The value of `--relinquish`: a duration, or the times of a crontab specification.

use super::flags::duration;
use crate::runner::rotation::Schedule;
use cronexpr::{FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use std::time::Duration;

/// In the year 9987. Later there is no next time.
const LATEST_MILLIS: u64 = 253_000_000_000_000;
const LONGEST: usize = 200;
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub enum Relinquish {
    After(Duration),
    At(Schedule),
}

impl Relinquish {
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = || "write a duration such as 1h, a name such as @daily, or a crontab's five fields".to_owned();
        let text = text.trim();
        let every = text.strip_prefix("@every").filter(|rest| rest.starts_with(char::is_whitespace)).map(str::trim);
        if let Some(after) = every.or(Some(text).filter(|text| !text.starts_with('@'))).map(duration) {
            match after {
                Ok(after) if after < SHORTEST => return Err("write a duration of at least 1s".to_owned()),
                Ok(after) => return Ok(Self::After(after)),
                Err(message) if every.is_some() => return Err(message),
                Err(_) => {}
            }
        }
        let fields = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            _ if text.starts_with('@') => {
                return Err("write @every DURATION, @hourly, @daily, @weekly, @monthly or @yearly".to_owned());
            }
            // Five fields, and perhaps a time zone.
            _ if (5..=6).contains(&text.split_whitespace().count()) => text,
            _ => return Err(usage()),
        };
        schedule(fields).map(Self::At)
    }
}

/// The times of a crontab's fields, by the host's wall clock and time zone.
fn schedule(fields: &str) -> Result<Schedule, String> {
    if fields.len() > LONGEST || !fields.is_ascii() {
        return Err(format!("a crontab's fields are at most {LONGEST} letters, digits and signs"));
    }
    let mut options = ParseOptions::default();
    options.fallback_timezone_option = FallbackTimezoneOption::System;
    let normalized = cronexpr::normalize_crontab(fields);
    let crontab = cronexpr::parse_crontab_with(&normalized, options).map_err(|error| brief(&error.to_string()))?;
    let schedule = Schedule::new(move |millis| {
        let from = i64::try_from(millis.min(LATEST_MILLIS)).ok()?;
        let next = crontab.find_next(MakeTimestamp::from_millisecond(from).ok()?).ok()?;
        u64::try_from(next.timestamp().as_millisecond()).ok()
    });
    // 29 February comes within eight years; 30 February never does.
    let comes = [0, 2_000_000_000_000].into_iter().any(|from| schedule.next(from).is_some());
    if comes { Ok(schedule) } else { Err("this time never comes".to_owned()) }
}

/// The library's error shows the whole text with a mark below the mistake.
fn brief(said: &str) -> String {
    let why = said.rsplit_once("^ ").map_or(said, |(_, why)| why);
    let why = why.split(';').next().unwrap_or(why);
    format!("not a crontab's five fields: {}", crate::text::on_one_line(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{millis_of_rfc3339, rfc3339_seconds};

    fn schedule(text: &str) -> Schedule {
        let Ok(Relinquish::At(schedule)) = Relinquish::parse(text) else { panic!("{text}") };
        schedule
    }

    fn at(text: &str) -> u64 {
        millis_of_rfc3339(text).unwrap()
    }

    fn times(text: &str, after: &str, number: usize) -> Vec<String> {
        let schedule = schedule(text);
        let times = std::iter::successors(Some(at(after)), |&millis| schedule.next(millis)).skip(1);
        times.take(number).map(rfc3339_seconds).collect()
    }

    #[test]
    fn durations_and_names_are_read() {
        for (text, seconds) in [("90", 90), ("1h", 3600), ("1h 30m", 5400), ("@every 1h", 3600), (" @every  90s ", 90)]
        {
            let read = Relinquish::parse(text);
            assert!(matches!(read, Ok(Relinquish::After(after)) if after.as_secs() == seconds), "{text}: {read:?}");
        }
        let now = at("2026-11-21T20:30:00Z");
        assert_eq!(schedule("@midnight").next(now), Some(at("2026-11-22T00:00:00Z")));
    }

    #[test]
    fn a_skipped_hour_has_no_time_and_a_repeated_hour_has_two() {
        let spring = times("30 2 * * * Europe/Berlin", "2026-03-27T12:00:00Z", 2);
        assert_eq!(spring, ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"]);
        let autumn = times("30 2 * * * Europe/Berlin", "2026-10-24T12:00:00Z", 3);
        assert_eq!(autumn, ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]);
        let daily = times("0 4 * * * Europe/Berlin", "2026-10-24T12:00:00Z", 2);
        assert_eq!(daily, ["2026-10-25T03:00:00Z", "2026-10-26T03:00:00Z"]);
    }
}
