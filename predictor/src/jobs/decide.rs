//! From a job's state to the answer of an iteration: asks the core, and says it in the words of the wire.

use evenstep_core::learning_rate::LearningRateError;
use evenstep_core::plan::{
    Measured, Objective, Plan, Reason, Rules, Sizes, Unplannable, WorkerOutlook, plan, plan_by_cost,
};
use evenstep_protocol::{AllocateAnswer, AllocateRequest, Allocation, Decision, JobId, WorkerId};

use super::background;
use super::bounds::Bounds;
use super::hedge::{Hedging, LastTail};
use super::optimizer;
use super::state::JobState;
use super::words::{in_words, kind};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// Bounds or sizes do not allow it.
    #[error(transparent)]
    Unplannable(#[from] Unplannable),
    /// There is no instruction for the learning rate.
    #[error(transparent)]
    LearningRate(#[from] LearningRateError),
}

/// Plans an iteration and makes it the plan in force. Where the request asks for less than a whole global batch, the ragged end
/// of an epoch, the plan stands for itself.
pub fn decide(
    state: &mut JobState,
    job_id: &JobId,
    request: &AllocateRequest,
) -> Result<AllocateAnswer, Undecided> {
    let iteration = request.iteration;
    let live = state.live();
    let whole_batch = state.global_batch();
    let ragged = request.global_batch.filter(|samples| *samples < whole_batch);
    let global_batch = ragged.unwrap_or(whole_batch);
    let bounds: Vec<Bounds> = live.iter().map(|id| state.bounds(id)).collect();
    let outlooks = outlooks(state, &live, &bounds, ragged);
    let rules = rules(state, global_batch, ragged.is_some());
    let in_force = state.in_force.as_ref().filter(|(workers, _)| ragged.is_none() && *workers == live);
    let in_force = in_force.map(|(_, in_force)| in_force);
    let (plan, hedging) = if !request.cost_per_sample.is_empty() {
        (plan_by_cost(&outlooks, &request.cost_per_sample, &rules)?, None)
    } else if let Some(step) = profile_step(state, &live, iteration).filter(|_| ragged.is_none()) {
        (step, None)
    } else {
        let scenarios = state.models.scenarios(&live);
        let plan = plan(&outlooks, &scenarios, in_force, &rules)?;
        let any_size = rules.sizes == Sizes::Any;
        let hedging = any_size.then(|| state.hedge(&live, &plan, &outlooks, &bounds, &scenarios)).flatten();
        (plan, hedging)
    };
    let optimizer = optimizer::instruct(&mut state.learning_rate, state.spec.rule, iteration, whole_batch)?;

    let mut decision = Decision {
        kind: kind(&plan.reason),
        reason: match ragged {
            Some(samples) => format!("{samples} samples at the end of the epoch"),
            None => in_words(&plan.reason, &live, state.spec.min_gain),
        },
        predicted_step_time_s: plan.step_time_s,
        even_step_time_s: plan.even_step_time_s,
    };
    if let Some(hedging) = &hedging {
        decision.predicted_step_time_s = Some(hedging.step_time_s);
    }
    let mut allocations = allocations(&live, &plan, &outlooks, &bounds, request, hedging.as_ref());
    // A profile measures: nothing may run beside it.
    let measures = matches!(plan.reason, Reason::Profiling { .. });
    if let Some(wanted) = state.spec.background.filter(|_| !measures) {
        background::say(&mut allocations, &outlooks, hedging.as_ref(), wanted);
    }
    let mut answer = AllocateAnswer {
        job_id: job_id.clone(),
        generation: state.members.generation(),
        iteration,
        global_batch,
        allocations,
        tail: hedging.map(|hedging| hedging.tail),
        optimizer,
        decision,
    };
    state.last_tail = LastTail::of(&answer);
    answer.decision.reason.push_str(&state.last_tail.in_words());
    if ragged.is_none() {
        let in_force = plan.in_force();
        state.in_force = Some((live, in_force));
    }
    state.last_decision = Some(answer.decision.clone());
    Ok(answer)
}

/// The rules of a job. At the ragged end of an epoch any size will do: few of the usual ones add up.
fn rules(state: &JobState, global_batch: u64, is_ragged: bool) -> Rules {
    let spec = &state.spec;
    let sizes = match spec.distinct_sizes {
        _ if is_ragged => Sizes::Any,
        _ if !spec.allowed_sizes.is_empty() => Sizes::Allowed(spec.allowed_sizes.clone()),
        Some(distinct) => Sizes::Distinct(usize::try_from(distinct).unwrap_or(usize::MAX)),
        None => Sizes::Any,
    };
    Rules {
        global_batch,
        quantum: spec.quantum,
        sizes,
        objective: Objective::default(),
        min_gain: spec.min_gain,
        max_batch_growth: spec.max_batch_growth,
    }
}

/// What is known of each live worker. Floors give way where a ragged iteration has too few samples for them, and so do pins.
fn outlooks(
    state: &JobState,
    live: &[WorkerId],
    bounds: &[Bounds],
    ragged: Option<u64>,
) -> Vec<WorkerOutlook> {
    let quantum = state.spec.quantum;
    let least = bounds
        .iter()
        .map(|bounds| bounds.floor.div_ceil(quantum).saturating_mul(quantum))
        .fold(0u64, u64::saturating_add);
    let floors_give_way = ragged.is_some_and(|samples| least > samples);
    let outlook = |(id, bounds): (&WorkerId, &Bounds)| {
        let known = state.models.worker(id);
        let measured = state.models.expected(id).map(|(forecast, curve)| Measured {
            forecast,
            curve,
            largest: known.map_or(0, |known| known.largest),
        });
        WorkerOutlook {
            measured,
            communication: known
                .map(|known| known.communication(state.spec.overlap_begins))
                .unwrap_or_default(),
            floor: if floors_give_way { 0 } else { bounds.floor },
            cap: bounds.cap,
        }
    };
    live.iter().zip(bounds).map(outlook).collect()
}

/// The step of the profile that an iteration is, while there is one.
fn profile_step(state: &JobState, live: &[WorkerId], iteration: u64) -> Option<Plan> {
    let steps = state.profile(live, iteration);
    let at = usize::try_from(iteration).ok()?;
    let reason = Reason::Profiling { step: at + 1, of: steps.len() };
    let batches = steps.into_iter().nth(at)?;
    Some(Plan { batches, speeds: None, reason, step_time_s: None, even_step_time_s: None })
}

fn allocations(
    live: &[WorkerId],
    plan: &Plan,
    outlooks: &[WorkerOutlook],
    bounds: &[Bounds],
    request: &AllocateRequest,
    hedging: Option<&Hedging>,
) -> Vec<Allocation> {
    let global_batch: u64 = plan.batches.iter().sum();
    let batches = hedging.map_or(&plan.batches, |hedging| &hedging.bases);
    let mut offset = 0;
    let allocation = |(rank, worker): (usize, &WorkerId)| {
        let local_batch = batches[rank];
        let at_once = local_batch.max(hedging.map_or(0, |hedging| hedging.largest_chunks[rank]));
        let costs = request.cost_per_sample.get(offset as usize..(offset + local_batch) as usize);
        let cost = costs.filter(|_| !request.cost_per_sample.is_empty()).map(|costs| costs.iter().sum());
        let expected = outlooks[rank].measured.as_ref().map(|measured| {
            let time_s = match cost {
                Some(cost) => measured.curve.time_of(cost),
                None => measured.curve.time(local_batch),
            };
            // With a tail: the speed at all that it is expected to do. Of a worker without samples: as it would be with one.
            let (batch, batch_s) = match hedging {
                Some(_) => (plan.batches[rank], measured.curve.time(plan.batches[rank])),
                None => (local_batch, time_s),
            };
            let speed = if batch_s > 0.0 { batch as f64 / batch_s } else { 1.0 / measured.curve.time(1) };
            (time_s, speed, measured.forecast)
        });
        let allocation = Allocation {
            worker: worker.clone(),
            rank: rank as u64,
            local_batch,
            offset,
            gradient_weight: local_batch as f64 / global_batch as f64,
            planned_batch: hedging.map(|_| plan.batches[rank]),
            pool: hedging.and_then(|hedging| hedging.pools[rank]),
            micro_batch: bounds[rank].micro_batch.filter(|micro_batch| *micro_batch < at_once),
            cost,
            predicted_compute_time_s: expected.map(|(time_s, ..)| time_s),
            predicted_speed_samples_per_s: expected.map(|(_, speed, _)| speed),
            speed_lower_samples_per_s: expected
                .map(|(_, speed, forecast)| speed * forecast.lower / forecast.speed),
            speed_upper_samples_per_s: expected
                .map(|(_, speed, forecast)| speed * forecast.upper / forecast.speed),
            background: None,
        };
        offset += local_batch;
        allocation
    };
    live.iter().enumerate().map(allocation).collect()
}
