//! Requests for a job whose state is being read from the store.

use std::collections::BTreeMap;
use std::thread;

use evenstep_protocol::{JobSpec, JoinRequest, WorkerId, WorkerReport};
use evenstep_store::access::AuditEntry;
use evenstep_store::{Address, Change, Store};
use evenstep_tests::Client;
use evenstep_tests::wait::until;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, job_id, join_all, worker_id};

/// Changes are refused while a load does not end. Views wait for it.
#[test]
fn a_change_does_not_wait_for_a_load_and_a_view_does() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    let first = service.client.allocate(&allocate_request("job", generation, 0));
    assert_eq!(first.status, 200);
    // SQLite waits some seconds for its lock. If the machine stands still for that long, the load fails: try again.
    let refused = until("a job is being loaded", || {
        service.kill_and_restart();
        let [client, viewer] = [Client::new(&service.predictor.url), Client::new(&service.predictor.url)];
        thread::scope(|scope| {
            let (refused, view) = service.store.without_loads(|| {
                let view = scope.spawn(|| viewer.get("/v1/jobs/job"));
                let refused = [
                    client.allocate(&allocate_request("job", generation, 1)),
                    client.post("/v1/jobs/job/workers", &JoinRequest::new(worker_id(2))),
                ];
                (refused, view)
            });
            let view = view.join().unwrap();
            let is_loading = refused.iter().all(|reply| reply.body.contains("problem:loading"));
            (is_loading && view.status == 200).then_some(refused)
        })
    });
    for reply in &refused {
        assert!(reply.problem(503, "loading").retry_after_s.is_some(), "{reply:?}");
    }
    assert_eq!(service.client.allocate(&allocate_request("job", generation, 0)).body, first.body);
    assert_eq!(service.client.job("job").live_workers, 2, "a refused worker did not join");
}

/// The latest iterations that a load replays: counted one by one, for jobs that skip iterations and change their width.
#[tokio::test(flavor = "multi_thread")]
async fn the_latest_iterations_are_bounded_by_their_reports() {
    let place = evenstep_tests::Store::fresh();
    let (store, writer) = Store::open(&place.address().parse::<Address>().unwrap(), None).await.unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(42);
    for case in 0..8 {
        let job = job_id(&format!("job-{case}"));
        let entry = AuditEntry::anonymous("job.create", job.as_str());
        let create = Change::CreateJob { job_id: job.clone(), spec: JobSpec::new(64).into(), entry };
        store.write(vec![create], 0).await.unwrap();
        assert_eq!(store.recent_iterations(&job, 10, 10).await.unwrap(), None);
        let mut iterations: Vec<(u64, u64)> = Vec::new();
        for _ in 0..60 {
            let next = iterations.last().map_or(0, |(last, _)| last + random.random_range(1..4));
            iterations.push((next, random.random_range(1..=10)));
        }
        let report = |(iteration, width): &(u64, u64)| {
            let iteration = *iteration;
            (0..*width).map(move |worker| WorkerReport::new(worker_id(worker as usize), iteration, 8, 0.1))
        };
        let reports = iterations.iter().flat_map(report).collect();
        store.write(vec![Change::Reports { job_id: job.clone(), reports }], 0).await.unwrap();
        let newest = iterations.last().unwrap().0;
        for from in [0, newest / 2, newest.saturating_sub(63), newest + 1] {
            let mut expected: BTreeMap<WorkerId, u64> = BTreeMap::new();
            for (iteration, width) in iterations.iter().filter(|(at, _)| (from..from + 64).contains(at)) {
                for worker in 0..*width {
                    *expected.entry(worker_id(worker as usize)).or_default() |= 1 << (iteration - from);
                }
            }
            let found = store.reported(&job, from).await.unwrap();
            assert!(found.iter().all(|(.., at_unix_ms)| *at_unix_ms == 0));
            let found: BTreeMap<_, _> = found.into_iter().map(|(worker, bits, _)| (worker, bits)).collect();
            assert_eq!(found, expected, "from {from}");
        }
        for (most, window) in
            [(0, 100), (1, 100), (7, 9), (40, 30), (100, 1_000), (5_000, 20), (5_000, 5_000)]
        {
            let (mut first, mut newer) = (newest, 0);
            for (iteration, width) in iterations.iter().rev() {
                if newer > most || iteration + window <= newest {
                    break;
                }
                (first, newer) = (*iteration, newer + width);
            }
            let found = store.recent_iterations(&job, most, window).await.unwrap().unwrap();
            // An iteration without reports may come before the first one.
            let is_same = |iteration: u64| iterations.iter().filter(|(at, _)| *at < iteration).count();
            assert_eq!(
                (is_same(found.0), found.1),
                (is_same(first), newest),
                "{most} {window} {found:?} {first}"
            );
        }
    }
    drop(store);
    writer.await.unwrap();
}
