//! From a job's state to the answer of an iteration: asks the core, and says it in the words of the wire.

use evenstep_core::allocate::Infeasible;
use evenstep_core::plan::{InForce, Plan, Reason, Rules, WorkerOutlook, plan};
use evenstep_protocol::{
    AllocateAnswer, Allocation, Decision, DecisionKind, JobId, OptimizerInstruction, WorkerId,
};

use super::state::JobState;

/// Plans an iteration and makes it the plan in force. `samples` is less than the job's global batch at the ragged end
/// of an epoch; such a plan stands for itself.
pub fn decide(
    state: &mut JobState,
    job_id: &JobId,
    iteration: u64,
    samples: Option<u64>,
) -> Result<AllocateAnswer, Infeasible> {
    let live = state.live();
    let ragged = samples.filter(|samples| *samples < state.spec.global_batch);
    let global_batch = ragged.unwrap_or(state.spec.global_batch);
    let outlooks = outlooks(state, &live, ragged);
    let rules = Rules { global_batch, quantum: state.spec.quantum, min_gain: state.spec.min_gain };
    let in_force = state.in_force.as_ref().filter(|(workers, _)| ragged.is_none() && *workers == live);
    let plan = plan(&outlooks, in_force.map(|(_, in_force)| in_force), rules)?;

    let decision = Decision {
        kind: kind(&plan.reason),
        reason: match ragged {
            Some(samples) => format!("{samples} samples at the end of the epoch"),
            None => in_words(&plan.reason, &live, state.spec.min_gain),
        },
        predicted_step_time_s: plan.step_time_s,
        even_step_time_s: plan.even_step_time_s,
    };
    let answer = AllocateAnswer {
        job_id: job_id.clone(),
        generation: state.members.generation(),
        iteration,
        global_batch,
        allocations: allocations(&live, &plan, &outlooks, global_batch),
        optimizer: OptimizerInstruction {
            rule: state.spec.rule,
            // The global batch of a job is fixed, so every rule says the same: no change.
            lr_multiplier: 1.0,
            momentum_buffer_scale: 1.0,
            ramp: None,
        },
        decision: decision.clone(),
    };
    if ragged.is_none() {
        state.in_force = Some((live, InForce { batches: plan.batches, speeds: plan.speeds }));
    }
    state.last_decision = Some(decision);
    Ok(answer)
}

/// What is known of each live worker. Floors give way where a ragged iteration has too few samples for them.
fn outlooks(state: &JobState, live: &[WorkerId], ragged: Option<u64>) -> Vec<WorkerOutlook> {
    let spec = &state.spec;
    let outlook = |id: &WorkerId| {
        let worker = state.workers.get(id);
        let (own_floor, own_cap) = worker
            .map_or((None, None), |worker| (worker.request.min_local_batch, worker.request.max_local_batch));
        WorkerOutlook {
            forecast: state.models.forecaster().forecast(id, None),
            floor: spec.min_local_batch.unwrap_or(spec.quantum).max(own_floor.unwrap_or(0)),
            cap: [spec.max_local_batch, own_cap].into_iter().flatten().min(),
        }
    };
    let mut outlooks: Vec<WorkerOutlook> = live.iter().map(outlook).collect();
    let floors = |outlooks: &[WorkerOutlook]| {
        let quantum = spec.quantum;
        outlooks
            .iter()
            .map(|outlook| outlook.floor.div_ceil(quantum) * quantum)
            .fold(0u64, u64::saturating_add)
    };
    if ragged.is_some_and(|samples| floors(&outlooks) > samples) {
        outlooks.iter_mut().for_each(|outlook| outlook.floor = 0);
    }
    outlooks
}

fn allocations(
    live: &[WorkerId],
    plan: &Plan,
    outlooks: &[WorkerOutlook],
    global_batch: u64,
) -> Vec<Allocation> {
    let mut offset = 0;
    live.iter()
        .zip(&plan.batches)
        .zip(outlooks)
        .enumerate()
        .map(|(rank, ((worker, local_batch), outlook))| {
            let allocation = Allocation {
                worker: worker.clone(),
                rank: rank as u64,
                local_batch: *local_batch,
                offset,
                gradient_weight: *local_batch as f64 / global_batch as f64,
                predicted_compute_time_s: outlook
                    .forecast
                    .map(|forecast| *local_batch as f64 / forecast.speed),
                predicted_speed_samples_per_s: outlook.forecast.map(|forecast| forecast.speed),
                speed_lower_samples_per_s: outlook.forecast.map(|forecast| forecast.lower),
                speed_upper_samples_per_s: outlook.forecast.map(|forecast| forecast.upper),
            };
            offset += local_batch;
            allocation
        })
        .collect()
}

fn kind(reason: &Reason) -> DecisionKind {
    match reason {
        Reason::Unmeasured { .. } => DecisionKind::ColdStart,
        Reason::FirstMeasured | Reason::SpeedChanged { .. } => DecisionKind::Rebalanced,
        Reason::Unchanged | Reason::GainTooSmall { .. } => DecisionKind::Held,
    }
}

fn in_words(reason: &Reason, live: &[WorkerId], min_gain: f64) -> String {
    match *reason {
        Reason::Unmeasured { workers } => {
            format!("{workers} of {} workers unmeasured: even shares", live.len())
        }
        Reason::FirstMeasured => "first shares by measured speed".into(),
        Reason::SpeedChanged { rank, ratio } => {
            let (direction, percent) = if ratio < 1.0 {
                ("slowed", (1.0 - ratio) * 100.0)
            } else {
                ("sped up", (ratio - 1.0) * 100.0)
            };
            live.get(rank)
                .map_or_else(String::new, |worker| format!("{worker} {direction} by {percent:.0} %"))
        }
        Reason::Unchanged => "the shares in force are the best".into(),
        Reason::GainTooSmall { gain } => {
            format!(
                "a change would save {:.1} % of the step, under the minimum of {:.1} %",
                gain * 100.0,
                min_gain * 100.0
            )
        }
    }
}
