//! Overload: telemetry is rejected before memory grows, and other requests continue.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::JobSpec;
use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request, join_all};
use crate::telemetry::batch;

/// Size limit of a body.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Number of bodies of this size that reach the limit of telemetry in flight.
const BODIES: usize = 8;
const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// Begins a request with a body of `length` bytes and waits for `100 Continue`: from then on its bytes count
/// as in flight.
fn begin(service: &Service, length: usize) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /v1/telemetry HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; GO_ON.len()];
    stream.read_exact(&mut answer).unwrap();
    (stream, String::from_utf8(answer.to_vec()).unwrap())
}

#[test]
fn telemetry_beyond_its_limit_is_rejected_and_other_requests_continue() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 2);
    let mut begun = Vec::new();
    for _ in 0..BODIES {
        let (stream, answer) = begin(&service, BODY_BYTES_MAX);
        assert_eq!(answer, GO_ON);
        begun.push(stream);
    }
    let refused = client.post("/v1/telemetry", &batch("node", "boot", 0, 1000));
    assert!(refused.retry_after.as_ref().is_some_and(|seconds| seconds.parse::<u64>().unwrap() >= 1));
    assert_eq!(refused.connection, None, "a rejected client keeps its connection");
    let problem = refused.problem(429, "busy");
    assert!(problem.retry_after_s.is_some() && problem.detail.contains("bytes"), "{problem:?}");
    // A client that expects `100 Continue` is rejected before it sends its body.
    let (mut waits, answer) = begin(&service, 1000);
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let mut rest = String::new();
    waits.read_to_string(&mut rest).unwrap();
    assert!(rest.to_ascii_lowercase().contains("connection: close"), "{rest}");

    assert_eq!(client.allocate(&allocate_request("job", generation, 0)).status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    assert_eq!(client.samples("node", 10).samples.len(), 0);
    drop(begun.pop());
    until("telemetry is accepted again", || {
        (client.post("/v1/telemetry", &batch("node", "boot", 0, 10)).status == 200).then_some(())
    });
    assert_eq!(client.samples("node", 100).samples.len(), 10);
}
