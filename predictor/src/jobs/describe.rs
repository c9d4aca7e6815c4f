//! Views of a job's state for pages and dashboards.

use std::collections::BTreeMap;

use evenstep_core::curve::{CurveLearner, LearnedForm};
use evenstep_core::job::{JobState, global_batch};
use evenstep_core::membership::{Member, State};
use evenstep_protocol::{
    CapView, CurveView, ForecastView, JobId, JobView, ModelView, RefitView, WorkerForecastView, WorkerId,
    WorkerState as WorkerStateView, WorkerView, WorkersView,
};
use evenstep_store::StoredSummary;

use super::live::{Facts, Live};

/// The summary of the job.
pub fn job(state: &JobState, job_id: &JobId, live: &Live, now_unix_ms: i64) -> JobView {
    let status = live.status(now_unix_ms);
    JobView {
        job_id: job_id.clone(),
        spec: state.spec.clone(),
        state: status.state,
        state_since_unix_ms: status.since_unix_ms,
        state_reason: status.reason,
        created_unix_ms: live.created_unix_ms(),
        gain: live.account().and_then(|account| account.gain()),
        global_batch: state.global_batch(),
        generation: state.members.generation(),
        next_iteration: state.next_iteration,
        live_workers: state.members.live().count() as u64,
        last_decision: state.last_allocation.as_ref().map(|last| last.decision.clone()),
        hedge: state.hedge_view(),
    }
}

/// The summary of a job that is not in memory. This predictor has followed it since `watched_unix_ms`.
pub fn stored(stored: StoredSummary, watched_unix_ms: i64, now_unix_ms: i64) -> JobView {
    let StoredSummary { job_id, spec, generation, live_workers, next_iteration, last_decision, past, .. } =
        stored;
    let created_unix_ms = past.created_unix_ms;
    let (live, min_workers) = (live_workers, spec.min_workers);
    let status = Facts { live, min_workers, past, watched_unix_ms, step_time_s: None }.status(now_unix_ms);
    JobView {
        job_id,
        state: status.state,
        state_since_unix_ms: status.since_unix_ms,
        state_reason: status.reason,
        created_unix_ms,
        gain: None,
        global_batch: global_batch(&spec, live_workers),
        generation,
        next_iteration,
        live_workers,
        last_decision,
        hedge: None,
        spec,
    }
}

/// Every worker that ever joined.
pub fn workers(state: &JobState, job_id: &JobId) -> WorkersView {
    let (pools, models, mut stragglers) = (state.pools(), state.current_models(), state.stragglers());
    let mut rank = 0;
    let members = state.members.all().iter();
    let workers = members
        .filter_map(|member| {
            let worker = state.workers.get(&member.id)?;
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
                speed_samples_per_s: models.forecaster().last_speed(&member.id),
                claims: worker.request.claims,
                pool: if live { pools.get(&member.id).copied() } else { None },
                cap: state
                    .bounds(&member.id)
                    .tightest
                    .map(|(max_local_batch, because)| CapView { max_local_batch, because }),
                curve: models.worker(&member.id).and_then(|known| curve(&known.curve)),
                straggler: stragglers.remove(&member.id),
                operator_override: worker.operator_override.clone(),
            };
            rank += u64::from(live);
            Some(view)
        })
        .collect();
    WorkersView { job_id: job_id.clone(), generation: state.members.generation(), workers }
}

/// The learned curve of each worker.
pub fn curves(state: &JobState) -> BTreeMap<WorkerId, CurveLearner> {
    let models = state.current_models();
    let curve =
        |member: &Member<WorkerId>| Some((member.id.clone(), models.worker(&member.id)?.curve.clone()));
    state.members.all().iter().filter_map(curve).collect()
}

/// The forecast of each live worker.
pub fn forecast(state: &JobState, job_id: &JobId, refits: RefitView) -> ForecastView {
    let models = state.current_models();
    let workers = state.members.live().map(|id| {
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

fn curve(learner: &CurveLearner) -> Option<CurveView> {
    let largest_batch = learner.largest();
    let view = match learner.knowledge() {
        LearnedForm::Unproven => {
            CurveView { identified: false, fixed_share: 0.0, saturation_batch: None, largest_batch }
        }
        LearnedForm::Identified { fixed_share, saturation, .. } => {
            CurveView { identified: true, fixed_share, saturation_batch: saturation, largest_batch }
        }
    };
    (largest_batch > 0).then_some(view)
}
