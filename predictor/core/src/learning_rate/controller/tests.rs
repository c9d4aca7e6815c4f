use evenstep_rules::learning_rate::RampLength;
use proptest::prelude::*;

use super::super::adascale::LocalNorm;
use super::*;

const DYNAMIC: Rule = Rule::DynamicSgd { ramp: RampLength::PerGrowth(8.0) };

fn controller(rule: Rule) -> Controller {
    Controller::new(rule, 100).unwrap()
}

impl Controller {
    /// Previews and accepts the instruction of an iteration.
    fn instruct(&mut self, iteration: u64, global_batch: u64) -> Result<Instruction, LearningRateError> {
        let upcoming = self.preview(iteration, global_batch)?;
        self.accept(upcoming);
        Ok(*upcoming.instruction())
    }
}

fn multiplier(controller: &mut Controller, iteration: u64, batch: u64) -> f64 {
    controller.instruct(iteration, batch).unwrap().lr_multiplier
}

fn near(ours: f64, golden: f64) -> bool {
    (ours - golden).abs() < 1e-9
}

/// k = 4, T = 32.
#[test]
fn golden_ramp() {
    let mut ours = controller(DYNAMIC);
    assert_eq!(multiplier(&mut ours, 9, 100), 1.0);
    let start = ours.instruct(10, 400).unwrap();
    let ramp = Ramp { from: 1.0, to: 4.0, start_iteration: 10, iterations: 32 };
    assert_eq!((start.lr_multiplier, start.ramp), (1.0, Some(ramp)));
    for (t, expected) in [(1, 1.09375), (8, 1.75), (16, 2.5), (31, 3.90625), (32, 4.0), (33, 4.0), (900, 4.0)]
    {
        let instruction = ours.instruct(10 + t, 400).unwrap();
        assert!(near(instruction.lr_multiplier, expected), "{t}: {instruction:?}");
        assert_eq!(instruction.ramp, (t < 32).then_some(ramp));
        assert_eq!(instruction.schedule_iteration, 10 + t);
    }
}

#[test]
fn growth_at_once_shrinking_at_once_and_no_change() {
    for length in [RampLength::Iterations(0), RampLength::PerGrowth(0.0)] {
        let mut ours = controller(Rule::DynamicSgd { ramp: length });
        ours.instruct(0, 100).unwrap();
        let jumped = ours.instruct(1, 400).unwrap();
        assert_eq!((jumped.lr_multiplier, jumped.momentum_buffer_scale, jumped.ramp), (4.0, 4.0, None));
    }
    let mut ours = controller(DYNAMIC);
    ours.instruct(0, 100).unwrap();
    let still = ours.instruct(1, 100).unwrap();
    assert_eq!((still.lr_multiplier, still.momentum_buffer_scale, still.ramp), (1.0, 1.0, None));
    let shrunk = ours.instruct(2, 50).unwrap();
    assert_eq!((shrunk.lr_multiplier, shrunk.momentum_buffer_scale, shrunk.ramp), (0.5, 0.5, None));
}

/// At half of the ramp to 4, the batch grows again: from 2.5 to 5 in 8 * 2 iterations. Then it shrinks.
#[test]
fn a_change_during_a_ramp_starts_from_where_it_is() {
    let mut ours = controller(DYNAMIC);
    ours.instruct(0, 100).unwrap();
    ours.instruct(10, 400).unwrap();
    let restarted = ours.instruct(26, 500).unwrap();
    let ramp = Ramp { from: 2.5, to: 5.0, start_iteration: 26, iterations: 16 };
    assert_eq!((restarted.lr_multiplier, restarted.ramp), (2.5, Some(ramp)));
    assert!(near(multiplier(&mut ours, 34, 500), 3.75));
    let shrunk = ours.instruct(35, 200).unwrap();
    assert_eq!((shrunk.lr_multiplier, shrunk.ramp), (2.0, None));
}

#[test]
fn plain_rules() {
    for (rule, expected) in [(Rule::None, 1.0), (Rule::Linear, 4.0), (Rule::Sqrt, 2.0)] {
        let mut ours = controller(rule);
        assert_eq!(multiplier(&mut ours, 0, 100), 1.0);
        let changed = ours.instruct(1, 400).unwrap();
        assert_eq!((changed.lr_multiplier, changed.momentum_buffer_scale), (expected, expected));
        assert_eq!(ours.instruct(2, 400).unwrap().momentum_buffer_scale, 1.0);
    }
}

