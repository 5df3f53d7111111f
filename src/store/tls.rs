//! TLS for the stores that open their own sockets: rustls on ring, with one configuration for all of them.
//!
//! The hazard: a client that cannot check a server's certificate must not go on without the check. So a missing file or
//! an empty set of authorities is an error, and only `tls_mode` asks for fewer [`Checks`] than all.
//!
//! A self-signed certificate says of itself that it is an authority, and rustls accepts no authority as a server. libpq
//! accepts it if the user named that very certificate, and so does this module.

use super::StoreError;
use super::error::{causes, innermost};
use super::url::TlsFiles;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription as Alert, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use std::path::Path;
use std::sync::Arc;

/// What rustls says of a certificate that is an authority's, such as a self-signed one.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";

/// With two libraries in this process, rustls would not know which one to use.
pub fn install_provider() {
    // An error means that there is a provider already. It is ours, because nothing else installs one.
    let _ = ring::default_provider().install_default();
}

pub fn client_config(files: &TlsFiles) -> Result<ClientConfig, StoreError> {
    with_checks(Checks::All, files)
}

pub fn with_checks(checks: Checks, files: &TlsFiles) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let trusted = (checks != Checks::Nothing).then(|| Trusted::new(files)).transpose()?;
    let algorithms = provider.signature_verification_algorithms;
    let verifier = Verifier { trusted, is_any_name: checks == Checks::AnyName, algorithms };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(&error))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    match identity(files)? {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            StoreError::misconfigured(format!("the certificate and the key for TLS do not belong together: {error}"))
        }),
    }
}

fn unusable(error: &dyn std::error::Error) -> StoreError {
    StoreError::misconfigured(format!("TLS cannot be set up: {error}"))
}

/// What is checked of a server's certificate, besides the signature that proves the possession of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    All,
    AnyName,
    Nothing,
}

/// Whom rustls trusts, and the certificates that the user named, which may be self-signed.
#[derive(Debug)]
struct Trusted {
    webpki: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn new(files: &TlsFiles) -> Result<Self, StoreError> {
        let named = files.ca.as_deref().map(certificates).transpose()?.unwrap_or_default();
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &files.ca {
            for certificate in &named {
                roots.add(certificate.clone()).map_err(|error| unreadable(ca, &error.to_string()))?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            return Err(StoreError::misconfigured(
                "this system has no certificate authorities: install ca-certificates, or name a file of your own in the \
                 store URL",
            ));
        }
        let provider = Arc::new(ring::default_provider());
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { webpki: webpki.map_err(|error| unusable(&error))?, named })
    }
}

#[derive(Debug)]
struct Verifier {
    /// None: whatever certificate is shown is accepted.
    trusted: Option<Trusted>,
    is_any_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Trusted { webpki, named }) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let checked = match webpki.verify_server_cert(end_entity, intermediates, name, &[], now) {
            // webpki has checked the dates before it says this.
            Err(Error::InvalidCertificate(CertificateError::Other(error)))
                if error.0.to_string() == CA_AS_SERVER && named.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)
            }
            answer => answer.map(drop),
        };
        match checked {
            // The name is checked last, after the chain was found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.is_any_name => Ok(ServerCertVerified::assertion()),
            checked => checked.map(|()| ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// How a store's URL says what a TLS error is about.
pub struct Words {
    /// What switches off the check of the host's name, such as `sslmode=verify-ca`.
    pub any_name: Option<&'static str>,
    /// The authorities, such as `ca=FILE`.
    pub ca: &'static str,
    /// The certificate that we show, such as `cert=FILE and key=FILE`.
    pub own: &'static str,
}

pub const BY_FILES: Words = Words { any_name: None, ca: "ca=FILE", own: "cert=FILE and key=FILE" };

impl Words {
    /// None if TLS was not the cause.
    pub fn failure(&self, server: &str, error: &(dyn std::error::Error + 'static)) -> Option<StoreError> {
        let Self { any_name, ca, own } = self;
        let tls = causes(error).find_map(|cause| cause.downcast_ref::<Error>())?;
        let why = innermost(tls);
        Some(match tls {
            Error::InvalidCertificate(wrong) => {
                let advice = match wrong {
                    CertificateError::UnknownIssuer => format!(": name the authority that signed it with {ca}"),
                    CertificateError::Other(error) if error.0.to_string() == CA_AS_SERVER => {
                        format!(": name that very certificate with {ca}")
                    }
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                        let unchecked = any_name.map(|mode| format!(", or do not check that with {mode}"));
                        format!(": name the host as its certificate does{}", unchecked.unwrap_or_default())
                    }
                    _ => String::new(),
                };
                StoreError::misconfigured(format!("the certificate of {server} cannot be trusted: {why}{advice}"))
            }
            Error::InvalidMessage(_) => StoreError::misconfigured(format!("cannot speak TLS with {server}: {why}")),
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
                "{server} does not accept the client certificate, or requires one: name one with {own} ({why})"
            )),
            _ => StoreError::not_applied(format!("cannot speak TLS with {server}: {why}")),
        })
    }
}

fn identity(files: &TlsFiles) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, StoreError> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Ok(None) };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error.to_string()))?;
    Ok(Some((certificates(cert)?, private)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unreadable(file, &error.to_string()))?;
    if found.is_empty() { Err(unreadable(file, "it holds no certificate")) } else { Ok(found) }
}

fn unreadable(file: &Path, why: &str) -> StoreError {
    StoreError::misconfigured(format!("{} cannot be used for TLS: {why}", file.display()))
}
