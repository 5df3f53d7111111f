//! Reads `postgres://`, `mysql://` and `mariadb://` URLs as the servers' own clients do, and what those find elsewhere:
//! PGUSER and PGPASSWORD, MYSQL_PWD, the name of the user. A URL may hold a password, so no message repeats a value.

use super::dialect::Dialect;
use crate::store::StoreError;
use crate::store::socket::Place;
use crate::store::tls_mode::TlsMode;
use crate::store::url::{Secret, StoreUrl, TlsFiles, read_port, sorted};
use std::fmt;
use std::path::Path;

const SSLMODES: &[(&str, TlsMode)] = &[
    ("disable", TlsMode::Disable),
    ("allow", TlsMode::Prefer),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];
const SSL_MODES: &[(&str, TlsMode)] = &[
    ("DISABLED", TlsMode::Disable),
    ("PREFERRED", TlsMode::Prefer),
    ("REQUIRED", TlsMode::Require),
    ("VERIFY_CA", TlsMode::VerifyCa),
    ("VERIFY_IDENTITY", TlsMode::VerifyFull),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub dialect: Dialect,
    /// Not empty. Tried in this order, until one accepts writes.
    pub places: Vec<Place>,
    /// None: that of the environment.
    pub user: Option<String>,
    /// None: that of the environment.
    pub password: Option<Secret>,
    pub database: String,
    pub schema: String,
    pub table: String,
    /// PostgreSQL's session advisory lock that is held in addition to the lease.
    pub advisory_lock: Option<i64>,
    pub tls_mode: TlsMode,
    pub tls_files: Box<TlsFiles>,
    pub application_name: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.places.iter().map(ToString::to_string).collect();
        write!(f, "{} at {}", self.dialect.kind(), places.join(","))
    }
}

impl Address {
    pub fn identity(&self) -> String {
        let Self { places, database, schema, table, .. } = self;
        let scheme = self.dialect.scheme();
        format!("{scheme} {} {database} {schema} {table}", sorted(places.iter().map(ToString::to_string)))
    }

    pub fn read(dialect: Dialect, rest: &str) -> Result<Self, String> {
        let scheme = dialect.scheme();
        let options = dialect.either(
            "schema table advisory_lock sslmode sslrootcert sslcert sslkey application_name host port",
            "table socket ssl-mode ssl-ca ssl-cert ssl-key",
        );
        let mut url = StoreUrl::read(scheme, rest, &options.split(' ').collect::<Vec<_>>())?;
        let places = places(&mut url, dialect)?;
        if url.path.is_empty() || url.path.contains('/') {
            return Err(format!("{scheme}:// names no database: write {scheme}://HOST/DATABASE"));
        }
        let (tls_mode, tls_files) = tls(&mut url, dialect)?;
        let mut name = |option: &str, default: &str| {
            let name = url.take(option).unwrap_or_else(|| default.to_owned());
            // PostgreSQL cuts a longer name off, so two of them may become one.
            let (length, longest) = dialect.either((name.len(), 63), (name.chars().count(), 64));
            if length > longest {
                return Err(format!("the option {option} of {scheme}:// is longer than {longest} letters"));
            }
            Ok(name)
        };
        Ok(Self {
            dialect,
            places,
            tls_mode,
            tls_files: Box::new(tls_files),
            schema: name("schema", "public")?,
            table: name("table", "leaderrun")?,
            application_name: name("application_name", "leaderrun")?,
            advisory_lock: url.take_number("advisory_lock")?,
            user: url.user,
            password: url.password,
            database: url.path,
        })
    }

    pub fn user(&self) -> Result<String, StoreError> {
        let scheme = self.dialect.scheme();
        let usual = || self.dialect.either(variable("PGUSER"), None);
        let ourselves = || Some(nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??.name);
        let named = self.user.clone().or_else(usual).or_else(ourselves);
        named.ok_or_else(|| {
            StoreError::misconfigured(format!("{scheme}:// names no user: write {scheme}://USER@HOST/DATABASE"))
        })
    }

