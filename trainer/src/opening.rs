//! Rank 0's first words, and how it makes the run known.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenstep_client::{Backlog, Client, ClientConfig, Connection, ConnectionBuilder, Registration, RunStart};
use evenstep_protocol::{Hedge, JobId, JobSpec, JoinRequest, WorkerId};

use crate::cli::{JoinArgs, TrainArgs};
use crate::contend::clock_s;
use crate::figures::Tally;
use crate::identity::{default_job_id, job_of};
use crate::load::{Load, LoadKind, Timeline};
use crate::narrator::{Asking, Narrator};
use crate::news::Teller;
use crate::output::{Output, Progress};
use crate::record::{Recorder, RunLine, Scenario};
use crate::rule::RuleChoice;
use crate::setup::Start;
use crate::worker::{Worker, asks};

/// Begins rank 0's account of a run, or goes on with that of a rank 0 that is gone.
///
/// # Errors
/// The record cannot be written.
pub fn narrate(
    worker: &Worker<'_>,
    workers: &[WorkerId],
    start: &Start,
    started: Instant,
    taken_over: bool,
) -> Result<Narrator> {
    let (args, train) = (worker.args, &worker.args.train);
    let left = worker.iterations().saturating_sub(start.iteration) * train.policy.len() as u64;
    let (progress, output) = Progress::new("rank 0", left);
    let job_id =
        asks(&train.policy).then(|| start.job_id.clone().map_or_else(default_job_id, Ok)).transpose()?;
    let run = describe(worker, workers, job_id.clone());
    if taken_over {
        output.say(&format!("{} is rank 0 now, from iteration {} on", workers[0], start.iteration));
        let recorder = train.record.as_deref().map(Recorder::go_on).transpose()?;
        return narrator(worker, workers, job_id, recorder, (progress, output), started);
    }
    output.say(&format!(
        "{} workers, {}, {}, {}, {}{}",
        workers.len(),
        run.model,
        run.data,
        batch_words(train, args.world_size),
        match (train.per_worker_batch, train.steps, train.epochs.unwrap_or(1)) {
            // How many iterations that makes depends on who will take part.
            (Some(_), None, 1) => "1 epoch".to_owned(),
            (Some(_), None, epochs) => format!("{epochs} epochs"),
            _ => format!("{} iterations", run.steps),
        },
        job_id.as_ref().map_or_else(String::new, |job| format!(", job {job}")),
    ));
    for note in &run.notes {
        output.say(&format!("note: {note}"));
    }
    if start.iteration > 0 {
        output.say(&format!("goes on with iteration {}", start.iteration));
    }
    let loads = timelines(args, started);
    let recorder = train.record.as_deref().map(|path| Recorder::begin(path, run, loads)).transpose()?;
    narrator(worker, workers, job_id, recorder, (progress, output), started)
}

/// What an iteration holds and how the learning rate follows, in words.
fn batch_words(train: &TrainArgs, begins_with: usize) -> String {
    let (base, rule) = (train.base_batch(begins_with), train.rule.to_string());
    match train.per_worker_batch {
        Some(each) => format!("{each} samples a worker (--lr is for {base} in all, and follows by {rule})"),
        None if train.rule.rule == RuleChoice::Legw => format!("global batch {base}, {rule}"),
        None => format!("global batch {base}"),
    }
}

fn narrator(
    worker: &Worker<'_>,
    workers: &[WorkerId],
    job_id: Option<JobId>,
    recorder: Option<Recorder>,
    (progress, output): (Progress, Output),
    started: Instant,
) -> Result<Narrator> {
    let policies = &worker.args.train.policy;
    let tallies = policies.iter().map(|&policy| (policy, Tally::default())).collect();
    let asking = |run: &JobId| -> Result<Vec<Asking>> {
        let backlog = Backlog::default;
        let asking = policies.iter().filter(|policy| policy.asks());
        asking
            .map(|&policy| Ok(Asking { policy, job_id: job_of(policy, run)?, backlog: backlog() }))
            .collect()
    };
    Ok(Narrator {
        started,
        workers: workers.to_vec(),
        asking: job_id.as_ref().map_or_else(|| Ok(Vec::new()), asking)?,
        job_id,
        recorder,
        progress,
        output,
        pace_missed: Vec::new(),
        teller: worker.args.tells.then(Teller::open).transpose().context("--tells")?,
        tallies,
    })
}

/// The load beside each worker, real or imposed, by rank and on the clock of the record; empty where there is none, or nobody
/// says when it began.
fn timelines(args: &JoinArgs, started: Instant) -> Vec<Timeline> {
    let kind = args.contended.or(args.train.sway).filter(|_| args.loaded_since.is_some());
    let beside = |kind| (0..args.world_size).map(move |rank| timeline(args, kind, rank, started)).collect();
    kind.map_or_else(Vec::new, beside)
}

