//! The end of a certificate's validity.

use std::time::Duration;

use evenstep_tls::provider;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// A time after the validity of every certificate: year 10000, which X.509 cannot express.
const NEVER: Duration = Duration::from_secs(253_402_300_800);

/// Returns the end of the validity of a certificate, in seconds since 1970; `None` if it is malformed.
///
/// rustls has no function for this, but its verification names the end if the certificate has expired. That is checked
/// first.
pub fn expires_unix_s(certificate: &CertificateDer<'_>) -> Option<u64> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let now = UnixTime::since_unix_epoch(NEVER);
    let algorithms = provider().signature_verification_algorithms.all;
    let verified =
        verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], now, algorithms);
    match verified {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}
