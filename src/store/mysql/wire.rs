//! The packets of the MySQL protocol, as MySQL 8 and MariaDB speak it: what we send, and how answers are read.
//!
//! The hazard: a server may send anything. So every length is checked before it is used, a packet that makes no sense
//! is an error, and nothing here asks for more memory than the packet itself has.
//!
//! The protocol is described in "Client/Server Protocol" of MySQL's and of MariaDB's documentation. Of its many forms,
//! only those are here that our capabilities allow: the text protocol, with an EOF packet at the end of rows.

use std::fmt;

/// The capabilities of a connection.
pub mod capability {
    pub const LONG_PASSWORD: u32 = 1;
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    pub const PROTOCOL_41: u32 = 1 << 9;
    pub const SSL: u32 = 1 << 11;
    pub const TRANSACTIONS: u32 = 1 << 13;
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    pub const MULTI_STATEMENTS: u32 = 1 << 16;
    pub const MULTI_RESULTS: u32 = 1 << 17;
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    pub const CONNECT_ATTRS: u32 = 1 << 20;
}

/// The server's status after a statement.
pub mod status {
    pub const IN_TRANSACTION: u16 = 1;
    pub const AUTOCOMMIT: u16 = 2;
    pub const MORE_RESULTS: u16 = 8;
}

/// utf8mb4_general_ci, which every version knows. Our columns have a collation of their own.
const COLLATION: u8 = 45;
/// The longest packet that we accept to be sent, as we tell the server.
const LONGEST_PACKET: u32 = 1 << 24;
const QUERY: u8 = 3;
/// Our answers have fewer columns. A value takes a byte in a packet, and some more here.
const MOST_COLUMNS: u64 = 64;

/// A packet that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it does not speak the protocol of MySQL")
    }
}

/// Reads a packet from its beginning.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Garbled)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<u64, Garbled> {
        let mut number = [0; 8];
        number.get_mut(..BYTES).ok_or(Garbled)?.copy_from_slice(self.take(BYTES)?);
        Ok(u64::from_le_bytes(number))
    }

    fn byte(&mut self) -> Result<u8, Garbled> {
        Ok(self.take(1)?[0])
    }

    fn short(&mut self) -> Result<u16, Garbled> {
        u16::try_from(self.number::<2>()?).map_err(|_| Garbled)
    }

    /// A number that says how long it is itself.
    fn length(&mut self) -> Result<u64, Garbled> {
        match self.byte()? {
            short @ 0..=250 => Ok(u64::from(short)),
            252 => self.number::<2>(),
            253 => self.number::<3>(),
            254 => self.number::<8>(),
            251 | 255 => Err(Garbled),
        }
    }

    fn text(&mut self) -> Result<&'a [u8], Garbled> {
        let length = self.length()?;
        self.take(usize::try_from(length).map_err(|_| Garbled)?)
    }

    fn until_nul(&mut self) -> Result<&'a [u8], Garbled> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Garbled)?;
        let text = self.take(end)?;
        self.take(1)?;
        Ok(text)
    }
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a server says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub capabilities: u32,
    pub scramble: Vec<u8>,
    /// How the server would like us to show who we are.
    pub plugin: String,
}

impl Greeting {
    pub fn read(packet: &[u8]) -> Result<Self, Garbled> {
        let mut packet = Reader(packet);
        if packet.byte()? != 10 {
            return Err(Garbled);
        }
        packet.until_nul()?;
        packet.take(4)?;
        let mut scramble = packet.take(8)?.to_vec();
        packet.take(1)?;
        let lower = packet.short()?;
        packet.take(1 + 2)?;
        let upper = packet.short()?;
        let length = usize::from(packet.byte()?);
        packet.take(10)?;
        let rest = packet.take(length.saturating_sub(8).max(13).min(packet.0.len()))?;
        scramble.extend(rest.strip_suffix(b"\0").unwrap_or(rest));
        let capabilities = u32::from(upper) << 16 | u32::from(lower);
        let plugin = if capabilities & capability::PLUGIN_AUTH == 0 {
            String::new()
        } else {
            words(packet.until_nul().unwrap_or(packet.0))
        };
        Ok(Self { capabilities, scramble, plugin })
    }
}

fn preamble(capabilities: u32) -> Vec<u8> {
    let mut packet = Vec::with_capacity(128);
    packet.extend(capabilities.to_le_bytes());
    packet.extend(LONGEST_PACKET.to_le_bytes());
    packet.push(COLLATION);
    packet.extend([0; 23]);
    packet
}

