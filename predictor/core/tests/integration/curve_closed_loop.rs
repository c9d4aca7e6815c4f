//! Curves learned in closed loop, where the allocator makes batches small exactly when workers are slow.

use evenstep_core::allocate::{SplitWorker, allocate};
use evenstep_core::curve::{Curve, CurveLearner, Kind, LearnedForm};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const WORKERS: usize = 4;
const TOTAL: u64 = 256;
/// The even share, which is also the first batch of each worker.
const REFERENCE: u64 = TOTAL / WORKERS as u64;

/// Returns an approximately normal number: the sum of twelve uniform ones.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

/// Contention of workers: AR(1) on the log scale, independent noise, and occasional outliers.
struct Cluster {
    random: ChaCha8Rng,
    persistence: f64,
    outliers: f64,
    levels: [f64; WORKERS],
}

const SPREAD: f64 = 0.3;
const NOISE: f64 = 0.03;

impl Cluster {
    fn new(seed: u64, persistence: f64, outliers: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), persistence, outliers, levels: [0.0; WORKERS] }
    }

    /// Returns the contention of an iteration, and the part of its change that can be forecast. That part is
    /// the return to the mean plus the share `foreseen` of the innovation's variance.
    fn step(&mut self, foreseen: f64) -> [(f64, f64); WORKERS] {
        let innovation = SPREAD * (1.0 - self.persistence * self.persistence).sqrt();
        std::array::from_fn(|i| {
            let known = (self.persistence - 1.0) * self.levels[i]
                + foreseen.sqrt() * innovation * normal(&mut self.random);
            self.levels[i] += known + (1.0 - foreseen).sqrt() * innovation * normal(&mut self.random);
            let outlier = if self.random.random_bool(self.outliers) { 4.0 } else { 1.0 };
            ((self.levels[i] + NOISE * normal(&mut self.random)).exp() * outlier, known)
        })
    }
}

/// Batches and times of a job's workers, and their learners.
struct Run {
    learners: Vec<CurveLearner>,
    seen: Vec<(u64, f64)>,
}

/// Runs a job. Speeds are exponential averages of observed speeds. The allocator uses the curves learned so
/// far.
fn run(curve: &Curve, learner: CurveLearner, cluster: &mut Cluster, iterations: usize) -> Run {
    run_foreseeing(0.0, curve, learner, cluster, iterations)
}

/// Runs a job whose forecasts foresee the share `foreseen` of the variance of innovations.
fn run_foreseeing(
    foreseen: f64,
    curve: &Curve,
    learner: CurveLearner,
    cluster: &mut Cluster,
    iterations: usize,
) -> Run {
    let mut run = Run { learners: vec![learner; WORKERS], seen: Vec::new() };
    let mut speeds = [REFERENCE as f64 / curve.time(REFERENCE); WORKERS];
    for _ in 0..iterations {
        let contentions = cluster.step(foreseen);
        let mut forecasts = speeds;
        if foreseen > 0.0 {
            for (forecast, (_, known)) in forecasts.iter_mut().zip(contentions) {
                *forecast *= (-known).exp();
            }
        }
        let share = |(learner, speed): (&CurveLearner, f64)| SplitWorker {
            floor: 1,
            ..SplitWorker::new(learner.curve_at(speed))
        };
        let shares: Vec<SplitWorker> = run.learners.iter().zip(forecasts).map(share).collect();
        let batches = allocate(&shares, TOTAL, 1).unwrap();
        for (i, (contention, _)) in contentions.into_iter().enumerate() {
            let time_s = contention * curve.time(batches[i]);
            if foreseen > 0.0 {
                run.learners[i].measure(batches[i], time_s, Some(forecasts[i]));
            } else {
                run.learners[i].observe(batches[i], time_s);
            }
            run.seen.push((batches[i], time_s));
            let speed = run.learners[i].work(batches[i]) / time_s;
            speeds[i] *= (speed / speeds[i]).powf(0.7);
        }
    }
    run
}

/// Returns the log errors of the learned curves at half and at twice the reference, relative to the
/// reference: the maximum over the workers and the mean.
fn errors(curve: &Curve, learners: &[CurveLearner]) -> (f64, f64) {
    let error = |learner: &CurveLearner, batch: u64| {
        let truth = curve.time(batch) / curve.time(REFERENCE);
        (learner.work(batch) / learner.work(REFERENCE) / truth).ln()
    };
    let each: Vec<f64> = learners
        .iter()
        .flat_map(|learner| [REFERENCE / 2, 2 * REFERENCE].map(|batch| error(learner, batch).abs()))
        .collect();
    (each.iter().copied().fold(0.0, f64::max), each.iter().sum::<f64>() / each.len() as f64)
}

