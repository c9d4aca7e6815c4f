//! The jobs of this predictor, and the owner of each job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_protocol::{
    JobId, JobSpec, JobView, NodeId, NodeSample, NodeSummary, NodeView, NodeWorker, TelemetryResponse,
};
use evenstep_store::access::AuditEntry;
use evenstep_store::{Change, Owner, RollUp, Store, TelemetryRows};

use super::error::JobError;
use super::fits::Pool;
use super::job::{Job, outcome};
use super::loads::Loads;
use super::memory::Memory;
use super::nodes::NewestSamples;
use super::watch::{JobFamilies, Stragglers};
use crate::clock::{Clock, Now};

/// Limit of jobs in one predictor.
pub const JOBS_MAX: usize = 10_000;

/// The jobs of this predictor.
#[derive(Debug)]
pub struct Jobs {
    store: Store,
    clock: Clock,
    started_ms: i64,
    jobs: RwLock<BTreeMap<JobId, Arc<Job>>>,
    /// Jobs that are only listed.
    stored: Mutex<BTreeMap<JobId, Arc<Job>>>,
    newest_samples: NewestSamples,
    stragglers: Stragglers,
    /// Write-locked while the jobs are given up, so that requests fail only after the lease has ended.
    resigning: tokio::sync::RwLock<()>,
    loads: Arc<Loads>,
    memory: Arc<Memory>,
    /// Locked while memory is freed.
    making_room: tokio::sync::Mutex<()>,
}

impl Jobs {
    /// A registry of the jobs in the store. A job is loaded when the first request for it arrives. States and
    /// responses in memory use at most `memory_budget` bytes, except those in use.
    pub fn new(store: Store, clock: Clock, memory_budget: u64) -> Self {
        Self {
            store,
            started_ms: clock.steady_ms(),
            clock,
            jobs: RwLock::default(),
            stored: Mutex::default(),
            newest_samples: NewestSamples::default(),
            stragglers: Stragglers::default(),
            resigning: tokio::sync::RwLock::default(),
            loads: Arc::new(Loads::new()),
            memory: Arc::new(Memory::new(memory_budget)),
            making_room: tokio::sync::Mutex::default(),
        }
    }

    /// The current time of the service's clocks.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The stragglers of all jobs.
    pub(super) fn stragglers(&self) -> &Stragglers {
        &self.stragglers
    }

    /// Memory of all jobs.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Locked while memory is freed.
    pub(super) fn making_room(&self) -> &tokio::sync::Mutex<()> {
        &self.making_room
    }

    /// All jobs in memory, in any registration.
    pub(super) fn all(&self) -> Vec<Arc<Job>> {
        self.read().values().cloned().collect()
    }

    /// The store of all jobs.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns a job by ID. Claims it if no predictor owns it.
    ///
    /// # Errors
    /// [`JobError::UnknownJob`], [`JobError::Elsewhere`] if another predictor owns it, or an error
    /// of the store.
    pub async fn job(&self, job_id: &JobId) -> Result<Arc<Job>, JobError> {
        let job = self.claimed(job_id).await?;
        job.touch();
        self.make_room().await;
        Ok(job)
    }

    async fn claimed(&self, job_id: &JobId) -> Result<Arc<Job>, JobError> {
        let _not_now = self.resigning.read().await;
        let registration = self.store.registration()?;
        if let Some(job) = self.known(job_id, registration) {
            return Ok(job);
        }
        let owner = self.store.claim(job_id).await?;
        let Some(Owner::Us(registration)) = owner else {
            // Only a job of an earlier registration: another request may have created the job meanwhile.
            let mut jobs = self.write();
            if jobs.get(job_id).is_some_and(|job| job.registration() != registration || job.is_deleted()) {
                jobs.remove(job_id);
            }
            return Err(match owner {
                Some(Owner::Other { url }) => JobError::Elsewhere { job_id: job_id.clone(), url },
                _ => JobError::UnknownJob(job_id.clone()),
            });
        };
        let mut jobs = self.write();
        let job = jobs.get(job_id).filter(|job| job.registration() == registration && !job.is_deleted());
        let job = job.cloned().unwrap_or_else(|| self.new_job(job_id, registration));
        jobs.insert(job_id.clone(), job.clone());
        Ok(job)
    }

    pub(super) fn new_job(&self, job_id: &JobId, registration: u64) -> Arc<Job> {
        let store = self.store.of_registration(registration);
        let (memory, loads) = (self.memory.clone(), self.loads.clone());
        Arc::new(Job::new(job_id.clone(), registration, store, self.clock.clone(), memory, loads))
    }

