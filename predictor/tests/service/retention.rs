//! Retention: in any order of operations, and after any kill, each sample and report counts once, raw or
//! rolled up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenstep_protocol::{JobId, JobSpec, NodeId, StoreView};
use evenstep_store::{Address, Change, HOUR_S, MINUTE_S, RollUp, Store, StoreError, TelemetryRows};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, store};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all};

/// Time of the first sample.
const BEGUN_UNIX_MS: i64 = 1_700_000_000_000;
const EVER: i64 = i64::MAX;

/// Identity of a sample: node, boot and sequence number. Its time and value follow from them.
type Key = (u8, u8, u64);

fn at_unix_ms((_, life, sequence): Key) -> i64 {
    BEGUN_UNIX_MS + i64::from(life) * 200_000 + i64::try_from(sequence).unwrap() * 7_000
}

fn value((node, life, sequence): Key) -> i64 {
    i64::from(node) * 1000 - i64::from(life) * 500 + i64::try_from(sequence).unwrap()
}

fn sample(key: Key) -> String {
    let (at, value) = (at_unix_ms(key), value(key));
    format!(
        r#"{{"at_unix_ms":{at},"readings":{{"x":{value}}},"gpus":[{{"index":1,"readings":{{"w":{}}}}}]}}"#,
        -value
    )
}

/// Samples as an agent sends them, with one GPU each.
fn rows(node: u8, life: u8, sequence: u64, count: u64) -> TelemetryRows {
    let mut text = String::new();
    let mut samples = Vec::new();
    for sequence in sequence..sequence + count {
        let (key, begin) = ((node, life, sequence), text.len());
        text.push_str(&sample(key));
        samples.push((at_unix_ms(key), begin..text.len()));
    }
    TelemetryRows::new(NodeId::new(format!("n{node}")).unwrap(), format!("b{life}"), sequence, text, samples)
        .unwrap()
}

/// Aggregates of a reading of a node: count, sum, minimum and maximum; over raw and rolled-up samples
/// together.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sums(u64, f64, f64, f64);

impl Sums {
    fn add(all: &mut BTreeMap<(String, String), Self>, node: &str, name: &str, other: Self) {
        all.entry((node.to_owned(), name.to_owned()))
            .and_modify(|sums| {
                *sums = Self(sums.0 + other.0, sums.1 + other.1, sums.2.min(other.2), sums.3.max(other.3));
            })
            .or_insert(other);
    }
}

/// The aggregates in a store.
fn known(store: &store::Store) -> BTreeMap<(String, String), Sums> {
    let mut all = BTreeMap::new();
    for row in store.rows("SELECT node, CAST(sample AS TEXT) FROM node_sample") {
        let [Some(node), Some(sample)] = &row[..] else { panic!("{row:?}") };
        let sample: evenstep_protocol::NodeSample = serde_json::from_str(sample).unwrap();
        let (x, w) = (sample.readings["x"], sample.gpus[0].readings["w"]);
        Sums::add(&mut all, node, "x", Sums(1, x, x, x));
        Sums::add(&mut all, node, "gpu1/w", Sums(1, w, w, w));
    }
    for row in store.rows("SELECT node, CAST(samples AS TEXT), readings FROM node_summary") {
        let [Some(node), Some(samples), Some(readings)] = &row[..] else { panic!("{row:?}") };
        let readings: BTreeMap<String, (u64, f64, f64, f64)> = serde_json::from_str(readings).unwrap();
        for (name, (count, sum, least, most)) in readings {
            assert_eq!(count.to_string(), *samples, "every sample has every reading");
            Sums::add(&mut all, node, &name, Sums(count, sum, least, most));
        }
    }
    all
}

/// The expected aggregates.
fn sent(keys: &BTreeMap<Key, ()>) -> BTreeMap<(String, String), Sums> {
    let mut all = BTreeMap::new();
    for key in keys.keys() {
        let (node, x) = (format!("n{}", key.0), value(*key) as f64);
        Sums::add(&mut all, &node, "x", Sums(1, x, x, x));
        Sums::add(&mut all, &node, "gpu1/w", Sums(1, -x, -x, -x));
    }
    all
}

