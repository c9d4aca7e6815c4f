//! Laws: a change of a curve's form changes neither forecast step times nor the judgement of a steady worker.

use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::plans::{Choices, PlannedWork, PlannedWorker};
use super::*;
use crate::attempts::Attempts;
use crate::curve::{Curve, LearnedForm};

/// Iterations in which the batch varies, and then stays.
const VARIED: u64 = 150;
const STEADY: u64 = 200;
/// Largest change of a forecast step time, in log, in the iteration in which the form changes.
const JUMP_MAX: f64 = 0.15;

fn forms() -> impl Strategy<Value = Curve> {
    prop_oneof![
        (0.3f64..0.95).prop_map(|fixed| Curve::linear(fixed, (1.0 - fixed) / 64.0)),
        (64u64..200).prop_map(|saturation| Curve::saturating(1.0, saturation, 1.0 / saturation as f64)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_steady_worker_stays_steady_when_its_form_changes(form in forms(), last in 20u64..140, seed in any::<u64>()) {
        let worker = WorkerId::new("node/0").unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut models = Models::new();
        let planned = PlannedWorker { joined: Some(1), micro_batch: None, choices: Choices { own: 8, even: 8, held: None, without_tail: None } };
        let workers = BTreeMap::from([(worker.clone(), planned)]);
        models.plan(0, PlannedWork { workers, samples: 8, ..PlannedWork::default() });
        let is_known = |models: &Models| {
            models.worker(&worker).is_some_and(|known| known.curve.knowledge() != LearnedForm::Unproven)
        };
        for iteration in 0..VARIED + STEADY {
            // A phase at each batch, as hysteresis would give, and noise of 1 %.
            let batch = if iteration < VARIED { 20 + (iteration / 10 * 53) % 120 } else { last };
            let time_s = form.time(batch) * random.random_range(0.99..1.01);
            let expected_s = |models: &Models| Some(models.expected(&worker, None)?.1.time(batch));
            let (was_known, before_s) = (is_known(&models), expected_s(&models));
            models.learn(&[WorkerReport::new(worker.clone(), iteration, batch, time_s)], &Attempts::default(), &BTreeMap::new());
            let after_s = expected_s(&models);
            if let (Some(before_s), Some(after_s)) = (before_s, after_s)
                && is_known(&models) != was_known
            {
                let [before, after] = [before_s, after_s].map(|expected_s| (expected_s / time_s).ln().abs());
                let is_continuous = (after_s / before_s).ln().abs() <= JUMP_MAX;
                prop_assert!(
                    is_continuous || after <= before,
                    "iteration {iteration}: {before_s} s, then {after_s} s for {time_s} s"
                );
            }
            // While time seems proportional, speeds at different batches differ.
            if is_known(&models) {
                let straggler = models.worker(&worker).and_then(|known| known.watch.straggler());
                prop_assert_eq!(straggler, None, "iteration {}", iteration);
            }
        }
    }
}