/// Checks the learned forms after a thousand iterations.
///
/// If at least half of the time is fixed, at least `least` workers must have a proven form. All proven forms
/// must be right. With a smaller fixed share the form may stay unproven: if a fifth is fixed, a proportional
/// curve has an error of 0.182 at half of the reference.
fn judge(curve: &Curve, learners: Vec<CurveLearner>, least: usize, (worst, mean): (f64, f64)) {
    let is_proven = |learner: &CurveLearner| learner.knowledge() != LearnedForm::Unproven;
    let proven: Vec<CurveLearner> = learners.into_iter().filter(is_proven).collect();
    if curve.time(1) >= 0.5 * curve.time(REFERENCE) {
        assert!(proven.len() >= least, "{curve:?}: {} proven", proven.len());
    }
    if !proven.is_empty() {
        let seen = errors(curve, &proven);
        assert!(seen.0 < worst && seen.1 < mean, "{curve:?}: {:.3}, {:.3}", seen.0, seen.1);
    }
}

fn truths() -> [(Kind, Curve); 5] {
    [
        (Kind::Proportional, Curve::linear(0.0, 1e-3)),
        (Kind::Linear, Curve::linear(0.016, 1e-3)),
        (Kind::Linear, Curve::linear(0.064, 1e-3)),
        (Kind::Linear, Curve::linear(0.256, 1e-3)),
        (Kind::Saturating, Curve::saturating(0.064, 64, 1e-3)),
    ]
}

#[test]
fn the_curve_form_is_learned_in_closed_loop() {
    for persistence in [0.7, 0.95] {
        for (kind, curve) in truths() {
            let run = run(&curve, CurveLearner::new(), &mut Cluster::new(7, persistence, 0.0), 1000);
            if kind == Kind::Saturating {
                for learner in &run.learners {
                    let LearnedForm::Identified { saturation: Some(at), .. } = learner.knowledge() else {
                        panic!("no saturation: {:?}", learner.knowledge());
                    };
                    assert!((48..=90).contains(&at), "{at}");
                }
            }
            judge(&curve, run.learners, 3, (0.16, 0.07));
        }
    }
}

/// Drivers that are read at the iteration boundary predict contention, and batches follow the forecasts. This
/// does not bias the learner either.
#[test]
fn forecasts_made_before_the_iteration_do_not_bias() {
    for foreseen in [0.25, 0.5, 0.8] {
        for (_, curve) in truths() {
            let cluster = &mut Cluster::new(12, 0.9, 0.0);
            let run = run_foreseeing(foreseen, &curve, CurveLearner::new(), cluster, 1000);
            judge(&curve, run.learners, 3, (0.16, 0.07));
        }
    }
}

/// Shows the bias that the learner avoids. A regression of times on batches finds that half of the time is
/// fixed although nothing is, because slow workers have small batches.
#[test]
fn a_regression_on_times_alone_is_biased() {
    let curve = Curve::linear(0.0, 1e-3);
    let run = run(&curve, CurveLearner::new(), &mut Cluster::new(7, 0.95, 0.0), 1000);
    let count = run.seen.len() as f64;
    let mean = |of: fn(&(u64, f64)) -> f64| run.seen.iter().map(of).sum::<f64>() / count;
    let (batch, time_s) = (mean(|seen| seen.0 as f64), mean(|seen| seen.1));
    let product = mean(|seen| seen.0 as f64 * seen.1);
    let square = mean(|seen| (seen.0 as f64).powi(2));
    let slope = (product - batch * time_s) / (square - batch * batch);
    let fixed_share = 1.0 - slope * batch / time_s;
    assert!(fixed_share > 0.5, "{fixed_share}");
    assert!(errors(&curve, &run.learners).1 < 0.07);
}

#[test]
fn outliers_do_not_matter() {
    for (_, curve) in truths() {
        let run = run(&curve, CurveLearner::new(), &mut Cluster::new(8, 0.9, 0.03), 1000);
        judge(&curve, run.learners, 2, (0.25, 0.11));
    }
}

#[test]
fn a_staircase_is_learned_when_its_step_is_known() {
    let curve = Curve::linear(0.016, 1e-3).accumulating(16);
    let run = run(&curve, CurveLearner::accumulating(16), &mut Cluster::new(9, 0.9, 0.0), 1000);
    for learner in &run.learners {
        for batch in [16, 17, 40, 63, 100] {
            let truth = curve.time(batch) / curve.time(REFERENCE) * REFERENCE as f64;
            assert!((learner.work(batch) / truth).ln().abs() < 0.2, "{batch}: {:?}", learner.knowledge());
        }
    }
}

