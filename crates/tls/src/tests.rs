use std::fs;
use std::time::Duration;

use evenstep_tests::certificates::Authority;

use super::*;

/// A certificate of X.509 v1, of OpenSSL's `req -new` and `x509 -req -signkey`.
const V1: &str = include_str!("v1.pem");

/// 2027-01-15 08:00:00 UTC.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000))
}

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
    assert_eq!(certified_key(&certificate, &key, &provider(), now()).unwrap().cert.len(), 2);
    assert_eq!(file(authority.certificate()).1.authorities(now()).unwrap().len(), 1);
}

#[test]
fn errors_name_the_file_and_the_rule() {
    let authority = Authority::new("ca");
    let [one, other] = ["one", "other"].map(|name| authority.issue(name));
    let (_file, certificate) = file(&one.certificate);

    let (path, key) = file(&other.key);
    names(
        certified_key(&certificate, &key, &provider(), now()),
        &path,
        "does not belong to the first certificate in",
    );
    let (path, key) = file(&one.certificate);
    names(certified_key(&certificate, &key, &provider(), now()), &path, "has no private key");
    let locked = one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let (path, key) = file(locked);
    names(certified_key(&certificate, &key, &provider(), now()), &path, "not encrypted");
    let (path, key) = file("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n");
    names(certified_key(&certificate, &key, &provider(), now()), &path, "must be a key of RSA");

    for (contents, rule) in [
        (one.key.as_str(), "has no certificate"),
        ("", "has no certificate"),
        ("-----BEGIN CERTIFICATE-----\nsecret", "has no END line"),
        ("-----BEGIN CERTIFICATE-----\n{secret}\n-----END CERTIFICATE-----\n", "not base64"),
        ("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n", "certificate 1: "),
    ] {
        let (path, certificate) = file(contents);
        names(certificate.certificates(), &path, rule);
        names(certificate.authorities(now()), &path, rule);
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (path, kind) in [(folder.path(), "is a directory"), (&fifo, "is a pipe or a device")] {
        let error = PemFile::read(path).certificates().unwrap_err().rule;
        assert_eq!(error, format!("{kind}; must be a regular file"));
    }
    let (path, large) = file(vec![b'#'; 1 << 21]);
    names(large.certificates(), &path, "exceeds the limit of 1048576 bytes");
    let (path, _) = file("");
    fs::remove_file(path.path()).unwrap();
    names(PemFile::read(path.path()).certificates(), &path, "cannot be read: No such file");
}

/// The seconds of the expected texts come from `date -u -d 2020-01-01 +%s`.
#[test]
fn certificates_are_valid_between_two_times() {
    let authority = Authority::new("ca");
    let at = |unix_s| UnixTime::since_unix_epoch(Duration::from_secs(unix_s));
    let own = authority.issue_within("server", [2020, 2030]);
    let (path, certificate) = file(&own.certificate);
    let (_file, key) = file(&own.key);
    let used = |unix_s| certified_key(&certificate, &key, &provider(), at(unix_s));
    assert!(used(1_577_836_800).is_ok() && used(1_893_456_000).is_ok());
    names(used(1_893_456_001), &path, "certificate 1 expired at 2030-01-01T00:00:00Z; renew it");
    let early = "certificate 1 is not valid before 2020-01-01T00:00:00Z, and it is 2019-12-31T23:59:59Z now";
    names(used(1_577_836_799), &path, early);
    let chain = format!("{}{}", own.certificate, Authority::new_within("old", [2000, 2025]).certificate());
    let (_file, chain) = file(chain);
    let sent = certified_key(&chain, &key, &provider(), now()).unwrap().cert;
    assert_eq!(sent.len(), 2, "only the first certificate must be valid");

    // A list of CAs may have some that are not valid.
    let [old, new] =
        [[2000, 2025], [2040, 2050]].map(|years| Authority::new_within("a", years).certificate());
    let (_file, all) = file(format!("{old}{new}{}", authority.certificate()));
    let valid =
        all.authorities(now()).unwrap().iter().map(|ca| ca.validity.contains(now())).collect::<Vec<_>>();
    assert_eq!(valid, [false, false, true]);
    let (path, none) = file(format!("{new}{old}"));
    names(none.authorities(now()), &path, "certificate 2 expired at 2025-01-01T00:00:00Z; renew it");
}

/// rustls cannot tell the period of an X.509 v1 certificate. It accepts one for a CA, but not for a server.
#[test]
fn the_period_of_an_old_authority_is_unknown() {
    let (path, old) = file(V1);
    let all = old.authorities(now()).unwrap();
    assert_eq!(all.iter().map(|ca| ca.validity).collect::<Vec<_>>(), [Validity::ALWAYS]);
    names(old.certificates(), &path, "certificate 1: ");
    let (_file, both) = file(format!("{V1}{}", Authority::new_within("a", [2000, 2025]).certificate()));
    let valid = both.authorities(now()).unwrap();
    assert_eq!(valid.iter().map(|ca| ca.validity.contains(now())).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn files_are_equal_by_contents() {
    let (path, before) = file("one");
    assert_eq!(PemFile::read(path.path()), before);
    fs::write(path.path(), "two").unwrap();
    assert_ne!(PemFile::read(path.path()), before);
    assert!(!format!("{before:?}").contains("one"), "contents may be a private key");
}
