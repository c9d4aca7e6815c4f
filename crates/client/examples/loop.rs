//! A training loop without a framework: joins one worker, requests each allocation ahead of time, computes and reports.
//! Start `evenstep-predictor serve`, then `cargo run -p evenstep-client --example loop [URL [JOB]]`.

use std::{env, error::Error, time::Instant};

use evenstep_client::{Client, ClientConfig, Connection, Prefetcher, Registration, shares};
use evenstep_protocol::{DEFAULT_SERVER, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};

const GLOBAL_BATCH: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let servers = env::args().nth(1).unwrap_or(DEFAULT_SERVER.into()).parse()?;
    let job = JobId::new(env::args().nth(2).unwrap_or("loop".into()))?;
    let worker = WorkerId::new("example/0")?;
    let client = Client::new(&servers, job, ClientConfig::default());
    let joins = vec![JoinRequest::new(worker.clone())];
    let registration = Registration::new(client, JobSpec::new(GLOBAL_BATCH), joins);
    let connection = Connection::builder(registration).on_event(|event| eprintln!("{event}")).open()?;
    let backlog = connection.backlog().clone();
    let prefetcher = Prefetcher::start(connection, shares);
    let (mut local_batch, mut weight) = (GLOBAL_BATCH, 0.0);
    for iteration in 0..100 {
        prefetcher.request(iteration + 1, GLOBAL_BATCH);
        let started = Instant::now();
        for sample in 0..local_batch * 1000 {
            weight += 1e-6 * ((sample % 7) as f64 - weight);
        }
        let compute_time_s = started.elapsed().as_secs_f64();
        let report = WorkerReport::new(worker.clone(), iteration, local_batch, compute_time_s);
        backlog.push(iteration, vec![report]);
        if let Some(allocated) = prefetcher.newest() {
            local_batch = allocated.plan[0].local_batch;
            let predicted_s = allocated.timed.response.decision.predicted_step_time_s;
            eprintln!(
                "{iteration}: {compute_time_s:.4} s; next {local_batch} samples in {predicted_s:.4?} s"
            );
        }
    }
    prefetcher.finish().ok_or("the prefetcher panicked")?.close(GLOBAL_BATCH);
    eprintln!("weight {weight:.3}");
    Ok(())
}