#[derive(Debug, Clone)]
enum Step {
    /// Samples arrive, some of them again, some of them late.
    Insert { node: u8, life: u8, sequence: u64, count: u64 },
    /// Rolls up samples older than `minutes` minutes after the beginning.
    RollUp { minutes: i64 },
    /// The same, but another writer is faster with the same rows.
    RollUpTwice { minutes: i64 },
    /// The same, but samples arrive between the read and the write.
    RollUpLate { minutes: i64, node: u8, sequence: u64 },
    /// Rolls up minutes that ended `minutes` minutes after the beginning into hours.
    Hours { minutes: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..3, 0u8..2, 0u64..150, 1u64..40)
            .prop_map(|(node, life, sequence, count)| Step::Insert { node, life, sequence, count }),
        2 => (0i64..30).prop_map(|minutes| Step::RollUp { minutes }),
        1 => (0i64..30).prop_map(|minutes| Step::RollUpTwice { minutes }),
        1 => (0i64..30, 0u8..3, 0u64..150)
            .prop_map(|(minutes, node, sequence)| Step::RollUpLate { minutes, node, sequence }),
        1 => (0i64..60).prop_map(|minutes| Step::Hours { minutes }),
    ]
}

fn after(minutes: i64) -> i64 {
    BEGUN_UNIX_MS + minutes * 60_000
}

async fn insert(store: &Store, keys: &mut BTreeMap<Key, ()>, rows: TelemetryRows, named: (u8, u8, u64, u64)) {
    let (node, life, sequence, count) = named;
    let new = (sequence..sequence + count).filter(|at| keys.insert((node, life, *at), ()).is_none()).count();
    let stored = store.write(vec![Change::Telemetry(rows)], 0).await.unwrap();
    assert_eq!(stored, new as u64, "{named:?}");
}

async fn apply(store: &Store, roll_up: RollUp) -> Result<u64, StoreError> {
    store.write(vec![Change::RollUp(Arc::new(roll_up))], 0).await
}

