//! `leaderctl`: the operator's tool.

mod verify;
mod watch;

use super::completions::{self, Program};
use super::flags;
use crate::exit;
use crate::lease::{Prefix, Shard, show};
use crate::store::{Finding, Report, Store, StoreError, Verdict, on_one_line};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{BufWriter, Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use verify::VerifyFlags;
use watch::WatchFlags;

const PROGRAM: &str = "leaderctl";

/// See and prepare the stores of leaderrun
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, after_help = "See leaderctl(1).")]
pub struct Flags {
    #[command(flatten)]
    store: flags::StoreFlags,

    /// The most that one request to the store may take
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_REQUEST_TIMEOUT", default_value = "5s",
          value_parser = flags::duration, global = true)]
    request_timeout: Duration,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Who leads SHARD
    Status(StatusFlags),
    /// Who leads which shard, a line each
    List(ListFlags),
    /// A line for each change of leader, as it happens
    Watch(WatchFlags),
    /// Whether a term still leads, for a script's dangerous step
    Verify(VerifyFlags),
    /// Prepare and examine a store
    #[command(subcommand)]
    Store(StoreVerb),
    /// Print shell completions
    Completions {
        #[arg(value_enum)]
        program: Program,
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Args)]
struct StatusFlags {
    /// The name that is led
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListFlags {
    /// What the names of the shards begin with; all without it
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true, value_parser = clap::value_parser!(Prefix))]
    prefix: Prefix,

    /// As one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum StoreVerb {
    /// Make what the store needs; harmless when it exists
    Init,
    /// Say what is wrong with the store, and how fast it is
    Check,
}

#[must_use]
pub fn main() -> ExitCode {
    let (flags, matches): (Flags, _) = match flags::parse(PROGRAM, std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    if let Verb::Completions { program, shell } = flags.verb {
        return printed(completions::print(program, shell, &mut stdout()));
    }
    let named = match flags.store.named(&matches) {
        Ok(named) => named,
        Err(message) => return flags::usage(PROGRAM, &message),
    };
    if flags.request_timeout.is_zero() {
        return flags::usage(PROGRAM, "--request-timeout 0s leaves no time for an answer");
    }
    let question = match &flags.verb {
        Verb::Verify(verify) => match verify.question() {
            Ok(question) => Some(question),
            Err(message) => return flags::usage(PROGRAM, &message),
        },
        _ => None,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::OS_ERROR, &format!("the operating system refused: {error}")),
    };
    let answer = runtime.block_on(async {
        if let Some(question) = question {
            return question.answer(named, flags.request_timeout).await;
        }
        let store = named.location.open(flags.request_timeout).await?;
        match &flags.verb {
            Verb::Watch(watch) => watch::watch(store, watch, flags.request_timeout).await.map(|()| ExitCode::SUCCESS),
            Verb::Status(status) => show_status(&*store, status, flags.request_timeout).await,
            Verb::List(list) => show_list(&*store, list).await,
            Verb::Store(StoreVerb::Init) => init(store).await,
            Verb::Store(StoreVerb::Check) => check(store).await,
            Verb::Verify(_) | Verb::Completions { .. } => unreachable!("they need no store, or not always"),
        }
    });
    answer.unwrap_or_else(|error| fail(exit::of_store(&error), &error.message))
}

/// What `status --json` and each line of `list --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Status<'a> {
    shard: &'a str,
    held: bool,
    owner: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    term: Option<u64>,
    /// RFC 3339.
    since: Option<String>,
    /// None where it does not expire.
    expires_in_seconds: Option<f64>,
    last_term: Option<u64>,
}

async fn show_status(store: &dyn Store, flags: &StatusFlags, timeout: Duration) -> Result<ExitCode, StoreError> {
    let report = inspect(store, &flags.shard, timeout).await?;
    let text = if flags.json { as_json(&flags.shard, &report) } else { as_text(&flags.shard, &report) };
    Ok(printed(writeln!(stdout(), "{text}")))
}

