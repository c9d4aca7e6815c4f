//! The jobs of this predictor: which there are, and who owns them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_protocol::{
    JobId, JobLine, JobSpec, JobView, LiveView, NodeId, NodeSample, NodeView, TelemetryAnswer,
};
use evenstep_store::{Change, Owner, RollUp, Store, TelemetryRows};

use super::describe;
use super::error::JobError;
use super::fits::Pool;
use super::job::Job;
use super::live::JobFamilies;
use super::load;
use super::nodes::NodesSeen;
use crate::clock::Clock;

/// Jobs in one predictor.
pub const JOBS_MAX: usize = 10_000;

/// The jobs of this predictor.
#[derive(Debug)]
pub struct Jobs {
    store: Store,
    clock: Clock,
    jobs: RwLock<BTreeMap<JobId, Arc<Job>>>,
    nodes_seen: NodesSeen,
    /// Held alone while the jobs are given up: whoever asks then hears that it is over when it is, and not before.
    resigning: tokio::sync::RwLock<()>,
}

impl Jobs {
    /// A registry over what the store holds; a job is read from it when the first request for it arrives.
    pub fn new(store: Store, clock: Clock) -> Self {
        Self {
            store,
            clock,
            jobs: RwLock::default(),
            nodes_seen: NodesSeen::default(),
            resigning: tokio::sync::RwLock::default(),
        }
    }

    /// The store that everything is kept in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A job by name: one of ours, or free until now.
    ///
    /// # Errors
    /// [`JobError::UnknownJob`], [`JobError::Elsewhere`] where another predictor owns it, or what the store says.
    pub async fn job(&self, job_id: &JobId) -> Result<Arc<Job>, JobError> {
        let _not_now = self.resigning.read().await;
        let registration = self.store.registration()?;
        if let Some(job) = self.known(job_id, registration) {
            return Ok(job);
        }
        let owner = self.store.claim(job_id).await?;
        let Some(Owner::Us(registration)) = owner else {
            self.write().remove(job_id);
            return Err(match owner {
                Some(Owner::Other { url }) => JobError::Elsewhere { job_id: job_id.clone(), url },
                _ => JobError::UnknownJob(job_id.clone()),
            });
        };
        let mut jobs = self.write();
        let job = jobs.get(job_id).filter(|job| job.registration() == registration);
        let job = job.cloned().unwrap_or_else(|| {
            let store = self.store.of_registration(registration);
            Arc::new(Job::new(job_id.clone(), registration, store, self.clock.clone()))
        });
        jobs.insert(job_id.clone(), job.clone());
        Ok(job)
    }

    /// A job that we own in this registration, where somebody asked for it before.
    fn known(&self, job_id: &JobId, registration: u64) -> Option<Arc<Job>> {
        self.read().get(job_id).filter(|job| job.registration() == registration).cloned()
    }

    /// The jobs of this predictor that somebody asked for, by id.
    fn jobs(&self) -> Vec<Arc<Job>> {
        let Ok(registration) = self.store.registration() else { return Vec::new() };
        self.read().values().filter(|job| job.registration() == registration).cloned().collect()
    }

