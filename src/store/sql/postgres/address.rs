//! Reads `postgres://` URLs as libpq reads them, and what libpq finds elsewhere: PGUSER and PGPASSWORD.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. No message here repeats a value.

use crate::store::sql::places::{Place, named};
use crate::store::tls_mode::TlsMode;
use crate::store::url::{Host, Secret, StoreUrl, TlsFiles, read_port, sorted};
use crate::text;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::{Path, PathBuf};

const DEFAULT_PORT: u16 = 5432;
/// The directory in which Debian's server and client look for each other.
const DEFAULT_SOCKET_DIRECTORY: &str = "/var/run/postgresql";
/// PostgreSQL cuts longer names off, so two of them may become one.
pub(super) const LONGEST_NAME: usize = 63;

const OPTIONS: [&str; 10] = [
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
];

/// Which table, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Not empty. The places are tried in this order, until one accepts writes.
    pub places: Vec<Place>,
    /// None: PGUSER, or the user that this process runs as.
    pub user: Option<String>,
    /// None: PGPASSWORD.
    pub password: Option<Secret>,
    pub database: String,
    pub schema: String,
    pub table: String,
    /// The session advisory lock that is held in addition to the lease.
    pub advisory_lock: Option<i64>,
    pub tls_mode: TlsMode,
    /// Boxed, because it is large and mostly empty.
    pub tls_files: Box<TlsFiles>,
    pub application_name: String,
}

/// A unix socket, as the server names it.
fn unix(directory: &str, port: u16) -> Place {
    Place::Unix(Path::new(directory).join(format!(".s.PGSQL.{port}")))
}

impl fmt::Display for Address {
    /// As messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&named("PostgreSQL", &self.places))
    }
}

impl Address {
    /// As [`Location::identity`](crate::store::Location::identity).
    #[must_use]
    pub fn identity(&self) -> String {
        let Self { places, database, schema, table, .. } = self;
        format!("postgres {} {database} {schema} {table}", sorted(places.iter().map(ToString::to_string)))
    }

    /// Reads the text after `postgres:`.
    ///
    /// # Errors
    /// One line that says what is wrong, and what to write.
    pub fn read(rest: &str) -> Result<Self, String> {
        let (rest, socket) = without_socket(rest)?;
        let mut url = StoreUrl::read("postgres", &rest, &OPTIONS)?;
        let port = url.take("port").map(|port| read_port("postgres", &port)).transpose()?;
        let directory = url.take("host");
        let places = places(&url.hosts, socket, directory, port)?;
        if url.path.is_empty() || url.path.contains('/') {
            return Err("postgres:// names no database: write postgres://HOST/DATABASE".to_owned());
        }
        let schema = name(&mut url, "schema", "public")?;
        let table = name(&mut url, "table", "leaderrun")?;
        let application_name = name(&mut url, "application_name", "leaderrun")?;
        let advisory_lock = url.take_number("advisory_lock")?;
        let (tls_mode, tls_files) = tls(&mut url)?;
        Ok(Self {
            places,
            user: url.user,
            password: url.password,
            database: url.path,
            schema,
            table,
            advisory_lock,
            tls_mode,
            tls_files: Box::new(tls_files),
            application_name,
        })
    }

    /// The user to log in as.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let from_environment = || std::env::var("PGUSER").ok().filter(|user| !user.is_empty());
        let ourselves = || Some(nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??.name);
        self.user.clone().or_else(from_environment).or_else(ourselves)
    }

    #[must_use]
    pub fn password(&self) -> Option<Secret> {
        let from_environment = || std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        self.password.clone().or_else(|| from_environment().map(Secret::from))
    }

    /// Where a password that is missing or wrong could come from, unless it is in the URL.
    #[must_use]
    pub fn about_password(&self) -> Option<String> {
        let file = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"));
        let file = std::env::var_os("PGPASSFILE").map(PathBuf::from).or_else(file).filter(|file| file.exists());
        match (file, self.password()) {
            (Some(file), _) => {
                let shown = text::shown(&file.to_string_lossy());
                Some(format!("leaderrun does not read {shown}: write the password in the URL, or in PGPASSWORD"))
            }
            (None, None) => Some("there is none in the URL or PGPASSWORD".to_owned()),
            (None, Some(_)) => None,
        }
    }
}

/// A directory with unix sockets, and the port that stands in the name of one.
type Directory = (String, Option<u16>);

/// Takes a percent-encoded directory out of the place of the hosts.
fn without_socket(rest: &str) -> Result<(String, Option<Directory>), String> {
    let whole = || (rest.to_owned(), None);
    let Some(after) = rest.strip_prefix("//") else { return Ok(whole()) };
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (authority, tail) = after.split_at(end);
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (format!("{credentials}@"), host),
        None => (String::new(), authority),
    };
    if !host.contains('%') {
        return Ok(whole());
    }
    let wrong = || {
        "a percent-encoded host of postgres:// has to be the directory of a unix socket: write \
         postgres://%2Fvar%2Frun%2Fpostgresql/DATABASE"
            .to_owned()
    };
    let (directory, port) = match host.rsplit_once(':') {
        Some((directory, port)) => (directory, Some(read_port("postgres", port)?)),
        None => (host, None),
    };
    let directory = percent_decode_str(directory).decode_utf8().map_err(|_| wrong())?;
    if !directory.starts_with('/') || directory.chars().any(char::is_control) {
        return Err(wrong());
    }
    Ok((format!("//{credentials}{tail}"), Some((directory.into_owned(), port))))
}