    pub fn password(&self) -> Option<Secret> {
        self.password.clone().or_else(|| variable(self.dialect.either("PGPASSWORD", "MYSQL_PWD")).map(Secret::from))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn places(url: &mut StoreUrl<'_>, dialect: Dialect) -> Result<Vec<Place>, String> {
    let scheme = dialect.scheme();
    let default_port = dialect.either(5432, 3306);
    // Where Debian's servers and clients look for each other.
    let default_socket = dialect.either("/var/run/postgresql", "/run/mysqld/mysqld.sock");
    // The socket, or in PostgreSQL its directory.
    let option = dialect.either("host", "socket");
    let port = url.take("port").map(|port| read_port(scheme, &port)).transpose()?;
    let socket = url.take(option);
    if url.hosts.is_empty() {
        let socket = socket.unwrap_or_else(|| default_socket.to_owned());
        if !socket.starts_with('/') {
            return Err(format!(
                "{option}= of {scheme}:// is the path of a unix socket: write {option}={default_socket}, or \
                 {scheme}://HOST/DATABASE"
            ));
        }
        return Ok(vec![Place::Unix(match dialect {
            // The directory of sockets, each with its port in its name.
            Dialect::Postgres => Path::new(&socket).join(format!(".s.PGSQL.{}", port.unwrap_or(default_port))),
            Dialect::MySql => socket.into(),
        })]);
    }
    if socket.is_some() || port.is_some() {
        return Err(format!(
            "{scheme}:// names a host and a unix socket: write {scheme}://HOST:PORT/DATABASE or \
             {scheme}:///DATABASE?{option}=PATH"
        ));
    }
    let hosts = url.hosts.iter();
    Ok(hosts.map(|host| host.place(default_port)).collect())
}

fn tls(url: &mut StoreUrl<'_>, dialect: Dialect) -> Result<(TlsMode, TlsFiles), String> {
    let scheme = dialect.scheme();
    let option = dialect.either("sslmode", "ssl-mode");
    let tls_modes = dialect.either(SSLMODES, SSL_MODES);
    let tls_files = dialect.either(["sslrootcert", "sslcert", "sslkey"], ["ssl-ca", "ssl-cert", "ssl-key"]);
    let known = |said: String| {
        // MySQL's clients take them in any spelling.
        let said = if dialect == Dialect::MySql { said.to_uppercase().replace('-', "_") } else { said };
        let known = tls_modes.iter().find(|(word, _)| *word == said).map(|(_, mode)| *mode);
        let words = || tls_modes.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        known.ok_or_else(|| format!("{option}= of {scheme}:// is one of {}", words()))
    };
    let mode = url.take(option).map(known).transpose()?;
    let files = url.take_tls_files(tls_files)?;
    // libpq's word for the authorities that the system trusts.
    if dialect == Dialect::Postgres && files.ca.as_deref() == Some(Path::new("system")) {
        // Anybody can get such a certificate, so the check is pointless without the name.
        if !matches!(mode, None | Some(TlsMode::VerifyFull)) {
            return Err("sslrootcert=system of postgres:// needs sslmode=verify-full".to_owned());
        }
        return Ok((TlsMode::VerifyFull, TlsFiles { ca: None, ..files }));
    }
    // As in MySQL's clients, to name an authority is to want the check.
    let asks = dialect == Dialect::MySql && files.ca.is_some();
    Ok((mode.unwrap_or(if asks { TlsMode::VerifyCa } else { TlsMode::Prefer }), files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postgres(rest: &str) -> Address {
        Address::read(Dialect::Postgres, rest).unwrap()
    }

    fn mysql(rest: &str) -> Address {
        Address::read(Dialect::MySql, rest).unwrap()
    }

    fn tcp(name: &str, port: u16) -> Place {
        Place::Tcp { name: name.to_owned(), port }
    }

    #[test]
    fn every_part_is_read() {
        let options = "sslmode=verify-full&sslrootcert=/ca&sslcert=/c&sslkey=/k&application_name=x";
        let names = "schema=s&table=my%20locks&advisory_lock=-7";
        let address = postgres(&format!("//app:p%40ss@one,two:6000/main?{names}&{options}"));
        assert_eq!(address.places, [tcp("one", 5432), tcp("two", 6000)]);
        assert_eq!((address.user.as_deref(), address.password().unwrap().expose()), (Some("app"), "p@ss"));
        assert_eq!((address.database.as_str(), address.schema.as_str()), ("main", "s"));
        assert_eq!((address.table.as_str(), address.advisory_lock), ("my locks", Some(-7)));
        assert_eq!((address.tls_mode, address.tls_files.ca), (TlsMode::VerifyFull, Some("/ca".into())));
        assert_eq!(address.application_name, "x");
        let address =
            mysql("//app@one,two:6000/main?table=t&ssl-mode=verify-identity&ssl-ca=/ca&ssl-cert=/c&ssl-key=/k");
        assert_eq!(address.places, [tcp("one", 3306), tcp("two", 6000)]);
        assert_eq!((address.database.as_str(), address.table.as_str()), ("main", "t"));
        assert_eq!((address.tls_mode, address.tls_files.ca), (TlsMode::VerifyFull, Some("/ca".into())));
    }

    #[test]
    fn a_unix_socket_may_be_written_as_the_clients_take_it() {
        let unix = |path: &str| [Place::Unix(path.into())];
        for (url, path) in [
            ("///db", "/var/run/postgresql/.s.PGSQL.5432"),
            ("///db?host=/tmp&port=7000", "/tmp/.s.PGSQL.7000"),
            ("//u:p@/db?host=/tmp", "/tmp/.s.PGSQL.5432"),
        ] {
            assert_eq!(postgres(url).places, unix(path), "{url}");
        }
        assert_eq!(mysql("///db").places, unix("/run/mysqld/mysqld.sock"));
        assert_eq!(mysql("//u@/db?socket=/s").places, unix("/s"));
    }

    #[test]
    fn options_that_are_left_out_have_defaults() {
        let address = postgres("//h/db");
        assert_eq!((address.schema.as_str(), address.table.as_str()), ("public", "leaderrun"));
        assert_eq!((address.tls_mode, address.advisory_lock), (TlsMode::Prefer, None));
        let address = postgres("//h/db?sslrootcert=system");
        assert_eq!((address.tls_mode, address.tls_files.ca), (TlsMode::VerifyFull, None));
        assert_eq!((mysql("//h/db").table.as_str(), mysql("//h/db").tls_mode), ("leaderrun", TlsMode::Prefer));
        assert_eq!(mysql("//h/db?ssl-ca=/ca").tls_mode, TlsMode::VerifyCa);
    }

    #[test]
    fn nonsense_is_refused() {
        let both = ["h/db", "//h", "//h/", "//h/a/b", "//h:0/db", "//h/db?table=", "//h/db?nothing=1"];
        let long = format!("//h/db?table={}", "x".repeat(65));
        for bad in both.into_iter().chain([&*long]) {
            assert!(Address::read(Dialect::Postgres, bad).is_err(), "{bad}");
            assert!(Address::read(Dialect::MySql, bad).is_err(), "{bad}");
        }
        for bad in [
            "//h/db?sslmode=maybe",
            "//h/db?sslcert=/c",
            "//h/db?sslrootcert=system&sslmode=require",
            "//h/db?advisory_lock=x",
            "//h/db?advisory_lock=9223372036854775808",
            "//h/db?host=/tmp",
            "//h/db?port=1",
            "///db?host=tmp",
            "//%2Ftmp/db",
        ] {
            assert!(Address::read(Dialect::Postgres, bad).is_err(), "{bad}");
        }
        for bad in
            ["//h/db?ssl-mode=maybe", "//h/db?ssl-cert=/c", "//h/db?socket=/s", "///db?socket=s", "//h/db?get_lock=job"]
        {
            assert!(Address::read(Dialect::MySql, bad).is_err(), "{bad}");
        }
    }
}
