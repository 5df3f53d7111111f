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

/// The configuration. None if TLS is off.
///
/// # Errors
/// Misconfigured, with the name of the file that cannot be read or makes no sense.
pub fn config(mode: TlsMode, files: &TlsFiles) -> Result<Option<ClientConfig>, StoreError> {
    let checks = match mode {
        TlsMode::Disable => return Ok(None),
        TlsMode::VerifyFull => Checks::All,
        TlsMode::VerifyCa => Checks::AnyName,
        // As in libpq: if the user names an authority, it is used.
        TlsMode::Prefer | TlsMode::Require if files.ca.is_some() => Checks::AnyName,
        TlsMode::Prefer | TlsMode::Require => Checks::Nothing,
    };
    tls::with_checks(checks, files).map(Some)
}
