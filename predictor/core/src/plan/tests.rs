use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::forecast::{Forecast, JobForecaster};
use crate::series::{DriverSet, Observation};

fn at(speed: f64) -> WorkerOutlook {
    let forecast = Forecast { speed, lower: speed * 0.9, upper: speed * 1.1 };
    let measured = Measured { forecast, curve: Curve::at_speed(speed), largest: 1000 };
    WorkerOutlook { measured: Some(measured), floor: 1, cap: None }
}

fn unmeasured() -> WorkerOutlook {
    WorkerOutlook { measured: None, ..at(1.0) }
}

fn rules() -> Rules {
    Rules { global_batch: 120, quantum: 1, sizes: Sizes::Any, min_gain: MIN_GAIN, iterations: 1.0 }
}

fn planned(workers: &[WorkerOutlook], in_force: Option<&InForce>, rules: &Rules) -> Split {
    plan(workers, &Scenarios::default(), in_force, rules).unwrap()
}

fn in_force(plan: &Split) -> InForce {
    plan.in_force()
}

#[test]
fn shares_are_even_until_a_worker_is_measured() {
    let plan = planned(&[unmeasured(), unmeasured(), unmeasured()], None, &rules());
    assert_eq!(plan.batches, [40, 40, 40]);
    assert_eq!(plan.reason, Reason::Unmeasured { workers: 3 });
    assert_eq!((plan.step_time_s, plan.speeds), (None, None));
}

/// A new worker counts as the slowest measured worker. The ratio between the others does not change.
#[test]
fn a_joining_worker_gets_a_cautious_share() {
    let plan = planned(&[at(30.0), at(10.0), unmeasured()], None, &rules());
    assert_eq!(plan.batches, [72, 24, 24]);
    assert_eq!(plan.reason, Reason::Unmeasured { workers: 1 });
    let alone = planned(&[at(10.0), unmeasured()], None, &Rules { global_batch: 10, ..rules() });
    assert_eq!(alone.batches, [5, 5]);
}

#[test]
fn follows_the_speeds_and_names_the_changed_worker() {
    let first = planned(&[at(10.0), at(10.0)], None, &rules());
    assert_eq!((first.batches.as_slice(), first.reason), ([60, 60].as_slice(), Reason::FirstMeasured));
    let next = planned(&[at(10.0), at(5.0)], Some(&in_force(&first)), &rules());
    assert_eq!(next.batches, [80, 40]);
    assert_eq!(next.reason, Reason::SpeedChanged { rank: 1, ratio: 0.5 });
    assert_eq!((next.step_time_s, next.even_step_time_s), (Some(8.0), Some(12.0)));
}

/// Each drift alone gains too little for a change; both together gain enough.
#[test]
fn small_gains_are_held_and_drift_adds_up() {
    let mut last = planned(&[at(10.0), at(10.0)], None, &rules());
    let drifted = planned(&[at(10.0), at(7.0)], Some(&in_force(&last)), &rules());
    assert!(matches!(drifted.reason, Reason::Held { .. }), "{drifted:?}");
    assert_eq!((&drifted.batches, &drifted.speeds), (&last.batches, &last.speeds));
    last = planned(&[at(10.0), at(5.0)], Some(&in_force(&drifted)), &rules());
    assert_eq!(last.reason, Reason::SpeedChanged { rank: 1, ratio: 0.5 });
}

/// A gain of 10 % over 16 scenarios counts half.
#[test]
fn few_scenarios_flatter() {
    let residuals = [vec![0.0; 16], vec![0.0; 16]];
    let next = |min_gain: f64| {
        let first = in_force(&planned(&[at(10.0), at(10.0)], None, &rules()));
        let rules = Rules { min_gain, ..rules() };
        // 60/60 would take 60/8 = 7.5 s, 67/53 takes 6.7 s: 10.7 % less.
        plan(&[at(10.0), at(8.0)], &Scenarios::from_residuals(&residuals), Some(&first), &rules).unwrap()
    };
    assert_eq!(next(0.053).batches, [67, 53]);
    let held = next(0.054).reason;
    assert!(matches!(held, Reason::Held { gain, .. } if gain > 0.053), "{held:?}");
}

/// Each iteration gains 1.3 %, less than the minimum, but certainly: after four minimum gains a change has paid for itself.
#[test]
fn small_gains_that_last_add_up() {
    let scenarios = Scenarios::from_residuals(&[vec![0.0; 128], vec![0.0; 128]]);
    let mut now = in_force(&planned(&[at(10.0), at(10.0)], None, &rules()));
    // 60/60 takes 60/9.7 s, 61/59 takes 61/10 s.
    let gain = (1.0 - 61.0 / 10.0 / (60.0 / 9.7)) * 128.0 / 144.0;
    let held = (4.0 * MIN_GAIN / gain) as usize;
    for iteration in 0..=held {
        let next = plan(&[at(10.0), at(9.7)], &scenarios, Some(&now), &rules()).unwrap();
        assert_eq!(matches!(next.reason, Reason::Held { .. }), iteration < held, "{iteration}: {next:?}");
        now = next.in_force();
    }
    assert_eq!((now.batches, now.lost), (vec![61, 59], 0.0));
}

