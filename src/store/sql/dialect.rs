//! What differs between PostgreSQL and MySQL in more than one place.

use crate::store::tls;
use std::fmt::Write as _;

/// Names that need no quotes in PostgreSQL, unlike its reserved words (table "user", schema "all").
const PLAIN: [&str; 2] = ["public", "leaderrun"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// Of MariaDB too.
    MySql,
}

impl Dialect {
    pub fn either<T>(self, postgres: T, mysql: T) -> T {
        match self {
            Self::Postgres => postgres,
            Self::MySql => mysql,
        }
    }

    /// For people.
    pub fn kind(self) -> &'static str {
        self.either("PostgreSQL", "MySQL")
    }

    pub fn scheme(self) -> &'static str {
        self.either("postgres", "mysql")
    }

    /// The options of TLS, for messages.
    pub fn tls(self) -> tls::Words {
        let (any_name, ca, own) = self.either(
            ("sslmode=verify-ca", "sslrootcert=FILE", "sslcert=FILE and sslkey=FILE"),
            ("ssl-mode=VERIFY_CA", "ssl-ca=FILE", "ssl-cert=FILE and ssl-key=FILE"),
        );
        tls::Words { any_name: Some(any_name), ca, own }
    }

    /// The server's time when it received the request (PostgreSQL) or began the statement (MySQL).
    pub fn now(self) -> &'static str {
        self.either(
            "floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint",
            "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000)",
        )
    }

    /// A literal that means the same under all settings of the server.
    pub fn literal(self, text: &str) -> String {
        match self {
            Self::Postgres => format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''")),
            Self::MySql => {
                let mut literal = "_utf8mb4 X'".to_owned();
                for byte in text.bytes() {
                    let _ = write!(literal, "{byte:02x}");
                }
                literal.push('\'');
                literal
            }
        }
    }

    /// A name, without quotes where it certainly needs none.
    pub fn quoted(self, name: &str) -> String {
        match self {
            Self::Postgres if PLAIN.contains(&name) => name.to_owned(),
            Self::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
            Self::MySql => format!("`{}`", name.replace('`', "``")),
        }
    }

    /// The oldest versions that are supported, if this one is older.
    pub fn needs_newer(self, version: &str) -> Option<&'static str> {
        let (oldest, names) = match self {
            Self::Postgres => ((12, 0), "PostgreSQL 12"),
            Self::MySql if version.contains("MariaDB") => ((10, 6), "MySQL 8.0 or MariaDB 10.6"),
            Self::MySql => ((8, 0), "MySQL 8.0 or MariaDB 10.6"),
        };
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
        let is_new = numbers.next().is_some_and(|major| (major, numbers.next().unwrap_or(0)) >= oldest);
        (!is_new).then_some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_and_no_name_ends_early() {
        assert_eq!(Dialect::Postgres.literal("a'\\ä"), "E'a''\\\\ä'");
        assert_eq!(Dialect::MySql.literal("a'\\ä"), "_utf8mb4 X'61275cc3a4'");
        assert_eq!(
            ["public", "user", "a\"b"].map(|name| Dialect::Postgres.quoted(name)),
            ["public", "\"user\"", "\"a\"\"b\""]
        );
        assert_eq!(Dialect::MySql.quoted("my `own`\\"), "`my ``own``\\`");
    }

    #[test]
    fn old_versions_are_distinguished_from_new_ones() {
        for version in ["8.0.36", "8.4.0", "9.1.0-commercial", "10.6.1-MariaDB", "11.4.2-MariaDB-log"] {
            assert_eq!(Dialect::MySql.needs_newer(version), None, "{version}");
        }
        for version in ["5.7.44-log", "10.5.23-MariaDB-1:10.5.23", "5.5.5-MariaDB", "", "x"] {
            assert!(Dialect::MySql.needs_newer(version).is_some(), "{version}");
        }
        assert_eq!(
            ["12.1", "17devel", "11.9"].map(|version| Dialect::Postgres.needs_newer(version).is_some()),
            [false, false, true]
        );
    }
}
