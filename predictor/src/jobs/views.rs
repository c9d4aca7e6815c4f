//! Views of a job for people and dashboards.

use std::collections::BTreeMap;

use evenstep_core::curve::{CurveLearner, Knowledge};
use evenstep_core::membership::State;
use evenstep_protocol::{
    AllocateAnswer, Allocation, CapView, CurveView, ForecastView, JobId, JobState as JobStateView, JobView,
    ModelView, RefitView, SpeedPoint, SpeedsView, StragglerView, WorkerForecastView, WorkerId,
    WorkerState as WorkerStateView, WorkerView, WorkersView,
};
use evenstep_store::StoredAnswer;

use super::job::Job;
use super::state::JobState;
use super::{JobError, words};

/// Workers on like devices that a worker is held against, at least.
const PEERS_MIN: usize = 2;

impl Job {
    /// The job at a glance.
    ///
    /// # Errors
    /// What the store says.
    pub async fn view(&self) -> Result<JobView, JobError> {
        self.look(|state| state.view(self.id())).await
    }

    /// Every worker that ever joined.
    ///
    /// # Errors
    /// What the store says.
    pub async fn workers(&self) -> Result<WorkersView, JobError> {
        let counts = self.store().report_counts(self.id()).await?;
        self.look(|state| state.workers_view(self.id(), &counts)).await
    }

    /// What each live worker is expected to do next.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forecast(&self) -> Result<ForecastView, JobError> {
        self.look(|state| state.forecast_view(self.id(), self.refits().view())).await
    }

    /// Answers from iteration `from` on, at most `limit`.
    ///
    /// # Errors
    /// What the store says.
    pub async fn allocations(&self, from: u64, limit: u64) -> Result<Vec<AllocateAnswer>, JobError> {
        let stored = self.store().answers(self.id(), from, limit).await?;
        Ok(stored.iter().map(StoredAnswer::parse).collect::<Result<_, _>>()?)
    }

    /// Predicted against actual speed from iteration `from` on, over at most `limit` iterations; of one worker or all.
    ///
    /// # Errors
    /// What the store says.
    pub async fn speeds(
        &self,
        worker: Option<&WorkerId>,
        from: u64,
        limit: u64,
    ) -> Result<SpeedsView, JobError> {
        let answers = self.allocations(from, limit).await?;
        let predicted: BTreeMap<(u64, &WorkerId), &Allocation> = answers
            .iter()
            .flat_map(|answer| {
                answer.allocations.iter().map(|share| ((answer.iteration, &share.worker), share))
            })
            .collect();
        let reports = self.store().reports_from(self.id(), from, limit).await?;
        let speeds = reports
            .into_iter()
            .filter(|report| worker.is_none_or(|worker| *worker == report.worker))
            .map(|report| {
                let predicted = predicted.get(&(report.iteration, &report.worker));
                SpeedPoint {
                    iteration: report.iteration,
                    local_batch: report.local_batch,
                    actual_samples_per_s: (report.local_batch > 0)
                        .then(|| report.local_batch as f64 / report.compute_time_s),
                    predicted_samples_per_s: predicted.and_then(|share| share.predicted_speed_samples_per_s),
                    lower_samples_per_s: predicted.and_then(|share| share.speed_lower_samples_per_s),
                    upper_samples_per_s: predicted.and_then(|share| share.speed_upper_samples_per_s),
                    compute_time_s: report.compute_time_s,
                    barrier_wait_s: report.barrier_wait_s,
                    worker: report.worker,
                }
            })
            .collect();
        Ok(SpeedsView { job_id: self.id().clone(), speeds })
    }

    async fn look<T>(&self, look: impl FnOnce(&JobState) -> T) -> Result<T, JobError> {
        let taken = self.take().await?;
        let seen = look(&taken.state);
        taken.put_back();
        Ok(seen)
    }
}

impl JobState {
    /// Whether it can be allocated to.
    pub(super) fn activity(&self) -> JobStateView {
        let live = self.members.live().count() as u64;
        if live >= self.spec.min_workers.max(1) { JobStateView::Running } else { JobStateView::Paused }
    }

