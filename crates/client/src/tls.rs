//! TLS and token of a client: the CAs that it trusts, its own certificate, and its token.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use evenstep_tls::{InvalidFile, PemFile, certified_key, provider};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};
use ureq::http::HeaderValue;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::token::TokenSource;

/// Files of a client's TLS, in PEM format, and the place of its token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// CAs that the client trusts, and no others. Default: Mozilla's list of public CAs.
    pub ca: Option<PathBuf>,
    /// The client's certificate chain, its own certificate first, for servers that require one.
    pub certificate: Option<PathBuf>,
    /// Private key of that certificate, not encrypted.
    pub key: Option<PathBuf>,
    /// The token, for predictors that require one.
    pub token: Option<TokenSource>,
}

/// TLS of a client, for URLs with `https://`, and its token. The default trusts public CAs, and has no certificate and no
/// token.
#[derive(Clone, Default)]
pub struct ClientTls(Arc<Loaded>);

#[derive(Clone, Default)]
struct Loaded {
    files: ClientTlsFiles,
    /// Their contents, in the order of the fields.
    contents: [Option<PemFile>; 3],
    config: TlsConfig,
    /// The token as a request header.
    authorization: Option<HeaderValue>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used and why, or the one that is missing: a certificate requires its key.
    pub fn load(files: ClientTlsFiles) -> Result<Self, InvalidFile> {
        let now = UnixTime::now();
        let contents =
            [&files.ca, &files.certificate, &files.key].map(|file| file.as_deref().map(PemFile::read));
        let [ca, certificate, key] = &contents;
        let roots = match ca {
            None => RootCerts::WebPki,
            Some(ca) => {
                let authorities = ca.authorities(now)?;
                let valid = authorities.iter().filter(|authority| authority.validity.contains(now));
                RootCerts::from(valid.map(|valid| Certificate::from_der(&valid.certificate).to_owned()))
            }
        };
        let own = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(identity(certificate, key, now)?),
            (Some(certificate), None) => {
                return Err(certificate.invalid("a client certificate requires its private key"));
            }
            (None, Some(key)) => return Err(key.invalid("a client key requires its certificate")),
        };
        let config = TlsConfig::builder().root_certs(roots).client_cert(own);
        let config = config.unversioned_rustls_crypto_provider(provider()).build();
        let authorization = files.token.as_ref().map(authorization).transpose()?;
        Ok(Self(Arc::new(Loaded { files, contents, config, authorization })))
    }

    /// Returns the configuration of an [`ureq::Agent`].
    pub fn config(&self) -> TlsConfig {
        self.0.config.clone()
    }

    /// Returns the `authorization` header of requests, if the client has a token.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.0.authorization.as_ref()
    }

    /// Describes why a request failed. For an error of TLS, names the file in use and what to do.
    pub fn explain(&self, error: &ureq::Error) -> String {
        let Some(tls) = tls_error(error) else {
            return match error {
                ureq::Error::Io(error) => error.to_string(),
                other => other.to_string(),
            };
        };
        let own = self.0.files.certificate.as_ref().map(|file| file.display());
        match (tls, own) {
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), _) => {
                let trusted = self.0.files.ca.as_ref().map_or_else(
                    || "of the public CAs".to_owned(),
                    |ca| format!("of the CAs in {}", ca.display()),
                );
                format!(
                    "the server's certificate is signed by none {trusted}; set --ca or EVENSTEP_CA to the CA that signed it"
                )
            }
            (Error::InvalidCertificate(error), _) => {
                format!("the server's certificate cannot be used: {error}")
            }
            (Error::AlertReceived(AlertDescription::CertificateRequired), None) => {
                "the server requires a client certificate; set --client-cert and --client-key, or EVENSTEP_CLIENT_CERT and EVENSTEP_CLIENT_KEY".to_owned()
            }
            (Error::AlertReceived(alert), Some(own)) => {
                format!("the server rejected the client certificate in {own}: {alert:?}; use one of its client CA")
            }
            (Error::InvalidMessage(_), _) => {
                "the server does not use TLS at this port; use http:// in the URL, or start it with --tls-cert".to_owned()
            }
            (error, _) => format!("TLS: {error}"),
        }
    }

    /// Reads the files again after an error of TLS. Returns what changed, if it is valid: certificates are replaced
    /// before they expire, while clients run for months.
    pub(crate) fn renewed(&self, error: &ureq::Error) -> Option<Self> {
        tls_error(error)?;
        let renewed = Self::load(self.0.files.clone()).ok()?;
        (renewed.0.contents != self.0.contents).then_some(renewed)
    }
}

impl ClientTls {
    /// Reads the file of the token again after the predictor rejected the token. Returns what changed, if it is valid:
    /// tokens are replaced while clients run for months.
    pub(crate) fn with_renewed_token(&self) -> Option<Self> {
        let authorization = Some(authorization(self.0.files.token.as_ref()?).ok()?);
        (authorization != self.0.authorization)
            .then(|| Self(Arc::new(Loaded { authorization, ..(*self.0).clone() })))
    }
}

/// The output has no token.
impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientTls").field(&self.0.files).finish()
    }
}

fn authorization(token: &TokenSource) -> Result<HeaderValue, InvalidFile> {
    let token = token.read()?;
    // A token is printable ASCII, so this does not fail.
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.unwrap_or(HeaderValue::from_static(""));
    header.set_sensitive(true);
    Ok(header)
}

fn identity(certificate: &PemFile, key: &PemFile, now: UnixTime) -> Result<ClientCert, InvalidFile> {
    let chain = certified_key(certificate, key, &provider(), now)?.cert;
    let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let own = PrivateKey::from_pem(key.contents()?).map_err(|error| key.invalid(error.to_string()))?;
    Ok(ClientCert::new_with_certs(&chain, own))
}

/// Returns the error of TLS that made a request fail, if it was one.
fn tls_error(error: &ureq::Error) -> Option<&Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}
