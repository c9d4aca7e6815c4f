//! Samples of nodes: delivered at least once, stored exactly once.

use std::collections::BTreeMap;

use evenstep_protocol::{NodeId, NodeSample, NodesView, TelemetryBatch, TelemetryResponse};
use evenstep_tests::Client;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::support::Service;

/// Samples that contain their sequence numbers.
pub fn batch(node: &str, boot_id: &str, sequence: u64, count: u64) -> TelemetryBatch {
    let sample = |sequence: u64| NodeSample {
        at_unix_ms: 1_700_000_000_000 + i64::try_from(sequence).unwrap(),
        readings: BTreeMap::from([("mark".to_owned(), sequence as f64)]),
        ..NodeSample::default()
    };
    let samples = (sequence..sequence + count).map(sample).collect();
    TelemetryBatch { node: NodeId::new(node).unwrap(), boot_id: boot_id.into(), sequence, samples }
}

/// The sequence numbers in the store, in the order of time.
pub fn stored(client: &Client, node: &str) -> Vec<u64> {
    client.samples(node, 10_000).samples.iter().map(|sample| sample.readings["mark"] as u64).collect()
}

#[test]
fn overlapping_batches_in_any_order_are_stored_once() {
    let mut service = Service::start();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut sent = [false; 2000];
    let send = |client: &Client, sequence: usize, count: usize, sent: &mut [bool]| {
        let answer: TelemetryResponse =
            client.post("/v1/telemetry", &batch("node", "boot", sequence as u64, count as u64)).json();
        let slots = &mut sent[sequence..sequence + count];
        let new = slots.iter().filter(|sent| !**sent).count();
        assert_eq!((answer.stored, answer.duplicates), (new as u64, (count - new) as u64));
        assert_eq!(answer.next_sequence, (sequence + count) as u64);
        slots.fill(true);
    };
    for step in 0..120 {
        let sequence = random.random_range(0..1900);
        let count = random.random_range(0..=100);
        send(&service.client, sequence, count, &mut sent);
        if step == 60 {
            service.kill_and_restart();
        }
    }
    let expected: Vec<u64> = (0..2000u64).filter(|sequence| sent[*sequence as usize]).collect();
    assert_eq!(stored(&service.client, "node"), expected);
    // Another boot of the agent counts from 0 again, and another node is separate.
    let first: TelemetryResponse =
        service.client.post("/v1/telemetry", &batch("node", "boot-2", 0, 10)).json();
    let other: TelemetryResponse =
        service.client.post("/v1/telemetry", &batch("node-b", "boot", 0, 10)).json();
    assert_eq!((first.stored, other.stored), (10, 10));
    let nodes: NodesView = service.client.get("/v1/nodes").json();
    let counts: Vec<(&str, u64)> =
        nodes.nodes.iter().map(|node| (node.node.as_str(), node.samples)).collect();
    assert_eq!(counts, [("node", expected.len() as u64 + 10), ("node-b", 10)]);
}

#[test]
fn the_first_sample_of_a_sequence_number_stays_and_is_kept_whole() {
    let service = Service::start();
    let path = "/v1/telemetry";
    let sample = json!({
        "at_unix_ms": 5, "window_s": 0.1, "synthetic": true, "readings": {"cpu_busy": 0.123_456_789_012_345_67},
        "missing": {"psi_cpu_some": "no /proc/pressure"},
        "processes": [{"pid": 7, "worker": "node/0", "readings": {"own_cpu": 0.5}}],
        "gpus": [{"index": 0, "name": "GPU", "readings": {"sm_clock_mhz": 1980.0},
                  "throttle_reasons": ["sw_thermal_slowdown"], "uuid": "GPU-1", "pci_bus_id": "00000000:01:00.0",
                  "instances": [{"uuid": "MIG-1", "readings": {"gpu_memory_used_bytes": 1.0}}]},
                 {"index": 1, "gap": "lost"}],
    });
    let body = json!({"node": "node", "boot_id": "boot", "sequence": 0, "samples": [sample]});
    assert_eq!(service.client.post(path, &body).status, 200);
    assert_eq!(
        service.client.post(path, &batch("node", "boot", 0, 1)).json::<TelemetryResponse>().duplicates,
        1
    );
    let expected: NodeSample = serde_json::from_value(sample).unwrap();
    assert_eq!(service.client.samples("node", 10).samples, [expected]);
    assert_eq!(service.client.samples("nobody", 10).samples, []);
}

#[test]
fn an_invalid_batch_is_rejected_whole() {
    let service = Service::start();
    let refused = |body: &serde_json::Value, named: &str| {
        let problem = service.client.post("/v1/telemetry", body).problem(422, "invalid");
        assert!(problem.detail.contains(named), "{named}: {}", problem.detail);
    };
    let with = |sample: serde_json::Value| json!({"node": "node", "boot_id": "boot", "sequence": 0, "samples": [{"at_unix_ms": 1}, sample]});
    refused(&with(json!({"at_unix_ms": -1})), "samples[1].at_unix_ms");
    refused(&with(json!({"at_unix_ms": 1, "window_s": -1.0})), "samples[1].window_s");
    refused(&with(json!({"at_unix_ms": 1, "readings": {"CPU": 1}})), "CPU");
    refused(&with(json!({"at_unix_ms": 1, "readings": {"cpu": null}})), "samples[1].readings");
    refused(&with(json!({"at_unix_ms": 1, "extra": 1})), "extra");
    refused(&with(json!({"at_unix_ms": 1, "missing": {"cpu": "none\0"}})), "character 0");
    refused(&json!({"node": "node", "boot_id": "boot\0", "sequence": 0, "samples": []}), "character 0");
    let text = "x".repeat(257);
    refused(&json!({"node": "node", "boot_id": text, "sequence": 0, "samples": []}), "boot_id");
    refused(&json!({"node": "node", "boot_id": "", "sequence": 0, "samples": []}), "boot_id");
    refused(&json!({"node": "a/b", "boot_id": "boot", "sequence": 0, "samples": []}), "a/b");
    let many = serde_json::to_value(batch("node", "boot", 0, 1001)).unwrap();
    refused(&many, "1001");
    assert_eq!(service.client.samples("node", 10).samples, []);
}
