//! The conditions of a worker: imposed speeds and competing loads.

use std::time::{Duration, Instant};

use anyhow::Result;
use evenstep_trainer::step::BLOCK;
use evenstep_trainer::training::{RunInfo, WorkerProcess};

use super::args::TrainArgs;
use crate::load::{ImposedPace, Load, LoadKind, Timeline, clock_s};
use crate::record::{RunLine, Scenario};

/// The load that `--vary-pace` simulates.
const SIMULATED: LoadKind = LoadKind::Regimes;

/// The conditions of one worker.
#[derive(Debug)]
pub struct Conditions {
    /// The model and the training options.
    pub train: TrainArgs,
    /// The worker process.
    pub process: WorkerProcess,
    /// The kind of the competing load on the workers' cores, if any.
    pub contended: Option<LoadKind>,
    /// Start of the real or imposed load, in seconds on the machine's monotonic clock.
    pub loaded_since: Option<f64>,
}

impl Conditions {
    /// Returns the imposed pace of this worker, if any.
    ///
    /// # Errors
    /// Fails if `--pace` has no entry for this rank.
    pub fn pace(&self) -> Result<Option<ImposedPace>> {
        let unit = Duration::from_secs_f64(self.train.pace_unit_ms / 1e3);
        Ok(self.train.pace_of(self.process.rank)?.map(|pace| {
            let (pace, origin) = (ImposedPace::new(pace, unit), Instant::now());
            if self.train.vary_pace {
                pace.swayed(self.timeline(SIMULATED, self.process.rank, origin), origin)
            } else {
                pace
            }
        }))
    }

    /// Returns the kind of the real or imposed load, if any.
    fn load(&self) -> Option<LoadKind> {
        self.contended.or(self.train.vary_pace.then_some(SIMULATED))
    }

    /// Returns the real or imposed load of each worker, by rank, on the clock of the record. Empty
    /// without a load, or if its start is unknown.
    pub fn timelines(&self, started: Instant) -> Vec<Timeline> {
        let kind = self.load().filter(|_| self.loaded_since.is_some());
        let ranks = 0..self.process.world_size;
        kind.map_or_else(Vec::new, |kind| ranks.map(|rank| self.timeline(kind, rank, started)).collect())
    }

    /// Returns the load of a worker, with time 0 at `origin`. If the start of the load is unknown, it
    /// starts now.
    fn timeline(&self, kind: LoadKind, rank: usize, origin: Instant) -> Timeline {
        let now_s = clock_s();
        let lead_s = now_s - origin.elapsed().as_secs_f64() - self.loaded_since.unwrap_or(now_s);
        Timeline::new(Load::for_worker(rank, kind, self.train.options.step.seed), lead_s)
    }

    /// Returns the first line of a record.
    pub fn describe(&self, run: &RunInfo<'_>) -> RunLine {
        let (train, options) = (&self.train, &self.train.options);
        let world_size = self.process.world_size;
        let mut notes = Vec::new();
        let paces: Option<Vec<f64>> =
            (0..world_size).map(|rank| train.pace_of(rank).ok().flatten()).collect();
        if let Some(paces) = &paces {
            let sways = if train.vary_pace {
                "; each pace is divided by 1 + n for n simulated busy threads on the core, a load that changes over time"
            } else {
                ""
            };
            notes.push(format!(
                "imposed speeds {paces:?}: each worker computes real gradients, then waits until {} ms per sample, \
                                 divided by its pace, have passed{sways}",
                train.pace_unit_ms
            ));
        }
        if let Some(kind) = self.contended {
            notes.push(format!("each worker's core runs a real competing load that {}", changes(kind)));
        }
        if let Some(share) = options.tail {
            notes.push(format!(
                "even shares of {:.0} % of each iteration; the rest is a shared tail from which workers claim chunks",
                100.0 * (1.0 - share)
            ));
        }
        let scenario = match (&paces, self.contended, train.vary_pace) {
            (_, Some(_), _) => Scenario::Contended,
            (Some(_), None, true) => Scenario::Swayed,
            (Some(_), None, false) => Scenario::Paced,
            (None, None, _) => Scenario::Plain,
        };
        RunLine {
            scenario,
            job_id: run.job_id.cloned(),
            paces,
            load: self.load(),
            workers: run.workers.to_vec(),
            global_batch: options.whole_batch(world_size),
            per_worker_batch: options.per_worker_batch,
            rule: options.rule.named(),
            model: run.model.clone(),
            data: run.data.clone(),
            steps: run.steps,
            seed: options.step.seed,
            policies: options.policy.clone(),
            elastic: options.elastic,
            block: if options.policy.len() > 1 { BLOCK } else { run.steps },
            notes,
        }
    }
}

/// Describes the changes of a load over time.
fn changes(kind: LoadKind) -> &'static str {
    match kind {
        LoadKind::Regimes => "changes over time",
        LoadKind::Steady => "stays constant",
        LoadKind::Bursty => "comes in bursts",
        LoadKind::Periodic => "changes periodically",
        LoadKind::Walk => "follows a random walk",
    }
}
