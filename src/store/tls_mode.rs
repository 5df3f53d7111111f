//! TLS as libpq's `sslmode` and the `ssl-mode` of MySQL's clients select it.
//!
//! The hazard: in the weaker modes a certificate is not checked, or not for its name, and users of these modes rely
//! on that. So this file, and no other, may leave a check out. `require` and `prefer` without an authority protect
//! against listeners, but not against a server in between. `verify-ca` also keeps out servers without a certificate of
//! that authority. The signature that proves the possession of the key is checked in every mode.

use super::StoreError;
use super::tls::{self, Trusted};
use super::url::TlsFiles;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, Error};

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
    let config = match mode {
        TlsMode::Disable => return Ok(None),
        TlsMode::VerifyFull => tls::client_config(files),
        TlsMode::VerifyCa => tls::checked_by(Check::Chain(Trusted::new(files)?), files),
        // As in libpq: if the user names an authority, it is used.
        TlsMode::Prefer | TlsMode::Require if files.ca.is_some() => {
            tls::checked_by(Check::Chain(Trusted::new(files)?), files)
        }
        TlsMode::Prefer | TlsMode::Require => tls::checked_by(Check::Nothing, files),
    };
    config.map(Some)
}

#[derive(Debug)]
enum Check {
    Nothing,
    /// Everything except the name.
    Chain(Trusted),
}

impl tls::Check for Check {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let Self::Chain(trusted) = self else { return Ok(()) };
        match trusted.check(certificate, intermediates, name, now) {
            // The name is checked last, after the chain was found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(()),
            answer => answer,
        }
    }
}
