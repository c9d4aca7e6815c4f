//! TLS with real certificates and sockets.

use std::io::ErrorKind;
use std::path::Path;

use evenstep_tests::certificates::{Authority, Identity};
use evenstep_tests::wait::until;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use tempfile::TempDir;

use super::*;
use crate::{Tls, TlsFiles, read_files};

/// Shorter than the other durations of the tests, so that new files are noticed soon.
const READ_EVERY: Duration = Duration::from_millis(10);

type Client = StreamOwned<ClientConnection, TcpStream>;

/// Certificates of a test and a server that uses them.
struct World {
    folder: TempDir,
    authority: Authority,
    tls: Tls,
    server: Server,
}

impl World {
    fn start(limits: Limits) -> Self {
        Self::start_with(limits, false)
    }

    fn start_with(limits: Limits, requires_client: bool) -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("ca"));
        let (certificate, key) = authority.issue("first").write(folder.path(), "server");
        let client_ca = requires_client.then(|| authority.write(&folder.path().join("ca.pem")));
        let tls = Tls::load_every(TlsFiles { certificate, key, client_ca }, READ_EVERY).unwrap();
        let server = Server::start_with(limits, Some(tls.clone()));
        Self { folder, authority, tls, server }
    }

    fn replace(&self, identity: &Identity) {
        identity.write(self.folder.path(), "server");
    }

    fn connect(&self) -> Client {
        self.connect_as(None, &[&TLS13, &TLS12])
    }

    fn connect_as(&self, own: Option<&Identity>, versions: &[&'static SupportedProtocolVersion]) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(der(&self.authority.certificate())).unwrap();
        let config = ClientConfig::builder_with_provider(evenstep_tls::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![der(&own.certificate)], key).unwrap()
            }
        };
        let name = "127.0.0.1".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(connection, TcpStream::connect(self.server.address).unwrap())
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn served(client: &Client) -> CertificateDer<'static> {
    client.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

/// The error of a request.
fn refused(mut client: Client) -> String {
    let asked = client.write_all(REQUEST.as_bytes()).and_then(|()| client.read(&mut [0; 512]));
    asked.unwrap_err().to_string()
}

#[test]
fn clients_use_version_1_2_or_1_3() {
    let world = World::start(limits(8));
    for version in [&TLS12, &TLS13] {
        let mut client = world.connect_as(None, &[version]);
        assert!(ask(&mut client).starts_with("HTTP/1.1 200"));
        assert!(ask(&mut client).starts_with("HTTP/1.1 200"), "the connection is kept");
        assert_eq!(client.conn.protocol_version(), Some(version.version));
    }
    // A fatal alert: protocol_version.
    assert_eq!(answer_to_hello(&world.server, [3, 2]), [0x15, 3, 3, 0, 2, 2, 70]);
    assert_eq!(answer_to_hello(&world.server, [3, 3])[0], 0x16, "the same client with TLS 1.2");
    until("the failure is counted", || (world.tls.status().failed_handshakes == 2).then_some(()));
    world.server.stop();
}

