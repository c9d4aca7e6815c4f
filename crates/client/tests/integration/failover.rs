//! Failover between several predictors, over real connections to scripted servers.

use std::time::{Duration, Instant};

use evenstep_client::{Client, ClientConfig, Error, ErrorKind};
use evenstep_protocol::{JobId, JobSpec};

use crate::support::{Action, Scripted, nobody, rejects, responds};

/// Longer than the duration of any healthy request.
const PATIENCE: Duration = Duration::from_secs(300);

fn points_to(url: &str) -> Action {
    Action::Answers(307, format!("location: {url}/v1/jobs/job\r\n"), String::new())
}

fn client(servers: &[&str], timeout: Duration) -> Client {
    let config = ClientConfig { request_timeout: timeout, ..ClientConfig::default() };
    Client::new(&servers.join(",").parse().unwrap(), JobId::new("job").unwrap(), config)
}

fn register(client: &Client) -> Result<(), Error> {
    client.register_job(&JobSpec::new(8))
}

#[test]
fn a_closed_port_is_unreachable() {
    let nobody = nobody();
    let client = client(&[&nobody], Duration::from_millis(250));
    let started = Instant::now();
    let told = register(&client).unwrap_err();
    let named = format!("{nobody}: Connection refused");
    assert!(matches!(&told.kind, ErrorKind::Unreachable(why) if why.starts_with(&named)), "{told}");
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn the_next_server_is_tried_at_once_and_first_from_then_on() {
    for first in [
        vec![Action::ClosesConnection],
        vec![rejects(503, "draining")],
        vec![rejects(503, "store-failed")],
        vec![Action::Answers(502, String::new(), "<html>".to_owned())],
    ] {
        let (a, b) = (Scripted::start(first), Scripted::responding());
        let client = client(&[&a.url, &b.url], PATIENCE);
        assert_eq!(register(&client), Ok(()));
        let said = "PUT /v1/jobs/job {\"global_batch\":8,";
        let (a_heard, b_heard) = (a.heard(), b.heard());
        assert_eq!((a_heard.len(), &a_heard), (1, &b_heard), "the same request");
        assert!(a_heard[0].starts_with(said), "{a_heard:?}");
        assert_eq!(register(&client.clone()), Ok(()));
        assert_eq!((a.heard().len(), b.heard().len()), (0, 1));
    }
    let b = Scripted::responding();
    assert_eq!(register(&client(&[&nobody(), &b.url], PATIENCE)), Ok(()));
}

/// A server that accepts the request and does not respond uses only its part of the time limit.
#[test]
fn a_hanging_server_leaves_time_for_the_next() {
    let (a, b) = (Scripted::start([Action::NeverResponds]), Scripted::responding());
    let client = client(&[&a.url, &b.url], Duration::from_secs(10));
    let started = Instant::now();
    assert_eq!(register(&client), Ok(()));
    assert!(started.elapsed() >= Duration::from_secs(5), "it could use half of the time");
    assert_eq!((a.heard().len(), b.heard().len()), (1, 1));
}

#[test]
fn a_response_that_stops_midway_is_unreachable_after_the_time_limit() {
    let stops = Action::StopsAfter("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{");
    let server = Scripted::start([stops]);
    let error = register(&client(&[&server.url], Duration::from_millis(200))).unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::Unreachable(_)), "{error}");
}

#[test]
fn a_response_longer_than_the_limit_is_invalid() {
    let server = Scripted::start([Action::Answers(200, String::new(), format!("\"{}\"", "x".repeat(98)))]);
    let config = |response_bytes_max| ClientConfig { response_bytes_max, ..ClientConfig::default() };
    let client = |limit| Client::new(&server.url.parse().unwrap(), JobId::new("job").unwrap(), config(limit));
    assert_eq!(register(&client(100)), Ok(()));
    let error = register(&client(99)).unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::InvalidResponse(_)), "{error}");
}

/// Every other server would send the same response about the job.
#[test]
fn a_response_is_a_valid_allocation() {
    for (does, silent) in [
        (rejects(422, "invalid"), false),
        (rejects(429, "busy"), true),
        (rejects(503, "loading"), true),
        (rejects(503, "paused"), true),
        (rejects(503, "cooling-down"), true),
        (rejects(500, "internal"), true),
    ] {
        let (a, b) = (Scripted::start([does]), Scripted::responding());
        let told = register(&client(&[&a.url, &b.url], PATIENCE)).unwrap_err();
        assert_eq!(matches!(told.kind, ErrorKind::Unreachable(_)), silent, "{told}");
        assert_eq!((a.heard().len(), b.heard().len()), (1, 0), "{told}");
    }
}

#[test]
fn the_owner_of_the_job_is_followed_remembered_and_left_when_it_dies() {
    let owner = Scripted::start([responds(), responds(), Action::ClosesConnection]);
    let a = Scripted::start([points_to(&owner.url), points_to(&owner.url), responds()]);
    let client = client(&[&a.url], PATIENCE);
    assert_eq!(register(&client), Ok(()));
    assert_eq!(a.heard(), owner.heard(), "the same request, body and all");
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (0, 1));
    // The owner dies. The list still redirects to it at first, and then takes over the job.
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (2, 1));
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (1, 0));
}

#[test]
fn a_ring_of_owners_ends_with_an_error() {
    let (a, b) = (Scripted::start([]), Scripted::start([]));
    a.does(points_to(&b.url));
    b.does(points_to(&a.url));
    let told = register(&client(&[&a.url], PATIENCE)).unwrap_err();
    assert!(matches!(&told.kind, ErrorKind::Unreachable(why) if why.contains("exceeds the limit")), "{told}");
    let looks = ClientConfig::default().handover_attempts_max as usize + 1;
    assert_eq!((a.heard().len(), b.heard().len()), (2 * looks, 2 * looks), "three hops each time");
}
