//! `leaderctl top`: all shards live on a terminal. It is read-only.
//!
//! The hazard: a terminal in raw mode is of no use to the next program. So it is restored however this ends.

mod frame;

use super::Client;
use super::asked_to_stop;
use super::fleet::Fleet;
use super::fleet::reader::{Reader, ReadingFlags};
use crate::cli::start::Failure;
use crate::lease::Prefix;
use crate::text::in_words;
use clap::Args;
use frame::{Mode, View};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal, stdin, stdout};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

const FRAME: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct TopFlags {
    /// Show only shards whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: Prefix,

    #[command(flatten)]
    reading: ReadingFlags,
}

impl TopFlags {
    pub fn check() -> Result<(), Failure> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Err(Failure::Usage("top needs a terminal: use leaderctl watch".to_owned()));
        }
        Ok(())
    }

    /// Shows the fleet until `q`.
    pub async fn show(self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let reader = Reader::new(client, self.prefix, self.reading);
        let fleet = reader.fleet();
        let shown = tokio::select! {
            () = reader.run() => unreachable!("a reader goes on"),
            shown = run(&fleet) => shown,
        };
        ratatui::restore();
        shown.map_err(|error| Failure::of_os(format!("the terminal: {}", in_words(&error))))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn events() -> UnboundedReceiver<Event> {
    let (send, events) = unbounded_channel();
    // This thread still waits for a key when the program ends. Nobody joins it.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    events
}

async fn run(fleet: &Fleet) -> io::Result<()> {
    let mut view = View::default();
    let mut screen = ratatui::try_init()?;
    let mut events = events();
    let mut stop = pin!(asked_to_stop());
    loop {
        screen.draw(|frame| view.draw(frame, &fleet.lock()))?;
        let event = tokio::select! {
            event = events.recv() => event,
            () = sleep(FRAME) => continue,
            () = &mut stop => return Ok(()),
        };
        let Some(event) = event else { return Ok(()) };
        let key = event.as_key_event().filter(|key| key.kind == KeyEventKind::Press);
        if key.is_some_and(|key| leaves(&mut view, key)) {
            return Ok(());
        }
    }
}

/// Obeys a key. True if the user leaves.
fn leaves(view: &mut View, key: KeyEvent) -> bool {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return key.code == KeyCode::Char('c');
    }
    match (&view.mode, key.code) {
        (Mode::Table, KeyCode::Char('q')) => return true,
        (Mode::Search, KeyCode::Enter) | (Mode::Detail, KeyCode::Enter | KeyCode::Esc | KeyCode::Char('q')) => {
            view.mode = Mode::Table;
        }
        (Mode::Search, KeyCode::Esc) => {
            view.search.clear();
            view.mode = Mode::Table;
        }
        (Mode::Search, KeyCode::Backspace) => drop(view.search.pop()),
        (Mode::Search, KeyCode::Char(letter)) => view.search.push(letter),
        (Mode::Table, KeyCode::Char('/')) => view.mode = Mode::Search,
        (Mode::Table, KeyCode::Esc) => view.search.clear(),
        (Mode::Table, KeyCode::Enter) if view.chosen.is_some() => view.mode = Mode::Detail,
        (_, KeyCode::Up | KeyCode::Char('k')) => view.go(-1),
        (_, KeyCode::Down | KeyCode::Char('j')) => view.go(1),
        (_, KeyCode::PageUp) => view.go(-10),
        (_, KeyCode::PageDown) => view.go(10),
        _ => {}
    }
    false
}
