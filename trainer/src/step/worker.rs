//! State of a worker other than its replicas.

use anyhow::Result;
use evenstep_client::ClientTls;
use evenstep_protocol::JobId;
use evenstep_sensors::Boundary;
use tch::Device;

use super::flags::StopFlags;
use super::replica::Replica;
use crate::checkpoint::{self, Identity, State, Tensors};
use crate::claims::Claims;
use crate::model::{Compute, evaluate};
use crate::plan::Rate;
use crate::progress::ProgressLog;
use crate::training::{GroupStart, Observer, Training, WorkerProcess};

/// Maximum number of samples for the final loss.
const EVALUATED_MAX: u64 = 1024;

/// Start or resume point of a run, broadcast by rank 0.
#[derive(Debug, Clone, Default)]
pub struct StartPoint {
    /// The first iteration.
    pub iteration: u64,
    /// The epoch of that iteration.
    pub epoch: u64,
    /// Samples of that epoch that are done.
    pub position: u64,
    /// Multiplier of the learning rate and its ramp.
    pub rate: Option<Rate>,
    /// The job, if set.
    pub job_id: Option<JobId>,
}

/// State of a worker other than its replicas.
pub struct Worker<'a> {
    /// The training: options, model and data.
    pub training: &'a Training,
    /// Identity of the worker process.
    pub process: &'a WorkerProcess,
    /// Device for computing.
    pub device: Device,
    /// Element type of the parameters.
    pub dtype: String,
    /// Why the worker computes on the CPU, if CUDA was to be used if available.
    pub fallback: Option<String>,
    /// Forward and backward passes.
    pub compute: Compute,
    /// TLS of the connection to the predictor.
    pub tls: ClientTls,
    /// Claims from the tails of iterations.
    pub claims: Claims,
    /// Reads drivers at the boundary of an iteration.
    pub drivers: Boundary,
    /// Signals that the worker received.
    pub flags: StopFlags,
    /// Whether another worker waits to join.
    pub called: bool,
    /// Whether the worker has announced that it leaves.
    pub leaving: bool,
    /// Observer of the worker.
    pub observer: Box<dyn Observer>,
    /// Rank 0's progress log.
    pub log: Option<ProgressLog>,
}

impl Worker<'_> {
    /// Returns whether a replica has finished its training.
    pub fn is_done(&self, replica: &Replica) -> bool {
        let options = &self.training.options;
        match options.steps {
            Some(steps) => replica.iteration >= steps,
            None => replica.cursor.epoch() >= options.epochs.unwrap_or(1),
        }
    }

    /// Returns the iterations of each replica, for the number of workers at the start.
    pub fn iterations(&self) -> u64 {
        let options = &self.training.options;
        let in_epoch = self.training.data.len().div_ceil(options.whole_batch(self.process.world_size));
        options.steps.unwrap_or(options.epochs.unwrap_or(1) * in_epoch)
    }

    /// Returns the rate of a replica that begins an iteration with these workers; `before` is the rate in
    /// force.
    pub fn rate(&self, replica: &Replica, before: Option<Rate>) -> Rate {
        let begin = GroupStart {
            iteration: replica.iteration,
            global_batch: replica.global_batch,
            base_global_batch: self.training.options.base_batch(self.process.world_size),
        };
        self.training.options.rule.rate(before, begin)
    }

    /// Returns the identity of this run, for checkpoints.
    pub fn identity(&self) -> Identity {
        let options = &self.training.options;
        Identity {
            seed: options.step.seed,
            global_batch: options.base_batch(self.process.world_size),
            per_worker_batch: options.per_worker_batch,
            model: self.training.model_name.clone(),
            dtype: self.dtype.clone(),
            data: self.training.data.name(),
            policies: options.policy.clone(),
            momentum_form: None,
        }
    }

    /// Writes a checkpoint if one is due after iteration `before`.
    ///
    /// # Errors
    /// The checkpoint cannot be written.
    pub fn checkpoint_since(&mut self, before: u64, replicas: &[Replica]) -> Result<()> {
        let due = |every: u64| before / every < replicas[0].iteration / every;
        if self.training.options.checkpoint_every.is_some_and(due) {
            self.checkpoint(replicas)
        } else {
            Ok(())
        }
    }

    /// On rank 0: writes a checkpoint, if all replicas are at the same iteration.
    ///
    /// # Errors
    /// The checkpoint cannot be written.
    pub fn checkpoint(&mut self, replicas: &[Replica]) -> Result<()> {
        let (Some(log), Some(folder)) = (&self.log, &self.training.options.checkpoint_dir) else {
            return Ok(());
        };
        let first = &replicas[0];
        if replicas.iter().any(|replica| replica.iteration != first.iteration) {
            return Ok(());
        }
        self.observer.flush()?;
        let state = State {
            job_id: log.job_id.clone(),
            iteration: first.iteration,
            epoch: first.cursor.epoch(),
            position: first.cursor.position(),
            rate: Some(first.planner.in_force().rate()),
            identity: self.identity(),
        };
        let tensors = |replica| {
            let Replica { policy, parameters, optimizer, .. }: &Replica = replica;
            Tensors { policy: *policy, parameters, velocity: optimizer.velocity() }
        };
        let tensors: Vec<Tensors<'_>> = replicas.iter().map(tensors).collect();
        checkpoint::save(folder, &state, &tensors)?;
        Ok(())
    }

    /// Ends the observation; then rank 0 logs the end of the run.
    ///
    /// # Errors
    /// The observer fails.
    pub fn conclude(&mut self, replicas: &[Replica], stopped: bool) -> Result<()> {
        self.observer.run_finished()?;
        let Some(log) = self.log.take() else { return Ok(()) };
        let (held_out, what) = match &self.training.held_out {
            Some(held_out) => (held_out, "held-out"),
            None => (&self.training.data, "training"),
        };
        let indices: Vec<i64> = (0..EVALUATED_MAX.min(held_out.len()) as i64).collect();
        let batch = held_out.batch(&indices, self.device);
        for replica in replicas {
            let loss = evaluate(&*replica.model, &batch);
            let evaluation = format!("mean loss over {} {what} samples", indices.len());
            let line = log.end(replica.policy, replica.iteration, loss, evaluation);
            self.observer.policy_finished(line)?;
        }
        log.finish(stopped);
        self.observer.flush()
    }

    /// On rank 0: delivers the last reports and removes the workers from the job.
    pub fn close(&self, replicas: &mut [Replica]) {
        for replica in replicas {
            let next_size = replica.cursor.size(replica.global_batch, 0);
            replica.planner.close(next_size);
        }
    }
}
