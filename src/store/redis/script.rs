//! The Lua scripts. Every decision about a lease is made in one of them, by the server, at one instant.
//!
//! The hazard: a script that fails midway leaves behind what it has written until then. So each script reads everything
//! before it writes anything, and writes the lock last.
//!
//! A script is sent whole the first time on a connection, and by its hash from then on. If a renewal first had to learn
//! that the server does not know its script, it would come too late where round trips are slow.

use super::connection::{Client, Talk};
use super::failure::Failure;
use crate::store::StoreError;
use crate::store::kept_connection::once_more;
use crate::time::whole_millis;
use redis::{Cmd, Value, cmd};
use std::time::Duration;

pub struct Scripts {
    pub claim: Script,
    pub renew: Script,
    pub release: Script,
    pub look: Script,
    pub list: Script,
    pub remember: Script,
    pub read_note: Script,
    pub read_notes: Script,
    pub replace_note: Script,
    pub revoke: Script,
    pub forget: Script,
}

pub struct Script {
    code: String,
    hash: String,
    /// One bit that no other script has.
    bit: u32,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            claim: Script::new(0, include_str!("claim.lua")),
            renew: Script::new(1, include_str!("renew.lua")),
            release: Script::new(2, include_str!("release.lua")),
            look: Script::new(3, include_str!("look.lua")),
            remember: Script::new(4, include_str!("remember.lua")),
            read_note: Script::new(5, include_str!("read_note.lua")),
            replace_note: Script::new(6, include_str!("replace_note.lua")),
            revoke: Script::new(7, include_str!("revoke.lua")),
            forget: Script::new(8, include_str!("forget.lua")),
            list: Script::new(9, include_str!("list.lua")),
            read_notes: Script::new(10, include_str!("read_notes.lua")),
        }
    }
}

impl Script {
    fn new(number: u32, body: &str) -> Self {
        let code = format!("{}{body}", include_str!("common.lua"));
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash, bit: 1 << number }
    }

    fn call(&self, how: &str, keys: &[String], arguments: &[&str]) -> Cmd {
        let mut command = cmd(how);
        command.arg(if how == "EVAL" { &self.code } else { &self.hash }).arg(keys.len()).arg(keys).arg(arguments);
        command
    }
}

/// A script's answer: words.
pub struct Reply {
    words: Vec<String>,
    /// Whether some of its bytes were not text.
    pub garbled: bool,
    /// How many replicas have what the script wrote. None if that was not asked.
    pub replicas: Option<u32>,
    pub place: String,
}

impl Reply {
    fn read(answer: Value, place: &str) -> Result<Self, StoreError> {
        let garbled = is_garbled(&answer);
        let words = words(answer).ok_or_else(|| not_understood(place))?;
        Ok(Self { words, garbled, replicas: None, place: place.to_owned() })
    }

    /// The kind of answer.
    pub fn kind(&self) -> &str {
        self.word(0)
    }

    /// A word of the answer; empty if there is none.
    pub fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    pub fn last_word(&self) -> &str {
        self.words.last().map_or("", String::as_str)
    }

    pub fn number(&self, index: usize) -> Option<u64> {
        self.word(index).parse().ok()
    }

    pub fn millis(&self, index: usize) -> Duration {
        Duration::from_millis(self.number(index).unwrap_or(0))
    }

    pub fn not_understood(&self) -> StoreError {
        not_understood(&self.place)
    }
}

pub fn not_understood(place: &str) -> StoreError {
    StoreError::unknown(format!("cannot understand the answer of {place}"))
}

/// Whether an answer counts only after enough replicas have what was written.
pub type Counts = fn(&Reply) -> bool;

/// Runs a script. If its answer counts only with enough replicas, waits for them.
pub async fn run(
    client: &Client,
    script: &Script,
    keys: &[String],
    arguments: &[&str],
    replicas: Option<(u32, Counts)>,
) -> Result<Reply, StoreError> {
    let (talk, answer) = attempt(client, script, keys, arguments).await?;
    let about = client.about(talk.place(), keys);
    let answer = answer.map_err(|failure| failure.conclude(about))?;
    let mut reply = Reply::read(answer, talk.place())?;
    if let Some((wanted, counts)) = replicas
        && counts(&reply)
    {
        reply.replicas = Some(wait(&talk, wanted).await.map_err(|failure| {
            // The script was applied, whatever this error says.
            StoreError::unknown(failure.conclude(about).message)
        })?);
    }
    Ok(reply)
}

/// Runs a script that only reads. None if another program wrote one of its keys.
pub async fn read(
    client: &Client,
    script: &Script,
    keys: &[String],
    arguments: &[&str],
) -> Result<Option<Reply>, StoreError> {
    let (talk, answer) = attempt(client, script, keys, arguments).await?;
    match answer {
        Ok(answer) => Reply::read(answer, talk.place()).map(Some),
        Err(failure) if failure.is_of_a_foreign_key() => Ok(None),
        Err(failure) => Err(failure.conclude(client.about(talk.place(), keys))),
    }
}

