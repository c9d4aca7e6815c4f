//! `kill -9` at random moments under load: each allocation stays the same after the crash, and each
//! acknowledged sample is stored once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use evenstep_protocol::JobSpec;
use evenstep_tests::Client;
use evenstep_tests::wait::until;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, join_all, report};
use crate::telemetry::{batch, stored};

const ROUNDS: u64 = 15;
const WORKERS: usize = 4;
const SAMPLES: u64 = 20;

/// The responses received before the crash.
#[derive(Default)]
struct Answered {
    allocations: Vec<(u64, String)>,
    /// First sequence number of the next batch; all earlier samples are acknowledged.
    acknowledged: u64,
}

#[test]
fn allocations_survive_any_crash() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(256));
    let generation = join_all(&service.client, "job", WORKERS);
    let mut random = ChaCha8Rng::seed_from_u64(42);
    let mut known: Vec<String> = Vec::new();
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let crash_after = random.random_range(0..40);
        let answered =
            load_until_crash(&mut service, generation, known.len() as u64, acknowledged, crash_after, round);
        service.predictor.restart();
        // On a busy machine the job may take a while to load.
        service.client = Client::patient(service.predictor.client().url());

        for (iteration, body) in answered.allocations {
            // Both clients got the same iteration, or the slower one confirms the response of the faster one.
            match known.get(iteration as usize) {
                Some(earlier) => assert_eq!(*earlier, body, "iteration {iteration} in round {round}"),
                None => {
                    assert_eq!(known.len() as u64, iteration);
                    known.push(body);
                }
            }
        }
        for (iteration, body) in (0..).zip(&known).skip(known.len().saturating_sub(60)) {
            assert_eq!(
                service.client.allocated("job", iteration).body,
                *body,
                "GET {iteration}, round {round}"
            );
            let again = service.client.allocate(&allocate_request("job", generation, iteration));
            assert_eq!(again.body, *body, "POST {iteration}, round {round}");
        }
        assert!(service.client.job("job").next_iteration >= known.len() as u64);
        let marks = stored(&service.client, "node");
        assert!(marks.iter().copied().eq(0..marks.len() as u64), "a gap or a duplicate: {marks:?}");
        assert!(marks.len() as u64 >= answered.acknowledged, "acknowledged samples are missing");
        acknowledged = answered.acknowledged;
    }
    for (iteration, body) in (0..).zip(&known) {
        assert_eq!(service.client.allocated("job", iteration).body, *body);
    }
    assert!(
        known.len() as u64 > ROUNDS && acknowledged > ROUNDS * SAMPLES,
        "no requests were sent: {}",
        known.len()
    );
}

/// Runs two training loops and an agent until the service is killed after some requests.
fn load_until_crash(
    service: &mut Service,
    generation: u64,
    begin: u64,
    acknowledged: u64,
    crash_after: u64,
    round: u64,
) -> Answered {
    let requests = AtomicU64::new(0);
    let url = service.predictor.url.clone();
    let asker = |seed: u64| {
        let client = Client::patient(&url);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut seen = Vec::new();
        for iteration in begin.. {
            let mut request = allocate_request("job", generation, iteration);
            let worker = random.random_range(0..WORKERS);
            request.reports.extend(
                iteration
                    .checked_sub(1)
                    .map(|before| report(worker, before, 64, random.random_range(50.0..500.0))),
            );
            let Ok(answer) = client.try_post("/allocate", &request) else { break };
            assert_eq!(answer.status, 200, "{answer:?}");
            seen.push((iteration, answer.body));
            requests.fetch_add(1, Ordering::SeqCst);
        }
        seen
    };
    let agent = || {
        let client = Client::patient(&url);
        let mut next = acknowledged;
        // Sent again from the last acknowledged sample on, as an agent does. Some samples may be stored
        // already.
        while let Ok(answer) = client.try_post("/v1/telemetry", &batch("node", "boot", next, SAMPLES)) {
            assert_eq!(answer.status, 200, "{answer:?}");
            next += SAMPLES;
            requests.fetch_add(1, Ordering::SeqCst);
        }
        next
    };
    let (first, second, next) = thread::scope(|scope| {
        let first = scope.spawn(|| asker(2 * round));
        let second = scope.spawn(|| asker(2 * round + 1));
        let agent = scope.spawn(agent);
        until("the moment of the crash", || (requests.load(Ordering::SeqCst) >= crash_after).then_some(()));
        service.predictor.process.kill();
        (first.join().unwrap(), second.join().unwrap(), agent.join().unwrap())
    });
    let mut allocations = first;
    allocations.extend(second);
    allocations.sort();
    Answered { allocations, acknowledged: next }
}
