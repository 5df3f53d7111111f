//! What differs between PostgreSQL and MySQL, side by side, except for whole statements (`statements`), the codes of
//! errors (`failure`) and the clients.

use crate::store::tls;
use crate::store::tls_mode::TlsMode;
use std::fmt::Write as _;

/// Names that need no quotes in PostgreSQL, unlike its reserved words (table "user", schema "all").
const PLAIN: [&str; 2] = ["public", "leaderrun"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// Of MariaDB too.
    MySql,
}

pub struct Words {
    /// For people.
    pub kind: &'static str,
    pub scheme: &'static str,
    pub options: &'static [&'static str],
    pub default_port: u16,
    /// Where Debian's servers and clients look for each other.
    pub default_socket: &'static str,
    /// The option that names the socket, or in PostgreSQL its directory.
    pub socket: &'static str,
    /// PostgreSQL cuts a longer name off, so two of them may become one.
    pub longest_name: usize,
    /// Environment variables. Empty where there is none.
    pub user: &'static str,
    pub password: &'static str,
    pub tls_mode: &'static str,
    pub tls_modes: &'static [(&'static str, TlsMode)],
    pub tls_files: [&'static str; 3],
    pub tls: tls::Words,
    /// How users may show who they are.
    pub logins: &'static str,
    pub version: &'static str,
    /// The server's time when it received the request (PostgreSQL) or began the statement (MySQL).
    pub now: &'static str,
    /// The incarnation, of a row of [`Statements::context`](super::statements::Statements).
    pub incarnation: &'static str,
}

const POSTGRES: Words = Words {
    kind: "PostgreSQL",
    scheme: "postgres",
    options: &[
        "schema",
        "table",
        "advisory_lock",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "application_name",
        "host",
        "port",
    ],
    default_port: 5432,
    default_socket: "/var/run/postgresql",
    socket: "host",
    longest_name: 63,
    user: "PGUSER",
    password: "PGPASSWORD",
    tls_mode: "sslmode",
    tls_modes: &[
        ("disable", TlsMode::Disable),
        ("allow", TlsMode::Prefer),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ],
    tls_files: ["sslrootcert", "sslcert", "sslkey"],
    tls: tls::Words {
        any_name: Some("sslmode=verify-ca"),
        ca: "sslrootcert=FILE",
        own: "sslcert=FILE and sslkey=FILE",
    },
    logins: "allow a password (scram-sha-256) or a certificate in its pg_hba.conf",
    version: "SHOW server_version",
    now: "floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint",
    incarnation: "CASE WHEN m.version IS NULL THEN c.life || ' new' \
        WHEN split_part(m.session, ' ', 1) = m.xmin::text AND split_part(m.session, ' ', 2) = c.life \
        THEN c.life || ' ' || split_part(m.session, ' ', 3) ELSE c.life || ' ' || m.xmin::text END",
};

const MYSQL: Words = Words {
    kind: "MySQL",
    scheme: "mysql",
    options: &["table", "socket", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"],
    default_port: 3306,
    default_socket: "/run/mysqld/mysqld.sock",
    socket: "socket",
    longest_name: 64,
    user: "",
    password: "MYSQL_PWD",
    tls_mode: "ssl-mode",
    tls_modes: &[
        ("DISABLED", TlsMode::Disable),
        ("PREFERRED", TlsMode::Prefer),
        ("REQUIRED", TlsMode::Require),
        ("VERIFY_CA", TlsMode::VerifyCa),
        ("VERIFY_IDENTITY", TlsMode::VerifyFull),
    ],
    tls_files: ["ssl-ca", "ssl-cert", "ssl-key"],
    tls: tls::Words { any_name: Some("ssl-mode=VERIFY_CA"), ca: "ssl-ca=FILE", own: "ssl-cert=FILE and ssl-key=FILE" },
    logins: "use caching_sha2_password or mysql_native_password",
    version: "SELECT VERSION()",
    now: "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000)",
    incarnation: "CONCAT(c.life, ' ', CASE WHEN m.version IS NULL THEN 'new' \
        WHEN SUBSTRING_INDEX(m.session, ' ', 1) = c.life THEN SUBSTRING_INDEX(m.session, ' ', -1) \
        ELSE m.version END)",
};

impl Dialect {
    pub fn words(self) -> &'static Words {
        match self {
            Self::Postgres => &POSTGRES,
            Self::MySql => &MYSQL,
        }
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