    /// Every job at a glance, those of other predictors as the store has them.
    ///
    /// # Errors
    /// What the store says.
    pub async fn views(&self) -> Result<Vec<JobView>, JobError> {
        let registration = self.store.registration()?;
        let mut views = Vec::new();
        for job_id in self.store.job_ids().await? {
            let view = match self.known(&job_id, registration) {
                Some(job) => job.view().await.map(Some),
                None if self.store.is_shared() => self.stored_view(&job_id).await,
                None => self.job(&job_id).await?.view().await.map(Some),
            };
            match view {
                Ok(view) => views.extend(view),
                // Deleted while we looked.
                Err(JobError::UnknownJob(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(views)
    }

    /// A job as the store has it; nothing of it is kept in memory.
    async fn stored_view(&self, job_id: &JobId) -> Result<Option<JobView>, JobError> {
        let state = load::load(&self.store, job_id, self.clock.now_unix_ms(), |_| {}).await?;
        Ok(state.map(|state| describe::job(&state, job_id)))
    }

    /// Creates a job or changes its options; true if it is new.
    ///
    /// # Errors
    /// [`JobError::Conflict`] if the learning-rate rule of a job with allocations would change.
    pub async fn put_job(&self, job_id: &JobId, spec: JobSpec) -> Result<(JobView, bool), JobError> {
        match self.job(job_id).await {
            Err(JobError::UnknownJob(_)) => {}
            job => return Ok((job?.put(spec).await?, false)),
        }
        if self.store.job_count().await? >= JOBS_MAX {
            return Err(JobError::Conflict(format!("{JOBS_MAX} jobs are kept already: delete one")));
        }
        let change = Change::CreateJob { job_id: job_id.clone(), spec: spec.clone().into() };
        let is_new = self.store.write(vec![change], self.clock.now_unix_ms()).await? == 1;
        let job = self.job(job_id).await?;
        // Another request may have created it at the same moment: ours is the later one then.
        Ok((if is_new { job.view().await? } else { job.put(spec).await? }, is_new))
    }

    /// Deletes a job and all its history.
    ///
    /// # Errors
    /// [`JobError::UnknownJob`], or what the store says.
    pub async fn delete_job(&self, job_id: &JobId) -> Result<(), JobError> {
        let job = self.job(job_id).await?;
        job.delete().await?;
        self.write().remove(job_id);
        job.live().gone();
        Ok(())
    }

    /// Renews this predictor's lease for as long as it is polled.
    pub async fn keep_lease(&self) {
        self.store.keep_lease().await;
    }

    /// Gives all jobs up to other predictors; answers nothing any more.
    pub async fn resign(&self) {
        let _alone = self.resigning.write().await;
        if let Err(error) = self.store.resign().await {
            tracing::warn!(%error, "the jobs were not given up: they are free when the lease ends");
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.jobs.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes workers whose lease ran out, in every job.
    pub async fn expire_leases(&self) {
        for job in self.jobs() {
            if let Err(error) = job.expire_leases().await {
                tracing::warn!(job_id = %job.id(), %error, "leases could not be checked");
            }
        }
    }

    /// Deletes the oldest iterations of a job and keeps their statistics.
    ///
    /// # Errors
    /// As [`Jobs::job`], or what the store says; then nothing was deleted.
    pub async fn roll_up(&self, job_id: &JobId, roll_up: &RollUp) -> Result<(), JobError> {
        self.job(job_id).await?.roll_up(roll_up).await
    }

    /// Fits networks and stores models, in every job.
    pub async fn refit(&self, pool: &Pool) {
        for job in self.jobs() {
            if let Err(error) = job.refit(pool).await {
                tracing::warn!(job_id = %job.id(), %error, "models could not be refitted or stored");
            }
        }
    }

    /// Keeps an agent's samples; each is stored once.
    ///
    /// # Errors
    /// What the store says; then nothing was stored.
    pub async fn telemetry(&self, rows: TelemetryRows) -> Result<TelemetryAnswer, JobError> {
        let (node, boot_id) = (rows.node().clone(), rows.boot_id().to_owned());
        let (count, next_sequence) = (rows.len() as u64, rows.next_sequence());
        let latest = rows.rows().map(|row| row.at_unix_ms).max();
        let stored = self.store.write(vec![Change::Telemetry(rows)], self.clock.now_unix_ms()).await?;
        if let Some(at_unix_ms) = latest {
            self.nodes_seen.saw(&node, at_unix_ms);
        }
        Ok(TelemetryAnswer { node, boot_id, next_sequence, stored, duplicates: count - stored })
    }

    /// Remembers from the store when nodes were heard of: one that fell silent while nobody listened is silent too.
    ///
    /// # Errors
    /// What the store says.
    pub async fn load_nodes(&self) -> Result<(), JobError> {
        for (node, at_unix_ms) in self.store.nodes_heard().await? {
            self.nodes_seen.saw(&node, at_unix_ms);
        }
        Ok(())
    }

    /// Everything at a glance: what is in memory, and the names of what is not.
    ///
    /// # Errors
    /// What the store says.
    pub async fn live(&self) -> Result<LiveView, JobError> {
        let registration = self.store.registration()?;
        let line = |(job_id, url): (JobId, Option<String>)| match self.known(&job_id, registration) {
            Some(job) if url.is_none() => job.live().line(&job_id),
            _ => JobLine::named(job_id, url),
        };
        let jobs = self.store.owners().await?.into_iter().map(line).collect();
        let now_unix_ms = self.clock.now_unix_ms();
        Ok(LiveView { now_unix_ms, jobs, nodes: self.nodes_seen.lines(now_unix_ms) })
    }

    /// Whether a job is still ours, and still there.
    pub fn has(&self, job: &Arc<Job>) -> bool {
        let registration = self.store.registration();
        let known = registration.ok().and_then(|registration| self.known(job.id(), registration));
        known.is_some_and(|known| Arc::ptr_eq(&known, job))
    }

    /// The metrics of jobs, workers and nodes. Only what is in memory is looked at, and only for moments.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut of_jobs = JobFamilies::default();
        for job in self.jobs() {
            of_jobs.add(job.id(), job.live());
        }
        let mut last_sample = Family::gauge(
            "evenstep_node_last_sample_timestamp_seconds",
            "When the latest sample of a node was taken, by its clock.",
        );
        for line in self.nodes_seen.lines(self.clock.now_unix_ms()) {
            last_sample.say([("node", line.node.as_str())], line.at_unix_ms as f64 / 1e3);
        }
        let mut families = of_jobs.done();
        families.extend(last_sample.done());
        families
    }

    /// Every node with its latest sample.
    ///
    /// # Errors
    /// What the store says.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, JobError> {
        Ok(self.store.nodes().await?)
    }

    /// The latest samples of a node.
    ///
    /// # Errors
    /// What the store says.
    pub async fn node_samples(&self, node: &NodeId, limit: u64) -> Result<Vec<NodeSample>, JobError> {
        Ok(self.store.node_samples(node, limit).await?)
    }

    /// Whether the store takes writes and can be read.
    ///
    /// # Errors
    /// What the store says.
    pub async fn check(&self) -> Result<(), JobError> {
        Ok(self.store.check().await?)
    }
}