/// Caches fill in the first iteration, and kernels are tuned in the first of each class of sizes.
#[test]
fn the_first_sample_of_each_class_is_not_forecast() {
    let learned = |slow: f64| {
        let mut learner = CurveLearner::new();
        for iteration in 0..60 {
            let batch = [64, 96, 200][iteration % 3];
            let first = if iteration < 3 { slow } else { 1.0 };
            learner.observe(batch, first * (0.1 + 0.01 * batch as f64));
        }
        learner
    };
    assert_eq!(learned(1.0), learned(20.0));
    let LearnedForm::Identified { fixed_share, .. } = learned(20.0).knowledge() else {
        panic!("no form identified from three sizes")
    };
    let truth = 0.1 / 0.74;
    assert!((fixed_share - truth).abs() < 0.05, "{fixed_share}");
}

/// A new micro-batch size keeps the observations if no batch exceeded it. Otherwise the batches would have
/// been divided differently.
#[test]
fn changing_one_micro_batch_keeps_the_others() {
    let mut learner = CurveLearner::new();
    for iteration in 0..60 {
        let batch = [16, 40, 64][iteration % 3];
        learner.observe(batch, 0.2 + 0.01 * batch as f64);
    }
    let known = learner.knowledge();
    assert!(matches!(known, LearnedForm::Identified { .. }), "{known:?}");
    let once = learner.curve_at(1.0);
    assert!(!learner.accumulate(Some(64)), "no batch observed was larger");
    assert_eq!(learner.knowledge(), known);
    let curve = learner.curve_at(1.0);
    assert_eq!((curve.time(64), curve.time(128)), (once.time(64), 2.0 * once.time(64)));
    assert!(!learner.accumulate(Some(64)), "the size is unchanged");
    assert!(learner.accumulate(Some(63)));
    assert_eq!(learner, CurveLearner::accumulating(63));
    assert!(!learner.accumulate(None), "no form was proven");
}

#[test]
fn one_batch_size_does_not_determine_the_form() {
    let mut cluster = Cluster::new(11, 0.9, 0.0);
    let mut learner = CurveLearner::new();
    assert_eq!((learner.largest(), learner.knowledge()), (0, LearnedForm::Unproven));
    for iteration in 0..200u64 {
        // Sizes within a few percent are one class.
        let batch = 64 + iteration % 5;
        learner.observe(batch, cluster.step(0.0)[0].0 * 0.01 * batch as f64);
    }
    assert_eq!((learner.largest(), learner.knowledge()), (68, LearnedForm::Unproven));
    assert_eq!((learner.work(64), learner.work(500)), (64.0, 500.0));
    assert_eq!(learner.curve_at(4.0), Curve::at_speed(4.0));
    let before = learner.clone();
    learner.observe(0, 1.0);
    learner.observe(64, f64::NAN);
    learner.observe(64, 0.0);
    assert_eq!(learner, before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// For any observations, work never decreases, equals the batch at the reference, and is proportional to
    /// the curve's time.
    #[test]
    fn work_is_a_curve_through_the_reference(
        seen in prop::collection::vec((1u64..2000, 1e-4f64..10.0), 1..80), micro in prop::option::of(1u64..100)
    ) {
        let mut learner = micro.map_or_else(CurveLearner::new, CurveLearner::accumulating);
        for (batch, time_s) in &seen {
            learner.observe(*batch, *time_s);
        }
        let reference = seen[0].0;
        prop_assert!((learner.work(reference) / reference as f64 - 1.0).abs() < 1e-12);
        prop_assert_eq!(learner.largest(), seen.iter().map(|seen| seen.0).max().unwrap());
        let sizes = [1, 2, 3, 5, 10, 50, 99, 100, 500, 1000, 3000];
        prop_assert!(sizes.is_sorted_by_key(|batch| learner.work(*batch)));
        let curve = learner.curve_at(8.0);
        for batch in sizes {
            prop_assert!((curve.time(batch) * 8.0 / learner.work(batch) - 1.0).abs() < 1e-12);
        }
        let stored: CurveLearner = serde_json::from_str(&serde_json::to_string(&learner).unwrap()).unwrap();
        prop_assert_eq!(stored.knowledge(), learner.knowledge());
    }
}
