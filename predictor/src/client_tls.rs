//! Options of commands that connect to a predictor over TLS.

use std::path::PathBuf;

use evenstep_client::{ClientTls, ClientTlsFiles, TokenSource};

/// TLS options of a command, for servers with https://.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientTlsArgs {
    /// CAs (PEM) to trust for https:// [default: public CAs]
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CA")]
    ca: Option<PathBuf>,
    /// Client certificate chain (PEM), for predictors with --tls-client-ca
    #[arg(long, value_name = "FILE", requires = "client_key", env = "EVENSTEP_CLIENT_CERT")]
    client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, value_name = "FILE", requires = "client_cert", env = "EVENSTEP_CLIENT_KEY")]
    client_key: Option<PathBuf>,
}

impl ClientTlsArgs {
    /// Reads the files, and the token that `EVENSTEP_TOKEN` or `EVENSTEP_TOKEN_FILE` names.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn load(&self) -> anyhow::Result<ClientTls> {
        let files = ClientTlsFiles {
            ca: self.ca.clone(),
            certificate: self.client_cert.clone(),
            key: self.client_key.clone(),
            token: TokenSource::of_environment(|name| std::env::var_os(name))?,
        };
        Ok(ClientTls::load(files)?)
    }
}
