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
    /// Creates a CA with a name, valid until the year 4096.
    pub fn new(name: &str) -> Self {
        Self::new_within(name, [1975, 4096])
    }

    /// Creates a CA that is valid between the beginnings of two years.
    pub fn new_within(name: &str, years: [i32; 2]) -> Self {
        let mut params = params(name, &[], years);
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
        self.issue_within(name, [1975, 4096])
    }

    /// Creates a certificate for 127.0.0.1 that is valid between the beginnings of two years.
    pub fn issue_within(&self, name: &str, years: [i32; 2]) -> Identity {
        let params = params(name, &["127.0.0.1"], years);
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

fn params(name: &str, hosts: &[&str], [from, until]: [i32; 2]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("valid host names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    params
}
