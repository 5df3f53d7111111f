//! Inputs for parsers: valid ones that were bent, by the million, for the tests of this crate.
//!
//! The hazard: a fuzz test that only looks for panics passes on a parser that accepts everything. So each check says
//! whether it accepted an input, both answers have to occur, and an accepted input must pass the test's own assertions.
//!
//! Every input is made from a number of its own, which is shown when the check fails. `TEST_FUZZ_SEED`
//! with that number and `TEST_FUZZ_INPUTS=1` make it again. Without them a run begins at a random number and tries
//! a million. Deep strategies of proptest are fifty times slower than bending bytes, so they are not used here.
//!
//! If `TEST_EVIDENCE` names a file, every run that ends adds a line to it: `fuzz`, the name, the number of inputs,
//! how many of them were accepted, and panics (none), with tabs in between.

#![allow(dead_code, reason = "a build with fewer stores has fewer parsers")]

#[path = "note.rs"]
mod note;
#[path = "random.rs"]
mod random;

use note::note;
pub use random::Random as Source;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

const INPUTS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Accepted,
    Refused,
}

impl<T, E> From<&Result<T, E>> for Fate {
    fn from(result: &Result<T, E>) -> Self {
        if result.is_ok() { Self::Accepted } else { Self::Refused }
    }
}

/// Numbers at which sums go wrong.
const EXTREMES: [u64; 8] = [0, 9, 999, 1 << 31, 1 << 32, 1 << 53, 1 << 63, u64::MAX];

/// What parsers trip over.
const TOKENS: [&str; 42] = [
    "\0", "\n", "\r\n", "\x1b[31m", "\u{2028}", "ä", "𝄞", "\u{202e}", "%", "%0a", "%00", "%ff", "%C3%A4", "%25", "@",
    ":", "/", "//", "?", "&", "=", "#", ",", "[::1]", "[", "]", "..", "-", "+", ".", "1e9", "-1", "0.5", "NaN", "inf",
    "null", "true", "{}", "\"", "\\", "\\u0000", "[[[[[[[[",
];

/// What is made of random numbers: always the same from the same seed.
impl Source {
    pub fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    pub fn of<'a, T>(&mut self, choice: &'a [T]) -> &'a T {
        &choice[self.below(choice.len())]
    }

    /// As likely small, large, or at an edge.
    pub fn number(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => self.of(&EXTREMES).wrapping_add(self.next() % 5).wrapping_sub(2),
            2 => self.next() % 100,
            _ => self.next() >> self.below(64),
        }
    }

    pub fn duration(&mut self) -> Duration {
        match self.below(3) {
            0 => Duration::from_millis(self.number()),
            1 => Duration::from_nanos(self.number()),
            _ => Duration::new(self.number(), u32::try_from(self.next() % 1_000_000_000).expect("it is below")),
        }
    }

    /// One of these inputs, bent a few times; or, now and then, as it is, or nothing but noise.
    pub fn bend(&mut self, seeds: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.of(seeds).to_vec();
        match self.below(16) {
            0 => {}
            1 => bytes = (0..self.below(64)).map(|_| self.byte()).collect(),
            _ => {
                for _ in 0..=self.below(3) {
                    self.bend_once(&mut bytes, seeds);
                }
            }
        }
        bytes
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A part of something so long: nothing, a byte, some, or all that follows.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let longest = *self.of(&[0, 1, 16, length]);
        start..length.min(start + self.below(longest + 1))
    }

    fn bend_once(&mut self, bytes: &mut Vec<u8>, seeds: &[&[u8]]) {
        let place = self.range(bytes.len());
        let put = match self.below(6) {
            0 => Vec::new(),
            1 => vec![self.byte()],
            2 => vec![*self.of(b"09azAZ .:/@%=&?#,-_\"{}[]")],
            3 => self.of::<&str>(&TOKENS).as_bytes().to_vec(),
            4 => self.number().to_string().into_bytes(),
            _ => {
                let other = *self.of(seeds);
                other[self.range(other.len())].to_vec()
            }
        };
        bytes.splice(place, put);
    }
}

pub fn bent(what: &str, seeds: &[&[u8]], mut check: impl FnMut(&[u8], &mut Source) -> Fate) {
    run(what, |source, input| {
        let bytes = source.bend(seeds);
        input.show(|| String::from_utf8_lossy(&bytes).into_owned());
        check(&bytes, source)
    });
}

/// The same for what takes text.
pub fn bent_text(what: &str, seeds: &[&str], mut check: impl FnMut(&str, &mut Source) -> Fate) {
    let seeds: Vec<&[u8]> = seeds.iter().map(|seed| seed.as_bytes()).collect();
    bent(what, &seeds, |bytes, source| check(&String::from_utf8_lossy(bytes), source));
}

/// Where a check puts what it tries.
pub struct Shown {
    /// Some when the check fails: it is done once more, to see on what.
    input: Option<String>,
}

impl Shown {
    pub fn show(&mut self, input: impl FnOnce() -> String) {
        if let Some(shown) = &mut self.input {
            *shown = input();
        }
    }
}

fn again(seed: u64) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("NAME");
    format!("once more: TEST_FUZZ_SEED={seed} TEST_FUZZ_INPUTS=1 cargo test --lib {name} -- --exact")
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
}

pub fn run(what: &str, check: impl FnMut(&mut Source, &mut Shown) -> Fate) {
    run_so_many(setting("TEST_FUZZ_INPUTS").unwrap_or(INPUTS), what, check);
}

/// A tenth of that, for what parses nothing that comes from outside.
pub fn run_a_tenth(what: &str, check: impl FnMut(&mut Source, &mut Shown) -> Fate) {
    run_so_many(setting("TEST_FUZZ_INPUTS").unwrap_or(INPUTS).div_ceil(10), what, check);
}

fn run_so_many(inputs: u64, what: &str, mut check: impl FnMut(&mut Source, &mut Shown) -> Fate) {
    let first = setting("TEST_FUZZ_SEED").unwrap_or_else(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the kernel has random bytes");
        u64::from_le_bytes(bytes)
    });
    println!("{what}: {inputs} inputs from TEST_FUZZ_SEED={first}");
    let mut accepted = 0;
    for index in 0..inputs {
        let seed = first.wrapping_add(index);
        let mut attempt = |shown: &mut Shown| check(&mut Source::new(seed), shown);
        let fate = catch_unwind(AssertUnwindSafe(|| attempt(&mut Shown { input: None })));
        let fate = fate.unwrap_or_else(|failure| {
            let mut shown = Shown { input: Some(String::new()) };
            let _ = catch_unwind(AssertUnwindSafe(|| attempt(&mut shown)));
            eprintln!("{what}: {:?}\n{}", shown.input.unwrap_or_default(), again(seed));
            resume_unwind(failure)
        });
        accepted += u64::from(fate == Fate::Accepted);
    }
    if inputs >= 100_000 {
        assert!(accepted > inputs / 1000, "{what}: only {accepted} of {inputs} inputs were accepted: bend them less");
        assert!(accepted < inputs, "{what}: nothing was refused");
    }
    note(&format!("fuzz\t{what}\t{inputs}\t{accepted}\t0"));
}

/// What every refusal has to be: one short line, which a terminal shows as it is.
#[track_caller]
pub fn assert_is_one_line(message: &str) {
    assert!(!message.is_empty() && message.chars().count() <= 1000, "{} characters", message.chars().count());
    let broken = message.chars().find(|c| c.is_control());
    assert_eq!(broken, None, "{message:?}");
}