/// 10 epochs of 1,000 samples: the warm-up takes 100 iterations of the base batch at scale 1.
#[test]
fn golden_legw() {
    let rule = Rule::Legw { warmup_epochs: 10.0, dataset_samples: 1000 };
    // Progress includes the iteration itself, k per iteration at scale k: 5 in iteration 4, and 400 in the
    // 25th at scale 16.
    for (scale, iteration, expected) in [(1, 4, 1.0 / 20.0), (4, 99, 2.0), (16, 24, 1.0), (25, 15, 0.8)] {
        let mut ours = controller(rule);
        ours.instruct(0, 100 * scale).unwrap();
        let ours = multiplier(&mut ours, iteration, 100 * scale);
        assert!(near(ours, expected), "{scale} {iteration}: {ours}");
    }
}

/// [[1, 0], [0, 1]] of 100 samples each: gain 2 at scale 2.
#[test]
fn adascale_counts_what_steps_gained() {
    let local = |squared| LocalNorm { local_batch: 100, squared };
    let norms = GradientNorms { locals: vec![local(1.0), local(1.0)], global_squared: 0.5 };
    let mut ours = controller(Rule::AdaScale);
    let first = ours.instruct(0, 200).unwrap();
    assert_eq!((first.lr_multiplier, first.schedule_iteration), (1.0, 0));
    ours.gradients(0, &norms).unwrap();
    let second = ours.instruct(1, 200).unwrap();
    assert!(near(second.lr_multiplier, 2.0) && near(second.momentum_buffer_scale, 2.0));
    assert_eq!(second.schedule_iteration, 1);
    // Two iterations later: 1 + 2 + 2.
    assert_eq!(ours.instruct(3, 200).unwrap().schedule_iteration, 5);
    assert_eq!(
        ours.gradients(0, &norms).unwrap_err().to_string(),
        "gradients of iteration 0 are late: iteration 0 was processed already"
    );
    assert_eq!(controller(Rule::Linear).gradients(0, &norms), Err(LearningRateError::GradientsNotUsed));
}

#[test]
fn entered_values_stay_and_invalid_ones_are_named() {
    let mut ours = controller(DYNAMIC);
    let early = ours.instruct(3, 100).unwrap();
    ours.instruct(5, 400).unwrap();
    ours.instruct(9, 800).unwrap();
    assert_eq!(ours.preview(3, 100).unwrap().instruction(), &early);
    let error = ours.instruct(10, 0).unwrap_err().to_string();
    assert_eq!(error, "global batch is 0; it must be at least 1");
    assert!(Controller::new(DYNAMIC, 0).is_err());
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        assert!(Controller::new(Rule::DynamicSgd { ramp: RampLength::PerGrowth(bad) }, 1).is_err());
        assert!(Controller::new(Rule::Legw { warmup_epochs: bad, dataset_samples: 1 }, 1).is_err());
    }
    assert!(Controller::new(Rule::Legw { warmup_epochs: 1.0, dataset_samples: 0 }, 1).is_err());
}

/// Requests every iteration of a history, and returns the number of iterations.
fn request_all(controller: &mut Controller, history: &[(u64, u64)], norms: bool) -> u64 {
    let mut iteration = 0;
    for &(run, batch) in history {
        for _ in 0..run {
            let upcoming = controller.preview(iteration, batch).unwrap();
            controller.accept(upcoming);
            if norms {
                controller.gradients(iteration, &some_norms(iteration)).unwrap();
            }
            iteration += 1;
        }
    }
    iteration
}

/// The part of a history before an iteration.
fn before(history: &[(u64, u64)], iteration: u64) -> Vec<(u64, u64)> {
    let mut left = iteration;
    let mut part = Vec::new();
    for &(run, batch) in history {
        part.push((run.min(left), batch));
        left -= run.min(left);
    }
    part
}

/// Batches over iterations: (iterations since the previous change, batch).
fn history() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1u64..6, prop::sample::select(vec![50u64, 100, 200, 400, 1600])), 2..60)
}

