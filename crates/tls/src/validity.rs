//! The period in which a certificate is valid.

use std::time::Duration;

use jiff::Timestamp;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use crate::provider;

/// A time after the validity of every certificate: year 10000, which X.509 cannot express.
const NEVER: Duration = Duration::from_secs(253_402_300_800);

/// The period in which a certificate is valid, in seconds since 1970. Both ends are part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its beginning.
    pub from_unix_s: u64,
    /// Its end.
    pub until_unix_s: u64,
}

impl Validity {
    /// All times.
    pub(crate) const ALWAYS: Self = Self { from_unix_s: 0, until_unix_s: u64::MAX };

    /// Returns the period of a certificate; `None` if it is malformed.
    ///
    /// rustls has no function for this, but its verification names the beginning before it, and the end after it. That is
    /// checked first.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let algorithms = provider().signature_verification_algorithms.all;
        let verified = |at| {
            let (roots, at) = (RootCertStore::empty(), UnixTime::since_unix_epoch(at));
            verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], at, algorithms)
        };
        let Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) =
            verified(NEVER)
        else {
            return None;
        };
        let from_unix_s = match verified(Duration::ZERO) {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                not_before.as_secs()
            }
            // Valid since 1970.
            _ => 0,
        };
        Some(Self { from_unix_s, until_unix_s: not_after.as_secs() })
    }

    /// Whether a time is in the period.
    pub fn contains(self, at: UnixTime) -> bool {
        (self.from_unix_s..=self.until_unix_s).contains(&at.as_secs())
    }

    /// Checks that a time is in the period.
    ///
    /// # Errors
    /// The end that is exceeded, and what to do.
    pub(crate) fn check(self, at: UnixTime) -> Result<(), String> {
        if self.contains(at) {
            return Ok(());
        }
        if at.as_secs() > self.until_unix_s {
            return Err(format!("expired at {}; renew it", shown(self.until_unix_s)));
        }
        let (from, now) = (shown(self.from_unix_s), shown(at.as_secs()));
        Err(format!("is not valid before {from}, and it is {now} now; check the clock of this machine"))
    }
}

fn shown(unix_s: u64) -> String {
    let at = i64::try_from(unix_s).ok().and_then(|unix_s| Timestamp::from_second(unix_s).ok());
    at.map_or_else(|| format!("second {unix_s}"), |at| at.to_string())
}