/// Asks for TLS. The login follows inside.
pub fn request_for_tls(capabilities: u32) -> Vec<u8> {
    preamble(capabilities)
}

/// The login: who we are, the proof, and the database.
pub fn login(capabilities: u32, user: &str, proof: &[u8], database: &str, plugin: &str) -> Vec<u8> {
    let mut packet = preamble(capabilities);
    packet.extend(user.bytes().chain([0]));
    // No proof is longer than 255 bytes.
    packet.push(u8::try_from(proof.len()).unwrap_or(u8::MAX));
    packet.extend(proof.iter().take(usize::from(u8::MAX)));
    packet.extend(database.bytes().chain([0]));
    if capabilities & capability::PLUGIN_AUTH != 0 {
        packet.extend(plugin.bytes().chain([0]));
    }
    if capabilities & capability::CONNECT_ATTRS != 0 {
        // What performance_schema.session_connect_attrs shows to operators.
        let attribute = b"\x0cprogram_name\x09leaderrun";
        packet.push(u8::try_from(attribute.len()).unwrap_or(0));
        packet.extend(attribute);
    }
    packet
}

pub fn query(statements: &str) -> Vec<u8> {
    [&[QUERY], statements.as_bytes()].concat()
}

/// An error that the server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub code: u16,
    pub message: String,
}

impl Complaint {
    /// Reads the packet after its first byte.
    fn read(packet: &[u8]) -> Result<Self, Garbled> {
        let mut packet = Reader(packet);
        let code = packet.short()?;
        // Before the login, the five letters of the SQL state are missing.
        let message = match packet.0 {
            [b'#', rest @ ..] => rest.get(5..).ok_or(Garbled)?,
            rest => rest,
        };
        Ok(Self { code, message: words(message) })
    }
}

/// What a server says while we log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginAnswer {
    Welcome,
    Refused(Complaint),
    /// Another plugin is to prove who we are, with this scramble.
    Switch {
        plugin: String,
        scramble: Vec<u8>,
    },
    /// Words of the plugin.
    More(Vec<u8>),
}

impl LoginAnswer {
    pub fn read(packet: &[u8]) -> Result<Self, Garbled> {
        match packet {
            [0, ..] => Ok(Self::Welcome),
            [255, rest @ ..] => Complaint::read(rest).map(Self::Refused),
            // Without a name, it is the method of MySQL 4.0.
            [254] => Ok(Self::Switch { plugin: "mysql_old_password".to_owned(), scramble: Vec::new() }),
            [254, rest @ ..] => {
                let mut rest = Reader(rest);
                let plugin = words(rest.until_nul()?);
                let scramble = rest.0.strip_suffix(b"\0").unwrap_or(rest.0).to_vec();
                Ok(Self::Switch { plugin, scramble })
            }
            [1, rest @ ..] => Ok(Self::More(rest.to_vec())),
            _ => Err(Garbled),
        }
    }
}

/// The first packet of the answer to a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// The statement has no rows. It changed so many.
    Done {
        changed: u64,
        status: u16,
    },
    Failed(Complaint),
    /// So many columns are described next, and then the rows come.
    Columns(u64),
}

impl Head {
    pub fn read(packet: &[u8]) -> Result<Self, Garbled> {
        match packet {
            [0, rest @ ..] => {
                let mut rest = Reader(rest);
                let changed = rest.length()?;
                rest.length()?;
                Ok(Self::Done { changed, status: rest.short()? })
            }
            [255, rest @ ..] => Complaint::read(rest).map(Self::Failed),
            // 251 asks for a file of ours, which no statement of ours gives.
            packet => match Reader(packet).length()? {
                count @ 1..=MOST_COLUMNS => Ok(Self::Columns(count)),
                _ => Err(Garbled),
            },
        }
    }
}

/// A packet after the descriptions of the columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Row(Row),
    End { status: u16 },
    Failed(Complaint),
}

impl Line {
    pub fn read(packet: &[u8], columns: u64) -> Result<Self, Garbled> {
        match packet {
            [255, rest @ ..] => Complaint::read(rest).map(Self::Failed),
            packet if is_end(packet) => end(packet).map(|status| Self::End { status }),
            packet => {
                let mut rest = Reader(packet);
                let mut values = Vec::new();
                for _ in 0..columns {
                    if rest.0.first() == Some(&251) {
                        rest.take(1)?;
                        values.push(None);
                    } else {
                        values.push(Some(rest.text()?.to_vec()));
                    }
                }
                if rest.0.is_empty() { Ok(Self::Row(Row(values))) } else { Err(Garbled) }
            }
        }
    }
}

