//! Overload: telemetry is rejected before memory grows, and other requests continue.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::JobSpec;
use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request, join_all, report};
use crate::telemetry::batch;

/// Number of requests whose bodies arrive slowly.
const SLOW: usize = 1100;
/// Number of workers that make a long plan.
const WORKERS: usize = 700;
/// Size limit of a body.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Number of bodies of this size that reach the limit of telemetry in flight.
const BODIES: usize = 8;
const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// Begins a request with a body of `length` bytes and waits for the response to `Expect: 100-continue`.
fn begin(service: &Service, length: usize) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /v1/telemetry HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
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
    let almost_all = vec![b' '; BODY_BYTES_MAX - 1];
    for _ in 0..BODIES {
        let (mut stream, answer) = begin(&service, BODY_BYTES_MAX);
        assert_eq!(answer, GO_ON);
        stream.write_all(&almost_all).unwrap();
        begun.push(stream);
    }
    until("the service has read the bodies", || {
        let limit_bytes = (BODIES * BODY_BYTES_MAX).to_string();
        let metrics = client.get("/metrics").body;
        metrics
            .contains(&format!("evenstep_http_body_bytes{{kind=\"telemetry\"}} {limit_bytes}"))
            .then_some(())
    });
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

/// The declared length of a body takes no memory, only the bytes that arrive do.
#[test]
fn half_sent_bodies_block_nothing() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 2);
    let begun: Vec<TcpStream> = ["/allocate", "/v1/telemetry"]
        .iter()
        .flat_map(|path| std::iter::repeat_n(path, 2 * BODIES))
        .map(|path| half_sent(&service, path, BODY_BYTES_MAX))
        .collect();
    assert_eq!(client.allocate(&allocate_request("job", generation, 0)).status, 200);
    assert_eq!(client.get("/v1/jobs").status, 200);
    assert_eq!(client.post("/v1/telemetry", &batch("node", "boot", 0, 10)).status, 200);
    assert!(begun.iter().all(is_open), "the responses came while the other bodies were being sent");
}

/// Each of these requests takes a place among the connections, and no other.
#[test]
fn slow_bodies_do_not_delay_other_requests() {
    evenstep_server::Limits::of_process();
    let service = Service::start();
    let begun: Vec<TcpStream> = (0..SLOW).map(|_| half_sent(&service, "/allocate", 1000)).collect();
    assert_eq!(service.client.get("/healthz").status, 200);
    assert_eq!(service.client.get("/v1/jobs").status, 200);
    assert!(begun.last().is_some_and(is_open), "the responses came while the other bodies were being sent");
}

/// Other requests are served while a long plan is computed, even with one thread for requests.
#[test]
fn a_long_computation_blocks_nothing() {
    let mut service = Service::start();
    service.predictor.set_environment("TOKIO_WORKER_THREADS", "1");
    service.kill_and_restart();
    let client = &service.client;
    client.put_job("job", &JobSpec { distinct_sizes: Some(3), ..JobSpec::new(1 << 20) });
    let generation = join_all(client, "job", WORKERS);
    let mut request = allocate_request("job", generation, 0);
    client.allocate(&request);
    request.iteration = 1;
    request.reports =
        (0..WORKERS).map(|worker| report(worker, 0, 1000, 1.0 + (worker % 13) as f64)).collect();
    let served = std::thread::scope(|scope| {
        let long = scope.spawn(|| service.predictor.client().allocate(&request).status);
        let mut served = 0;
        while !long.is_finished() {
            assert_eq!(client.get("/healthz").status, 200);
            served += 1;
        }
        assert_eq!(long.join().unwrap(), 200);
        served
    });
    assert!(served > 20, "only {served} other requests were served meanwhile");
}

/// A shutdown does not wait for a request whose headers are incomplete.
#[test]
fn a_half_sent_request_does_not_delay_a_shutdown() {
    let mut service = Service::start();
    let mut half = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: te").unwrap();
    // The service has accepted the connection before this one.
    assert_eq!(service.client.get("/healthz").status, 200);
    service.predictor.process.terminate();
    assert_eq!(service.predictor.process.wait().code(), Some(0));
    let log = service.predictor.process.output();
    assert!(!log.contains("WARN") && !log.contains("WRN"), "{log}");
}

/// Sends the head of a request and one byte of its body.
fn half_sent(service: &Service, path: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let head = format!("POST {path} {head}content-length: {length}\r\n\r\n{{");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Whether the service has neither responded nor closed the connection.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    (&mut &*stream).read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}
