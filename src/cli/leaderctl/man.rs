//! `leaderctl man`: the manual, where only the program was installed.
//!
//! At a terminal man(1) shows the page. Without man(1), or without a terminal, the text is printed that was formatted
//! when this program was built.

use super::printed;
use crate::cli::start::Failure;
use clap::{Args, ValueEnum};
use std::io::{self, IsTerminal, Write, stdout};
use std::process::{Command, ExitCode, Stdio};

#[derive(Debug, Args)]
pub struct ManFlags {
    /// Which page
    #[arg(value_enum, value_name = "PAGE", default_value = "leaderctl")]
    page: Page,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Page {
    Leaderrun,
    Leaderctl,
    Guarantees,
    Stores,
    Formats,
}

macro_rules! page {
    ($name:literal) => {
        (
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/man/", $name)),
            include_str!(concat!(env!("OUT_DIR"), "/", $name, ".txt")),
        )
    };
}

impl Page {
    const fn read(self) -> (&'static str, &'static str) {
        match self {
            Self::Leaderrun => page!("leaderrun.1"),
            Self::Leaderctl => page!("leaderctl.1"),
            Self::Guarantees => page!("leaderrun.7"),
            Self::Stores => page!("leaderrun-stores.7"),
            Self::Formats => page!("leaderrun-formats.5"),
        }
    }
}

impl ManFlags {
    pub fn show(&self) -> Result<ExitCode, Failure> {
        let (source, text) = self.page.read();
        if stdout().is_terminal() && paged(source).is_ok_and(|shown| shown) {
            return Ok(ExitCode::SUCCESS);
        }
        printed(stdout().write_all(text.as_bytes()))
    }
}

fn paged(source: &str) -> io::Result<bool> {
    let mut man = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    // man(1) may end before it has read all of the page.
    let _ = man.stdin.take().expect("it is a pipe").write_all(source.as_bytes());
    // 3: the reader has left the pager before all of the page was formatted.
    Ok(matches!(man.wait()?.code(), Some(0 | 3)))
}