async fn inspect(store: &dyn Store, shard: &Shard, timeout: Duration) -> Result<Report, StoreError> {
    match tokio::time::timeout(timeout, store.inspect(shard)).await {
        Ok(report) => report,
        Err(_) => Err(StoreError::unknown(format!("the store did not answer within {}", show(timeout)))),
    }
}

fn as_json(shard: &Shard, report: &Report) -> String {
    let holder = report.holder.as_ref();
    let status = Status {
        shard: shard.as_str(),
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str()),
        host: holder.and_then(|holder| holder.host.as_deref()),
        pid: holder.and_then(|holder| holder.pid),
        term: holder.and_then(|holder| holder.term).map(|term| term.0),
        since: holder.and_then(|holder| holder.since_millis).map(rfc3339),
        expires_in_seconds: holder.and_then(|holder| holder.expires_in).map(|left| left.as_secs_f64()),
        last_term: report.last_term.map(|term| term.0),
    };
    serde_json::to_string(&status).expect("a status is plain data")
}

fn as_text(shard: &Shard, report: &Report) -> String {
    let Some(holder) = &report.holder else {
        let last = report.last_term.map(|term| format!(" (last term {term})")).unwrap_or_default();
        return format!("{shard}: free{last}");
    };
    let mut text = format!("{shard}: led by {}", on_one_line(holder.owner.clone()));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, "\n  {name:<11}{value}");
        }
    };
    add("host", holder.host.clone().map(on_one_line));
    add("pid", holder.pid.map(|pid| pid.to_string()));
    add("term", holder.term.map(|term| term.to_string()));
    add("since", holder.since_millis.map(rfc3339));
    add("expires in", holder.expires_in.map(show));
    text
}

async fn show_list(store: &dyn Store, flags: &ListFlags) -> Result<ExitCode, StoreError> {
    let list = store.list(flags.prefix.as_str()).await?;
    let lines = if flags.json {
        list.iter().map(|(shard, report)| as_json(shard, report)).collect()
    } else {
        as_columns(&list)
    };
    let mut out = BufWriter::new(stdout().lock());
    Ok(printed(lines.iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush())))
}

const COLUMNS: usize = 7;

