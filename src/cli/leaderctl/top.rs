//! `leaderctl top`: all shards live on a terminal, and keys that order something.
//!
//! The hazard: a terminal in raw mode is of no use to the next program, and a key that is hit by mistake must not stop a
//! leader. So the terminal is restored however this ends. A key that gives an order asks first; then the verb of that
//! name gives it, with all its checks, outside raw mode, where the user can read its messages.

mod frame;

use super::fleet::Fleet;
use super::fleet::reader::{Reader, ReadingFlags};
use super::live::{CLEAR_BELOW, CLEAR_LINE, HOME, size};
use super::{Flags, Verb, asked_to_stop};
use crate::cli::start::Failure;
use crate::lease::{Prefix, Shard};
use crate::store::{Store, StoreError};
use crate::text::in_words;
use clap::{Args, Parser};
use frame::{Mode, View};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal, Read, Write, stdin, stdout};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

/// From one drawing to the next.
const FRAME: Duration = Duration::from_millis(500);
const CTRL_C: u8 = 3;
/// xterm: to the other screen and back, the cursor off and on.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[derive(Debug, Args)]
pub struct TopFlags {
    /// Show only shards whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: Prefix,

    #[command(flatten)]
    reading: ReadingFlags,
}

impl TopFlags {
    /// # Errors
    /// One line that says what is wrong.
    pub fn check() -> Result<(), Failure> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Err(Failure::Usage("top needs a terminal: use leaderctl list --watch".to_owned()));
        }
        Ok(())
    }

    /// Shows the fleet until `q`. `named`: the user named the store, so that keys may change something.
    ///
    /// # Errors
    /// None: the picture shows the errors of the store.
    pub async fn show(self, store: Arc<dyn Store>, named: bool, patience: Duration) -> Result<ExitCode, StoreError> {
        let reader = Reader::new(Arc::clone(&store), self.prefix, self.reading, patience);
        let top = Top { store, fleet: reader.fleet(), named, patience, view: View::default() };
        let shown = tokio::select! {
            () = reader.run() => unreachable!("a reader goes on"),
            shown = top.run() => shown,
        };
        Ok(match shown {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => super::fail(crate::exit::OS_ERROR, &format!("the terminal: {}", in_words(&error))),
        })
    }
}

/// The terminal in raw mode, on its other screen. Dropping it puts it back.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let usual = tcgetattr(stdin())?;
        let mut raw = usual.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin(), SetArg::TCSADRAIN, &raw)?;
        print(ENTER)?;
        Ok(Self(usual))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = print(LEAVE);
        let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Keys, each with its bytes.
fn keys() -> UnboundedReceiver<Vec<u8>> {
    let (send, keys) = unbounded_channel();
    // It waits in read(2) when the program ends, and nobody waits for it.
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = stdin().lock().read(&mut bytes) {
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let (key, more) = rest.split_at(length_of_key(rest));
                if send.send(key.to_vec()).is_err() {
                    return;
                }
                rest = more;
            }
        }
    });
    keys
}

/// How many of these bytes belong to the first key. The bytes of one key arrive together, and those of several may.
fn length_of_key(bytes: &[u8]) -> usize {
    let length = match bytes {
        // ECMA-48: parameters, and a last byte.
        [0x1b, b'[', rest @ ..] => 3 + rest.iter().take_while(|byte| (0x20..0x40).contains(*byte)).count(),
        [0xc0..=0xdf, ..] => 2,
        [0x1b, b'O', _, ..] | [0xe0..=0xef, ..] => 3,
        [0xf0..=0xff, ..] => 4,
        _ => 1,
    };
    length.min(bytes.len())
}

struct Top {
    store: Arc<dyn Store>,
    fleet: Arc<Fleet>,
    named: bool,
    patience: Duration,
    view: View,
}

/// What a key leads to.
enum Next {
    Stay,
    Leave,
    /// Carry out a verb with these words.
    Order(Vec<String>),
}

