//! TLS as libpq's `sslmode` and the `ssl-mode` of MySQL's clients select it.
//!
//! The hazard: in the weaker modes a certificate is not checked, or not for its name, and users of these modes rely
//! on that. So this file, and no other, may leave a check out. `require` and `prefer` without an authority protect
//! against listeners, but not against a server in between. `verify-ca` also keeps out servers without a certificate of
//! that authority. The signature that proves the possession of the key is checked in every mode.

use super::StoreError;
use super::tls::{self, Checks};
use super::url::TlsFiles;
use rustls::ClientConfig;

/// libpq's modes; its `allow` is treated as `prefer`. MySQL's clients have the same ones by other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    Disable,
    /// TLS if the server supports it. The certificate is checked only if the URL names an authority.
    Prefer,
    /// TLS, or no connection. The certificate is checked only if the URL names an authority.
    Require,
    /// An authority must have signed the certificate, for any name.
    VerifyCa,
    VerifyFull,
}

impl TlsMode {
    pub fn checks(self, files: &TlsFiles) -> Checks {
        match self {
            Self::VerifyFull => Checks::All,
            Self::VerifyCa => Checks::AnyName,
            // As in libpq: if the user names an authority, it is used.
            Self::Prefer | Self::Require if files.ca.is_some() => Checks::AnyName,
            Self::Disable | Self::Prefer | Self::Require => Checks::Nothing,
        }
    }

    /// If TLS is off, one that nobody uses.
    pub fn config(self, files: &TlsFiles) -> Result<ClientConfig, StoreError> {
        let unused = TlsFiles::default();
        let files = if self == Self::Disable { &unused } else { files };
        tls::with_checks(self.checks(files), files)
    }
}
