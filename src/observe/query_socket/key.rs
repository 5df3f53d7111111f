//! The key that proves an answer to be the candidate's.
//!
//! The hazard: what the kernel reports of the listener is not enough. A process number is 0 outside its PID namespace
//! and is used again after the process has ended, and a user namespace shows several users as one. So the candidate
//! gives a random key to COMMAND alone, in the environment, which only COMMAND's user and root can read. The key is
//! never sent: an answer carries a code (HMAC, RFC 2104) over the question and the statement.

use crate::lease::Session;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt::{self, Write};
use std::io;

/// The value of `KEY_VARIABLE`: the candidate's user and a random number.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    pub(super) user: u32,
    number: String,
}

impl Key {
    pub(super) fn random() -> io::Result<Self> {
        Ok(Self { user: nix::unistd::geteuid().as_raw(), number: Session::random()?.as_str().to_owned() })
    }

    pub(super) fn to_text(&self) -> String {
        format!("{}:{}", self.user, self.number)
    }

    /// None if no candidate can have made the key.
    pub fn read(text: &str) -> Option<Self> {
        let (user, number) = text.split_once(':')?;
        let is_number = number.len() == 36 && number.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        Some(Self { user: user.parse().ok()?, number: number.to_owned() }).filter(|_| is_number)
    }

    fn code(&self, question: &[u8], statement: &[u8]) -> Hmac<Sha256> {
        let code = Hmac::<Sha256>::new_from_slice(self.number.as_bytes()).expect("a key may have any length");
        code.chain_update(question).chain_update(b"\0").chain_update(statement)
    }

    pub(super) fn proof(&self, question: &[u8], statement: &[u8]) -> String {
        let code = self.code(question, statement).finalize().into_bytes();
        code.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        })
    }

    pub(super) fn proves(&self, question: &[u8], statement: &[u8], proof: &[u8]) -> bool {
        let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let code: Option<Vec<u8>> = proof.chunks(2).map(digits).collect();
        code.is_some_and(|code| self.code(question, statement).verify_slice(&code).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written_and_does_not_print() {
        let key = Key::random().unwrap();
        assert_eq!(Key::read(&key.to_text()), Some(key.clone()));
        assert_eq!(format!("{key:?}"), "(secret)");
        for bad in ["", ":", "0:", "x:y", &key.to_text()[1..], &format!("{}0", key.to_text()), "redis://u:p@h"] {
            assert_eq!(Key::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_proof_fits_one_question_one_statement_and_one_key() {
        let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
        let proof = key.proof(b"leaderctl-1", b"{}");
        assert!(key.proves(b"leaderctl-1", b"{}", proof.as_bytes()));
        assert!(!key.proves(b"leaderctl-2", b"{}", proof.as_bytes()));
        assert!(!key.proves(b"leaderctl-1", b"[]", proof.as_bytes()));
        assert!(!other.proves(b"leaderctl-1", b"{}", proof.as_bytes()));
        for bad in ["", "0", &proof[2..], &format!("{proof}00"), "zz"] {
            assert!(!key.proves(b"leaderctl-1", b"{}", bad.as_bytes()), "{bad}");
        }
    }
}
