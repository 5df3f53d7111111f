//! `leaderctl man`: the manual, where only the program was installed.
//!
//! At a terminal man(1) shows the page. Without man(1), or without a terminal, the text is printed that was formatted
//! when this program was built.

use super::printed;
use crate::cli::start::Failure;
use clap::Args;
use std::io::{self, IsTerminal, Write, stdout};
use std::process::{Command, ExitCode, Stdio};

macro_rules! page {
    ($name:literal, $file:literal) => {
        (
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/man/", $file)),
            include_str!(concat!(env!("OUT_DIR"), "/", $file, ".txt")),
        )
    };
}

/// Their names here, their sources, and their texts.
const PAGES: [(&str, &str, &str); 5] = [
    page!("leaderrun", "leaderrun.1"),
    page!("leaderctl", "leaderctl.1"),
    page!("guarantees", "leaderrun.7"),
    page!("stores", "leaderrun-stores.7"),
    page!("formats", "leaderrun-formats.5"),
];

#[derive(Debug, Args)]
pub struct ManFlags {
    /// Which page
    #[arg(value_name = "PAGE", default_value = "leaderctl", value_parser = PAGES.map(|(name, ..)| name))]
    page: String,
}

impl ManFlags {
    pub fn show(&self) -> Result<ExitCode, Failure> {
        let (_, source, text) = PAGES.into_iter().find(|(name, ..)| *name == self.page).expect("clap knows no other");
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
