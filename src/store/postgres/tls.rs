//! TLS as libpq's `sslmode` selects it.
//!
//! The hazard: in libpq's weaker modes a certificate is not checked, or not for its name, and users of these modes rely
//! on that. So this file, and no other, may leave a check out. `require` and `prefer` without an authority protect
//! against listeners, but not against a server in between. `verify-ca` also keeps out servers without a certificate of
//! that authority. The signature that proves the possession of the key is checked in every mode.

use super::address::TlsMode;
use crate::store::tls::{self, Trusted};
use crate::store::{StoreError, url::TlsFiles};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The connector. None if TLS is off.
///
/// # Errors
/// Misconfigured, with the name of the file that cannot be read or makes no sense.
pub fn connector(mode: TlsMode, files: &TlsFiles) -> Result<Option<MakeRustlsConnect>, StoreError> {
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
    config.map(MakeRustlsConnect::new).map(Some)
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
