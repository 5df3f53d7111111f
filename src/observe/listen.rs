//! The address of `--listen` and of `leaderctl serve`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Everywhere(u16),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_path = text.contains('/') && !text.contains("://");
        let path = text.strip_prefix("unix:").or_else(|| is_path.then_some(text));
        if let Some(path) = path {
            // This checks the kernel's limit on a path, and that it has no NUL.
            return match std::os::unix::net::SocketAddr::from_pathname(path) {
                Ok(_) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
                _ => Err("the path of a socket has 1 to 107 bytes".to_owned()),
            };
        }
        let everywhere = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::Everywhere);
        everywhere.or_else(|| text.parse().ok().map(Self::Tcp)).ok_or_else(|| {
            "write an address such as 127.0.0.1:9100, [::1]:9100, :9100 or unix:/run/worker.sock".to_owned()
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
