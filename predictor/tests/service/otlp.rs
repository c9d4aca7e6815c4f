//! Spans and metrics at a collector: a real OTLP receiver, reduced to one request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use evenstep_protocol::JobSpec;
use evenstep_tests::wait::PATIENCE;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::support::{Service, allocate_request_with_reports, join_all};

/// Receives exports: paths and bodies.
fn collector() -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, received) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let send = send.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(connection.unwrap());
                while let Some(request) = read(&mut reader) {
                    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                    let _ = send.send(request);
                }
            });
        }
    });
    (url, received)
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.split(' ').nth(1)?.to_owned(), body))
}

#[test]
fn a_request_is_one_trace_from_http_to_the_commit() {
    let (url, received) = collector();
    let mut service = Service::start_with(&["--refit-interval-s=86400", &format!("--otlp={url}/")]);
    service.client.put_job("job", &JobSpec::new(128));
    let generation = join_all(&service.client, "job", 2);
    for iteration in 0..3 {
        assert_eq!(
            service
                .client
                .allocate(&allocate_request_with_reports("job", generation, iteration, &[100.0, 150.0]))
                .status,
            200
        );
    }
    // The rest is exported at the end.
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    let (mut spans, mut metrics) = (Vec::new(), BTreeMap::new());
    // Metrics of jobs that were given up belong to other predictors. Metrics of the service itself are
    // exported with every store.
    while !metrics.contains_key("evenstep_allocate_duration_seconds") || spans.is_empty() {
        let (path, body) = received.recv_timeout(PATIENCE).expect("an export");
        match path.as_str() {
            "/v1/traces" => {
                let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                spans.extend(scopes.flat_map(|scope| scope.spans));
            }
            "/v1/metrics" => {
                let request = ExportMetricsServiceRequest::decode(&body[..]).unwrap();
                let resource = request.resource_metrics.into_iter().next().unwrap();
                let name = &resource.resource.unwrap().attributes[0];
                assert_eq!(name.key, "service.name");
                let scopes = resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
                metrics.extend(scopes.map(|metric| (metric.name, metric.data)));
            }
            other => panic!("unexpected export to {other}"),
        }
    }
    while let Ok((path, body)) = received.try_recv() {
        if path == "/v1/traces" {
            let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
    }
    assert!(metrics.contains_key("evenstep_store_commit_duration_seconds"));
    let parent = |span: &Span| spans.iter().find(|other| other.span_id == span.parent_span_id);
    let lines = spans.iter().filter(|span| span.name == "store.commit").map(|commit| {
        let mut names = vec![commit.name.clone()];
        let mut at = commit;
        while let Some(above) = parent(at) {
            assert_eq!(above.trace_id, commit.trace_id);
            names.insert(0, above.name.clone());
            at = above;
        }
        names.join(" > ")
    });
    let lines: Vec<String> = lines.collect();
    let whole = "http > jobs.allocate > store.write > store.commit";
    assert_eq!(lines.iter().filter(|line| *line == whole).count(), 3, "{lines:?}");
    let plans = spans.iter().filter(|span| span.name == "core.plan");
    assert!(
        plans.clone().count() == 3 && plans.clone().all(|plan| parent(plan).unwrap().name == "jobs.allocate")
    );
}
