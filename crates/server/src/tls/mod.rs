//! TLS of a server, with files that are read again when they change.

mod accept;
mod authorities;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenstep_tls::{InvalidFile, PemFile, Validity, certified_key, provider};
use rustls::pki_types::UnixTime;
use rustls::sign::SingleCertAndKey;
use rustls::{ALL_VERSIONS, ServerConfig};
use tokio::time::MissedTickBehavior;

use self::authorities::ValidAuthorities;
use crate::reading::{HANGS_AFTER, read_files};

/// Interval at which the files are read.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Files of a server's TLS, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// Private key of that certificate, not encrypted.
    pub key: PathBuf,
    /// CAs of client certificates. If set, clients without a certificate of one of them cannot connect.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the files that the options `--tls-cert`, `--tls-key` and `--tls-client-ca` name; `None` without any.
    ///
    /// # Errors
    /// The option that requires another one.
    pub fn of_options(
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> Result<Option<Self>, String> {
        let lacks = |option: &str, file: PathBuf, other: &str| {
            Err(format!("{option} {}: requires {other}", file.display()))
        };
        match (certificate, key, client_ca) {
            (Some(certificate), Some(key), client_ca) => Ok(Some(Self { certificate, key, client_ca })),
            (Some(file), None, _) => lacks("--tls-cert", file, "--tls-key"),
            (None, Some(file), _) => lacks("--tls-key", file, "--tls-cert"),
            (None, None, Some(file)) => lacks("--tls-client-ca", file, "--tls-cert and --tls-key"),
            (None, None, None) => Ok(None),
        }
    }
}

/// TLS 1.2 and 1.3 of a server. New connections use the newest valid contents of the files; open connections keep what
/// they began with. Clones share their state.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: TlsFiles,
    read_every: Duration,
    current: Mutex<Current>,
    /// The contents that were read last, and why they cannot be used.
    seen: Mutex<(Contents, Option<InvalidFile>)>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    failed_handshakes: AtomicU64,
}

/// Configuration of new connections.
#[derive(Debug, Clone)]
struct Current {
    config: Arc<ServerConfig>,
    expires_unix_s: Option<u64>,
}

/// Counts since the start, and the certificate in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsStatus {
    /// Number of times that changed files were put to use.
    pub reloads: u64,
    /// Number of times that changed files were invalid, so that the previous ones stayed in use.
    pub failed_reloads: u64,
    /// Number of connections without a successful handshake.
    pub failed_handshakes: u64,
    /// End of the validity of the server's certificate, in seconds since 1970.
    pub expires_unix_s: Option<u64>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn load(files: TlsFiles) -> Result<Self, InvalidFile> {
        Self::load_every(files, READ_EVERY)
    }

    /// Reads the files, and again at this interval while the server runs.
    pub(crate) fn load_every(files: TlsFiles, read_every: Duration) -> Result<Self, InvalidFile> {
        let contents = Contents::read(&files);
        let current = Mutex::new(contents.prepare(UnixTime::now())?);
        let [reloads, failed_reloads, failed_handshakes] = Default::default();
        let seen = Mutex::new((contents, None));
        Ok(Self(Arc::new(Shared {
            files,
            read_every,
            current,
            seen,
            reloads,
            failed_reloads,
            failed_handshakes,
        })))
    }

    /// Returns the counts and the expiry of the certificate.
    pub fn status(&self) -> TlsStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TlsStatus {
            reloads: count(&self.0.reloads),
            failed_reloads: count(&self.0.failed_reloads),
            failed_handshakes: count(&self.0.failed_handshakes),
            expires_unix_s: lock(&self.0.current).expires_unix_s,
        }
    }

    fn config(&self) -> Arc<ServerConfig> {
        lock(&self.0.current).config.clone()
    }

    /// Reads the files again and again, and puts valid changes to use.
    pub(crate) async fn watch(&self) -> Infallible {
        let mut tick = tokio::time::interval(self.0.read_every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let tls = self.clone();
            // A key takes milliseconds to check.
            if let Err(error) = read_files(move || tls.reload(), HANGS_AFTER, || self.hangs()).await {
                tracing::error!(%error, "reading the TLS files failed");
            }
        }
    }

    /// Reports a reading that does not end.
    fn hangs(&self) {
        self.0.failed_reloads.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            certificate = %self.0.files.certificate.display(),
            "reading the TLS files hangs, as on a file system that does not respond; those in use stay until it ends"
        );
    }

    pub(crate) fn reload(&self) {
        let contents = Contents::read(&self.0.files);
        let mut seen = lock(&self.0.seen);
        let (before, failure) = &*seen;
        let is_new = *before != contents;
        // Files that are being replaced differ between two readings. The next reading has all of them. Files that cannot be used
        // may become valid with time.
        if (!is_new && failure.is_none()) || contents != Contents::read(&self.0.files) {
            return;
        }
        let failure = match contents.prepare(UnixTime::now()) {
            Ok(current) => {
                *lock(&self.0.current) = current;
                self.0.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(certificate = %self.0.files.certificate.display(), "new TLS files are in use");
                None
            }
            Err(error) => {
                if is_new {
                    self.0.failed_reloads.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "new TLS files cannot be used; the previous ones stay in use");
                }
                Some(error)
            }
        };
        *seen = (contents, failure);
    }
}

/// The contents of all files.
#[derive(Debug, PartialEq)]
struct Contents {
    certificate: PemFile,
    key: PemFile,
    client_ca: Option<PemFile>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Self {
        Self {
            certificate: PemFile::read(&files.certificate),
            key: PemFile::read(&files.key),
            client_ca: files.client_ca.as_deref().map(PemFile::read),
        }
    }

    fn prepare(&self, now: UnixTime) -> Result<Current, InvalidFile> {
        let provider = provider();
        let certified = certified_key(&self.certificate, &self.key, &provider, now)?;
        let validity = certified.cert.first().and_then(Validity::of);
        let expires_unix_s = validity.map(|validity| validity.until_unix_s);
        let invalid = |file: &PemFile, error: &dyn std::error::Error| file.invalid(error.to_string());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(ALL_VERSIONS)
            .map_err(|error| invalid(&self.certificate, &error))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let authorities = ValidAuthorities::of(file, &provider, now)?;
                let invalid = authorities.invalid_at(now);
                if invalid > 0 {
                    let file = file.path().display();
                    tracing::warn!(%file, invalid, "some client CAs are not valid now; their clients cannot connect");
                }
                config.with_client_cert_verifier(Arc::new(authorities))
            }
        };
        let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Current { config: Arc::new(config), expires_unix_s })
    }
}

/// Every change leaves the value valid, so a panic of another thread does no harm.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
