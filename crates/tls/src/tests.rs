use std::fs;

use evenstep_tests::certificates::Authority;

use super::*;

/// A file with these contents.
fn file(contents: impl AsRef<[u8]>) -> (tempfile::NamedTempFile, PemFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), contents).unwrap();
    let read = PemFile::read(file.path());
    (file, read)
}

/// Checks that an error names the file and the rule, and nothing of the contents.
fn names<T: fmt::Debug>(result: Result<T, InvalidFile>, file: &tempfile::NamedTempFile, rule: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: ", file.path().display())) && error.contains(rule), "{error}");
    assert!(!error.contains("MIG") && !error.contains("secret"), "{error}");
}

#[test]
fn a_chain_and_its_key_are_read() {
    let authority = Authority::new("ca");
    let identity = authority.issue("server");
    // Text and other blocks between are ignored.
    let chain = format!("the chain\n{}\n{}", identity.certificate, authority.certificate());
    let (_a, certificate) = file(chain);
    let (_b, key) = file(format!("{}{}", identity.certificate, identity.key));
    assert_eq!(certified_key(&certificate, &key, &provider()).unwrap().cert.len(), 2);
    assert_eq!(file(authority.certificate()).1.authorities().unwrap().len(), 1);
}

#[test]
fn errors_name_the_file_and_the_rule() {
    let authority = Authority::new("ca");
    let [one, other] = ["one", "other"].map(|name| authority.issue(name));
    let (_file, certificate) = file(&one.certificate);

    let (path, key) = file(&other.key);
    names(
        certified_key(&certificate, &key, &provider()),
        &path,
        "does not belong to the first certificate in",
    );
    let (path, key) = file(&one.certificate);
    names(certified_key(&certificate, &key, &provider()), &path, "has no private key");
    let locked = one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let (path, key) = file(locked);
    names(certified_key(&certificate, &key, &provider()), &path, "not encrypted");
    let (path, key) = file("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n");
    names(certified_key(&certificate, &key, &provider()), &path, "must be a key of RSA");

    for (contents, rule) in [
        (one.key.as_str(), "has no certificate"),
        ("", "has no certificate"),
        ("-----BEGIN CERTIFICATE-----\nsecret", "has no END line"),
        ("-----BEGIN CERTIFICATE-----\n{secret}\n-----END CERTIFICATE-----\n", "not base64"),
        ("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n", "certificate 1: "),
    ] {
        let (path, certificate) = file(contents);
        names(certificate.certificates(), &path, rule);
        names(certificate.authorities(), &path, rule);
    }
    let (path, large) = file(vec![b'#'; 1 << 21]);
    names(large.certificates(), &path, "exceeds the limit of 1048576 bytes");
    let (path, _) = file("");
    fs::remove_file(path.path()).unwrap();
    names(PemFile::read(path.path()).certificates(), &path, "cannot be read: No such file");
}

#[test]
fn files_are_equal_by_contents() {
    let (path, before) = file("one");
    assert_eq!(PemFile::read(path.path()), before);
    fs::write(path.path(), "two").unwrap();
    assert_ne!(PemFile::read(path.path()), before);
    assert!(!format!("{before:?}").contains("one"), "contents may be a private key");
}
