//! `leaderctl top`: all shards live on a terminal, and keys that order something.
//!
//! The hazard: a terminal in raw mode is of no use to the next program, and a key hit by mistake must not stop a
//! leader. So the terminal is restored however this ends. A key that gives an order asks first. Then the verb gives it,
//! with all its checks, outside raw mode, where the user can read its messages.

mod frame;

use super::fleet::Fleet;
use super::fleet::reader::{Reader, ReadingFlags};
use super::prelude::*;
use super::{Flags, Verb, asked_to_stop};
use crate::text::in_words;
use clap::Parser;
use frame::{Mode, View};
use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
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
            return Err(Failure::usage("top needs a terminal: use leaderctl watch".to_owned()));
        }
        Ok(())
    }

    /// `named`: the user named the store, so keys may change something.
    pub async fn show(self, client: Client<'_>, named: bool) -> Result<ExitCode, Failure> {
        let reader = Reader::new(client, self.prefix, self.reading);
        let top = Top { client, fleet: reader.fleet(), named, view: View::default() };
        let shown = tokio::select! {
            () = reader.run() => unreachable!("a reader goes on"),
            shown = top.run() => shown,
        };
        shown.map_err(|error| Failure::of_os(format!("the terminal: {}", in_words(&error))))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The terminal in raw mode, on its other screen, until this is dropped.
///
/// Its own destructor does not run: where the terminal has gone, it writes to stderr, and panics if that went too.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    fn enter() -> io::Result<Self> {
        ratatui::try_init().map(ManuallyDrop::new).map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

fn events() -> UnboundedReceiver<Event> {
    let (send, events) = unbounded_channel();
    // Nobody joins this thread, which still waits for a key when the program ends.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    events
}

fn pressed(event: Option<&Event>) -> Option<KeyEvent> {
    event.and_then(Event::as_key_event).filter(|key| key.kind == KeyEventKind::Press)
}

struct Top<'a> {
    client: Client<'a>,
    fleet: Arc<Fleet>,
    named: bool,
    view: View,
}

enum Next {
    Stay,
    Leave,
    /// Stop until the shell continues it, as Ctrl-Z does to other programs.
    Suspend,
    /// Carry out a verb with these words.
    Order(Vec<String>),
}

impl Top<'_> {
    async fn run(mut self) -> io::Result<()> {
        let mut screen = Screen::enter()?;
        let mut events = events();
        let mut stop = pin!(asked_to_stop());
        loop {
            screen.0.draw(|frame| self.view.draw(frame, &self.fleet.lock()))?;
            let event = tokio::select! {
                event = events.recv() => event,
                () = sleep(FRAME) => continue,
                () = &mut stop => return Ok(()),
            };
            if event.is_none() {
                return Ok(());
            }
            match pressed(event.as_ref()).map_or(Next::Stay, |key| self.press(key)) {
                Next::Stay => {}
                Next::Leave => return Ok(()),
                Next::Suspend => {
                    drop(screen);
                    raise(Signal::SIGTSTP)?;
                    screen = Screen::enter()?;
                }
                Next::Order(words) => {
                    drop(screen);
                    self.order(&words).await?;
                    writeln!(stdout(), "Enter goes back.")?;
                    while let Some(event) = events.recv().await {
                        if pressed(Some(&event)).is_some_and(|key| key.code == KeyCode::Enter) {
                            break;
                        }
                    }
                    screen = Screen::enter()?;
                }
            }
        }
    }

    async fn order(&self, words: &[String]) -> io::Result<()> {
        let mut out = stdout();
        writeln!(out, "leaderctl {}", words.join(" "))?;
        let parsed = Flags::try_parse_from([super::PROGRAM].into_iter().chain(words.iter().map(String::as_str)));
        let done = match parsed.map(|flags| flags.verb) {
            Ok(Verb::Pause(pause)) => pause.order(self.client).await,
            Ok(Verb::Resume(resume)) => resume.order(self.client).await,
            Ok(Verb::StepDown(step_down)) => step_down.order(self.client).await,
            Ok(_) => unreachable!("no key orders it"),
            Err(error) => return write!(out, "{error}"),
        };
        if let Err(failure) = done {
            say(failure.message);
        }
        Ok(())
    }

    fn press(&mut self, key: KeyEvent) -> Next {
        let view = &mut self.view;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::Leave,
                KeyCode::Char('z') => Next::Suspend,
                _ => Next::Stay,
            };
        }
        match (&mut view.mode, key.code) {
            (Mode::Table, KeyCode::Char('q')) => return Next::Leave,
            (Mode::Search, KeyCode::Enter) | (Mode::Detail, KeyCode::Enter | KeyCode::Esc | KeyCode::Char('q')) => {
                view.mode = Mode::Table;
            }
            (Mode::Search, KeyCode::Esc) => {
                view.search.clear();
                view.mode = Mode::Table;
            }
            (Mode::Search, key) => write_to(&mut view.search, key),
            (Mode::Pause { shard, reason }, KeyCode::Enter) => {
                let mut words = vec!["pause".to_owned(), shard.to_string()];
                if !reason.trim().is_empty() {
                    words.push(format!("--reason={}", reason.trim()));
                }
                view.mode = Mode::Table;
                return Next::Order(words);
            }
            (Mode::Pause { reason, .. }, key) if key != KeyCode::Esc => write_to(reason, key),
            (Mode::Ask { verb, shard }, KeyCode::Char('y' | 'Y')) => {
                let words = vec![(*verb).to_owned(), shard.to_string()];
                view.mode = Mode::Table;
                return Next::Order(words);
            }
            (Mode::Ask { .. } | Mode::Pause { .. } | Mode::Told(_), _) => view.mode = Mode::Table,
            (Mode::Table, KeyCode::Char('/')) => view.mode = Mode::Search,
            (Mode::Table, KeyCode::Esc) => view.search.clear(),
            (Mode::Table, KeyCode::Enter) if view.chosen.is_some() => view.mode = Mode::Detail,
            (Mode::Table | Mode::Detail, KeyCode::Char(letter @ ('p' | 'r' | 's'))) => self.ask(letter),
            (_, KeyCode::Up | KeyCode::Char('k')) => view.go(-1),
            (_, KeyCode::Down | KeyCode::Char('j')) => view.go(1),
            (_, KeyCode::PageUp) => view.go(-10),
            (_, KeyCode::PageDown) => view.go(10),
            _ => {}
        }
        Next::Stay
    }

    fn ask(&mut self, letter: char) {
        let Some(shard): Option<Shard> = self.view.chosen.clone() else { return };
        self.view.mode = match letter {
            _ if !self.named => Mode::Told("name the store with --store to order something"),
            'p' => Mode::Pause { shard, reason: String::new() },
            'r' => Mode::Ask { verb: "resume", shard },
            _ => Mode::Ask { verb: "step-down", shard },
        };
    }
}

fn write_to(text: &mut String, key: KeyCode) {
    match key {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(letter) => text.push(letter),
        _ => {}
    }
}
