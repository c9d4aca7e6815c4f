//! Announcement of a run by rank 0: on the terminal and to the predictor.

use std::time::{Duration, Instant};

use anyhow::Result;
use evenstep_client::{Backlog, Client, ClientConfig, Connection, ConnectionBuilder, Registration, RunStart};
use evenstep_protocol::{Hedge, JobId, JobSpec, JoinRequest, WorkerId};

use super::identity::{default_job_id, job_of};
use super::worker::{StartPoint, Worker};
use crate::progress::statistics::Tally;
use crate::progress::{Output, PolicyJob, Progress, ProgressLog};
use crate::training::{Options, RunInfo};

/// Time limit of a request to the predictor. No iteration waits for it, so it only needs to end.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts rank 0's progress log, or continues the log of a failed rank 0.
///
/// # Errors
/// The observer fails.
pub fn start_log(
    worker: &mut Worker<'_>,
    workers: &[WorkerId],
    start: &StartPoint,
    started: Instant,
    taken_over: bool,
) -> Result<ProgressLog> {
    let (training, process) = (worker.training, worker.process);
    let (options, steps) = (&training.options, worker.iterations());
    let left = steps.saturating_sub(start.iteration) * options.policy.len() as u64;
    let (progress, output) = Progress::new("rank 0", left);
    let asks = options.policy.iter().any(|policy| policy.requests_allocations());
    let job_id = asks.then(|| start.job_id.clone().map_or_else(default_job_id, Ok)).transpose()?;
    let model = format!("{}, {}", training.model_name, worker.dtype);
    let run = RunInfo {
        job_id: job_id.as_ref(),
        workers,
        model,
        data: training.data.name(),
        steps,
        started,
        taken_over,
    };
    if taken_over {
        output.say(&format!("{} is now rank 0, from iteration {} on", workers[0], start.iteration));
    } else {
        output.say(&format!(
            "{} workers, {}, {}, {}, {}{}",
            workers.len(),
            run.model,
            run.data,
            describe_batch(options, process.world_size),
            match (options.per_worker_batch, options.steps, options.epochs.unwrap_or(1)) {
                // The number of iterations depends on the number of workers.
                (Some(_), None, 1) => "1 epoch".to_owned(),
                (Some(_), None, epochs) => format!("{epochs} epochs"),
                _ => format!("{steps} iterations"),
            },
            job_id.as_ref().map_or_else(String::new, |job| format!(", job {job}")),
        ));
    }
    worker.fallback.iter().for_each(|why| output.say(why));
    worker.observer.run_started(&run, &output)?;
    if start.iteration > 0 && !taken_over {
        output.say(&format!("resuming at iteration {}", start.iteration));
    }
    let job = |run: &JobId| -> Result<Vec<PolicyJob>> {
        let asking = options.policy.iter().filter(|policy| policy.requests_allocations());
        let job =
            |&policy| Ok(PolicyJob { policy, job_id: job_of(policy, run)?, backlog: Backlog::default() });
        asking.map(job).collect()
    };
    Ok(ProgressLog {
        started,
        workers: workers.to_vec(),
        jobs: job_id.as_ref().map_or_else(|| Ok(Vec::new()), job)?,
        job_id,
        progress,
        output,
        pace_missed: Vec::new(),
        tallies: options.policy.iter().map(|&policy| (policy, Tally::default())).collect(),
    })
}

/// Describes the batch of an iteration and the learning-rate rule.
fn describe_batch(options: &Options, initial_workers: usize) -> String {
    let (base, rule) = (options.base_batch(initial_workers), options.rule);
    match options.per_worker_batch {
        Some(each) => format!("{each} samples per worker (--lr is for {base} in total, rule {rule})"),
        None => format!("global batch {base}"),
    }
}

/// Returns the registration of a run with the predictor under one policy.
pub fn registration(
    worker: &Worker<'_>,
    job: &PolicyJob,
    workers: &[WorkerId],
    devices: &[String],
    start: RunStart,
) -> Registration {
    let options = &worker.training.options;
    let config =
        ClientConfig { request_timeout: REQUEST_TIMEOUT, tls: worker.tls.clone(), ..ClientConfig::default() };
    let spec = JobSpec {
        quantum: options.quantum,
        per_worker_batch: options.per_worker_batch,
        rule: options.rule.named(),
        hedge: job.policy.hedge(),
        background: options.background,
        ..JobSpec::new(options.base_batch(worker.process.world_size))
    };
    let claims = spec.hedge == Hedge::Auto;
    let joins = workers.iter().zip(devices).map(|(worker, device)| JoinRequest {
        device: Some(device.clone()),
        claims,
        ..JoinRequest::new(worker.clone())
    });
    let client = Client::new(&options.server, job.job_id.clone(), config);
    Registration::new(client, spec, joins.collect()).starting_at(start)
}

/// Returns a builder of connections that deliver the policy's reports and print events.
pub fn connection(registration: Registration, job: &PolicyJob, output: &Output) -> ConnectionBuilder {
    let output = output.clone();
    Connection::builder(registration)
        .backlog(job.backlog.clone())
        .on_event(move |event| output.say(&event.to_string()))
}