impl Top {
    async fn run(mut self) -> io::Result<()> {
        let mut raw = Some(Raw::enter()?);
        let mut keys = keys();
        let mut stop = pin!(asked_to_stop());
        let mut resized = signal(SignalKind::window_change())?;
        loop {
            self.draw()?;
            let pressed = tokio::select! {
                pressed = keys.recv() => pressed,
                _ = resized.recv() => continue,
                () = sleep(FRAME) => continue,
                () = &mut stop => return Ok(()),
            };
            let Some(pressed) = pressed else { return Ok(()) };
            match self.press(&pressed) {
                Next::Stay => {}
                Next::Leave => return Ok(()),
                Next::Order(words) => {
                    drop(raw.take());
                    self.order(&words).await?;
                    print("Enter goes back.\n")?;
                    while keys.recv().await.is_some_and(|pressed| !pressed.contains(&b'\n')) {}
                    raw = Some(Raw::enter()?);
                }
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let (rows, columns) = size();
        let lines = self.view.lines(&self.fleet.picture(), rows, columns);
        let mut text = String::from(HOME);
        for (index, line) in lines.iter().enumerate() {
            text.push_str(if index > 0 { "\r\n" } else { "" });
            text.push_str(line);
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_BELOW);
        print(&text)
    }

    /// Carries out a verb as the command line would.
    async fn order(&self, words: &[String]) -> io::Result<()> {
        print(&format!("leaderctl {}\n", words.join(" ")))?;
        let parsed = Flags::try_parse_from([super::PROGRAM].into_iter().chain(words.iter().map(String::as_str)));
        let (store, patience) = (&*self.store, self.patience);
        let done = match parsed.map(|flags| flags.verb) {
            Ok(Verb::Pause(pause)) => pause.order(store, patience).await,
            Ok(Verb::Resume(resume)) => resume.order(store, patience).await,
            Ok(Verb::StepDown(step_down)) => step_down.order(store, patience).await,
            Ok(_) => unreachable!("no key orders it"),
            Err(error) => return print(&error.to_string()),
        };
        done.map(drop).or_else(|error| print(&format!("{}\n", error.message)))
    }

    fn press(&mut self, pressed: &[u8]) -> Next {
        let view = &mut self.view;
        match (&mut view.mode, pressed) {
            (_, [CTRL_C]) | (Mode::Table, [b'q']) => return Next::Leave,
            (Mode::Search, [b'\r' | b'\n']) | (Mode::Detail, [b'\r' | b'\n' | 0x1b | b'q']) => view.mode = Mode::Table,
            (Mode::Search, [0x1b]) => {
                view.search.clear();
                view.mode = Mode::Table;
            }
            (Mode::Search, typed) => write_to(&mut view.search, typed),
            (Mode::Pause { shard, reason }, [b'\r' | b'\n']) => {
                let mut words = vec!["pause".to_owned(), shard.to_string()];
                if !reason.trim().is_empty() {
                    words.push(format!("--reason={}", reason.trim()));
                }
                view.mode = Mode::Table;
                return Next::Order(words);
            }
            (Mode::Pause { reason, .. }, typed) if typed != [0x1b] => write_to(reason, typed),
            (Mode::Ask { verb, shard }, [b'y' | b'Y']) => {
                let words = vec![(*verb).to_owned(), shard.to_string()];
                view.mode = Mode::Table;
                return Next::Order(words);
            }
            (Mode::Ask { .. } | Mode::Pause { .. } | Mode::Told(_), _) => view.mode = Mode::Table,
            (Mode::Table, [b'/']) => view.mode = Mode::Search,
            (Mode::Table, [0x1b]) => view.search.clear(),
            (Mode::Table, [b'\r' | b'\n']) if view.chosen.is_some() => view.mode = Mode::Detail,
            (Mode::Table | Mode::Detail, [b'p' | b'r' | b's']) => self.ask(pressed[0]),
            (_, b"\x1b[A" | b"\x1bOA" | b"k") => view.go(-1),
            (_, b"\x1b[B" | b"\x1bOB" | b"j") => view.go(1),
            (_, b"\x1b[5~") => view.go(-10),
            (_, b"\x1b[6~") => view.go(10),
            _ => {}
        }
        Next::Stay
    }

    fn ask(&mut self, key: u8) {
        let Some(shard): Option<Shard> = self.view.chosen.clone() else { return };
        self.view.mode = match key {
            _ if !self.named => Mode::Told("name the store with --store to order something"),
            b'p' => Mode::Pause { shard, reason: String::new() },
            b'r' => Mode::Ask { verb: "resume", shard },
            _ => Mode::Ask { verb: "step-down", shard },
        };
    }
}

/// Applies a key to a line of text.
fn write_to(text: &mut String, typed: &[u8]) {
    match typed {
        [0x7f | 0x08] => drop(text.pop()),
        [0x1b, ..] => {}
        typed => text.extend(String::from_utf8_lossy(typed).chars().filter(|letter| !letter.is_control())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_arrive_together_are_separated() {
        let mut rest = "a\x1b[5~é\x1b[A\x1bOBq\x1b".as_bytes();
        let mut keys = Vec::new();
        while !rest.is_empty() {
            let (key, more) = rest.split_at(length_of_key(rest));
            keys.push(String::from_utf8_lossy(key).into_owned());
            rest = more;
        }
        assert_eq!(keys, ["a", "\x1b[5~", "é", "\x1b[A", "\x1bOB", "q", "\x1b"]);
    }
}
