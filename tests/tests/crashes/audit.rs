//! Checks that the predictor and its store contain all responses that clients received.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_protocol::{AllocateRequest, AllocateResponse, JobId, WorkerState, WorkersView};
use evenstep_tests::{Client, Reply, Store};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::ledger::{JOBS, Ledger, NODES};
use crate::load::{WORKERS, report, worker_id};

/// Number of newest iterations of each job that every audit requests.
const NEWEST: u64 = 8;
/// Number of older iterations, drawn at random.
const OLDER: usize = 8;
/// Maximum number of samples in a response.
const SAMPLES_MAX: u64 = 10_000;

/// Reads the newest responses that clients received, and some of the others, from the predictor.
pub fn some(client: &Client, ledger: &Ledger, random: &mut ChaCha8Rng) {
    for job in JOBS {
        let next = ledger.told().next_iteration(job);
        let older = (0..OLDER).filter(|_| next > 0).map(|_| random.random_range(0..next));
        let iterations: BTreeSet<u64> =
            (next.saturating_sub(NEWEST)..next).chain(older.collect::<Vec<_>>()).collect();
        answers(client, ledger, job, iterations);
        let generation = client.job(job).generation;
        assert!(generation >= ledger.told().generations[job], "{job} returned to generation {generation}");
        ledger.heard(job, generation);
        asks_again(client, ledger, job, generation, next);
    }
    samples(client, ledger);
    guest(client, ledger);
}

/// Reads every response that a client ever received from the predictor.
pub fn all(client: &Client, ledger: &Ledger) {
    for job in JOBS {
        let next = ledger.told().next_iteration(job);
        answers(client, ledger, job, 0..next);
    }
    samples(client, ledger);
    guest(client, ledger);
}

/// Asserts that an allocation is returned unchanged, byte for byte. If it is void, the allocation of a later
/// generation replaces it.
fn answers(client: &Client, ledger: &Ledger, job: &'static str, iterations: impl IntoIterator<Item = u64>) {
    for iteration in iterations {
        let Some(newest) = ledger.told().newest(job, iteration) else { continue };
        let reply = client.allocated(job, iteration);
        // The audit of the store finds these.
        if reply.status == 409 {
            // Void, and not planned again.
            assert!(is_void(&reply, newest), "{job} {iteration}: {reply:?}");
            continue;
        }
        if reply.status == 404 {
            // A worker joined since the newest report, so the run may start again with this iteration.
            reply.problem(404, "not-answered");
            continue;
        }
        assert_eq!(reply.status, 200, "{job} {iteration} was allocated in generation {newest}: {reply:?}");
        let generation = ledger.hold(job, iteration, &reply.body);
        assert!(generation >= newest, "{job} {iteration}: {generation} instead of {newest}");
    }
}

/// Whether workers departed after this generation.
pub fn is_void(reply: &Reply, generation: u64) -> bool {
    let current = reply.problem(409, "stale-generation").current_generation;
    current.is_some_and(|current| current > generation)
}

/// Requests the newest iterations again: each returns the stored allocation, or is void or begins another attempt and is planned
/// in the current generation.
fn asks_again(client: &Client, ledger: &Ledger, job: &'static str, generation: u64, next: u64) {
    for iteration in next.saturating_sub(NEWEST)..next {
        let before = client.allocated(job, iteration);
        let request = AllocateRequest::new(JobId::new(job).unwrap(), generation, iteration);
        let reply = client.allocate(&request);
        assert_eq!(reply.status, 200, "{reply:?}");
        if reply.body != before.body {
            let planned = ledger.hold(job, iteration, &reply.body);
            if before.status == 409 && planned < generation {
                // It was carried out before a worker departed. The past is not planned again.
                continue;
            }
            assert_eq!(planned, generation, "{job} {iteration}: {before:?} was not void");
        }
        assert_eq!(client.allocated(job, iteration).body, reply.body, "{job} {iteration}");
    }
}

/// Asserts that the samples of each node have no gaps or duplicates: all acknowledged samples are stored, and
/// no unsent ones.
fn samples(client: &Client, ledger: &Ledger) {
    for node in NODES {
        let told = ledger.told().samples[node];
        let stored = client.samples(node, SAMPLES_MAX).samples;
        let marks: Vec<u64> = stored.iter().map(|sample| sample.readings["mark"] as u64).collect();
        let next = marks.last().map_or(0, |last| last + 1);
        assert!((told.acknowledged..=told.sent).contains(&next), "{node}: {next} samples of {told:?}");
        let first = next.saturating_sub(SAMPLES_MAX);
        assert!(marks.iter().copied().eq(first..next), "{node}: a gap or a duplicate: {marks:?}");
    }
}