    /// Returns a job that this predictor owns in this registration and that was requested before.
    pub(super) fn known(&self, job_id: &JobId, registration: u64) -> Option<Arc<Job>> {
        self.read().get(job_id).filter(|job| job.registration() == registration && !job.is_deleted()).cloned()
    }

    /// The jobs of this predictor that were requested, by ID.
    fn jobs(&self) -> Vec<Arc<Job>> {
        let Ok(registration) = self.store.registration() else { return Vec::new() };
        self.read().values().filter(|job| job.registration() == registration).cloned().collect()
    }

    /// Creates a job or changes its options. Returns true if it is new; `entry` then becomes part of the audit log.
    ///
    /// # Errors
    /// [`JobError::Conflict`] if the learning-rate rule of a job with allocations would change, or
    /// if the limit of jobs is reached.
    pub async fn put_job(
        &self,
        job_id: &JobId,
        spec: JobSpec,
        entry: &AuditEntry,
    ) -> Result<(JobView, bool), JobError> {
        match self.job(job_id).await {
            Err(JobError::UnknownJob(_)) => {}
            job => return Ok((job?.put(spec).await?, false)),
        }
        if self.store.job_count().await? >= JOBS_MAX {
            return Err(JobError::Conflict(format!("{JOBS_MAX} jobs exist, the limit; delete one")));
        }
        let change =
            Change::CreateJob { job_id: job_id.clone(), spec: spec.clone().into(), entry: entry.clone() };
        let is_new = self.store.write(vec![change], self.clock.now_unix_ms()).await? == 1;
        let job = self.job(job_id).await?;
        if is_new {
            job.live().begin();
        }
        // Another request may have created it at the same moment. In this case this request changes its
        // options.
        Ok((if is_new { job.view().await? } else { job.put(spec).await? }, is_new))
    }

    /// Deletes a job and all its history, and adds `entry` to the audit log. Once started, the deletion continues to its end even if the caller
    /// stops waiting, and holds its `place` among the deletions.
    ///
    /// # Errors
    /// [`JobError::UnknownJob`], or an error of the store.
    pub async fn delete_job(
        self: &Arc<Self>,
        job_id: JobId,
        entry: AuditEntry,
        place: impl Send + 'static,
    ) -> Result<(), JobError> {
        let jobs = self.clone();
        let deletion = tokio::spawn(async move {
            let _place = place;
            let job = jobs.job(&job_id).await?;
            job.delete(entry).await?;
            let mut known = jobs.write();
            if known.get(&job_id).is_some_and(|known| Arc::ptr_eq(known, &job)) {
                known.remove(&job_id);
            }
            drop(known);
            jobs.retain_stored(|stored| stored != job.id());
            job.live().gone();
            Ok(())
        });
        outcome(deletion).await
    }

    /// Renews this predictor's lease while it is polled.
    pub async fn keep_lease(&self) {
        self.store.keep_lease().await;
    }

