//! Options of TLS between a run and its predictors.

use std::path::PathBuf;

use clap::Args;
use evenstep_client::{ClientTls, ClientTlsFiles, InvalidFile, TokenSource};

/// TLS options, for predictors with https://.
#[derive(Debug, Clone, Args)]
pub struct ClientTlsOptions {
    /// CAs (PEM) to trust for predictors with https:// [default: public CAs]
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CA")]
    pub ca: Option<PathBuf>,
    /// Client certificate chain (PEM), for predictors with --tls-client-ca
    #[arg(long, value_name = "FILE", requires = "client_key", env = "EVENSTEP_CLIENT_CERT")]
    pub client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, value_name = "FILE", requires = "client_cert", env = "EVENSTEP_CLIENT_KEY")]
    pub client_key: Option<PathBuf>,
}

impl ClientTlsOptions {
    /// Reads the files, and the token that `EVENSTEP_TOKEN` or `EVENSTEP_TOKEN_FILE` names.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn load(&self) -> Result<ClientTls, InvalidFile> {
        ClientTls::load(ClientTlsFiles {
            ca: self.ca.clone(),
            certificate: self.client_cert.clone(),
            key: self.client_key.clone(),
            token: TokenSource::of_environment(|name| std::env::var_os(name))?,
        })
    }
}
