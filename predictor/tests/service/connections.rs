//! Attacks on connections: whatever the bytes, the service returns an error or closes the connection, and other
//! connections are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use evenstep_protocol::JobSpec;
use evenstep_tests::binaries::skip;
use evenstep_tests::wait::until;

use crate::support::{Service, join_all, metric};

/// Number of idle connections.
const IDLE: usize = 2000;
/// Bytes after which an endless request must have been refused.
const ENDLESS_BYTES: usize = 64 << 20;
/// Longer than any healthy response takes.
const TIMEOUT: Duration = Duration::from_secs(300);

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends bytes, and returns all bytes that the service sends before it closes the connection. Another connection is served
/// meanwhile.
fn attack(service: &Service, bytes: &[u8]) -> String {
    let mut stream = connect(service);
    // The service may refuse the request before it has arrived.
    let _ = stream.write_all(bytes);
    assert_eq!(service.client.get("/healthz").status, 200);
    let mut answer = Vec::new();
    // The bytes that the service did not read may reset the connection after the response.
    let outcome = stream.read_to_end(&mut answer);
    assert!(outcome.is_ok_and(|_| true) || answer.len() < 4096, "the connection stays open");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Whether the service closed the connection, after an error or without a response.
fn is_refused(answer: &str, statuses: &[&str]) -> bool {
    answer.is_empty() || statuses.iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status}")))
}

fn statuses(answer: &str) -> Vec<&str> {
    answer.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect()
}

#[test]
fn heads_beyond_their_limits_are_refused() {
    let service = Service::start();
    let head = |headers: &str| {
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n")
    };
    assert_eq!(statuses(&attack(&service, head(&"x: y\r\n".repeat(90)).as_bytes())), ["200"]);
    for headers in [
        "x: y\r\n".repeat(101),
        format!("x: {}\r\n", "y".repeat(1 << 20)),
        format!("{}: y\r\n", "x".repeat(1 << 20)),
    ] {
        let answer = attack(&service, head(&headers).as_bytes());
        assert!(is_refused(&answer, &["400", "431"]), "{answer}");
    }
    let path = |length: usize| {
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "x".repeat(length))
    };
    assert_eq!(statuses(&attack(&service, path(60_000).as_bytes())), ["404"]);
    let answer = attack(&service, path(70_000).as_bytes());
    assert!(is_refused(&answer, &["414", "431"]), "{answer}");
}

#[test]
fn endless_headers_end_with_the_connection() {
    let service = Service::start();
    for line in ["x: y\r\n".repeat(1000), "y".repeat(6000)] {
        let mut stream = connect(&service);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ").unwrap();
        let sent =
            (0..ENDLESS_BYTES / line.len()).take_while(|_| stream.write_all(line.as_bytes()).is_ok()).count();
        assert!(sent < ENDLESS_BYTES / line.len(), "the service reads endlessly");
        assert_eq!(service.client.get("/healthz").status, 200);
    }
}

/// Each takes a place among the connections, and nothing else.
#[test]
fn idle_connections_block_nothing() {
    let limits = evenstep_server::Limits::of_process();
    if limits.per_address < IDLE + 100 {
        skip("connections::idle_connections_block_nothing", "the hard limit of open files is too low");
        return;
    }
    let service = Service::start();
    let idle: Vec<TcpStream> = (0..IDLE).map(|_| connect(&service)).collect();
    until("all connections are accepted", || {
        (metric(&service.client, "evenstep_http_connections") >= IDLE as f64).then_some(())
    });
    assert_eq!(service.client.put_job("job", &JobSpec::new(64)).global_batch, 64);
    // The first of them is still served.
    let mut first = &idle[0];
    first.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert_eq!(statuses(&answer), ["200"]);
    drop(idle);
    until("the closed connections are not counted", || {
        (metric(&service.client, "evenstep_http_connections") < 100.0).then_some(())
    });
}

