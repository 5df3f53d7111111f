//! Log lines on standard error: text for people and journald, or JSON with one object per line.
//!
//! If standard error goes to journald, each line begins with its priority (sd-daemon(3)), which journald removes. A
//! text line begins with the time, unless journald adds one or it goes to a terminal.
//!
//! The hazard: a program that reads JSON must get nothing else, and some mistakes are found before the options are
//! known. So the format is chosen as soon as possible ([`choose`]), and every line asks for it.

use crate::election::{LogEvent, Why};
use crate::observe::terminal::{self, priority, time};
use clap::ValueEnum;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::Field;
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether lines have a time. Mistakes in the options have none, because the user reads them at once.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

pub fn choose(format: Format) {
    IS_JSON.store(format == Format::Json, Ordering::Relaxed);
}

/// A warning that belongs to no election.
pub fn warn(program: &str, message: &str) {
    terminal::say(line(program, Level::WARN, "warning: ", message, None));
}

pub fn fail(program: &str, status: u8, message: &str) {
    terminal::say(line(program, Level::ERROR, "", &message.replace(['\n', '\r'], " "), Some(status)));
}

/// Only in JSON: people see the status, and what was logged before.
pub fn end(status: u8, why: Why, shard: &str, owner: &str) {
    let event = LogEvent::Ended.into_str();
    let from = why.from();
    let why = why.into_str();
    if IS_JSON.load(Ordering::Relaxed) {
        tracing::info!(event, exit_status = status, from, why, shard, owner, "ended");
    }
}

/// A line in the format of the log, where the log itself has not begun or is in the middle of a line.
fn line(program: &str, level: Level, kind: &str, message: &str, status: Option<u8>) -> String {
    let priority = priority(level);
    if !IS_JSON.load(Ordering::Relaxed) {
        let time = if HAS_BEGUN.load(Ordering::Relaxed) { time() } else { String::new() };
        return format!("{priority}{time}{program}: {kind}{message}");
    }
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let event = if status.is_some() { LogEvent::Ended } else { LogEvent::Warning };
    let mut line = serde_json::json!({
        "timestamp": timestamp, "level": level.as_str(), "event": event.into_str(), "message": message
    });
    if let Some(status) = status {
        line["exit_status"] = status.into();
        let why = Why::failed(status);
        (line["from"], line["why"]) = (why.from().into(), why.into_str().into());
    }
    format!("{priority}{line}")
}

pub fn begin(program: &'static str, format: Format, verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => Level::ERROR,
        (false, 0) => Level::INFO,
        (false, 1) => Level::DEBUG,
        (false, _) => Level::TRACE,
    };
    // Libraries log their own details, and some log secrets.
    let ours = tracing_subscriber::filter::filter_fn(|metadata| metadata.target().starts_with("leaderrun"));
    choose(format);
    HAS_BEGUN.store(true, Ordering::Relaxed);
    terminal::begin(move |lost| format!("{}\n", line(program, Level::WARN, "", &terminal::dropped(lost), None)));
    let lines = tracing_subscriber::fmt::layer().with_writer(|| terminal::Lines);
    let registry = tracing_subscriber::registry();
    let level = LevelFilter::from_level(level);
    // In a second election of this process, the log of the first one stays.
    let _ = match format {
        Format::Text => registry
            .with(lines.fmt_fields(debug_fn(field)).event_format(Text { program }).with_filter(level).with_filter(ours))
            .try_init(),
        Format::Json => registry
            .with(
                lines
                    .json()
                    .flatten_event(true)
                    .with_target(false)
                    .map_event_format(Json)
                    .with_filter(level)
                    .with_filter(ours),
            )
            .try_init(),
    };
}

/// Makes a panic in any thread log one line and end this process.
///
/// The guard acts only when the candidate is gone. If one thread died alone, or waited for a reader of its last line,
/// COMMAND would run under a candidate that does nothing.
pub fn end_on_panic(program: &'static str) {
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.payload_as_str().unwrap_or_default().replace(['\n', '\r'], " ");
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let message = format!("this is a bug: {what}{place}");
        terminal::say_last(line(program, Level::ERROR, "", &message, None));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            terminal::say_last(trace);
        }
        std::process::abort();
    }));
}

/// Gives a line an `event` if it has none: only lines about an election have their own.
struct Json<F>(F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let level = *metadata.level();
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(priority(level))?;
        if metadata.fields().field("event").is_some() {
            return writer.write_str(&line);
        }
        let what = if level <= Level::WARN { LogEvent::Warning } else { LogEvent::Detail };
        let rest = line.strip_prefix('{').unwrap_or(&line);
        write!(writer, "{{\"event\":\"{}\",{rest}", what.into_str())
    }
}

/// Leaves out fields that a text line has in words.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        "event" | "heard" | "action" | "reason" | "exit_status" | "from" | "why" => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
}

/// `TIME leaderrun: message shard=a term=3 owner=b`.
struct Text {
    program: &'static str,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        context.format_fields(Writer::new(&mut line), event)?;
        // An event without words is for programs.
        if line.is_empty() {
            return Ok(());
        }
        // One event is one line, even if a message of the store has line breaks.
        let line = line.replace(['\n', '\r'], " ");
        writeln!(writer, "{}{}{}: {line}", priority(*event.metadata().level()), time(), self.program)
    }
}