async fn take(store: &Store, keys: &mut BTreeMap<Key, ()>, step: &Step) {
    match *step {
        Step::Insert { node, life, sequence, count } => {
            insert(store, keys, rows(node, life, sequence, count), (node, life, sequence, count)).await;
        }
        Step::RollUp { minutes } => {
            while let Some(roll_up) = store.old_samples(after(minutes)).await.unwrap() {
                let rows = roll_up.rows();
                assert_eq!(apply(store, roll_up).await.unwrap(), rows);
            }
        }
        Step::RollUpTwice { minutes } => {
            if let Some(roll_up) = store.old_samples(after(minutes)).await.unwrap() {
                apply(store, roll_up.clone()).await.unwrap();
                let again = apply(store, roll_up).await;
                assert!(matches!(again, Err(StoreError::Superseded)), "{again:?}");
            }
        }
        Step::RollUpLate { minutes, node, sequence } => {
            let roll_up = store.old_samples(after(minutes)).await.unwrap();
            insert(store, keys, rows(node, 0, sequence, 3), (node, 0, sequence, 3)).await;
            if let Some(roll_up) = roll_up {
                apply(store, roll_up).await.unwrap();
            }
        }
        Step::Hours { minutes } => {
            while let Some(roll_up) = store.old_node_steps(MINUTE_S, after(minutes)).await.unwrap() {
                apply(store, roll_up).await.unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_sample_counts_once_raw_or_summed_up(steps in prop::collection::vec(step(), 1..25)) {
        let place = store::Store::fresh();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let keys = runtime.block_on(async {
            let (store, writer) = Store::open(&place.address().parse::<Address>().unwrap(), None).await.unwrap();
            let mut keys = BTreeMap::new();
            for step in &steps {
                take(&store, &mut keys, step).await;
            }
            // No sample is old enough.
            assert!(store.old_samples(0).await.unwrap().is_none());
            assert!(store.old_node_steps(HOUR_S, 0).await.unwrap().is_none());
            // The latest sample of each node stays, at any age.
            while let Some(roll_up) = store.old_samples(EVER).await.unwrap() {
                apply(&store, roll_up).await.unwrap();
            }
            drop(store);
            writer.await.unwrap();
            keys
        });
        prop_assert_eq!(known(&place), sent(&keys));
        let counted: BTreeMap<String, u64> = place
            .rows("SELECT node, CAST(samples AS TEXT) FROM node")
            .into_iter()
            .map(|row| (row[0].clone().unwrap(), row[1].as_ref().unwrap().parse().unwrap()))
            .collect();
        for node in 0..3u8 {
            let samples = keys.keys().filter(|key| key.0 == node);
            let newest = samples.clone().map(|key| at_unix_ms(*key)).max();
            prop_assert_eq!(counted.get(&format!("n{node}")).copied().unwrap_or(0), samples.count() as u64);
            let left = place.rows(&format!("SELECT CAST(at_unix_ms AS TEXT) FROM node_sample WHERE node = 'n{node}'"));
            prop_assert!(left.iter().all(|row| row[0] == newest.map(|newest| newest.to_string())));
            prop_assert_eq!(left.is_empty(), newest.is_none());
        }
    }
}

/// Rows of a job: its allocations, its raw reports, and its rolled-up reports.
fn iterations(place: &store::Store) -> [u64; 3] {
    let number = |query: &str| place.rows(query)[0][0].as_ref().map_or(0, |text| text.parse().unwrap());
    [
        number("SELECT CAST(COUNT(*) AS TEXT) FROM allocation"),
        number("SELECT CAST(COUNT(*) AS TEXT) FROM report"),
        number("SELECT CAST(COALESCE(SUM(reports), 0) AS TEXT) FROM worker_summary"),
    ]
}

#[test]
fn old_iterations_are_deleted_and_the_last_ones_stay() {
    let mut service = Service::start();
    service.client = Client::patient(service.client.url());
    let job = JobId::new("job").unwrap();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    let mut answers = Vec::new();
    for iteration in 0..1300 {
        let reply = service.client.allocate(&allocate_request_with_reports(
            "job",
            generation,
            iteration,
            &[100.0, 200.0],
        ));
        assert_eq!(reply.status, 200);
        answers.push(reply.body);
    }
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kept_from = runtime.block_on(async {
        let (store, writer) =
            Store::open(&service.store.address().parse::<Address>().unwrap(), None).await.unwrap();
        while let Some(roll_up) = store.old_iterations(&job, EVER, 1024).await.unwrap() {
            apply(&store, roll_up.clone()).await.unwrap();
            assert!(matches!(apply(&store, roll_up).await, Err(StoreError::Superseded)));
        }
        while let Some(roll_up) = store.old_worker_steps(&job, MINUTE_S, EVER).await.unwrap() {
            apply(&store, roll_up).await.unwrap();
        }
        let kept_from = store.kept_from(&job).await.unwrap();
        drop(store);
        writer.await.unwrap();
        kept_from
    });
    // Two workers reported 1,299 iterations. The last 1,024 of these stay.
    assert_eq!(kept_from, 275);
    assert_eq!(iterations(&service.store), [1025, 2048, 2 * 275]);
    service.restart();
    service.client = Client::patient(service.client.url());
    let client = &service.client;
    for iteration in [0, 100, kept_from - 1] {
        let posted = client.allocate(&allocate_request("job", generation, iteration)).problem(410, "gone");
        assert!(posted.detail.contains("275"), "{}", posted.detail);
        client.allocated("job", iteration).problem(410, "gone");
    }
    for iteration in kept_from..1300 {
        assert_eq!(client.allocated("job", iteration).body, answers[usize::try_from(iteration).unwrap()]);
    }
    // A report of a deleted iteration has no effect.
    let mut late = allocate_request_with_reports("job", generation, 1300, &[100.0, 200.0]);
    late.reports.extend(allocate_request_with_reports("job", generation, 5, &[100.0, 200.0]).reports);
    assert_eq!(client.allocate(&late).status, 200);
    assert_eq!(iterations(&service.store), [1026, 2050, 2 * 275]);
    assert_eq!(client.job("job").next_iteration, 1301);
}

/// The service is killed repeatedly while it rolls up; no sample is lost or counted twice.
#[test]
fn a_kill_in_the_middle_of_a_roll_up_loses_nothing_and_doubles_nothing() {
    let mut service =
        Service::start_with(&["--refit-interval-s=86400", "--keep-raw=60s", "--keep-minutes=1h"]);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (nodes, samples) = (8u8, 3000u64);
    for (node, batch) in (0..nodes).flat_map(|node| (0..samples / 1000).map(move |batch| (node, batch))) {
        let samples: Vec<String> =
            (batch * 1000..(batch + 1) * 1000).map(|at| sample((node, 0, at))).collect();
        let (sequence, samples) = (batch * 1000, samples.join(","));
        let body =
            format!(r#"{{"node":"n{node}","boot_id":"b","sequence":{sequence},"samples":[{samples}]}}"#);
        assert_eq!(service.client.post_text("/v1/telemetry", &body).status, 200);
    }
    let sent = u64::from(nodes) * samples;
    // The last minute stays, and so do samples in the same minute as its beginning.
    let newest = at_unix_ms((0, 0, samples - 1));
    let young = |at: &u64| at_unix_ms((0, 0, *at)) >= (newest - 60_000) / 60_000 * 60_000;
    let stay = u64::from(nodes) * (0..samples).filter(young).count() as u64;
    // One statement with one snapshot: PostgreSQL may still execute the last commit of a killed predictor.
    let counted = |place: &store::Store| {
        let rows = place.rows(
            "SELECT CAST((SELECT COUNT(*) FROM node_sample) AS TEXT),
                    CAST((SELECT COALESCE(SUM(samples), 0) FROM node_summary) AS TEXT)",
        );
        let [raw, summed] = [0, 1].map(|at| rows[0][at].as_ref().map_or(0u64, |text| text.parse().unwrap()));
        (raw, raw + summed)
    };
    // Each start looks for old rows at once. Each process lives for a few slices.
    let mut kills = 0;
    while counted(&service.store).0 > stay {
        service.predictor.kill_and_restart();
        let (started, life) = (Instant::now(), Duration::from_millis(random.random_range(0..500)));
        until("it ran for a moment", || (started.elapsed() >= life).then_some(()));
        service.predictor.process.kill();
        kills += 1;
        assert_eq!(counted(&service.store).1, sent, "after {kills} kills");
    }
    assert!(kills > 3, "it was too fast to be killed: {kills}");
    service.kill_and_restart();
    let minutes = "SELECT CAST(COUNT(*) AS TEXT) FROM node_summary WHERE step_s = 60";
    until("minutes became hours", || {
        let left: u64 = service.store.rows(minutes)[0][0].as_ref().unwrap().parse().unwrap();
        (left <= u64::from(nodes) * 61).then_some(())
    });
    assert_eq!(counted(&service.store), (stay, sent));
    let view: StoreView = service.client.get("/v1/store").json();
    let level = |name: &str| view.levels.iter().find(|level| level.level == name).unwrap();
    assert_eq!(level("worker_hours").rows, 0);
    assert!(level("node_hours").rows > 0 && view.disk_bytes > 0, "{view:?}");
    // PostgreSQL only estimates the rest, with a delay.
    if service.store.file().is_some() {
        assert_eq!(level("samples").rows, stay);
        assert!(view.used_bytes > 0 && view.disk_bytes >= view.used_bytes, "{view:?}");
    }
    assert_eq!(view.retention.keep_raw_s, 60);
}

#[test]
fn a_store_above_its_limit_rolls_up_its_oldest_rows_early() {
    let mut service = Service::start_with(&["--refit-interval-s=86400", "--keep-bytes=1MiB"]);
    if service.store.file().is_none() {
        // PostgreSQL only estimates the live rows of its tables, with a delay.
        return;
    }
    for batch in 0..10 {
        let samples: Vec<String> = (batch * 1000..(batch + 1) * 1000).map(|at| sample((0, 0, at))).collect();
        let (sequence, samples) = (batch * 1000, samples.join(","));
        let body = format!(r#"{{"node":"n0","boot_id":"b","sequence":{sequence},"samples":[{samples}]}}"#);
        assert_eq!(service.client.post_text("/v1/telemetry", &body).status, 200);
    }
    let view = |service: &Service| service.client.get("/v1/store").json::<StoreView>();
    assert!(view(&service).used_bytes > 1 << 20 && view(&service).keep_bytes == Some(1 << 20));
    // It looks for old rows when it starts.
    service.kill_and_restart();
    let after = until("it is below its size limit", || {
        let view = view(&service);
        (view.used_bytes <= 1 << 20 && view.retention.looked_unix_ms.is_some()).then_some(view)
    });
    let rows = |level: &str| after.levels.iter().find(|view| view.level == level).unwrap().rows;
    assert!(
        after.retention.rolled_up_early_rows > 0 && rows("samples") > 1000,
        "only the oldest rows: {after:?}"
    );
    assert_eq!(after.retention.rolled_up_rows + rows("samples"), 10_000);
}