/// The beginning of the response to the hello of a client that knows no version after this one (RFC 5246, section
/// 7.4.1.2), with one cipher suite, group and signature algorithm.
fn answer_to_hello(server: &Server, version: [u8; 2]) -> [u8; 7] {
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 11, 0, 2, 1, 0, 0, 13, 0, 4, 0, 2, 4, 3];
    let body = [&version[..], &[7; 32], &[0, 0, 2, 0xc0, 0x2b, 1, 0, 0, 22], &extensions].concat();
    let hello = [&[0x16, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8], &body[..]].concat();
    let mut client = TcpStream::connect(server.address).unwrap();
    client.write_all(&hello).unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn a_request_without_tls_gets_an_explanation() {
    let world = World::start(limits(8));
    // Sent to the end although the server does not read it: a reset connection would discard the explanation.
    let body = "x".repeat(8 << 20);
    let mut plain =
        world.server.send(&format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    assert!(problem["detail"].as_str().unwrap().contains("https://"), "{problem}");
    world.server.stop();
}

#[test]
fn clients_need_a_certificate_of_the_ca() {
    let world = World::start_with(limits(8), true);
    let own = world.authority.issue("client");
    let stranger = Authority::new("other").issue("client");
    for version in [&TLS12, &TLS13] {
        let client = |identity| world.connect_as(identity, &[version]);
        assert!(ask(&mut client(Some(&own))).starts_with("HTTP/1.1 200"));
        let said = refused(client(None));
        assert!(said.contains("CertificateRequired"), "{said}");
        let said = refused(client(Some(&stranger)));
        assert!(said.contains("UnknownCA"), "{said}");
    }
    until("all failures are counted", || (world.tls.status().failed_handshakes == 4).then_some(()));
    world.server.stop();
}

#[test]
fn new_connections_use_new_files_and_open_ones_go_on() {
    let world = World::start(limits(8));
    let (mut kept, mut slow) = (world.connect(), world.connect());
    ask(&mut kept);
    slow.write_all(SLOW_REQUEST.as_bytes()).unwrap();
    world.server.runtime.block_on(world.server.begun.notified());
    let second = world.authority.issue_within("second", [2000, 2222]);
    world.replace(&second);
    until("new connections use the new certificate", || {
        let mut client = world.connect();
        ask(&mut client);
        (served(&client) == der(&second.certificate)).then_some(())
    });
    assert_eq!((world.tls.status().reloads, world.tls.status().failed_reloads), (1, 0));
    assert_eq!(world.tls.status().expires_unix_s, Some(7_952_342_400), "2222-01-01");
    assert!(ask(&mut kept).starts_with("HTTP/1.1 200"), "the connection is kept");
    assert_ne!(served(&kept), der(&second.certificate));
    world.server.go_on.add_permits(1);
    let mut response = [0; 12];
    slow.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 200", "the request in flight is served");
    world.server.stop();
}

#[test]
fn invalid_new_files_leave_the_previous_ones_in_use() {
    let world = World::start(limits(8));
    let mut before = world.connect();
    ask(&mut before);
    let key = world.folder.path().join("server.key");
    let failed = |count| {
        until("the files are read", || (world.tls.status().failed_reloads == count).then_some(()));
        // The same contents are reported once.
        world.tls.reload();
        assert_eq!((world.tls.status().reloads, world.tls.status().failed_reloads), (0, count));
        let mut client = world.connect();
        ask(&mut client);
        assert_eq!(served(&client), served(&before));
    };
    std::fs::write(&key, world.authority.issue("other").key).unwrap();
    failed(1);
    std::fs::remove_file(&key).unwrap();
    failed(2);
    world.replace(&world.authority.issue("second"));
    until("valid files are used again", || (world.tls.status().reloads == 1).then_some(()));
    world.server.stop();
}

#[test]
fn no_kind_of_invalid_file_is_put_to_use() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("ca"));
    let [valid, other] = ["valid", "other"].map(|name| authority.issue(name));
    let [old, later] = [[1980, 2020], [3000, 4000]].map(|years| authority.issue_within("invalid", years));
    let old_ca = Authority::new_within("old", [1980, 2020]).certificate();
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let (certificate, key) = valid.write(folder.path(), "server");
    let ca = authority.write(&folder.path().join("ca.pem"));
    let files = TlsFiles { certificate: certificate.clone(), key: key.clone(), client_ca: Some(ca.clone()) };
    let tls = Tls::load(files).unwrap();
    let mut failed = 0;
    // A valid pair, so that only the time is wrong.
    for (invalid, own_key) in [(&old, &old.key), (&later, &later.key), (&other, &valid.key)] {
        std::fs::write(&key, own_key).unwrap();
        std::fs::write(&certificate, &invalid.certificate).unwrap();
        failed += 1;
        (0..3).for_each(|_| tls.reload());
        assert_eq!((tls.status().reloads, tls.status().failed_reloads), (0, failed), "reported once");
    }
    valid.write(folder.path(), "server");
    for file in [&certificate, &key, &ca] {
        let before = std::fs::read_to_string(file).unwrap();
        let empty = Some(String::new());
        for contents in [empty, Some(half(&before)), Some(old_ca.clone()), None] {
            match contents {
                Some(contents) => std::fs::write(file, contents).unwrap(),
                None => {
                    std::fs::remove_file(file).unwrap();
                    std::fs::create_dir(file).unwrap();
                }
            }
            failed += 1;
            (0..3).for_each(|_| tls.reload());
            assert_eq!(
                (tls.status().reloads, tls.status().failed_reloads),
                (0, failed),
                "{}",
                file.display()
            );
        }
        std::fs::remove_dir(file).unwrap();
        failed += 1;
        tls.reload();
        std::fs::write(file, before).unwrap();
    }
    tls.reload();
    assert_eq!((tls.status().reloads, tls.status().failed_reloads), (1, failed), "valid again");
}

#[test]
fn expired_files_are_an_error_at_the_start() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("ca"));
    let old = Authority::new_within("old", [1980, 2020]);
    let load = |identity: &Identity, client_ca: &Authority| {
        let (certificate, key) = identity.write(folder.path(), "server");
        let client_ca = Some(client_ca.write(&folder.path().join("ca.pem")));
        Tls::load(TlsFiles { certificate, key, client_ca }).map(drop).map_err(|error| error.to_string())
    };
    let (valid, expired) = (authority.issue("valid"), authority.issue_within("expired", [1980, 2020]));
    load(&valid, &authority).unwrap();
    for (error, file) in [(load(&expired, &authority), "server.pem"), (load(&valid, &old), "ca.pem")] {
        let expected = format!("{file}: certificate 1 expired at 2020-01-01T00:00:00Z; renew it");
        assert!(error.as_ref().unwrap_err().ends_with(&expected), "{error:?}");
    }
}

