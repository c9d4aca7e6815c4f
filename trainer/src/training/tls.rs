//! TLS and token of the connection between a run and its predictors, from the environment.

use std::path::PathBuf;

use evenstep_client::{ClientTls, ClientTlsFiles, InvalidFile, TokenSource};

/// Reads the files that `EVENSTEP_CA`, `EVENSTEP_CLIENT_CERT` and `EVENSTEP_CLIENT_KEY` name, and the token that
/// `EVENSTEP_TOKEN` or `EVENSTEP_TOKEN_FILE` names.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn client_tls() -> Result<ClientTls, InvalidFile> {
    let file = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    ClientTls::load(ClientTlsFiles {
        ca: file("EVENSTEP_CA"),
        certificate: file("EVENSTEP_CLIENT_CERT"),
        key: file("EVENSTEP_CLIENT_KEY"),
        token: TokenSource::of_environment(|name| std::env::var_os(name))?,
    })
}
