//! TLS as libpq's `sslmode` and the `ssl-mode` of MySQL's clients select it.
//!
//! The hazard: in the weaker modes a certificate is not checked, or not for its name, and users of these modes rely
//! on that. So this file, and no other, may leave a check out. `require` and `prefer` without an authority protect
//! against listeners, but not against a server in between. `verify-ca` also keeps out servers without a certificate of
//! that authority. The signature that proves the possession of the key is checked in every mode.

use super::StoreError;
use super::error::{causes, innermost};
use super::tls::{self, Trusted};
use super::url::TlsFiles;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, Error};

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

/// What a store calls the options that its advice is about.
pub struct Names {
    /// The mode in which the name of the host is not checked, such as `sslmode=verify-ca`.
    pub any_name: &'static str,
    pub ca: &'static str,
    pub cert: &'static str,
    pub key: &'static str,
}

impl Names {
    /// The error of a connection to `server` that TLS was the cause of. None if it was not.
    pub fn failure(&self, server: &str, error: &(dyn std::error::Error + 'static)) -> Option<StoreError> {
        let Self { any_name, ca, cert, key } = self;
        let tls = causes(error).find_map(|cause| cause.downcast_ref::<Error>())?;
        Some(match tls {
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => StoreError::misconfigured(format!(
                "the certificate of {server} is for another name: name the host as its certificate does, or do not \
                 check that with {any_name} ({tls})"
            )),
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => StoreError::misconfigured(format!(
                "the certificate of {server} is not signed by an authority that is trusted: name it with {ca}=FILE"
            )),
            Error::InvalidCertificate(why) => {
                let advice = tls::advice(why, ca);
                StoreError::misconfigured(format!(
                    "the certificate of {server} cannot be trusted: {}{advice}",
                    innermost(tls)
                ))
            }
            Error::AlertReceived(
                Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied,
            ) => StoreError::denied(format!(
                "{server} does not accept our certificate: name another with {cert}=FILE and {key}=FILE ({tls})"
            )),
            _ => StoreError::not_applied(format!("cannot speak TLS with {server}: {}", innermost(tls))),
        })
    }
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