#[test]
fn an_expired_ca_authenticates_no_client() {
    let world = World::start_with(limits(8), true);
    let old = Authority::new_within("old", [1980, 2020]);
    let [own, of_old] = [&world.authority, &old].map(|authority| authority.issue("client"));
    std::fs::write(
        world.folder.path().join("ca.pem"),
        format!("{}{}", old.certificate(), world.authority.certificate()),
    )
    .unwrap();
    until("the file is read", || (world.tls.status().reloads == 1).then_some(()));
    for version in [&TLS12, &TLS13] {
        assert!(ask(&mut world.connect_as(Some(&own), &[version])).starts_with("HTTP/1.1 200"));
        let said = refused(world.connect_as(Some(&of_old), &[version]));
        assert!(said.contains("CertificateExpired"), "{said}");
    }
    // Only expired CAs are an invalid file.
    old.write(&world.folder.path().join("ca.pem"));
    until("the file is read", || (world.tls.status().failed_reloads == 1).then_some(()));
    assert!(ask(&mut world.connect_as(Some(&own), &[&TLS13])).starts_with("HTTP/1.1 200"));
    world.server.stop();
}

#[test]
fn a_reading_that_hangs_is_reported_once_and_goes_on() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (go_on, wait) = std::sync::mpsc::channel();
    let mut hung = 0;
    let hangs = || {
        hung += 1;
        go_on.send(()).unwrap();
    };
    let read = runtime.block_on(read_files(move || wait.recv().map(|()| "contents"), READ_EVERY, hangs));
    assert_eq!((read.unwrap(), hung), (Ok("contents"), 1));
}

#[test]
fn a_folder_that_is_replaced_by_a_link_is_noticed() {
    // As Kubernetes replaces the files of a secret.
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("ca"));
    let link = |to: &Path| {
        let new = folder.path().join("new");
        std::os::unix::fs::symlink(to, &new).unwrap();
        std::fs::rename(&new, folder.path().join("data")).unwrap();
    };
    let [one, two] = ["one", "two"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        authority.issue(name).write(&folder, "tls");
        folder
    });
    link(&one);
    let file = |name: &str| folder.path().join("data").join(name);
    let files = TlsFiles { certificate: file("tls.pem"), key: file("tls.key"), client_ca: None };
    let tls = Tls::load(files).unwrap();
    tls.reload();
    assert_eq!(tls.status().reloads, 0);
    link(&two);
    tls.reload();
    assert_eq!(tls.status().reloads, 1);
}

#[test]
fn a_stalled_handshake_is_closed_and_an_idle_connection_is_not() {
    let world = World::start(Limits { headers: Duration::from_secs(3), ..limits(8) });
    let mut idle = world.connect();
    idle.conn.complete_io(&mut idle.sock).unwrap();
    // The deadline also holds for a client that sends nothing, or a part of its hello.
    let mut silent = TcpStream::connect(world.server.address).unwrap();
    let mut half = TcpStream::connect(world.server.address).unwrap();
    half.write_all(&[0x16, 3, 1, 0, 45, 1]).unwrap();
    assert!(is_closed(&mut silent) && is_closed(&mut half));
    // Its handshake was complete before theirs began, so those bytes did not count as headers of a request.
    assert!(ask(&mut idle).starts_with("HTTP/1.1 200"));
    world.server.stop();
}

#[test]
fn a_stalled_handshake_makes_room_and_does_not_delay_a_shutdown() {
    let world = World::start(limits(1));
    let mut stalled = TcpStream::connect(world.server.address).unwrap();
    ask(&mut world.connect());
    assert!(is_closed(&mut stalled));
    world.server.stop();
    let world = World::start(limits(1));
    let mut stalled = TcpStream::connect(world.server.address).unwrap();
    until("it is accepted", || (world.server.connections.open() == 1).then_some(()));
    world.server.stop();
    assert!(is_closed(&mut stalled));
}

#[test]
fn a_shutdown_waits_for_a_request_over_tls() {
    let world = World::start(limits(8));
    let mut slow = world.connect();
    slow.write_all(SLOW_REQUEST.as_bytes()).unwrap();
    world.server.runtime.block_on(world.server.begun.notified());
    let mut idle = world.connect();
    ask(&mut idle);
    let go_on = world.server.go_on.clone();
    let finishing = std::thread::spawn(move || {
        // Closed as a connection without TLS is: there is no alert before the end.
        let ended = idle.read(&mut [0; 1]).map_or_else(|error| error.kind(), |_| ErrorKind::UnexpectedEof);
        assert!(matches!(ended, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{ended:?}");
        go_on.add_permits(1);
        let mut response = String::new();
        slow.read_to_string(&mut response).unwrap();
        response
    });
    world.server.stop();
    let response = finishing.join().unwrap();
    assert!(response.ends_with("slow"), "{response}");
}
