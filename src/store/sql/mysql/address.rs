//! Reads `mysql://` and `mariadb://` URLs, and what MySQL's clients find elsewhere: MYSQL_PWD, the name of the user.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. No message here repeats a value.

use crate::store::sql::places::{Place, named};
use crate::store::tls_mode::TlsMode;
use crate::store::url::{Host, Secret, StoreUrl, TlsFiles, sorted};
use std::fmt;

const DEFAULT_PORT: u16 = 3306;
/// Where Debian's servers and clients look for each other.
const DEFAULT_SOCKET: &str = "/run/mysqld/mysqld.sock";
/// The longest name of a table or a database.
const LONGEST_NAME: usize = 64;

const OPTIONS: [&str; 6] = ["table", "socket", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];

/// Which table, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Not empty. The places are tried in this order, until one accepts writes.
    pub places: Vec<Place>,
    /// None: the user that this process runs as.
    pub user: Option<String>,
    /// None: MYSQL_PWD.
    pub password: Option<Secret>,
    pub database: String,
    pub table: String,
    pub tls_mode: TlsMode,
    /// Boxed, because it is large and mostly empty.
    pub tls_files: Box<TlsFiles>,
}

impl fmt::Display for Address {
    /// As messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&named("MySQL", &self.places))
    }
}

impl Address {
    /// As [`Location::identity`](crate::store::Location::identity).
    #[must_use]
    pub fn identity(&self) -> String {
        let Self { places, database, table, .. } = self;
        format!("mysql {} {database} {table}", sorted(places.iter().map(ToString::to_string)))
    }

    /// Reads the text after `mysql:` or `mariadb:`.
    ///
    /// # Errors
    /// One line that says what is wrong, and what to write.
    pub fn read(rest: &str) -> Result<Self, String> {
        let mut url = StoreUrl::read("mysql", rest, &OPTIONS)?;
        let socket = url.take("socket");
        let places = if url.hosts.is_empty() {
            let socket = socket.unwrap_or_else(|| DEFAULT_SOCKET.to_owned());
            if !socket.starts_with('/') {
                return Err(format!("socket= of mysql:// is the path of a unix socket: write socket={DEFAULT_SOCKET}"));
            }
            vec![Place::Unix(socket.into())]
        } else if socket.is_some() {
            return Err("mysql:// names a host and a unix socket: write mysql:///DATABASE?socket=PATH".to_owned());
        } else {
            let tcp = |host: &Host| Place::Tcp { name: host.name.clone(), port: host.port.unwrap_or(DEFAULT_PORT) };
            url.hosts.iter().map(tcp).collect()
        };
        if url.path.is_empty() || url.path.contains('/') {
            return Err("mysql:// names no database: write mysql://HOST/DATABASE".to_owned());
        }
        let table = url.take("table").unwrap_or_else(|| "leaderrun".to_owned());
        for (what, name) in [("the database", &url.path), ("table", &table)] {
            if name.chars().count() > LONGEST_NAME {
                return Err(format!("the name {what} of mysql:// is longer than {LONGEST_NAME} letters"));
            }
        }
        let (tls_mode, tls_files) = tls(&mut url)?;
        let StoreUrl { user, password, path: database, .. } = url;
        let tls_files = Box::new(tls_files);
        Ok(Self { places, user, password, database, table, tls_mode, tls_files })
    }

    /// The user to log in as.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let ourselves = || Some(nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??.name);
        self.user.clone().or_else(ourselves)
    }

    /// The password, which may be empty.
    #[must_use]
    pub fn password(&self) -> Secret {
        let from_environment = || std::env::var("MYSQL_PWD").unwrap_or_default().into();
        self.password.clone().unwrap_or_else(from_environment)
    }
}

fn tls(url: &mut StoreUrl) -> Result<(TlsMode, TlsFiles), String> {
    let mode = url.take("ssl-mode").map(|mode| mode.to_ascii_lowercase().replace('_', "-"));
    let files = url.take_tls_files(["ssl-ca", "ssl-cert", "ssl-key"])?;
    // As the clients do: who names an authority wants it to be asked.
    let default = if files.ca.is_some() { TlsMode::VerifyCa } else { TlsMode::Prefer };
    let mode = match mode.as_deref() {
        None => default,
        Some("disabled") => TlsMode::Disable,
        Some("required") => TlsMode::Require,
        Some("verify-identity") => TlsMode::VerifyFull,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("preferred") => TlsMode::Prefer,
        Some(_) => {
            return Err(
                "ssl-mode= of mysql:// is one of DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY".to_owned()
            );
        }
    };
    Ok((mode, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(name: &str, port: u16) -> Place {
        Place::Tcp { name: name.to_owned(), port }
    }

    #[test]
    fn every_part_is_read() {
        let url = "//app:p%40ss@one,two:6000/main?table=my%20locks&ssl-mode=VERIFY_IDENTITY\
                   &ssl-ca=/ca&ssl-cert=/c&ssl-key=/k";
        let address = Address::read(url).unwrap();
        assert_eq!(address.places, [tcp("one", 3306), tcp("two", 6000)]);
        assert_eq!((address.user(), address.password().expose()), (Some("app".to_owned()), "p@ss"));
        assert_eq!((address.database.as_str(), address.table.as_str()), ("main", "my locks"));
        assert_eq!((address.tls_mode, address.tls_files.ca), (TlsMode::VerifyFull, Some("/ca".into())));
    }

    #[test]
    fn options_that_are_left_out_have_defaults() {
        let address = Address::read("//h/db").unwrap();
        assert_eq!((address.table.as_str(), address.tls_mode), ("leaderrun", TlsMode::Prefer));
        assert_eq!(Address::read("//h/db?ssl-ca=/ca").unwrap().tls_mode, TlsMode::VerifyCa);
        assert_eq!(Address::read("///db").unwrap().places, [Place::Unix(DEFAULT_SOCKET.into())]);
        assert_eq!(Address::read("//u@/db?socket=/s").unwrap().places, [Place::Unix("/s".into())]);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "h/db",
            "//h",
            "//h/",
            "//h/a/b",
            "//h:0/db",
            "//h/db?ssl-mode=maybe",
            "//h/db?ssl-cert=/c",
            "//h/db?socket=/s",
            "///db?socket=s",
            "//h/db?table=",
            "//h/db?nothing=1",
            "//h/db?get-server-public-key=1",
            "//h/db?get_lock=job",
            &format!("//h/db?table={}", "x".repeat(65)),
        ] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }
}
