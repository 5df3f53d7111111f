//! Log lines on standard error: text for people and journald, or JSON, an object a line.

use clap::ValueEnum;
use std::fmt;
use std::io::stderr;
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// Begins logging for this process, under the name `program`.
pub fn begin(program: &'static str, format: Format, verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => Level::ERROR,
        (false, 0) => Level::INFO,
        (false, 1) => Level::DEBUG,
        (false, _) => Level::TRACE,
    };
    // Libraries speak of their own affairs, and some of them of secrets.
    let ours = tracing_subscriber::filter::filter_fn(|metadata| metadata.target().starts_with("leaderrun"));
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let registry = tracing_subscriber::registry();
    let level = LevelFilter::from_level(level);
    // A second call is a second election in one process: the first one's log goes on.
    let _ = match format {
        Format::Text => registry
            .with(
                lines
                    .fmt_fields(DefaultFields::new())
                    .event_format(Text { program })
                    .with_filter(level)
                    .with_filter(ours),
            )
            .try_init(),
        Format::Json => registry
            .with(lines.json().flatten_event(true).with_target(false).with_filter(level).with_filter(ours))
            .try_init(),
    };
}

/// `leaderrun: message shard=a term=3 owner=b`.
struct Text {
    program: &'static str,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, DefaultFields> for Text {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{}: ", self.program)?;
        let mut line = String::new();
        context.format_fields(Writer::new(&mut line), event)?;
        // One event is one line, whatever a store put into its message.
        writeln!(writer, "{}", line.replace(['\n', '\r'], " "))
    }
}
