//! The health of nodes, and the webhook.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use evenstep_protocol::{JobSpec, NodeHealthView, StragglerReason};
use evenstep_tests::Client;
use evenstep_tests::wait::PATIENCE;
use serde_json::Value;

use crate::support::{Service, allocate_request_with_reports, join_all};

/// A receiver of events. It closes the first connection, answers the second request with 503, and accepts all others.
fn receiver() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook?secret=1", listener.local_addr().unwrap());
    let (send, received) = channel();
    std::thread::spawn(move || {
        let mut requests = 0;
        for (number, connection) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(connection.unwrap());
            if number == 0 {
                continue;
            }
            loop {
                let (mut head, mut length) = (String::new(), 0);
                while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
                if head.is_empty() {
                    break;
                }
                for line in head.to_ascii_lowercase().lines() {
                    length =
                        line.strip_prefix("content-length:").map_or(length, |n| n.trim().parse().unwrap());
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                requests += 1;
                let status = if requests == 1 { "503 Busy" } else { "204 No Content" };
                write!(reader.get_mut(), "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
                if requests > 1 {
                    assert!(head.starts_with("POST /hook?secret=1 "), "{head}");
                    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
                    send.send(serde_json::from_slice(&body).unwrap()).unwrap();
                }
            }
        }
    });
    (url, received)
}

/// Reports iterations of two workers; the second has this speed, and waits for a core if it is slow.
fn train(client: &Client, generation: u64, iterations: std::ops::Range<u64>, speed: f64) {
    for iteration in iterations {
        let mut request = allocate_request_with_reports("job", generation, iteration, &[100.0, speed]);
        for report in &mut request.reports {
            let is_slow = speed < 100.0 && report.worker.as_str() == "node/1";
            report.drivers.insert("run_queue_wait".into(), if is_slow { 0.7 } else { 0.02 });
        }
        assert_eq!(client.allocate(&request).status, 200);
    }
}

fn health(client: &Client, node: &str, after_s: u64) -> NodeHealthView {
    client.get(&format!("/v1/nodes/{node}/health?after_s={after_s}")).json()
}

#[test]
fn a_straggler_makes_its_node_unhealthy_and_is_sent_to_the_webhook() {
    let (url, events) = receiver();
    let service = Service::start_with(&["--refit-interval-s=86400", &format!("--webhook={url}")]);
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    train(client, generation, 0..100, 100.0);
    assert!(health(client, "node", 0).healthy);

    train(client, generation, 100..200, 50.0);
    let flagged = events.recv_timeout(PATIENCE).expect("an event");
    assert_eq!((&flagged["event"], &flagged["job_id"]), (&"straggler.flagged".into(), &"job".into()));
    assert_eq!((&flagged["worker"], &flagged["node"]), (&"node/1".into(), &"node".into()));
    assert_eq!(flagged["straggler"]["reason"], "cpu_contention", "{flagged:#}");
    let found = health(client, "node", 0);
    assert!(!found.healthy && found.stragglers.len() == 1, "{found:?}");
    let straggler = &found.stragglers[0];
    assert_eq!(
        (straggler.worker.as_str(), straggler.straggler.reason),
        ("node/1", StragglerReason::CpuContention)
    );
    assert_eq!(flagged["since_unix_ms"], straggler.since_unix_ms);
    assert!(health(client, "node", 86_400).healthy, "not for so long");
    assert!(client.get("/v1/nodes/node/health").json::<NodeHealthView>().healthy, "300 s is the default");
    assert!(health(client, "other", 0).healthy);
    assert_eq!(client.get("/v1/nodes/node/health?after_s=86401").status, 422);

    train(client, generation, 200..400, 100.0);
    let cleared = events.recv_timeout(PATIENCE).expect("an event");
    assert_eq!((&cleared["event"], &cleared["worker"]), (&"straggler.cleared".into(), &"node/1".into()));
    assert_eq!(cleared["since_unix_ms"], flagged["since_unix_ms"]);
    assert!(health(client, "node", 0).healthy);
}

/// A receiver that never answers delays neither requests nor the end of the predictor.
#[test]
fn a_webhook_that_hangs_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut service = Service::start_with(&["--refit-interval-s=86400", &format!("--webhook={url}")]);
    service.client.put_job("job", &JobSpec::new(128));
    let generation = join_all(&service.client, "job", 2);
    train(&service.client, generation, 0..100, 100.0);
    train(&service.client, generation, 100..200, 50.0);
    let (connection, _) = listener.accept().unwrap();
    train(&service.client, generation, 200..210, 50.0);
    let started = Instant::now();
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    assert!(started.elapsed() < PATIENCE);
    drop(connection);
}