#[test]
fn batches_stay_near_measured_sizes() {
    let measured_at = |speed: f64, largest: u64| {
        let mut worker = at(speed);
        worker.measured.as_mut().unwrap().largest = largest;
        worker
    };
    let workers = [measured_at(100.0, 30), measured_at(1.0, 30), measured_at(1.0, 30)];
    assert_eq!(planned(&workers, None, &rules()).batches, [60, 30, 30]);
    // An even share is always allowed. The limit on batch growth is ignored if caps leave no other split.
    let capped = |cap| WorkerOutlook { cap: Some(cap), ..measured_at(1.0, 1) };
    assert_eq!(planned(&[measured_at(1.0, 1), capped(5), capped(5)], None, &rules()).batches, [110, 5, 5]);
}

#[test]
fn a_plan_that_breaks_new_bounds_is_never_held() {
    let first = in_force(&planned(&[at(10.0), at(10.0)], None, &rules()));
    let capped = WorkerOutlook { cap: Some(58), ..at(10.0) };
    let next = planned(&[capped.clone(), at(10.0)], Some(&first), &rules());
    assert_eq!((next.batches.as_slice(), next.reason), ([58, 62].as_slice(), Reason::FirstMeasured));
    let smaller = Rules { global_batch: 100, ..rules() };
    assert_eq!(planned(&[at(10.0), at(10.0)], Some(&first), &smaller).batches, [50, 50]);
    let sizes = Rules { sizes: Sizes::Allowed(vec![40, 80]), ..rules() };
    let sized = planned(&[at(10.0), at(10.0)], Some(&first), &sizes);
    assert_eq!(sized.reason, Reason::FirstMeasured);
    assert!(sized.batches == [40, 80] || sized.batches == [80, 40]);
    let tight = WorkerOutlook { cap: Some(50), ..at(10.0) };
    let refused = plan(&[tight.clone(), tight], &Scenarios::default(), None, &rules()).unwrap_err();
    assert!(matches!(refused, Unplannable::Infeasible(refused) if refused.caps == Some(100)));
}

/// 12 is no multiple of 8, and no multiple of 8 is between a floor of 9 and a cap of 12.
#[test]
fn a_quantum_has_no_effect_on_allowed_sizes() {
    let narrow = WorkerOutlook { floor: 9, cap: Some(12), ..at(1.0) };
    let rules = Rules { global_batch: 24, quantum: 8, sizes: Sizes::Allowed(vec![12]), ..rules() };
    assert_eq!(planned(&[narrow.clone(), narrow], None, &rules).batches, [12, 12]);
}

/// Four equal workers with 10 % noise, forecast and planned for a thousand iterations as the service does:
/// the batches rarely change.
#[test]
fn noise_does_not_move_the_shares() {
    let changes: Vec<usize> = (0..4).map(changes_by_noise).collect();
    assert!(changes.iter().sum::<usize>() <= 4 * 12, "{changes:?}");
}

fn changes_by_noise(seed: u64) -> usize {
    let mut noise = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut job = JobForecaster::new(DriverSet::default());
    let rules = Rules { global_batch: 256, ..rules() };
    let (mut now, mut changes) = (None::<InForce>, 0);
    for _ in 0..1000 {
        let outlook = |worker| job.forecast(&worker, None).map_or_else(unmeasured, |seen| at(seen.speed));
        let outlooks: Vec<WorkerOutlook> = (0..4u8).map(outlook).collect();
        let residuals: Vec<Option<&[(u64, f64)]>> =
            (0..4u8).map(|worker| Some(job.residuals(&worker))).collect();
        let next = plan(&outlooks, &Scenarios::joined(&residuals), now.as_ref(), &rules).unwrap();
        changes += usize::from(now.as_ref().is_some_and(|now| now.batches != next.batches));
        let outcome = |worker: u8| {
            // The sum of twelve uniform deviates approximates a normal deviate.
            let deviate = (0..12).map(|_| noise.random::<f64>()).sum::<f64>() - 6.0;
            let batch = next.batches[usize::from(worker)] as f64;
            (worker, Observation::new(batch, batch / 100.0 * (0.1 * deviate).exp()).unwrap())
        };
        job.observe(&(0..4u8).map(outcome).collect::<Vec<_>>());
        now = Some(next.in_force());
    }
    changes
}

proptest! {
    /// Sums and bounds hold for any mix of measured and unmeasured workers.
    #[test]
    fn sums_and_bounds_hold(
        workers in prop::collection::vec((prop::option::of(1.0f64..100.0), 0u64..5, prop::option::of(30u64..90)), 1..8),
        quanta in 8u64..60, quantum in 1u64..4
    ) {
        let outlook = |(speed, floor, cap): &(Option<f64>, u64, Option<u64>)| WorkerOutlook {
            floor: *floor,
            cap: *cap,
            ..speed.map_or_else(unmeasured, at)
        };
        let outlooks: Vec<WorkerOutlook> = workers.iter().map(outlook).collect();
        let rules = Rules { global_batch: quanta * quantum, quantum, ..rules() };
        if let Ok(plan) = plan(&outlooks, &Scenarios::default(), None, &rules) {
            prop_assert_eq!(plan.batches.iter().sum::<u64>(), rules.global_batch);
            for (batch, worker) in plan.batches.iter().zip(&outlooks) {
                prop_assert!(*batch >= worker.floor && worker.cap.is_none_or(|cap| *batch <= cap));
            }
        }
    }
}
