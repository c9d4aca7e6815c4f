//! Restores the statistics of jobs from their history, after a restart or a change of their owner.

use std::sync::Arc;

use evenstep_protocol::WorkerReport;
use evenstep_store::EveryNth;

use super::error::JobError;
use super::history;
use super::job::Job;
use super::live::{Account, Steps};
use super::registry::Jobs;

/// Number of iterations of a job's history from which its account is restored.
const ACCOUNT_POINTS: u64 = 1_000;
/// Number of jobs without state in memory whose statistics are restored, the newest first.
const STORED_MAX: usize = 256;

impl Job {
    /// Restores the account and the latest iterations from the history of the job, unless that was done before.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn restore(&self) -> Result<(), JobError> {
        if self.live().is_restored() {
            return Ok(());
        }
        let (store, job_id, until) = (self.store(), self.id(), self.live().restored_until());
        let Some((reported, reported_unix_ms)) = store.past(job_id).await?.reported else {
            self.live().restore(Account::default(), None, Steps::default(), until);
            return Ok(());
        };
        let all = store.iterations_since(job_id, i64::MIN).await?;
        let end = (reported + 1).min(until).max(all.start);
        let newest = EveryNth { iterations: end.saturating_sub(1)..end, every: 1 };
        let newest = store.every_nth_allocation(job_id, &newest).await?;
        let newest = newest.first().map(|(_, stored)| stored.parse()).transpose()?;
        let workers = newest.map_or(1, |answer| answer.allocations.len());
        let recent =
            EveryNth { iterations: end.saturating_sub(Steps::room(workers)).max(all.start)..end, every: 1 };
        let mut steps = Steps::default();
        let mut times = Vec::new();
        for (at_unix_ms, stored) in store.every_nth_allocation(job_id, &recent).await? {
            let mut answer = stored.parse()?;
            // It holds until the next one.
            answer.iteration = stored.iteration;
            times.push((stored.iteration, at_unix_ms));
            steps.answered(Arc::new(answer));
        }
        for done in store.every_nth_report(job_id, &recent).await? {
            let at = times.binary_search_by_key(&done.iteration, |(iteration, _)| *iteration).ok();
            let at_unix_ms =
                at.filter(|_| done.iteration != reported).map_or(reported_unix_ms, |at| times[at].1);
            let report = WorkerReport {
                barrier_wait_s: done.barrier_wait_s,
                loader_wait_s: done.loader_wait_s,
                loss: done.loss,
                ..WorkerReport::new(done.worker, done.iteration, done.local_batch, done.compute_time_s)
            };
            steps.reported(&report, at_unix_ms, 0);
        }
        steps.close();
        let means = steps.means();
        // Only jobs in memory show their latest iterations.
        let steps = if self.is_loaded() { steps } else { Steps::default() };
        let sampled = history::read(store, job_id, all.start..end, ACCOUNT_POINTS, workers as u64).await?;
        self.live().restore(Account::of(&sampled, end), means, steps, until);
        Ok(())
    }
}

impl Jobs {
    /// Restores the statistics of all jobs that are in memory or were listed, the newest first.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn restore(&self) -> Result<(), JobError> {
        let in_memory = self.all().into_iter().filter(|job| job.is_loaded());
        let mut stored = self.stored();
        stored.sort_by_cached_key(|job| std::cmp::Reverse(job.live().reported_unix_ms()));
        stored.truncate(STORED_MAX);
        for job in in_memory.chain(stored).filter(|job| !job.live().is_restored()) {
            match job.restore().await {
                // Deleted in the meantime.
                Ok(()) | Err(JobError::UnknownJob(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
