//! Time of a split: 10,000 workers and a global batch of one million, on several forms of curves, compared
//! with a greedy split sample by sample. Also the time of learning a curve.
//!
//! Goal: every exact split in under 1 ms.

#![allow(clippy::expect_used, missing_docs, reason = "a benchmark panics if its set-up fails")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use evenstep_core::allocate::{
    MAX_SCENARIOS, Scenarios, SplitWorker, allocate, allocate_expected, allocate_sizes, finish_s,
};
use evenstep_core::curve::{Curve, CurveLearner};
use evenstep_core::hedge::learner::Parts;
use evenstep_core::hedge::{ChunkCost, ClaimCost, POOL_MAX, TailWork, Terms, hedge};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const WORKERS: usize = 10_000;
const TOTAL: u64 = 1_000_000;
const SEED: u64 = 1;

fn shares(form: &str) -> Vec<SplitWorker> {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut one = |i: usize| {
        let per_sample_s = 1e-4 * random.random_range(0.3..3.0);
        let linear = Curve::linear(random.random_range(0.0..2e-3), per_sample_s);
        let saturation = random.random_range(16..200);
        let saturating = Curve::saturating(per_sample_s * saturation as f64, saturation, per_sample_s);
        let points: Vec<(u64, f64)> = (0..8).map(|power| (1 << power, linear.time(1 << power))).collect();
        let cap = random.random_range(50..400);
        match (form, i % 4) {
            ("linear", _) => SplitWorker::new(linear),
            ("saturating", _) => SplitWorker::new(saturating),
            ("same_gpus", _) => SplitWorker::new(Curve::saturating(1e-2, 256, 4e-5)),
            (_, 0) => SplitWorker { floor: 1, cap: Some(cap), ..SplitWorker::new(linear) },
            (_, 1) => SplitWorker { floor: 1, cap: Some(cap), ..SplitWorker::new(saturating) },
            (_, 2) => SplitWorker { floor: 1, ..SplitWorker::new(saturating.accumulating(64)) },
            _ => SplitWorker { floor: 1, ..SplitWorker::new(Curve::through(&points).expect("points")) },
        }
    };
    (0..WORKERS).map(&mut one).collect()
}

/// Straightforward split: gives each sample to the worker that would finish it first.
fn greedy(shares: &[SplitWorker], total: u64) -> Vec<u64> {
    let mut batches: Vec<u64> = shares.iter().map(|share| share.floor).collect();
    let next = |i: usize, batch: u64| {
        shares[i]
            .cap
            .is_none_or(|cap| batch < cap)
            .then(|| Reverse((shares[i].finish_s(batch + 1).to_bits(), i)))
    };
    let mut heap: BinaryHeap<_> = (0..shares.len()).filter_map(|i| next(i, batches[i])).collect();
    for _ in 0..total - batches.iter().sum::<u64>() {
        let Some(Reverse((_, i))) = heap.pop() else { break };
        batches[i] += 1;
        heap.extend(next(i, batches[i]));
    }
    batches
}

fn exact(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate");
    for form in ["linear", "saturating", "mixed", "same_gpus"] {
        let shares = shares(form);
        let size = format!("{form}_{WORKERS}x{TOTAL}");
        let ours = allocate(&shares, TOTAL, 1).expect("bounds that hold");
        let greedy_s = finish_s(&shares, &greedy(&shares, TOTAL));
        assert_eq!(finish_s(&shares, &ours).to_bits(), greedy_s.to_bits(), "{form}: both are exact");
        group.bench_function(BenchmarkId::new("exact", &size), |bencher| {
            bencher.iter(|| allocate(black_box(&shares), TOTAL, 1).expect("bounds that hold"));
        });
        group.bench_function(BenchmarkId::new("greedy", &size), |bencher| {
            bencher.iter(|| greedy(black_box(&shares), TOTAL));
        });
    }
    group.finish();
}

/// Measures the split under uncertainty, with the maximum number of scenarios.
fn expected(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_expected");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for workers in [4, 16, 64, 256] {
        let speeds: Vec<f64> = (0..workers).map(|_| random.random_range(500.0..2000.0)).collect();
        let shares: Vec<SplitWorker> =
            speeds.iter().map(|speed| SplitWorker::new(Curve::at_speed(*speed))).collect();
        let residuals: Vec<Vec<f64>> = (0..workers)
            .map(|_| (0..MAX_SCENARIOS).map(|_| random.random_range(-0.4..0.2)).collect())
            .collect();
        let scenarios = Scenarios::from_residuals(&residuals);
        let total = 128 * workers as u64;
        group.bench_function(
            BenchmarkId::new(format!("scenarios_{MAX_SCENARIOS}"), format!("{workers}x{total}")),
            |bencher| {
                bencher
                    .iter(|| allocate_expected(black_box(&shares), &scenarios, total, 1).expect("no bounds"));
            },
        );
    }
    group.finish();
}

/// Measures the choice of a hedged step, with the maximum number of scenarios.
fn hedged(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hedge");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let tail = TailWork { samples: 4, chunks: 1, compute_s: 4e-3, claim_s: 1e-3 };
    let mut cost = ChunkCost::default();
    cost.observe(&Parts { base: 100, base_s: 0.1, tail });
    let claims = ClaimCost { latency_s: 2e-4, busy_s: 2e-5 };
    let terms = Terms { cost: claims, min_chunk: 1, quantum: 1, pool_max: POOL_MAX };
    for workers in [4, 16, 64, 256, 1024] {
        let shares: Vec<SplitWorker> = (0..workers)
            .map(|_| SplitWorker::new(Curve::at_speed(random.random_range(500.0..2000.0))))
            .collect();
        let residuals: Vec<Vec<f64>> = (0..workers)
            .map(|_| (0..MAX_SCENARIOS).map(|_| random.random_range(-0.4..0.2)).collect())
            .collect();
        let scenarios = Scenarios::from_residuals(&residuals);
        let total = 128 * workers as u64;
        let batches = allocate(&shares, total, 1).expect("no bounds");
        let costs = vec![Some(cost); workers];
        group.bench_function(BenchmarkId::from_parameter(format!("{workers}x{total}")), |bencher| {
            bencher.iter(|| hedge(black_box(&batches), &shares, &costs, &scenarios, &terms));
        });
    }
    group.finish();
}

/// Measures the split into batches of powers of two.
fn others(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_others");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let shares: Vec<SplitWorker> = (0..64)
        .map(|_| SplitWorker {
            floor: 1,
            ..SplitWorker::new(Curve::at_speed(random.random_range(500.0..2000.0)))
        })
        .collect();
    let sizes: Vec<u64> = (3..10).map(|power| 1 << power).collect();
    group.bench_function(BenchmarkId::new("allocate_sizes", "64x8192"), |bencher| {
        bencher.iter(|| allocate_sizes(black_box(&shares), 8192, &sizes).expect("sizes that add up"));
    });
    group.finish();
}

/// Measures the update of a curve learner per iteration, with changing sizes.
fn learn(criterion: &mut Criterion) {
    let mut learner = CurveLearner::new();
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    criterion.bench_function("curve_learner/observe", |bencher| {
        bencher.iter(|| {
            let batch = random.random_range(32..128u64);
            learner.observe(batch, black_box(0.01 + 1e-3 * batch as f64));
        });
    });
}

criterion_group! {
    name = splits;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500));
    targets = exact, expected, hedged, others, learn
}
criterion_main!(splits);
