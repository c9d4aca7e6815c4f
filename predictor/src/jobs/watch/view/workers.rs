//! Views of a job's workers.

use std::collections::BTreeMap;

use evenstep_core::curve::{CurveLearner, LearnedForm};
use evenstep_core::job::JobState;
use evenstep_core::membership::{Member, State};
use evenstep_protocol::{
    CapView, CurveView, ForecastView, JobId, ModelView, RefitView, WorkerForecastView, WorkerId,
    WorkerState as WorkerStateView, WorkerView, WorkersView,
};

use crate::clock::Now;

/// Every worker that ever joined.
pub fn workers(state: &JobState, job_id: &JobId, now: Now) -> WorkersView {
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
                last_seen_unix_ms: now.unix_ms_at(member.last_seen_ms),
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
