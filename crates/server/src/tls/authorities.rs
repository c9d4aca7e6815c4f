//! Verification of client certificates.

use std::sync::Arc;

use evenstep_tls::{Authority, InvalidFile, PemFile, Validity};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

/// Accepts the certificates of those CAs that are valid at the time of the handshake. rustls itself does not check the validity
/// of a CA.
#[derive(Debug)]
pub struct ValidAuthorities {
    each: Vec<(Validity, Arc<dyn ClientCertVerifier>)>,
    /// Trusts all of them. For everything but certificates.
    all: Arc<dyn ClientCertVerifier>,
}

impl ValidAuthorities {
    /// The CAs of a file.
    ///
    /// # Errors
    /// The file is invalid, or none of its CAs is valid now.
    pub fn of(file: &PemFile, provider: &Arc<CryptoProvider>, now: UnixTime) -> Result<Self, InvalidFile> {
        let verifier = |roots: RootCertStore| {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
            verifier.build().map_err(|error| file.invalid(error.to_string()))
        };
        let (mut each, mut all) = (Vec::new(), RootCertStore::empty());
        for Authority { roots, validity, .. } in file.authorities(now)? {
            all.roots.extend(roots.roots.iter().cloned());
            each.push((validity, verifier(roots)?));
        }
        Ok(Self { each, all: verifier(all)? })
    }

    /// The number of CAs that are not valid at a time.
    pub fn invalid_at(&self, at: UnixTime) -> usize {
        self.each.iter().filter(|(validity, _)| !validity.contains(at)).count()
    }
}

impl ClientCertVerifier for ValidAuthorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.all.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Names what is wrong with a certificate that none of them signed, or that is invalid itself.
        self.all.verify_client_cert(end_entity, intermediates, now)?;
        let valid = self.each.iter().filter(|(validity, _)| validity.contains(now));
        let verified = valid.map(|(_, verifier)| verifier.verify_client_cert(end_entity, intermediates, now));
        verified.filter_map(Result::ok).next().ok_or(Error::InvalidCertificate(CertificateError::Expired))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.all.supported_verify_schemes()
    }
}