/// The load beside a worker, its time 0 being `origin`; where nobody says when it began, that was now.
pub fn timeline(args: &JoinArgs, kind: LoadKind, rank: usize, origin: Instant) -> Timeline {
    let now_s = clock_s();
    let lead_s = now_s - origin.elapsed().as_secs_f64() - args.loaded_since.unwrap_or(now_s);
    Timeline::new(Load::beside(rank, kind, args.train.task.seed), lead_s)
}

fn describe(worker: &Worker<'_>, workers: &[WorkerId], job_id: Option<JobId>) -> RunLine {
    let (args, train) = (worker.args, &worker.args.train);
    let mut notes = Vec::new();
    let paces: Option<Vec<f64>> =
        (0..args.world_size).map(|rank| train.pace_of(rank).ok().flatten()).collect();
    if let Some(paces) = &paces {
        let sways = train.sway.map_or_else(String::new, |kind| {
            format!(", divided by 1 + n as beside n busy threads on its core, a load that {}", changes(kind))
        });
        notes.push(format!(
            "imposed speeds {paces:?}: real gradients, then each worker waits until {} ms a sample divided by its pace \
             are over{sways}",
            train.pace_unit_ms
        ));
    }
    if let Some(kind) = args.contended {
        notes.push(format!("each worker's core carries a real competing load that {}", changes(kind)));
    }
    if let Some(share) = train.hedge.tail {
        notes.push(format!(
            "even shares of {:.0} % of each iteration; the rest is a tail that is claimed",
            100.0 * (1.0 - share)
        ));
    }
    let scenario = match (&paces, args.contended, train.sway) {
        (_, Some(_), _) => Scenario::Contended,
        (Some(_), None, Some(_)) => Scenario::Swayed,
        (Some(_), None, None) => Scenario::Paced,
        (None, None, _) => Scenario::Plain,
    };
    RunLine {
        scenario,
        job_id,
        paces,
        load: args.contended.or(train.sway),
        workers: workers.to_vec(),
        global_batch: train.whole_batch(args.world_size),
        per_worker_batch: train.per_worker_batch,
        rule: train.rule.named(),
        model: format!("{}, {}", train.task.model_name(), train.task.dtype.tolerance().0),
        data: worker.data.name.clone(),
        steps: worker.iterations(),
        seed: train.task.seed,
        ask: train.ask,
        policies: train.policy.clone(),
        elastic: train.elastic,
        block: if train.policy.len() > 1 { train.block } else { worker.iterations() },
        notes,
    }
}

/// How a load changes, in words.
fn changes(kind: LoadKind) -> &'static str {
    match kind {
        LoadKind::Regimes => "changes over time",
        LoadKind::Steady => "stays as it is",
        LoadKind::Bursty => "comes in bursts",
        LoadKind::Periodic => "comes and goes periodically",
        LoadKind::Walk => "wanders up and down",
    }
}

/// The registration of a run with the predictor under one policy.
pub fn registration(
    worker: &Worker<'_>,
    asking: &Asking,
    workers: &[WorkerId],
    devices: &[String],
    start: RunStart,
) -> Registration {
    let (args, train) = (worker.args, &worker.args.train);
    let request_timeout = Duration::from_millis(train.ask_timeout_ms);
    let config = ClientConfig { request_timeout, ..ClientConfig::default() };
    let spec = JobSpec {
        quantum: train.quantum,
        max_local_batch: train.max_local_batch,
        per_worker_batch: train.per_worker_batch,
        rule: train.rule.named(),
        learning_rate: train.rule.settings(worker.data.train.len()),
        hedge: train.hedge.of(asking.policy),
        min_chunk: train.hedge.min_chunk,
        background: train.background.wanted(),
        ..JobSpec::new(train.base_batch(args.world_size))
    };
    let claims = spec.hedge == Hedge::Auto;
    let joins = workers.iter().zip(devices).map(|(worker, device)| JoinRequest {
        device: Some(device.clone()),
        claims,
        ..JoinRequest::new(worker.clone())
    });
    let client = Client::new(&train.server, asking.job_id.clone(), config);
    Registration::new(client, spec, joins.collect()).starting_at(start)
}

/// A connection of this registration that delivers the policy's reports and prints its events.
pub fn connection(registration: Registration, asking: &Asking, output: &Output) -> ConnectionBuilder {
    let output = output.clone();
    Connection::builder(registration)
        .backlog(asking.backlog.clone())
        .on_event(move |event| output.say(&event.to_string()))
}
