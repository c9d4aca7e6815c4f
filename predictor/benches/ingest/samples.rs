//! Telemetry of an agent, generated before the measurement.

use evenstep_protocol::{NodeSample, ProcessSample, Readings, driver};

use crate::support::request;

/// The boot ID of the agent.
pub const BOOT_ID: &str = "0e2a7d3c-5b1f-4c77-9a50-3d9f8e6b1c24";
/// Time of the first sample.
const BEGUN_UNIX_MS: i64 = 1_763_750_000_000;

/// Batches of one node: the requests, and the rows for the bare insert.
pub struct Batches {
    pub node: String,
    requests: Vec<Vec<u8>>,
    pub rows: Vec<Vec<Row>>,
}

/// A row of `node_sample`, without the node and the boot ID.
pub struct Row {
    pub sequence: i64,
    pub at_unix_ms: i64,
    pub sample: String,
}

impl Batches {
    /// `count` batches of `size` samples.
    pub fn new(node: usize, size: usize, count: usize) -> Self {
        let node = format!("node-{node}");
        let row = |sequence: usize| Row {
            sequence: i64::try_from(sequence).expect("a small number"),
            at_unix_ms: at_unix_ms(sequence),
            sample: sample(sequence),
        };
        let rows: Vec<Vec<Row>> =
            (0..count).map(|batch| (batch * size..(batch + 1) * size).map(row).collect()).collect();
        let requests =
            rows.iter().map(|rows| request("", "POST", "/v1/telemetry", &body(&node, rows))).collect();
        Self { node, requests, rows }
    }

    /// The requests, as bytes.
    pub fn requests(&self) -> impl Iterator<Item = &[u8]> {
        self.requests.iter().map(Vec::as_slice)
    }

    /// Number of samples in all batches.
    pub fn samples(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }
}

/// The body of a batch.
pub fn body(node: &str, rows: &[Row]) -> String {
    let samples: Vec<&str> = rows.iter().map(|row| row.sample.as_str()).collect();
    let sequence = rows[0].sequence;
    format!(
        r#"{{"node":"{node}","boot_id":"{BOOT_ID}","sequence":{sequence},"samples":[{}]}}"#,
        samples.join(",")
    )
}

fn at_unix_ms(sequence: usize) -> i64 {
    BEGUN_UNIX_MS + 1000 * i64::try_from(sequence).expect("a small number")
}

/// A sample of a host and one watched process, as JSON.
pub fn sample(sequence: usize) -> String {
    let wave = |name: &str| {
        let seed = name.bytes().fold(sequence as u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    };
    let read = |names: &[&str]| -> Readings {
        names
            .iter()
            .map(|name| {
                let whole = name.ends_with("_bytes") || name.starts_with("procs_") || *name == "threads";
                let value = wave(name);
                let value = if name.ends_with("_bytes") { value * 64e9 } else { value };
                ((*name).to_owned(), if whole { value.round() } else { value })
            })
            .collect()
    };
    let host = [
        driver::CPU_BUSY,
        "cpu_iowait",
        "cpu_steal",
        "context_switches_per_s",
        driver::PROCS_BLOCKED,
        driver::PROCS_RUNNING,
        "load_1m",
        driver::MEMORY_USED,
        "memory_available_bytes",
        "memory_total_bytes",
        driver::PSI_CPU_SOME,
        driver::PSI_MEMORY_SOME,
        "psi_memory_full",
        driver::PSI_IO_SOME,
        "psi_io_full",
    ];
    let process = [
        driver::OWN_CPU,
        driver::OTHER_CPU,
        driver::RUN_QUEUE_WAIT,
        driver::VOLUNTARY_SWITCHES,
        driver::INVOLUNTARY_SWITCHES,
        "rss_bytes",
        "threads",
    ];
    let process = ProcessSample { pid: 4242, readings: read(&process), ..ProcessSample::default() };
    let sample = NodeSample {
        at_unix_ms: at_unix_ms(sequence),
        window_s: Some(1.000_1 + 0.001 * wave("window_s")),
        readings: read(&host),
        processes: vec![process],
        ..NodeSample::default()
    };
    serde_json::to_string(&sample).expect("a sample")
}