    /// Gives up all jobs to other predictors. All later requests fail.
    pub async fn resign(&self) {
        let _alone = self.resigning.write().await;
        if let Err(error) = self.store.resign().await {
            tracing::warn!(%error, "cannot release the jobs; other predictors take over when the lease expires");
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.jobs.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the reads of states from the store, now and later. Requests that wait for one fail.
    pub fn stop_loads(&self) {
        self.loads.stop();
    }

    /// Begins to remove workers whose lease expired, in every job.
    pub fn expire_leases(&self) {
        self.jobs().iter().for_each(Job::expire_leases);
    }

    /// Deletes the oldest iterations of a job and keeps their statistics.
    ///
    /// # Errors
    /// The errors of [`Jobs::job`], or an error of the store. Nothing is deleted then.
    pub async fn roll_up(&self, job_id: &JobId, roll_up: &RollUp) -> Result<(), JobError> {
        self.job(job_id).await?.roll_up(roll_up).await
    }

    /// Fits networks in every job. Jobs take turns, so that none waits for all fits of a job with many workers.
    pub async fn fit_networks(&self, pool: &Pool) {
        loop {
            let mut is_done = true;
            for job in self.jobs() {
                match job.fit_networks(pool).await {
                    Ok(has_more) => is_done &= !has_more,
                    Err(error) => tracing::warn!(job_id = %job.id(), %error, "cannot fit networks"),
                }
            }
            if is_done {
                return;
            }
        }
    }

    /// Stores the models of every job.
    pub async fn store_models(&self) {
        for job in self.jobs() {
            if let Err(error) = job.store_models().await {
                tracing::warn!(job_id = %job.id(), %error, "cannot store models");
            }
        }
    }

    /// Stores samples of an agent, each once.
    ///
    /// # Errors
    /// An error of the store. Nothing is stored then.
    pub async fn telemetry(&self, rows: TelemetryRows) -> Result<TelemetryResponse, JobError> {
        let (node, boot_id) = (rows.node().clone(), rows.boot_id().to_owned());
        let (count, next_sequence) = (rows.len() as u64, rows.next_sequence());
        let latest = rows.rows().map(|row| row.at_unix_ms).max();
        let stored = self.store.write(vec![Change::Telemetry(rows)], self.clock.now_unix_ms()).await?;
        if let Some(at_unix_ms) = latest {
            self.newest_samples.saw(&node, at_unix_ms, self.clock.now_unix_ms());
        }
        Ok(TelemetryResponse { node, boot_id, next_sequence, stored, duplicates: count - stored })
    }

    /// Loads the time of the newest sample of each node from the store, so that nodes that stopped sending
    /// while the service was down are shown as silent.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn load_nodes(&self) -> Result<(), JobError> {
        for (node, at_unix_ms) in self.store.view().await?.latest_sample_times().await? {
            self.newest_samples.saw(&node, at_unix_ms, self.clock.now_unix_ms());
        }
        Ok(())
    }

    /// The nodes with the times of their newest samples.
    pub(super) fn node_lines(&self, now_unix_ms: i64) -> Vec<NodeSummary> {
        self.newest_samples.lines(now_unix_ms)
    }

    /// Time at which this registry began, in milliseconds of the steady clock.
    pub(super) fn started_ms(&self) -> i64 {
        self.started_ms
    }

    /// The jobs that are only listed. They have statistics from the store, but never a state.
    pub(super) fn stored(&self) -> Vec<Arc<Job>> {
        self.lock_stored().values().cloned().collect()
    }

    /// A job that is only listed.
    pub(super) fn stored_job(&self, job_id: &JobId, registration: u64) -> Option<Arc<Job>> {
        self.lock_stored().get(job_id).filter(|job| job.registration() == registration).cloned()
    }

    /// Adds a job that is only listed.
    pub(super) fn store_job(&self, job: Arc<Job>) {
        self.lock_stored().insert(job.id().clone(), job);
    }

    /// Keeps only some of the jobs that are only listed. The others are read from the store when they are listed again.
    pub(super) fn retain_stored(&self, is_kept: impl Fn(&JobId) -> bool) {
        self.lock_stored().retain(|job_id, _| is_kept(job_id));
    }

    fn lock_stored(&self) -> MutexGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live workers of those jobs in memory that `includes` selects.
    pub fn live_workers(&self, includes: impl Fn(&JobId) -> bool) -> Vec<NodeWorker> {
        let jobs = self.jobs();
        let of = |job: &Arc<Job>| {
            let job_id = job.id().clone();
            job.live()
                .live_workers()
                .into_iter()
                .map(move |worker| NodeWorker { job_id: job_id.clone(), worker })
        };
        jobs.iter().filter(|job| includes(job.id())).flat_map(of).collect()
    }

    /// Whether this predictor still owns the job, and the job still exists.
    pub fn has(&self, job: &Arc<Job>) -> bool {
        let registration = self.store.registration();
        let known = registration.ok().and_then(|registration| self.known(job.id(), registration));
        known.is_some_and(|known| Arc::ptr_eq(&known, job))
    }

    /// The metrics of jobs, workers and nodes. Reads only values in memory, under short locks.
    pub fn families(&self) -> Vec<MetricFamily> {
        let (mut of_jobs, mut jobs) = (JobFamilies::default(), self.jobs());
        jobs.sort_by_cached_key(|job| job.live().width());
        let now = self.clock.now();
        for job in &jobs {
            of_jobs.add(job.id(), job.live(), now);
        }
        let mut loaded = Family::gauge("evenstep_jobs_in_memory", "Jobs whose state is in memory.");
        loaded.add([], jobs.iter().filter(|job| job.is_loaded()).count() as f64);
        let mut last_sample = Family::gauge(
            "evenstep_node_last_sample_timestamp_seconds",
            "Time of the latest sample of a node, by its clock, at most the time at which it arrived.",
        );
        for line in self.newest_samples.lines(now.unix_ms) {
            last_sample.add([("node", line.node.as_str())], line.at_unix_ms as f64 / 1e3);
        }
        let mut families = of_jobs.done();
        families.extend(self.memory.families());
        families.extend(loaded.done());
        families.extend(last_sample.done());
        families
    }

    /// Returns every node with its latest sample.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, JobError> {
        Ok(self.store.view().await?.nodes().await?)
    }

    /// Returns the latest samples of a node.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn node_samples(&self, node: &NodeId, limit: u64) -> Result<Vec<NodeSample>, JobError> {
        Ok(self.store.view().await?.node_samples(node, limit).await?)
    }

    /// Checks that the store can be written and read.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn check(&self) -> Result<(), JobError> {
        Ok(self.store.check().await?)
    }
}
