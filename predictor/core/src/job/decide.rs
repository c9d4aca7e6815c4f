//! Planning of an iteration: from the state of a job and a request to the allocation.

use std::sync::Arc;

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, Allocation, Decision, DecisionKind, JobSpec, WorkerId,
};

use super::background;
use super::bounds::{Bounds, fit_floors};
use super::configured::quantum;
use super::known::{Known, scenarios};
use super::learning_rate;
use super::plans::{is_probe, is_same_work};
use super::reason;
use super::state::JobState;
use super::tail::{self, Hedging};
use crate::curve::Curve;
use crate::forecast::Forecast;
use crate::learning_rate::{LearningRateError, PendingInstruction};
use crate::parallel;
use crate::plan::{
    InForce, Measured, Reason, Rules, Sizes, Split, Unplannable, WorkerOutlook, even_split, plan,
};

/// Assumed half width of the interval of a speed from an earlier run, as a factor.
const EARLIER_RUN_FACTOR: f64 = 1.5;

/// The reason why an iteration has no allocation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecideError {
    /// The bounds or the sizes do not allow an allocation.
    #[error(transparent)]
    Unplannable(#[from] Unplannable),
    /// The learning-rate rule has no instruction.
    #[error(transparent)]
    LearningRate(#[from] LearningRateError),
}

/// A planned iteration that is not yet part of the state; see [`JobState::apply`].
#[derive(Debug, Clone)]
pub struct PlannedIteration {
    /// The allocation.
    pub answer: Arc<AllocateResponse>,
    /// The even shares by rank; empty if the iteration is not compared with them.
    even: Vec<u64>,
    /// The new plan; `None` if the current plan remains.
    in_force: Option<(Vec<WorkerId>, InForce)>,
    instruction: PendingInstruction,
}

impl PlannedIteration {
    /// Whether the learning-rate state changes in a way that later instructions depend on: it must then be stored with the
    /// allocation.
    pub fn changes_learning_rate(&self) -> bool {
        self.instruction.changes_state()
    }
}

impl JobState {
    /// Plans an iteration. If the request is for less than a full global batch (the ragged end of an epoch),
    /// the plan is not compared with the current plan and does not replace it.
    ///
    /// If an earlier iteration is planned, no worker can have finished it or any later one. The learning-rate instructions
    /// from it on are discarded.
    ///
    /// # Errors
    /// [`DecideError`] if the bounds, the sizes or the learning-rate rule do not allow an allocation. The state
    /// never changes before [`Self::apply`].
    pub fn decide(&self, request: &AllocateRequest) -> Result<PlannedIteration, DecideError> {
        let iteration = request.iteration;
        let known = self.known();
        let models = self.current_models();
        let live: Vec<WorkerId> = known.iter().map(|known| known.id.clone()).collect();
        let whole_batch = self.global_batch();
        let ragged = request.global_batch.filter(|samples| *samples < whole_batch);
        let global_batch = ragged.unwrap_or(whole_batch);
        let mut bounds: Vec<Bounds> = parallel::map(&known, |known| self.bounds_by(known.state, known.model));
        let mut rules = rules(&self.spec, global_batch, ragged.is_some());
        rules.iterations = models.stride();
        if ragged.is_some() && self.is_uneven(&live, &bounds) {
            // The plan of whole iterations has gained enough.
            rules.min_gain = 0.0;
        }
        fit_floors(&mut bounds, global_batch, self.quantum(), ragged.is_some());
        let mut outlooks = outlooks(self, &known, &bounds);
        let in_force = self.in_force.as_ref().filter(|(workers, _)| ragged.is_none() && *workers == live);
        let in_force = in_force.map(|(_, in_force)| in_force);
        let scenarios = scenarios(&known, |rank| bounds[rank].cap != Some(0));
        let planned = plan(&outlooks, &scenarios, in_force, &rules)?;
        // The next plan is compared with the plan, not with a probe around it or with even shares.
        let in_force = planned.in_force();
        let held = models.balance().held();
        let hold = held.and_then(|loss| planned.hold_even(loss));
        let may_probe = ragged.is_none() && held.is_none();
        let measures = || self.measure_idle(&known, &planned, &outlooks, &scenarios, &rules, iteration);
        let probes = || self.probe(&known, &bounds, &planned, &outlooks, &scenarios);
        let probe = may_probe.then(|| measures().or_else(probes)).flatten();
        let hedges = probe.is_none() && rules.sizes == Sizes::Any;
        let is_paused = models.tail_balance().is_paused();
        let kept = (hold.is_some() || probe.is_some()).then(|| planned.batches.clone());
        let is_resumed =
            held.is_none() && self.last_allocation.as_deref().is_some_and(AllocateResponse::holds_even);
        let mut plan = probe.or(hold).unwrap_or(planned);
        let is_probe = reason::kind(&plan.reason) == DecisionKind::Profiling;
        if is_resumed && !is_probe && plan.batches != plan.even {
            plan.reason = Reason::Resumed;
        }
        let hedging = hedges.then(|| self.hedge(&known, &plan, &outlooks, &bounds, &scenarios)).flatten();
        let lacks_tail = is_paused && hedging.is_some();
        let hedging = hedging.filter(|_| !is_paused);
        let place = self.attempts.at(iteration);
        // Schedules follow the iterations of the client.
        let instruction = self.learning_rate.preview(place.iteration, whole_batch)?;

        let mut decision = Decision {
            kind: reason::kind(&plan.reason),
            reason: match ragged {
                Some(samples) => format!("{samples} samples at the end of the epoch"),
                None => reason::text(&plan.reason, &live, self.spec.min_gain),
            },
            predicted_step_time_s: plan.step_time_s,
            even_step_time_s: plan.even_step_time_s,
            lost: Some(in_force.lost).filter(|lost| *lost > 0.0),
        };
        if let Some(hedging) = &hedging {
            decision.predicted_step_time_s = Some(hedging.step_time_s);
        }
        self.fade_idle(&known, &mut outlooks, iteration);
        let mut allocations =
            allocations(&live, &plan, kept.as_deref(), &outlooks, &bounds, hedging.as_ref());
        // No background work may run during a probe, because it would disturb the measurements.
        if let Some(wanted) = self.spec.background.filter(|_| !is_probe) {
            background::set_budgets(&mut allocations, hedging.as_ref(), wanted);
        }
        let mut answer = AllocateResponse {
            job_id: request.job_id.clone(),
            generation: self.members.generation(),
            attempt: place.attempt,
            iteration,
            global_batch,
            allocations,
            tail: hedging.map(|hedging| hedging.tail),
            optimizer: learning_rate::to_wire(self.spec.rule, instruction.instruction()),
            decision,
        };
        tail::append_reason(&mut answer);
        if lacks_tail {
            answer.decision.reason.push_str("; no tail, because steps with one were slower");
        }
        let in_force = ragged.is_none().then_some((live, in_force));
        // The ragged end of an epoch is planned for itself.
        let even = if ragged.is_none() { plan.even } else { Vec::new() };
        Ok(PlannedIteration { answer: Arc::new(answer), even, in_force, instruction })
    }

    /// Whether the current plan of these workers differs from the even split.
    fn is_uneven(&self, live: &[WorkerId], bounds: &[Bounds]) -> bool {
        let Some((_, in_force)) = self.in_force.as_ref().filter(|(workers, _)| workers == live) else {
            return false;
        };
        let even = even_of(&self.spec, bounds.to_vec(), self.global_batch());
        even.is_ok_and(|even| even != in_force.batches)
    }

    /// Applies a planned iteration to the state: its plan becomes the current plan, and its iteration counts
    /// as requested. The run has passed an iteration that was carried out without an allocation: nothing follows from it.
    pub fn apply(&mut self, decided: PlannedIteration) {
        let PlannedIteration { answer, even, in_force, instruction } = decided;
        if answer.iteration < self.models.carried_out() {
            return;
        }
        self.learning_rate.accept(instruction);
        if answer.iteration < self.next_iteration {
            // A later iteration was requested first.
            let work = self.planned_work(&answer, Some(even.as_slice()).filter(|even| !even.is_empty()));
            self.models_mut().plan(answer.iteration, work);
            if is_probe(&answer) {
                self.models_mut().count_probe(answer.iteration);
            }
            return;
        }
        self.progress.clear();
        let last = self.last_allocation.as_ref();
        let is_same = last.is_some_and(|last| is_same_work(last, &answer)) && self.last_even == even;
        if !is_same {
            let work = self.planned_work(&answer, Some(even.as_slice()).filter(|even| !even.is_empty()));
            self.models_to_plan(answer.iteration).plan(answer.iteration, work);
            self.last_even = even;
        } else {
            self.models_to_plan(answer.iteration).repeat_plan(answer.iteration);
        }
        if is_probe(&answer) {
            self.models_to_plan(answer.iteration).count_probe(answer.iteration);
        }
        if in_force.is_some() {
            self.in_force = in_force;
        }
        self.next_iteration = answer.iteration + 1;
        self.last_allocation = Some(answer);
    }
}

/// Returns the rules of a job. At the ragged end of an epoch any size is allowed, since few sums of the usual
/// sizes match.
fn rules(spec: &JobSpec, global_batch: u64, is_ragged: bool) -> Rules {
    let sizes = match spec.distinct_sizes {
        _ if is_ragged => Sizes::Any,
        _ if !spec.allowed_sizes.is_empty() => Sizes::Allowed(spec.allowed_sizes.clone()),
        Some(distinct) => Sizes::Distinct(usize::try_from(distinct).unwrap_or(usize::MAX)),
        None => Sizes::Any,
    };
    Rules { global_batch, quantum: quantum(spec), sizes, min_gain: spec.min_gain, iterations: 1.0 }
}

/// Returns the even split of a full iteration over workers with these bounds.
///
/// # Errors
/// The iteration cannot be planned.
pub(super) fn even_of(
    spec: &JobSpec,
    mut bounds: Vec<Bounds>,
    global_batch: u64,
) -> Result<Vec<u64>, Unplannable> {
    fit_floors(&mut bounds, global_batch, quantum(spec), false);
    let bounds: Vec<(u64, Option<u64>)> = bounds.iter().map(|bounds| (bounds.floor, bounds.cap)).collect();
    even_split(&bounds, &rules(spec, global_batch, false))
}

/// Returns the state of each live worker for the planner.
fn outlooks(state: &JobState, live: &[Known<'_>], bounds: &[Bounds]) -> Vec<WorkerOutlook> {
    let even_share = state.global_batch().div_ceil(live.len().max(1) as u64);
    let outlook = |(known, bounds): (&Known<'_>, &Bounds)| {
        let measured = known.expected(bounds.micro_batch).map(|(forecast, curve)| Measured {
            forecast,
            curve,
            largest: known.model.map_or(0, |model| model.largest),
        });
        let initial_speed = || state.spec.initial_speeds.get(known.id);
        let measured =
            measured.or_else(|| Some(earlier_run(*initial_speed()?, bounds.micro_batch, even_share)));
        WorkerOutlook { measured, floor: bounds.floor, cap: bounds.cap }
    };
    let bounded: Vec<(&Known<'_>, &Bounds)> = live.iter().zip(bounds).collect();
    parallel::map(&bounded, |bounded| outlook(*bounded))
}

/// Returns the outlook of a worker that has not reported yet, from its speed in an earlier run. That run measured it at
/// least at an even share.
fn earlier_run(speed: f64, micro_batch: Option<u64>, even_share: u64) -> Measured {
    let forecast = Forecast { speed, lower: speed / EARLIER_RUN_FACTOR, upper: speed * EARLIER_RUN_FACTOR };
    let curve = Curve::at_speed(speed);
    let curve = match micro_batch {
        Some(micro_batch) => curve.accumulating(micro_batch),
        None => curve,
    };
    Measured { forecast, curve, largest: even_share }
}

fn allocations(
    live: &[WorkerId],
    plan: &Split,
    kept: Option<&[u64]>,
    outlooks: &[WorkerOutlook],
    bounds: &[Bounds],
    hedging: Option<&Hedging>,
) -> Vec<Allocation> {
    let global_batch: u64 = plan.batches.iter().sum();
    let batches = hedging.map_or(&plan.batches, |hedging| &hedging.bases);
    let is_probe = reason::kind(&plan.reason) == DecisionKind::Profiling;
    let (varied, held_back) = if is_probe { (kept, None) } else { (None, kept) };
    let mut offset = 0;
    let allocation = |(rank, worker): (usize, &WorkerId)| {
        let local_batch = batches[rank];
        let at_once = local_batch.max(hedging.map_or(0, |hedging| hedging.largest_chunks[rank]));
        let expected = outlooks[rank].measured.as_ref().map(|measured| {
            let time_s = measured.curve.time(local_batch);
            // With a tail: the speed over all its expected samples. Without samples: the speed with one
            // sample.
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
            planned_batch: hedging.map(|_| &plan.batches[..]).or(varied).map(|planned| planned[rank]),
            held_batch: held_back.map(|planned| planned[rank]),
            pool: hedging.and_then(|hedging| hedging.pools[rank]),
            micro_batch: bounds[rank].micro_batch.filter(|micro_batch| *micro_batch < at_once),
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