fn guest(client: &Client, ledger: &Ledger) {
    let Some((guest, expected)) = ledger.told().guest.clone() else { return };
    let view: WorkersView = client.get(&format!("/v1/jobs/{}/workers", JOBS[0])).json();
    let takes_part =
        view.workers.iter().any(|worker| worker.worker == guest && worker.state == WorkerState::Live);
    assert_eq!(takes_part, expected, "the guest's last request took effect");
}

/// Checks the store itself, which no process has open any more, for all responses that clients received.
pub fn store(store: &Store, ledger: &Ledger) {
    let told = ledger.told();
    let text = |value: &Option<String>| value.clone().expect("a value");
    let number = |value: &Option<String>| -> u64 { text(value).parse().expect("a number") };

    let rows = store.rows(
        "SELECT node, CAST(sequence AS TEXT), CAST(sample AS TEXT) FROM node_sample
         ORDER BY node, node_sample.sequence",
    );
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for row in &rows {
        let count = counted.entry(text(&row[0])).or_default();
        let sample: serde_json::Value = serde_json::from_str(&text(&row[2])).unwrap();
        assert_eq!(number(&row[1]), *count, "a gap or a duplicate in {:?}", row[0]);
        assert_eq!(sample["readings"]["mark"].as_f64(), Some(*count as f64), "{sample}");
        *count += 1;
    }
    for (node, samples) in &told.samples {
        let count = counted.get(*node).copied().unwrap_or_default();
        assert!((samples.acknowledged..=samples.sent).contains(&count), "{node}: {count} of {samples:?}");
    }

    // Rows have positions, which differ from iterations after a return.
    let rows = store.rows("SELECT job_id, answer FROM allocation ORDER BY job_id, allocation.iteration");
    let key = |row: &Vec<Option<String>>| {
        let answer: AllocateResponse = serde_json::from_str(&text(&row[1])).unwrap();
        ((text(&row[0]), answer.iteration, answer.attempt, answer.generation), text(&row[1]))
    };
    let stored: BTreeMap<(String, u64, u64, u64), String> = rows.iter().map(key).collect();
    assert_eq!(stored.len(), rows.len(), "an allocation is stored twice");
    for ((job, iteration, attempt, generation), bytes) in &told.answers {
        let key = ((*job).to_owned(), *iteration, *attempt, *generation);
        assert_eq!(stored.get(&key), Some(bytes), "the client's response for {key:?}");
    }
    let departures: Vec<(String, u64)> = store
        .rows("SELECT job_id, CAST(generation AS TEXT) FROM event WHERE kind IN ('left', 'expired')")
        .iter()
        .map(|row| (text(&row[0]), number(&row[1])))
        .collect();
    for ((one, other), _) in stored.keys().zip(stored.keys().skip(1)).zip(1..) {
        if (&one.0, one.1, one.2) == (&other.0, other.1, other.2) {
            let voided = |(job, at): &(String, u64)| *job == one.0 && one.3 < *at && *at <= other.3;
            assert!(departures.iter().any(voided), "{one:?} and {other:?}, and no worker left in between");
        }
    }

    let rows = store.rows(
        "SELECT job_id, CAST(iteration - COALESCE((SELECT first_position - first_iteration FROM segment
             WHERE segment.job_id = report.job_id AND first_position <= iteration
             ORDER BY first_position DESC LIMIT 1), 0) AS TEXT), worker, CAST(compute_time_s AS TEXT) FROM report",
    );
    let stored: BTreeMap<(String, u64, String), f64> = rows
        .iter()
        .map(|row| ((text(&row[0]), number(&row[1]), text(&row[2])), text(&row[3]).parse().unwrap()))
        .collect();
    for (job, iteration, worker) in &told.reports {
        let time_s = stored.get(&((*job).to_owned(), *iteration, worker_id(*worker).to_string()));
        let expected = report(*worker, *iteration).compute_time_s;
        assert!(
            time_s.is_some_and(|time_s| (time_s - expected).abs() < 1e-12),
            "{job} {iteration}: {time_s:?}"
        );
    }
    assert!(
        stored.keys().all(|(_, _, worker)| (0..WORKERS).any(|known| worker_id(known).as_str() == worker))
    );
}