/// Whether it ends a list of columns or rows.
pub fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&254) && packet.len() < 9
}

fn end(packet: &[u8]) -> Result<u16, Garbled> {
    let mut packet = Reader(packet);
    packet.take(3)?;
    packet.short()
}

/// A row of an answer. Every value is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub Vec<Option<Vec<u8>>>);

impl Row {
    /// The text. None if there is no such column, or if it is NULL or no text.
    pub fn text(&self, column: usize) -> Option<&str> {
        std::str::from_utf8(self.0.get(column)?.as_deref()?).ok()
    }

    pub fn is_null(&self, column: usize) -> bool {
        self.0.get(column).is_some_and(Option::is_none)
    }

    pub fn words(&self, column: usize) -> Option<String> {
        self.text(column).map(str::to_owned)
    }

    pub fn number(&self, column: usize) -> Option<i64> {
        self.text(column)?.parse().ok()
    }

    pub fn flag(&self, column: usize) -> Option<bool> {
        self.number(column).map(|number| number != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};

    const GREETING: &[u8] = b"\x0a5.5.5-10.11.6-MariaDB\0\x08\0\0\0abcdefgh\0\xfe\xf7\x2d\x02\0\xff\x81\x15\
                              \0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0mysql_native_password\0";

    #[test]
    fn a_greeting_is_read() {
        let greeting = Greeting::read(GREETING).unwrap();
        assert_eq!(greeting.scramble, b"abcdefghijklmnopqrst");
        assert_eq!(greeting.plugin, "mysql_native_password");
        assert!(greeting.capabilities & capability::MULTI_STATEMENTS != 0);
    }

    #[test]
    fn a_complaint_is_read_with_and_without_its_state() {
        let complaint = |message: &str| Complaint { code: 1045, message: message.to_owned() };
        assert_eq!(
            LoginAnswer::read(b"\xff\x15\x04#28000Access denied"),
            Ok(LoginAnswer::Refused(complaint("Access denied")))
        );
        assert_eq!(Head::read(b"\xff\x15\x04Too many"), Ok(Head::Failed(complaint("Too many"))));
    }

    #[test]
    fn rows_are_read() {
        assert_eq!(Head::read(b"\x00\x02\x00\x02\x00\x00\x00"), Ok(Head::Done { changed: 2, status: 2 }));
        assert_eq!(Head::read(b"\x03"), Ok(Head::Columns(3)));
        let row = Row(vec![Some(b"ab".to_vec()), None, Some(b"-7".to_vec())]);
        assert_eq!(
            (row.words(0).as_deref(), row.is_null(1), row.number(2), row.number(3)),
            (Some("ab"), true, Some(-7), None)
        );
        assert_eq!(Line::read(b"\x02ab\xfb\x02-7", 3), Ok(Line::Row(row)));
        assert_eq!(Line::read(b"\xfe\0\0\x0a\0", 3), Ok(Line::End { status: 10 }));
        assert_eq!(Line::read(b"\x02ab\xfb\x02-7", 2), Err(Garbled));
    }

    #[test]
    fn a_server_never_gets_a_file() {
        assert_eq!(Head::read(b"\xfb/etc/passwd"), Err(Garbled));
    }

    #[test]
    fn a_million_packets_of_any_bytes_are_read_or_refused() {
        let seeds: [&[u8]; 6] = [
            GREETING,
            b"\xff\x15\x04#28000Access denied",
            b"\xfecaching_sha2_password\0abcdefghijklmnopqrst\0",
            b"\x00\x02\xfc\x01\x01\x02\x00\x00\x00",
            b"\x02ab\xfb\x02-7\xfd\x01\0\0x",
            b"\xfe\0\0\x0a\0",
        ];
        fuzz::run("packet of MySQL", |source, input| {
            let packet = source.bend(&seeds);
            input.show(|| format!("{packet:?}"));
            let columns = source.below(6) as u64;
            let read = [
                Greeting::read(&packet).is_ok(),
                LoginAnswer::read(&packet).is_ok(),
                Head::read(&packet).is_ok(),
                Line::read(&packet, columns).is_ok(),
            ];
            if read.contains(&true) { Fate::Accepted } else { Fate::Refused }
        });
    }
}