fn places(
    hosts: &[Host],
    socket: Option<Directory>,
    directory: Option<String>,
    port: Option<u16>,
) -> Result<Vec<Place>, String> {
    if hosts.is_empty() {
        let place = match (socket, directory) {
            (Some(_), Some(_)) => {
                return Err("postgres:// names two hosts: leave host= out, or what stands before the slash".to_owned());
            }
            (Some((directory, own)), None) => unix(&directory, port.or(own).unwrap_or(DEFAULT_PORT)),
            (None, directory) => {
                let directory = directory.unwrap_or_else(|| DEFAULT_SOCKET_DIRECTORY.to_owned());
                if !directory.starts_with('/') {
                    return Err("host= of postgres:// is the directory of a unix socket: write \
                                host=/var/run/postgresql, or postgres://HOST/DATABASE"
                        .to_owned());
                }
                unix(&directory, port.unwrap_or(DEFAULT_PORT))
            }
        };
        return Ok(vec![place]);
    }
    if directory.is_some() || port.is_some() {
        return Err(
            "host= and port= of postgres:// are for unix sockets: write postgres://HOST:PORT/DATABASE".to_owned()
        );
    }
    Ok(hosts
        .iter()
        .map(|host| Place::Tcp { name: host.name.clone(), port: host.port.unwrap_or(DEFAULT_PORT) })
        .collect())
}

/// An option that PostgreSQL takes as a name.
fn name(url: &mut StoreUrl, option: &str, default: &str) -> Result<String, String> {
    let name = url.take(option).unwrap_or_else(|| default.to_owned());
    if name.len() > LONGEST_NAME {
        return Err(format!("the option {option} of postgres:// is longer than {LONGEST_NAME} bytes"));
    }
    Ok(name)
}

fn tls(url: &mut StoreUrl) -> Result<(TlsMode, TlsFiles), String> {
    let mode = url.take("sslmode");
    let mode = match mode.as_deref() {
        None => None,
        Some("disable") => Some(TlsMode::Disable),
        Some("allow" | "prefer") => Some(TlsMode::Prefer),
        Some("require") => Some(TlsMode::Require),
        Some("verify-ca") => Some(TlsMode::VerifyCa),
        Some("verify-full") => Some(TlsMode::VerifyFull),
        Some(_) => {
            return Err(
                "sslmode= of postgres:// is one of disable, allow, prefer, require, verify-ca, verify-full".to_owned()
            );
        }
    };
    let files = url.take_tls_files(["sslrootcert", "sslcert", "sslkey"])?;
    // libpq's word for the authorities that the system trusts.
    let system = files.ca.as_deref() == Some(Path::new("system"));
    let mode = match mode {
        // Every user can get such a certificate, so the check is pointless without the name in it.
        Some(TlsMode::VerifyFull) | None if system => TlsMode::VerifyFull,
        Some(_) if system => return Err("sslrootcert=system of postgres:// wants sslmode=verify-full".to_owned()),
        mode => mode.unwrap_or(TlsMode::Prefer),
    };
    Ok((mode, TlsFiles { ca: files.ca.filter(|_| !system), ..files }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(name: &str, port: u16) -> Place {
        Place::Tcp { name: name.to_owned(), port }
    }

    #[test]
    fn every_part_is_read() {
        let url = "//app:p%40ss@one,two:6000/main?schema=s&table=my%20locks&advisory_lock=-7&sslmode=verify-full\
                   &sslrootcert=/ca&sslcert=/c&sslkey=/k&application_name=x";
        let address = Address::read(url).unwrap();
        assert_eq!(address.places, [tcp("one", 5432), tcp("two", 6000)]);
        assert_eq!(
            (address.user.as_deref(), address.password.as_ref().map(Secret::expose)),
            (Some("app"), Some("p@ss"))
        );
        assert_eq!((address.database.as_str(), address.schema.as_str()), ("main", "s"));
        assert_eq!((address.table.as_str(), address.advisory_lock), ("my locks", Some(-7)));
        assert_eq!((address.tls_mode, address.tls_files.ca), (TlsMode::VerifyFull, Some("/ca".into())));
        assert_eq!(address.application_name, "x");
    }

    #[test]
    fn a_unix_socket_may_be_written_as_libpq_takes_it() {
        for (url, place) in [
            ("///db", unix("/var/run/postgresql", 5432)),
            ("///db?host=/tmp&port=7000", unix("/tmp", 7000)),
            ("//u:p@/db?host=/tmp", unix("/tmp", 5432)),
            ("//%2Ftmp%2Fpg/db", unix("/tmp/pg", 5432)),
            ("//u@%2Ftmp:7000/db", unix("/tmp", 7000)),
        ] {
            assert_eq!(Address::read(url).unwrap().places, [place], "{url}");
        }
    }

    #[test]
    fn options_that_are_left_out_have_defaults() {
        let address = Address::read("//h/db").unwrap();
        assert_eq!((address.schema.as_str(), address.table.as_str()), ("public", "leaderrun"));
        assert_eq!((address.tls_mode, address.advisory_lock), (TlsMode::Prefer, None));
        assert_eq!(Address::read("//h/db?sslrootcert=system").unwrap().tls_mode, TlsMode::VerifyFull);
        assert_eq!(Address::read("//h/db?sslrootcert=system").unwrap().tls_files.ca, None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "h/db",
            "//h",
            "//h/",
            "//h/a/b",
            "//h:0/db",
            "//h/db?sslmode=maybe",
            "//h/db?sslcert=/c",
            "//h/db?sslrootcert=system&sslmode=require",
            "//h/db?advisory_lock=x",
            "//h/db?advisory_lock=9223372036854775808",
            "//h/db?host=/tmp",
            "//h/db?port=1",
            "///db?host=tmp",
            "//%2Ftmp/db?host=/tmp",
            "//%41/db",
            "//%2Ftmp:x/db",
            "//h/db?table=",
            "//h/db?nothing=1",
            &format!("//h/db?table={}", "x".repeat(64)),
        ] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }
}
