//! TLS of a server, with files that are read again when they change.

mod accept;
mod expiry;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenstep_tls::{InvalidFile, PemFile, certified_key, provider};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{ALL_VERSIONS, ServerConfig};
use tokio::time::MissedTickBehavior;

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
    /// The contents that were read last, valid or not.
    seen: Mutex<Contents>,
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
        let current = Mutex::new(contents.prepare()?);
        let [reloads, failed_reloads, failed_handshakes] = Default::default();
        let seen = Mutex::new(contents);
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
            // A file system may hang, and a key takes milliseconds to check.
            if let Err(error) = tokio::task::spawn_blocking(move || tls.reload()).await {
                tracing::error!(%error, "reading the TLS files failed");
            }
        }
    }

    pub(crate) fn reload(&self) {
        let contents = Contents::read(&self.0.files);
        let mut seen = lock(&self.0.seen);
        // Files that are being replaced differ between two readings. The next reading has all of them.
        if *seen == contents || contents != Contents::read(&self.0.files) {
            return;
        }
        match contents.prepare() {
            Ok(current) => {
                *lock(&self.0.current) = current;
                self.0.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(certificate = %self.0.files.certificate.display(), "new TLS files are in use");
            }
            Err(error) => {
                self.0.failed_reloads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "new TLS files cannot be used; the previous ones stay in use");
            }
        }
        *seen = contents;
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

    fn prepare(&self) -> Result<Current, InvalidFile> {
        let provider = provider();
        let certified = certified_key(&self.certificate, &self.key, &provider)?;
        let expires_unix_s = certified.cert.first().and_then(expiry::expires_unix_s);
        let invalid = |file: &PemFile, error: &dyn std::error::Error| file.invalid(error.to_string());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(ALL_VERSIONS)
            .map_err(|error| invalid(&self.certificate, &error))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(file.authorities()?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                config.with_client_cert_verifier(verifier.map_err(|error| invalid(file, &error))?)
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
