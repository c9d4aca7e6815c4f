//! A training loop without a framework: registers a worker, requests each allocation ahead of time, computes and reports.
//!
//! `evenstep-predictor serve &`, then `cargo run -p evenstep-client --example loop [URL] [JOB]`.

use std::error::Error;
use std::time::Instant;

use evenstep_client::{Client, ClientConfig, Connection, Prefetcher, Registration, shares};
use evenstep_protocol::{DEFAULT_SERVER, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};

const GLOBAL_BATCH: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let servers = args.next().unwrap_or(DEFAULT_SERVER.into()).parse()?;
    let job = JobId::new(args.next().unwrap_or("loop".into()))?;
    let worker = WorkerId::new("example/0")?;
    let join = JoinRequest::new(worker.clone());
    let client = Client::new(&servers, job, ClientConfig::default());
    let registration = Registration::new(client, JobSpec::new(GLOBAL_BATCH), vec![join]);
    let connection = Connection::builder(registration).on_event(|event| eprintln!("{event}")).open()?;
    let backlog = connection.backlog().clone();
    let prefetcher = Prefetcher::start(connection, shares);
    let (mut local_batch, mut weight) = (GLOBAL_BATCH, 0.0_f64);
    for iteration in 0..100 {
        prefetcher.request(iteration + 1, GLOBAL_BATCH);
        let started = Instant::now();
        for sample in 0..local_batch * 1000 {
            weight += 1e-6 * ((sample % 7) as f64 - weight);
        }
        let compute_time_s = started.elapsed().as_secs_f64();
        backlog
            .push(iteration, vec![WorkerReport::new(worker.clone(), iteration, local_batch, compute_time_s)]);
        if let Some(allocated) = prefetcher.newest() {
            local_batch = allocated.plan[0].local_batch;
            let speed = allocated.timed.response.allocations[0].predicted_speed_samples_per_s;
            eprintln!(
                "{iteration}: {compute_time_s:.4} s; next {local_batch} samples at {speed:?} per second"
            );
        }
    }
    prefetcher.finish().ok_or("the prefetcher panicked")?.close(GLOBAL_BATCH);
    Ok(println!("weight {weight:.3}"))
}