    pub(super) fn view(&self, job_id: &JobId) -> JobView {
        JobView {
            job_id: job_id.clone(),
            spec: self.spec.clone(),
            state: self.activity(),
            global_batch: self.global_batch(),
            generation: self.members.generation(),
            next_iteration: self.next_iteration,
            live_workers: self.members.live().count() as u64,
            last_decision: self.last_decision.clone(),
            hedge: self.hedge_view(),
        }
    }

    fn workers_view(&self, job_id: &JobId, counts: &BTreeMap<String, u64>) -> WorkersView {
        let mut rank = 0;
        let members = self.members.all().iter();
        let workers = members
            .filter_map(|member| {
                let worker = self.workers.get(&member.id)?;
                let live = member.state == State::Live;
                let view = WorkerView {
                    worker: member.id.clone(),
                    state: match member.state {
                        State::Live => WorkerStateView::Live,
                        State::Left => WorkerStateView::Left,
                        State::Expired => WorkerStateView::Expired,
                    },
                    rank: live.then_some(rank),
                    device: worker.request.device.clone(),
                    min_local_batch: worker.request.min_local_batch,
                    max_local_batch: worker.request.max_local_batch,
                    last_seen_unix_ms: member.last_seen_ms,
                    reports: counts.get(member.id.as_str()).copied().unwrap_or(0),
                    speed_samples_per_s: self.models.forecaster().last_speed(&member.id),
                    claims: worker.request.claims,
                    pool: if live { self.last_tail.pool(&member.id) } else { None },
                    cap: self
                        .bounds(&member.id)
                        .tightest
                        .map(|(max_local_batch, because)| CapView { max_local_batch, because }),
                    curve: self.models.worker(&member.id).and_then(|known| curve(&known.curve)),
                    straggler: if live { self.straggler(&member.id) } else { None },
                    operator_override: worker.operator_override.clone(),
                };
                rank += u64::from(live);
                Some(view)
            })
            .collect();
        WorkersView { job_id: job_id.clone(), generation: self.members.generation(), workers }
    }

    /// Whether a worker is slower than it was, or than the others on devices like its own.
    fn straggler(&self, id: &WorkerId) -> Option<StragglerView> {
        let watch = |id: &WorkerId| Some(&self.models.worker(id)?.watch);
        let device = self.workers.get(id)?.request.device.as_ref();
        let is_like = |other: &&WorkerId| {
            *other != id
                && device.is_some()
                && self.workers.get(*other).and_then(|known| known.request.device.as_ref()) == device
        };
        let mut speeds: Vec<f64> =
            self.members.live().filter(is_like).filter_map(|other| watch(other)?.speed()).collect();
        speeds.sort_by(f64::total_cmp);
        // One like it could be the odd one itself.
        let peers = speeds.get(speeds.len() / 2).copied().filter(|_| speeds.len() >= PEERS_MIN);
        watch(id)?.straggler(peers).map(|straggler| words::straggler(&straggler))
    }

    fn forecast_view(&self, job_id: &JobId, refits: RefitView) -> ForecastView {
        let models = &self.models;
        let workers = self.members.live().map(|id| {
            let forecast = models.forecaster().forecast(id, None);
            let experts = models.forecaster().experts(id).into_iter();
            WorkerForecastView {
                worker: id.clone(),
                speed_samples_per_s: forecast.map(|forecast| forecast.speed),
                speed_lower_samples_per_s: forecast.map(|forecast| forecast.lower),
                speed_upper_samples_per_s: forecast.map(|forecast| forecast.upper),
                observations: models.forecaster().observations(id),
                models: experts
                    .map(|expert| ModelView {
                        model: expert.name,
                        speed_samples_per_s: expert.speed,
                        weight: expert.weight,
                        log_rmse: expert.log_rmse,
                    })
                    .collect(),
                missing_drivers: models.missing(id),
            }
        });
        ForecastView { job_id: job_id.clone(), workers: workers.collect(), refits }
    }
}

fn curve(learner: &CurveLearner) -> Option<CurveView> {
    let largest_batch = learner.largest();
    let view = match learner.knowledge() {
        Knowledge::Unproven => {
            CurveView { identified: false, fixed_share: 0.0, saturation_batch: None, largest_batch }
        }
        Knowledge::Identified { fixed_share, saturation, .. } => {
            CurveView { identified: true, fixed_share, saturation_batch: saturation, largest_batch }
        }
    };
    (largest_batch > 0).then_some(view)
}