/// Aligned, and a word for each column whatever a record says, so that programs can read it by its blanks.
fn as_columns(list: &[(Shard, Report)]) -> Vec<String> {
    let header = ["SHARD", "LEADER", "HOST", "PID", "TERM", "SINCE", "EXPIRES-IN"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(list.iter().map(|(shard, report)| row(shard, report))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let padded = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(shard: &Shard, report: &Report) -> [String; COLUMNS] {
    let holder = report.holder.as_ref();
    // Of a shard that is free, the term that it had.
    let term = if holder.is_some() { holder.and_then(|holder| holder.term) } else { report.last_term };
    [
        Some(shard.to_string()),
        holder.map(|holder| holder.owner.clone()),
        holder.and_then(|holder| holder.host.clone()),
        holder.and_then(|holder| holder.pid).map(|pid| pid.to_string()),
        term.map(|term| term.to_string()),
        holder.and_then(|holder| holder.since_millis).map(rfc3339),
        holder.and_then(|holder| holder.expires_in).map(|left| show(left).replace(' ', "")),
    ]
    .map(|cell| word(cell.unwrap_or_default()))
}

/// One word, or a hyphen for nothing.
fn word(text: String) -> String {
    let text = on_one_line(text).replace(char::is_whitespace, "_");
    if text.is_empty() { "-".to_owned() } else { text }
}

async fn init(store: Arc<dyn Store>) -> Result<ExitCode, StoreError> {
    let mut out = stdout();
    let done = store.prepare().await?;
    Ok(printed(done.iter().try_for_each(|line| writeln!(out, "{line}"))))
}

async fn check(store: Arc<dyn Store>) -> Result<ExitCode, StoreError> {
    let findings = store.check().await?;
    let mut out = stdout();
    let written = findings.iter().try_for_each(|Finding { verdict, text }| {
        let verdict = match verdict {
            Verdict::Good => "good",
            Verdict::Doubtful => "doubtful",
            Verdict::Bad => "bad",
        };
        writeln!(out, "{verdict:<9} {text}")
    });
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if bad { ExitCode::from(exit::CONFIGURATION) } else { printed(written) })
}

fn rfc3339(millis: u64) -> String {
    let at = std::time::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    // A record may say anything; humantime ends with the year 9999.
    at.filter(|_| millis < 253_402_300_800_000)
        .map_or_else(|| format!("{millis} ms since 1970"), |at| humantime::format_rfc3339_millis(at).to_string())
}

fn printed(written: std::io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closed the pipe has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(exit::OS_ERROR, &format!("cannot write: {error}")),
    }
}

fn fail(status: u8, message: &str) -> ExitCode {
    eprintln!("{PROGRAM}: {}", message.replace(['\n', '\r'], " "));
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use crate::lease::Term;
    use crate::store::Holder;

    #[test]
    fn holders_of_any_names_and_numbers_are_shown_on_their_lines() {
        let shard: Shard = "db/main".parse().unwrap();
        fuzz::run_a_tenth("status of a holder", |source, input| {
            let holder = Holder {
                owner: source.text(),
                host: source.one_in(2).then(|| source.text()),
                term: source.one_in(2).then(|| Term(source.number())),
                since_millis: source.one_in(2).then(|| source.number()),
                expires_in: source.one_in(2).then(|| source.duration()),
                ..Holder::default()
            };
            input.show(|| format!("{holder:?}"));
            let told = [
                holder.host.is_some(),
                holder.term.is_some(),
                holder.since_millis.is_some(),
                holder.expires_in.is_some(),
            ];
            let lines = 1 + told.iter().filter(|told| **told).count();
            let text = as_text(&shard, &Report { holder: Some(holder), last_term: None });
            assert_eq!(text.split('\n').count(), lines, "{text:?}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            if lines > 1 { Fate::Accepted } else { Fate::Refused }
        });
    }

    #[test]
    fn a_line_of_a_list_has_a_word_for_each_column_whatever_a_record_says() {
        fuzz::run_a_tenth("line of a list", |source, input| {
            let holder = Holder {
                owner: source.text(),
                host: source.one_in(2).then(|| source.text()),
                pid: source.one_in(2).then_some(7),
                term: source.one_in(2).then(|| Term(source.number())),
                since_millis: source.one_in(2).then(|| source.number()),
                expires_in: source.one_in(2).then(|| source.duration()),
                ..Holder::default()
            };
            input.show(|| format!("{holder:?}"));
            let holder = source.below(8).ne(&0).then_some(holder);
            let fate = if holder.is_some() { Fate::Accepted } else { Fate::Refused };
            let report = Report { holder, last_term: source.one_in(2).then(|| Term(source.number())) };
            for line in as_columns(&[("db/main".parse().unwrap(), report)]) {
                assert_eq!(line.split_whitespace().count(), COLUMNS, "{line:?}");
                assert!(!line.contains(char::is_control), "{line:?}");
            }
            fate
        });
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_word_and_free_shards_show_their_last_term() {
        let holder = Holder {
            owner: "a long\u{1b}name".to_owned(),
            host: Some("db1".to_owned()),
            pid: Some(7),
            term: Some(Term(12)),
            since_millis: Some(0),
            expires_in: Some(Duration::from_millis(9_250)),
            ..Holder::default()
        };
        let led = Report { holder: Some(holder), last_term: Some(Term(12)) };
        let free = Report { holder: None, last_term: Some(Term(3)) };
        let lines = as_columns(&[("a".parse().unwrap(), led), ("db/main".parse().unwrap(), free)]);
        assert_eq!(
            lines,
            [
                "SHARD    LEADER       HOST  PID  TERM  SINCE                     EXPIRES-IN",
                "a        a_long_name  db1   7    12    1970-01-01T00:00:00.000Z  9s250ms",
                "db/main  -            -     -    3     -                         -",
            ]
        );
    }
}
