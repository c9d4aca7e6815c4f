//! TLS certificates of a test, signed by a CA of the test.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its private key, in PEM format.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Creates a CA with a name.
    pub fn new(name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        Self(issuer.expect("a CA"))
    }

    /// Returns the CA's certificate in PEM format.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Writes the CA's certificate to a file and returns its path.
    pub fn write(&self, file: &Path) -> PathBuf {
        std::fs::write(file, self.certificate()).expect("a file");
        file.to_owned()
    }

    /// Creates a certificate for 127.0.0.1, valid until the year 4096.
    pub fn issue(&self, name: &str) -> Identity {
        self.issue_until(name, 4096)
    }

    /// Creates a certificate for 127.0.0.1, valid until the beginning of a year.
    pub fn issue_until(&self, name: &str, year: i32) -> Identity {
        let mut params = params(name, &["127.0.0.1"]);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Identity {
    /// Writes `NAME.pem` and `NAME.key` into a folder, and returns their paths.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        std::fs::write(&certificate, &self.certificate).expect("a file");
        std::fs::write(&key, &self.key).expect("a file");
        (certificate, key)
    }
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("valid host names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
