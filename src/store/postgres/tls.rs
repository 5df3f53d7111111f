//! TLS as libpq's `sslmode` selects it.
//!
//! The hazard: in libpq's weaker modes a certificate is not checked, or not for its name, and users of these modes rely
//! on that. So this file, and no other, may leave a check out. `require` and `prefer` without an authority protect
//! against listeners, but not against a server in between. `verify-ca` also keeps out servers without a certificate of
//! that authority. The signature that proves the possession of the key is checked in every mode.

use super::address::TlsMode;
use crate::store::url::TlsFiles;
use crate::store::{StoreError, tls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The connector. None if TLS is off.
///
/// # Errors
/// Misconfigured, with the name of the file that cannot be read or makes no sense.
pub fn connector(mode: TlsMode, files: &TlsFiles) -> Result<Option<MakeRustlsConnect>, StoreError> {
    let check = match mode {
        TlsMode::Disable => return Ok(None),
        TlsMode::VerifyFull => return tls::client_config(files).map(MakeRustlsConnect::new).map(Some),
        TlsMode::VerifyCa => Check::Chain(tls::Verifier::new(files)?),
        // As in libpq: if the user names an authority, it is used.
        TlsMode::Prefer | TlsMode::Require if files.ca.is_some() => Check::Chain(tls::Verifier::new(files)?),
        TlsMode::Prefer | TlsMode::Require => Check::Nothing,
    };
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier { check, provider: Arc::clone(&provider) });
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| StoreError::misconfigured(format!("TLS cannot be set up: {error}")))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match tls::identity(files)? {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            StoreError::misconfigured(format!("the certificate and the key for TLS do not fit each other: {error}"))
        })?,
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}

#[derive(Debug)]
enum Check {
    Nothing,
    /// Everything except the name.
    Chain(tls::Verifier),
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Check::Chain(verifier) = &self.check else { return Ok(ServerCertVerified::assertion()) };
        match verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now) {
            // The name is checked last, after the chain was found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
