//! Certificates and private keys from PEM files, for servers and clients.
//!
//! An error names the file and the rule that it breaks. It never contains a part of a file, because that could be a
//! private key.

mod file;
mod validity;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

pub use file::read_file;
pub use validity::Validity;

/// Maximum size of a file, in bytes. A list of all public CAs has a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {rule}")]
pub struct InvalidFile {
    /// The file.
    pub path: PathBuf,
    /// The rule that it breaks.
    pub rule: String,
}

/// The contents of a PEM file, or the error of reading it. Two are equal if reading gave the same.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    path: PathBuf,
    contents: Result<Vec<u8>, String>,
}

impl fmt::Debug for PemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PemFile {
    /// Reads a file. An error of the system is part of the result.
    pub fn read(path: &Path) -> Self {
        Self { path: path.to_owned(), contents: read_file(path, FILE_BYTES_MAX) }
    }

    /// Returns the certificates of the file, at least one.
    ///
    /// # Errors
    /// The file cannot be read, is not PEM, or has no certificate or a malformed one.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, InvalidFile> {
        let certificates = self.blocks()?;
        for (at, certificate) in certificates.iter().enumerate() {
            let parsed = ParsedCertificate::try_from(certificate).map(drop);
            parsed.map_err(|error| self.invalid(format!("certificate {}: {error}", at + 1)))?;
        }
        Ok(certificates)
    }

    /// Returns the CERTIFICATE blocks of the file, at least one.
    fn blocks(&self) -> Result<Vec<CertificateDer<'static>>, InvalidFile> {
        let blocks: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.contents()?).collect();
        let blocks = blocks.map_err(|error| self.malformed(&error))?;
        if blocks.is_empty() {
            return Err(self.invalid("has no certificate; must be PEM with at least one CERTIFICATE block"));
        }
        Ok(blocks)
    }

    /// Returns the certificates of the file as CAs, also those that are not valid at this time: lists of CAs keep some that
    /// have expired. At least one is valid. A CA whose period is unknown counts as always valid: rustls accepts X.509 v1
    /// only for CAs, and cannot tell the period.
    ///
    /// # Errors
    /// As [`certificates`](Self::certificates), a certificate cannot be used for a CA, or all of them are invalid at this
    /// time.
    pub fn authorities(&self, now: UnixTime) -> Result<Vec<Authority>, InvalidFile> {
        let mut authorities = Vec::new();
        let mut checked = Err(String::new());
        for (at, certificate) in self.blocks()?.into_iter().enumerate() {
            let mut roots = RootCertStore::empty();
            let added = roots.add(certificate.clone());
            added.map_err(|error| self.invalid(format!("certificate {}: {error}", at + 1)))?;
            let validity = Validity::of(&certificate).unwrap_or(Validity::ALWAYS);
            checked = checked
                .or_else(|_| validity.check(now).map_err(|rule| format!("certificate {} {rule}", at + 1)));
            authorities.push(Authority { certificate, roots, validity });
        }
        checked.map_err(|rule| self.invalid(rule))?;
        Ok(authorities)
    }

    /// Returns the certificates of the file, the first of which is valid at this time. Others may have expired: a chain
    /// often keeps an old root that its clients do not need.
    fn valid_certificates(&self, now: UnixTime) -> Result<Vec<CertificateDer<'static>>, InvalidFile> {
        let certificates = self.certificates()?;
        if let Some(first) = certificates.first() {
            let malformed = || self.invalid("certificate 1: its validity is malformed");
            let checked = Validity::of(first).ok_or_else(malformed)?.check(now);
            checked.map_err(|rule| self.invalid(format!("certificate 1 {rule}")))?;
        }
        Ok(certificates)
    }

    /// Returns the first private key of the file: PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    /// The file cannot be read, is not PEM, or has no private key.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, InvalidFile> {
        PrivateKeyDer::from_pem_slice(self.contents()?).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                self.invalid("has no private key; must be PEM with a PRIVATE KEY block that is not encrypted")
            }
            error => self.malformed(&error),
        })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// The file cannot be read or is too large.
    pub fn contents(&self) -> Result<&[u8], InvalidFile> {
        self.contents.as_deref().map_err(|rule| self.invalid(rule.as_str()))
    }

    fn malformed(&self, error: &pem::Error) -> InvalidFile {
        let what = match error {
            pem::Error::MissingSectionEnd { .. } => "a block has no END line",
            pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
            _ => "a block is not base64",
        };
        self.invalid(format!("is not valid PEM: {what}"))
    }

    /// Returns the error of a file that breaks a rule.
    pub fn invalid(&self, rule: impl Into<String>) -> InvalidFile {
        InvalidFile { path: self.path.clone(), rule: rule.into() }
    }
}

/// A certificate authority.
#[derive(Debug, Clone)]
pub struct Authority {
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
    /// The certificate as the only trusted one.
    pub roots: RootCertStore,
    /// The period in which it is valid; all times if it is unknown. The verification of a certificate that it signed does not
    /// check it.
    pub validity: Validity,
}

/// Returns the certificate chain in `certificate`, its owner's first, with its private key in `key`.
///
/// # Errors
/// A file is invalid, the first certificate is not valid at this time, the kind of key is not supported, or the key does not
/// belong to the first certificate.
pub fn certified_key(
    certificate: &PemFile,
    key: &PemFile,
    provider: &CryptoProvider,
    now: UnixTime,
) -> Result<CertifiedKey, InvalidFile> {
    let signing = provider.key_provider.load_private_key(key.private_key()?).map_err(|_| {
        key.invalid(
            "cannot be used; must be a key of RSA (2048 to 4096 bits), ECDSA (P-256, P-384) or Ed25519",
        )
    })?;
    let certified = CertifiedKey::new(certificate.valid_certificates(now)?, signing);
    match certified.keys_match() {
        // Some keys do not reveal their public part, so they cannot be checked.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => {
            let path = certificate.path.display();
            Err(key.invalid(format!("does not belong to the first certificate in {path}")))
        }
        Err(error) => Err(certificate.invalid(format!("certificate 1: {error}"))),
    }
}

/// Returns the cryptography of all connections: ring's.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests;
