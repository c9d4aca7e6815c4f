//! Time of the cut of an iteration, and of an index of the shuffle.
//!
//! Goals: a cut takes less than 2 ms for each 1,000 samples, and an index less than 50 ns.

#![allow(clippy::expect_used, missing_docs, reason = "a benchmark panics if its set-up fails")]

#[path = "../tests/integration/draws/mod.rs"]
mod draws;

use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use draws::draw;
use evenstep_rules::{Cut, PassRules, Shuffle};

fn shuffle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("shuffle");
    group.throughput(Throughput::Elements(512));
    // The last one needs the most steps: a quarter of the indices of its network are samples.
    for samples in [10_000_000, 1 << 24, (1 << 24) + 1] {
        let shuffle = Shuffle::new(NonZeroU64::new(samples).expect("samples"), 1);
        group.bench_function(BenchmarkId::new("512_indices_of", samples), |bencher| {
            bencher.iter(|| (0..512).filter_map(|position| shuffle.index(black_box(position))).sum::<u64>());
        });
    }
    group.finish();
}

/// Measures cuts that need many attempts: most passes hold one sample, so equal numbers of passes contradict
/// unequal speeds.
fn tight(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tight");
    for (samples, parts) in [(64, 8), (512, 8), (1000, 64), (65_536, 1024)] {
        let drawn = draw(1, samples, 0.8, 0.0, Some(parts));
        let lengths: Vec<u64> = drawn.lengths.iter().map(|length| 4000 + length / 2).collect();
        let costs: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
        let packed = PassRules { lengths: Some(&lengths), max_tokens: Some(8192), ..PassRules::default() };
        let padded = PassRules { is_padded: true, ..packed };
        group.throughput(Throughput::Elements(samples as u64));
        for (name, rules) in [("packed", packed), ("padded", padded)] {
            group.bench_function(BenchmarkId::new(name, format!("{samples}_in_{parts}")), |bencher| {
                bencher.iter(|| Cut::new(black_box(&costs), &drawn.weights, &rules).expect("valid rules"));
            });
        }
    }
    group.finish();
}

fn cut(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cut");
    for (samples, parts) in
        [(64, 8), (512, 8), (1000, 8), (1000, 64), (8192, 1024), (65_536, 8), (65_536, 1024)]
    {
        let drawn = draw(1, samples, 0.8, 0.0, Some(parts));
        let plain = PassRules::default();
        let packed =
            PassRules { lengths: Some(&drawn.lengths), max_tokens: Some(16_384), ..PassRules::default() };
        let padded = PassRules { is_padded: true, ..packed };
        group.throughput(Throughput::Elements(samples as u64));
        for (name, rules) in [("plain", plain), ("packed", packed), ("padded", padded)] {
            group.bench_function(BenchmarkId::new(name, format!("{samples}_in_{parts}")), |bencher| {
                bencher
                    .iter(|| Cut::new(black_box(&drawn.costs), &drawn.weights, &rules).expect("valid rules"));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = cuts;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500));
    targets = shuffle, cut, tight
}
criterion_main!(cuts);