/// A body of a few bytes could expand to gigabytes. And if it were parsed unchanged, a client whose proxy encodes bodies would
/// get an error that hides the cause.
#[test]
fn encoded_bodies_are_415_and_change_nothing() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    join_all(&service.client, "job", 1);
    let before = service.client.get("/v1/jobs/job").body;
    let send = |method: &str, path: &str, headers: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        );
        let request = format!("{head}content-length: {}\r\n{headers}\r\n{body}", body.len());
        attack(&service, request.as_bytes())
    };
    for (method, path) in [
        ("PUT", "/v1/jobs/job"),
        ("POST", "/v1/jobs/job/workers"),
        ("PUT", "/v1/jobs/job/workers/node%2F0/override"),
        ("POST", "/v1/jobs/job/workers/node%2F0/oom"),
        ("POST", "/allocate"),
        ("POST", "/v1/telemetry"),
        ("POST", "/v1/plan/burst"),
    ] {
        for encoding in ["gzip", "br", "zstd", "deflate", "gzip, gzip", "x-unknown", ""] {
            let answer =
                send(method, path, &format!("content-encoding: {encoding}\r\n"), r#"{"global_batch":8}"#);
            assert_eq!(statuses(&answer), ["415"], "{answer}");
            assert!(answer.contains("urn:evenstep:problem:encoded"), "{answer}");
            assert!(answer.contains(&format!(r#"content-encoding \"{encoding}\""#)), "{answer}");
        }
    }
    // A client that waits for `100 Continue` is refused before it sends the body.
    let answer = send("POST", "/allocate", "expect: 100-continue\r\ncontent-encoding: gzip\r\n", "");
    assert!(!answer.contains("100 Continue"), "{answer}");
    assert_eq!(service.client.get("/v1/jobs/job").body, before);
    let answer = send("PUT", "/v1/jobs/job", "content-encoding: identity\r\n", r#"{"global_batch":8}"#);
    assert_eq!(statuses(&answer), ["200"], "{answer}");
}

fn chunked(body: &str) -> String {
    format!(
        "PUT /v1/jobs/job HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{body}"
    )
}

#[test]
fn absurd_chunks_are_refused() {
    let service = Service::start();
    for body in [
        "ffffffffffffffff\r\n{}",
        "fffffffffffffffff\r\n{}",
        "-1\r\n{}",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2 2\r\n{}\r\n0\r\n\r\n",
        "\r\n{}",
        "2\r\n{}X\r\n0\r\n\r\n",
        &format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(1 << 20)),
        &format!("2\r\n{{}}\r\n0\r\n{}\r\n", "x: y\r\n".repeat(10_000)),
    ] {
        let mut stream = connect(&service);
        let _ = stream.write_all(chunked(body).as_bytes());
        // A chunk that is longer than the connection never ends otherwise.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(is_refused(&answer, &["400", "413"]), "{}: {answer}", &body[..body.len().min(40)]);
        assert_eq!(service.client.get("/healthz").status, 200);
    }
    service.client.get("/v1/jobs/job").problem(404, "unknown-job");
    let spec = r#"{"global_batch":64}"#;
    let valid = format!("13;name=\"value\"\r\n{spec}\r\n0\r\n\r\n");
    assert_eq!(statuses(&attack(&service, chunked(&valid).as_bytes())), ["201"]);
}

/// A proxy and the service must not disagree on the end of a body.
#[test]
fn ambiguous_lengths_never_hide_a_request() {
    let service = Service::start();
    let head = "PUT /v1/jobs/job HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let hidden = "DELETE /v1/jobs/hidden HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    for lengths in [
        "content-length: 0\r\ncontent-length: 9\r\n",
        "content-length: 0, 9\r\n",
        "content-length: +0\r\n",
        "content-length: 0x0\r\n",
        "content-length: -1\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length : 0\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding: chunked, gzip\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding : chunked\r\n",
        "x: y\r\n folded\r\n",
    ] {
        let answer = attack(&service, format!("{head}{lengths}\r\n{hidden}").as_bytes());
        assert!(is_refused(&answer, &["400", "501"]), "{lengths}: {answer}");
        assert!(statuses(&answer).len() <= 1, "{lengths}: {answer}");
    }
    // With both lengths, the chunks count and the connection ends, as RFC 9112 requires.
    for lengths in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    ] {
        let request = format!("{head}{lengths}\r\n0\r\n\r\n{hidden}");
        assert_eq!(statuses(&attack(&service, request.as_bytes())), ["400"], "an empty body");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let service = Service::start();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let last = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let requests =
        [get("/healthz"), get("/v1/jobs/x"), get("/docs"), get("/healthz").repeat(1000), last.into()]
            .concat();
    let answer = attack(&service, requests.as_bytes());
    let all = statuses(&answer);
    assert_eq!(all[..3], ["200", "404", "308"]);
    assert_eq!((all.len(), all[3..].iter().all(|status| *status == "200")), (1004, true));
    let answer = attack(&service, format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{last}").as_bytes());
    assert!(is_refused(&answer, &["400", "505"]), "{answer}");
}

#[test]
fn odd_paths_are_problems() {
    let service = Service::start();
    for path in [
        "/v1/jobs/%",
        "/v1/jobs/%0",
        "/v1/jobs/%zz",
        "/v1/jobs/%00",
        "/v1/jobs/%ff",
        "/v1/jobs/%2e%2e",
        "/v1/jobs/..",
        "/v1/jobs/a%2Fb",
        "/v1/jobs/a%20b",
        "/v1/jobs/%C3%BC",
        "//v1/jobs",
        "/v1//jobs",
        "/ui/../../etc/passwd",
        "/ui/%2e%2e/%2e%2e/etc/passwd",
        "/reports/..%2f..%2fetc%2fpasswd",
        "/reports/%00.html",
        "/v1/jobs/x?%",
        "/allocate?job_id=%00&iteration=1",
        "/allocate?job_id=a&job_id=b&iteration=1",
        "/v1/nodes/%/samples",
        "/v1/nodes/a/samples?limit=%31%00",
        "http://other/v1/jobs/%",
        "*",
    ] {
        let answer = attack(
            &service,
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
        );
        let [status] = statuses(&answer)[..] else { panic!("{path}: {answer}") };
        assert!(["400", "404", "422"].contains(&status), "{path}: {answer}");
    }
    let raw = attack(&service, b"GET /v1/jobs/\xff\x00\r HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(is_refused(&raw, &["400"]), "{raw}");
}

/// Such a request has no body to wait for.
#[test]
fn expecting_to_continue_without_a_body_is_answered() {
    let service = Service::start();
    let expect = "host: localhost\r\nexpect: 100-continue\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    for (line, status) in
        [("GET /healthz", "200"), ("POST /allocate", "400"), ("DELETE /v1/jobs/x", "404"), ("POST /x", "404")]
    {
        let answer = attack(&service, format!("{line} HTTP/1.1\r\n{expect}").as_bytes());
        assert_eq!(statuses(&answer).last(), Some(&status), "{answer}");
    }
}
