//! TLS in the configuration.

use evenstep_server::{Tls, TlsFiles};

use super::Config;

impl Config {
    /// Reads the TLS files, if any are configured.
    ///
    /// # Errors
    /// An option that requires another one, or a file that cannot be used.
    pub fn load_tls(&self) -> anyhow::Result<Option<Tls>> {
        let Self { tls_cert, tls_key, tls_client_ca, .. } = self;
        let files = TlsFiles::of_options(tls_cert.clone(), tls_key.clone(), tls_client_ca.clone());
        Ok(files.map_err(anyhow::Error::msg)?.map(Tls::load).transpose()?)
    }
}
