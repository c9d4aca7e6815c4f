//! Many ranks at once, and clients that disconnect: still one allocation for each iteration.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use evenstep_protocol::{AllocateResponse, JobSpec};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request, join_all, report};

/// Requests the same iterations from many threads, synchronized, each with its own reports. The seed
/// determines the actions of a thread. All threads must get the same bytes.
#[test]
fn concurrent_requests_of_ranks_return_the_same_bytes() {
    const RANKS: usize = 8;
    const ITERATIONS: u64 = 120;
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(256));
    let generation = join_all(&service.client, "job", RANKS);
    let together = Barrier::new(RANKS);
    let rank = |rank: usize| {
        let client = service.predictor.client();
        let mut random = ChaCha8Rng::seed_from_u64(7 + rank as u64);
        let mut seen = Vec::new();
        for iteration in 0..ITERATIONS {
            let mut request = allocate_request("job", generation, iteration);
            if iteration > 0 && random.random_bool(0.7) {
                let worker = random.random_range(0..RANKS);
                request.reports = vec![report(worker, iteration - 1, 32, random.random_range(50.0..500.0))];
            }
            let wrong_generation = random.random_bool(0.1);
            together.wait();
            if wrong_generation {
                let mut stale = request.clone();
                stale.generation = if random.random_bool(0.5) { generation - 1 } else { generation + 1 };
                let problem = client.allocate(&stale).problem(409, "stale-generation");
                assert_eq!(problem.current_generation, Some(generation));
            }
            seen.push(client.allocate(&request).json::<AllocateResponse>());
            // The bytes, and not only the parsed allocation.
            let bytes = [client.allocated("job", iteration).body, client.allocate(&request).body];
            assert_eq!(bytes[0], bytes[1], "iteration {iteration}");
        }
        seen
    };
    let seen: Vec<Vec<AllocateResponse>> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for other in &seen[1..] {
        assert!(*other == seen[0], "two ranks saw different allocations");
    }
    let stored: Vec<AllocateResponse> =
        service.client.get("/v1/jobs/job/allocations?from=0&limit=1000").json();
    assert_eq!(stored, seen[0]);
}

/// Clients that send a request and disconnect at any moment leave a consistent job: later requests get one
/// allocation, which never changes.
#[test]
fn a_client_that_disconnects_halfway_never_causes_two_allocations() {
    const ITERATIONS: u64 = 120;
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(256));
    let generation = join_all(&service.client, "job", 4);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut answers: Vec<String> = Vec::new();
    for iteration in 0..ITERATIONS {
        let mut request = allocate_request("job", generation, iteration);
        if iteration > 0 {
            let reports =
                (0..4).map(|worker| report(worker, iteration - 1, 64, random.random_range(50.0..500.0)));
            request.reports = reports.collect();
        }
        for _ in 0..random.random_range(1..4) {
            let body = serde_json::to_string(&request).unwrap();
            let part = if random.random_bool(0.2) { random.random_range(0..body.len()) } else { body.len() };
            let linger = Duration::from_micros(random.random_range(0..600));
            hang_up(&service.predictor.url, &body, part, linger);
        }
        let answer = service.client.allocate(&request);
        assert_eq!(answer.json::<AllocateResponse>().iteration, iteration);
        assert_eq!(service.client.allocated("job", iteration).body, answer.body);
        answers.push(answer.body);
    }
    let check = |service: &Service| {
        for (iteration, answer) in (0..).zip(&answers) {
            assert_eq!(service.client.allocated("job", iteration).body, *answer);
            assert_eq!(
                service.client.allocate(&allocate_request("job", generation, iteration)).body,
                *answer
            );
        }
        let stored: Vec<AllocateResponse> =
            service.client.get("/v1/jobs/job/allocations?from=0&limit=1000").json();
        assert_eq!(stored.len() as u64, ITERATIONS);
    };
    check(&service);
    service.kill_and_restart();
    check(&service);
}

/// Clients that disconnect during a deletion do not stop it: the job is deleted, and its id can be used again.
#[test]
fn a_deletion_continues_when_its_client_disconnects() {
    let service = Service::start();
    let client = &service.client;
    for round in 0..5 {
        client.put_job("job", &JobSpec::new(64));
        let generation = join_all(client, "job", 3);
        for part in 0..3 {
            let mut request = allocate_request("job", generation, 5_000 * (part + 1));
            request.reports = (5_000 * part..5_000 * (part + 1))
                .map(|iteration| report((iteration % 3) as usize, iteration, 16, 100.0))
                .collect();
            assert_eq!(client.allocate(&request).status, 200);
        }
        // A client that disconnects at once may do so before the service has read its request.
        let mut linger = Duration::from_micros(300 * round);
        until("the job is deleted", || {
            let mut stream =
                TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
            stream.write_all(b"DELETE /v1/jobs/job HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            let sent = Instant::now();
            while sent.elapsed() < linger {
                std::hint::spin_loop();
            }
            stream.shutdown(Shutdown::Write).unwrap();
            linger += Duration::from_millis(1);
            // Once the service has closed the connection, this request cannot delete the next round's job.
            let _ = stream.read_to_end(&mut Vec::new());
            (client.get("/v1/jobs/job").status == 404).then_some(())
        });
        client.allocated("job", 5_000).problem(404, "unknown-job");
    }
}

/// Sends the first `part` bytes of a body, waits for a moment, and closes the connection without reading.
fn hang_up(url: &str, body: &str, part: usize, linger: Duration) {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let head =
        "POST /allocate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    let request = format!("{head}{}\r\n\r\n{}", body.len(), &body[..part]);
    stream.write_all(request.as_bytes()).unwrap();
    let sent = Instant::now();
    while sent.elapsed() < linger {
        std::hint::spin_loop();
    }
    stream.shutdown(Shutdown::Both).unwrap();
}