/// Runs a script that reads much, and has an answer for each thing that it reads. An answer is empty if another program
/// wrote there.
pub async fn read_each(client: &Client, script: &Script, keys: &[String]) -> Result<Vec<Reply>, StoreError> {
    let (talk, answer) = attempt(client, script, keys, &[]).await?;
    let answer = answer.map_err(|failure| failure.conclude(client.about(talk.place(), keys)))?;
    let Value::Array(answers) = answer else { return Err(not_understood(talk.place())) };
    answers.into_iter().map(|answer| Reply::read(answer, talk.place())).collect()
}

/// Sends the script; sends it once more, on a new connection, if a used one turns out to have ended.
async fn attempt<'a>(
    client: &'a Client,
    script: &Script,
    keys: &[String],
    arguments: &[&str],
) -> Result<(Talk<'a>, Result<Value, Failure>), StoreError> {
    let deadline = client.deadline();
    let talk = client.talk(deadline).await?;
    let first = async {
        let answer = evaluate(&talk, script, keys, arguments).await;
        match answer {
            Err(failure @ Failure::Broken(_)) if talk.used => Err(failure.conclude(client.about(talk.place(), keys))),
            answer => Ok((talk, answer)),
        }
    };
    let again = async {
        let talk = client.new_talk(deadline).await?;
        let answer = evaluate(&talk, script, keys, arguments).await;
        match answer {
            // It changed nothing, and a list goes on.
            Err(failure) if !failure.is_of_a_foreign_key() => Err(failure.conclude(client.about(talk.place(), keys))),
            answer => Ok((talk, answer)),
        }
    };
    once_more(first, |_: &StoreError| true, again).await
}

async fn evaluate(talk: &Talk<'_>, script: &Script, keys: &[String], arguments: &[&str]) -> Result<Value, Failure> {
    if talk.known_scripts() & script.bit != 0 {
        match talk.ask(&script.call("EVALSHA", keys, arguments)).await {
            // The server's scripts were flushed.
            Err(failure) if failure.has_code("NOSCRIPT") => {}
            answer => return answer,
        }
    }
    let answer = talk.ask(&script.call("EVAL", keys, arguments)).await;
    if answer.is_ok() {
        talk.know_script(script.bit);
    }
    answer
}

/// Waits for replicas. Returns how many have everything that was written on this connection.
async fn wait(talk: &Talk<'_>, wanted: u32) -> Result<u32, Failure> {
    // Zero would mean for ever.
    let most = whole_millis(talk.left() * 3 / 4).max(1);
    match talk.ask(cmd("WAIT").arg(wanted).arg(most)).await? {
        Value::Int(number) => Ok(u32::try_from(number).unwrap_or(0)),
        _ => Err(Failure::Nonsense("WAIT".to_owned())),
    }
}

/// The words of an answer. Values of other programs may not be text.
fn words(answer: Value) -> Option<Vec<String>> {
    let Value::Array(values) = answer else { return None };
    let word = |value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    };
    values.into_iter().map(word).collect()
}

fn is_garbled(answer: &Value) -> bool {
    let Value::Array(values) = answer else { return false };
    values.iter().any(|value| matches!(value, Value::BulkString(bytes) if std::str::from_utf8(bytes).is_err()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Source};

    fn any_value(source: &mut Source) -> Value {
        match source.below(12) {
            0 => Value::Nil,
            1 => Value::SimpleString(source.text()),
            2 => Value::Double(0.5),
            3 | 4 => Value::Int(source.signed()),
            5 => Value::BulkString(source.bend(&[b"s 5 2 9 7 h o", b"granted"])),
            _ => {
                let kinds = ["granted", "renewed", "lost", "held", "free", "unknown", "foreign", "1", "15000"];
                Value::BulkString((*source.of(&kinds)).into())
            }
        }
    }

    #[test]
    fn a_million_answers_of_scripts_are_words_or_not_understood() {
        fuzz::run("answer of a script of redis://", |source, input| {
            let values: Vec<Value> = (0..source.below(6)).map(|_| any_value(source)).collect();
            let answer = if source.one_in(8) { any_value(source) } else { Value::Array(values) };
            input.show(|| format!("{answer:?}"));
            let read = words(answer.clone());
            if let Some(words) = &read {
                let garbled = is_garbled(&answer);
                let place = "redis at h:6379".to_owned();
                let reply = Reply { words: words.clone(), garbled, replicas: None, place };
                assert!(!garbled || words.iter().any(|word| word.contains('\u{fffd}')));
                for (index, word) in words.iter().enumerate() {
                    assert_eq!(reply.word(index), word);
                    assert_eq!(reply.number(index).map_or(0, u128::from), reply.millis(index).as_millis());
                }
                assert_eq!((reply.word(words.len()), reply.number(words.len())), ("", None));
                fuzz::assert_is_one_line(&reply.not_understood().message);
            } else {
                let is_understood = |value: &Value| matches!(value, Value::BulkString(_) | Value::Int(_));
                assert!(!matches!(&answer, Value::Array(values) if values.iter().all(is_understood)));
            }
            (&read).into()
        });
    }
}