fn rules() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![
        Rule::None,
        Rule::Linear,
        Rule::Sqrt,
        DYNAMIC,
        Rule::DynamicSgd { ramp: RampLength::Iterations(7) },
        Rule::Legw { warmup_epochs: 2.0, dataset_samples: 1500 },
        Rule::AdaScale,
    ])
}

fn some_norms(iteration: u64) -> GradientNorms {
    let squared = |at: u64| 1.0 + (iteration * 7919 + at) as f64 % 13.0;
    let locals = (1..5).map(|at| LocalNorm { local_batch: 10 * at, squared: squared(at) }).collect();
    GradientNorms { locals, global_squared: 0.9 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both forms of momentum take the same path down a quadratic, for any change of the batch.
    #[test]
    fn momentum_inside_or_outside_is_one(rule in rules(), history in history(), mu in 0.0f64..0.99) {
        let mut ours = controller(rule);
        let (eta, curvature) = (0.01, 0.7);
        let (mut outside, mut inside) = ((1.0f64, 0.0f64), (1.0f64, 0.0f64));
        let mut iteration = 0;
        for (run, batch) in history {
            for _ in 0..run {
                let instruction = ours.instruct(iteration, batch).unwrap();
                if rule == Rule::AdaScale {
                    ours.gradients(iteration, &some_norms(iteration)).unwrap();
                }
                iteration += 1;
                let rate = eta * instruction.lr_multiplier;
                let (w, v) = outside;
                let v = mu * v + curvature * w;
                outside = (w - rate * v, v);
                let (w, v) = inside;
                let v = mu * (v * instruction.momentum_buffer_scale) + rate * curvature * w;
                inside = (w - v, v);
                prop_assert!((outside.0 - inside.0).abs() <= 1e-9 * outside.0.abs().max(1.0));
            }
        }
    }

    /// Growth never jumps: no step is larger than the steepest step of a ramp, even if the batch changes
    /// during a ramp.
    #[test]
    fn a_ramp_restarted_is_continuous(batches in prop::collection::vec(1u64..40, 5..40)) {
        let mut ours = controller(DYNAMIC);
        let (mut last, mut grown) = (ours.instruct(0, 100).unwrap().lr_multiplier, 100);
        for (at, more) in batches.iter().enumerate() {
            grown += 25 * more;
            for inner in 0..5 {
                let next = ours.instruct(1 + 5 * at as u64 + inner, grown).unwrap();
                let k = grown as f64 / 100.0;
                prop_assert!(next.lr_multiplier >= last && next.lr_multiplier <= k);
                // (k - m) / (8 k / m) is at most k / 32.
                prop_assert!(next.lr_multiplier - last <= k / 32.0 + 1e-9, "{last} {next:?}");
                last = next.lr_multiplier;
            }
        }
    }

    /// At the batch of the schedule, the learning rate never changes, whatever the first iteration.
    #[test]
    fn scale_one_is_no_change(rule in rules(), start in 0u64..50, steps in prop::collection::vec(1u64..9, 1..20)) {
        prop_assume!(!matches!(rule, Rule::Legw { .. }));
        let mut ours = controller(rule);
        let mut iteration = start;
        for step in steps {
            let instruction = ours.instruct(iteration, 100).unwrap();
            let expected = Instruction {
                lr_multiplier: 1.0, momentum_buffer_scale: 1.0, schedule_iteration: iteration, ramp: None,
            };
            prop_assert_eq!(instruction, expected);
            iteration += step;
        }
    }

    /// A controller restored from JSON continues without a difference, and skipped or repeated iterations do
    /// not change others.
    #[test]
    fn restarts_repeats_and_gaps_change_nothing(rule in rules(), history in history(), restart in 0usize..60) {
        let mut ours = controller(rule);
        let mut each_requested = controller(rule);
        let mut iteration = 0;
        for (at, (run, batch)) in history.into_iter().enumerate() {
            let given = ours.instruct(iteration, batch).unwrap();
            prop_assert_eq!(ours.instruct(iteration, batch).unwrap(), given);
            if rule != Rule::AdaScale {
                prop_assert_eq!(each_requested.instruct(iteration, batch).unwrap(), given);
                for between in 1..run {
                    each_requested.instruct(iteration + between, batch).unwrap();
                }
            } else {
                ours.gradients(iteration, &some_norms(iteration)).unwrap();
            }
            if at == restart {
                let json = serde_json::to_string(&ours).unwrap();
                let again: Controller = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(&again, &ours);
                ours = again;
            }
            iteration += run;
        }
    }

    /// A client that finishes its ramp without the predictor has the same multipliers as the controller.
    #[test]
    fn clients_can_finish_alone(rule in rules(), batch in prop::sample::select(vec![100u64, 200, 800])) {
        prop_assume!(rule != Rule::AdaScale);
        let mut ours = controller(rule);
        ours.instruct(0, 100).unwrap();
        let alone = ours.instruct(4, batch).unwrap();
        for iteration in 5..120 {
            let expected = alone.ramp.map_or(alone.lr_multiplier, |ramp| ramp.multiplier(iteration));
            prop_assert_eq!(multiplier(&mut ours, iteration, batch), expected);
        }
    }

    /// A job that returns to an earlier iteration, however far back, continues as if the later ones had not been requested.
    #[test]
    fn a_rollback_is_exact_at_any_distance(
        rule in rules(),
        history in prop::collection::vec((1u64..400, prop::sample::select(vec![50u64, 100, 400])), 1..40),
        at in 0.0f64..1.0,
    ) {
        prop_assume!(rule != Rule::AdaScale);
        let mut ours = controller(rule);
        let iterations = request_all(&mut ours, &history, false);
        let returned_to = (iterations as f64 * at) as u64;
        let mut direct = controller(rule);
        request_all(&mut direct, &before(&history, returned_to), false);
        for batch in [50, 100, 200] {
            let upcoming = ours.preview(returned_to, batch).unwrap();
            let expected = direct.preview(returned_to, batch).unwrap();
            prop_assert_eq!(upcoming.instruction(), expected.instruction());
        }
        prop_assert!(ours.given.len() <= KEPT_INSTRUCTIONS_MAX);
    }

    /// More changes than can be remembered, and AdaScale, where each iteration is a change: every iteration can be returned to.
    #[test]
    fn every_rule_returns_to_any_iteration(rule in rules(), changes in 200u64..600, at in 0.0f64..1.0) {
        let mut ours = controller(rule);
        let history: Vec<(u64, u64)> = (0..changes).map(|change| (2, 100 + 100 * (change % 3))).collect();
        let iterations = request_all(&mut ours, &history, rule == Rule::AdaScale);
        prop_assert_eq!(ours.given.len(), KEPT_INSTRUCTIONS_MAX);
        let returned_to = (iterations as f64 * at) as u64;
        let upcoming = ours.preview(returned_to, 200).unwrap();
        let gains = upcoming.instruction().lr_multiplier;
        prop_assert!((0.0..=4.0).contains(&gains), "{gains}");
        // The remembered iterations are denser near the newest: the gap before any is a small part of its age.
        let newest = ours.given.back().unwrap().iteration;
        let widest = ours.given.iter().zip(ours.given.iter().skip(1))
            .map(|(a, b)| (b.iteration - a.iteration) as f64 / (newest + 1 - a.iteration) as f64)
            .fold(0.0, |widest: f64, gap| widest.max(if gap < 1.0 { gap } else { 0.0 }));
        prop_assert!(widest <= 0.67, "{widest}");
        ours.accept(upcoming);
        prop_assert_eq!(ours.given.back().unwrap().iteration, returned_to);
    }

    /// An instruction that does not change the state may be left out: a restored controller gives the same ones.
    #[test]
    fn a_state_without_its_unchanging_instructions_gives_the_same(rule in rules(), history in history()) {
        prop_assume!(rule != Rule::AdaScale);
        let (mut ours, mut stored) = (controller(rule), controller(rule));
        let mut iteration = 0;
        for (run, batch) in history {
            for _ in 0..run {
                let upcoming = ours.preview(iteration, batch).unwrap();
                let restored = stored.preview(iteration, batch).unwrap();
                prop_assert_eq!(restored.instruction(), upcoming.instruction());
                ours.accept(upcoming);
                if upcoming.changes_state() {
                    stored = ours.clone();
                }
                iteration += 1;
            }
        }
        prop_assert!(stored.given.len() <= ours.given.len());
    }
}
