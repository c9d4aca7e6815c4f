//! Time of a burst-parallel plan: 500 layers on 1,024 GPUs.
//!
//! Goal: a plan in under 100 ms.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark panics if its set-up fails, and prints the plans"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use evenstep_burst::planner::{AllReduce, Cost, Input, Layer, Limit, Memory, Network, Problem, front, plan};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LAYERS: usize = 500;
/// Number of layers of the problem that keeps more alternatives per layer.
const BRANCHED_LAYERS: usize = 64;
const GPUS: usize = 1024;
const SEED: u64 = 1;

/// Returns profiled layers. With blocks, every fourth layer reads the previous layer and the layer four
/// before.
fn problem(blocks: bool) -> Problem {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut layer = |at: usize| {
        let (fixed, each) = (random.random_range(1.0..200.0), random.random_range(0.1..50.0));
        let points = (0..8).map(|power| (1 << power, fixed + each * f64::from(1 << power)));
        let skip = (blocks && at > 0 && at.is_multiple_of(4)).then(|| at - 4);
        let inputs = at.checked_sub(1).into_iter().chain(skip);
        let activations = random.random_range(1e5..1e7);
        Layer {
            inputs: inputs.map(|layer| Input { layer, edge_us: None }).collect(),
            cost: Cost::Profile(points.collect()),
            outputs: Some(random.random_range(1e3..1e6)),
            parameters: random.random_range(0.0..1e7),
            activation_bytes: vec![(1, activations), (1024, 1024.0 * activations)],
            ..Layer::table(format!("layer {at}"), None, BTreeMap::new())
        }
    };
    let layers = (0..LAYERS).map(&mut layer).collect();
    let network = Network { bandwidth_bytes_per_s: 1e11, latency_us: 5.0, all_reduce: AllReduce::Ring };
    let limit = Some(Limit { amplification: 2.0, exempt_below_us: 50.0 });
    Problem { network: Some(network), limit, ..Problem::new(layers, GPUS, 1024) }
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("burst");
    let size = format!("{LAYERS}x{GPUS}");
    let chain = problem(false);
    let blocks = problem(true);
    // The cap is 90 % of the memory of the best plan. The amplification limit is removed, because no plan would
    // satisfy both rules.
    let capped = |problem: &Problem| {
        let free = Problem { limit: None, ..problem.clone() };
        let bytes = plan(&free).expect("there are no rules").memory_bytes;
        let memory = Some(Memory { bytes_per_gpu: bytes / 10 * 9, bytes_per_parameter: 0.0 });
        Problem { memory, ..free }
    };
    let few = Problem { layers: blocks.layers[..BRANCHED_LAYERS].to_vec(), ..blocks.clone() };
    let blocks_capped = capped(&blocks);
    let unequal = (0..GPUS).map(|gpu| 1.0 + gpu as f64 / GPUS as f64).collect();
    let problems = [
        ("chain", chain.clone()),
        ("chain_unequal_gpus", Problem { speeds: unequal, ..chain.clone() }),
        ("chain_memory_cap", capped(&chain)),
        ("blocks", blocks),
        ("blocks_memory_cap", blocks_capped),
        ("few_blocks_memory_cap", capped(&few)),
    ];
    for (name, problem) in problems {
        let planned = plan(&problem);
        println!("{name}: {:?}", planned.map(|plan| (plan.iteration_us, plan.exact, plan.memory_bytes)));
        group.bench_function(BenchmarkId::new(name, format!("{}x{GPUS}", problem.layers.len())), |bencher| {
            bencher.iter(|| plan(black_box(&problem)));
        });
    }
    group.bench_function(BenchmarkId::new("front_32_plans", &size), |bencher| {
        bencher.iter(|| front(black_box(&chain), 32));
    });
    group.finish();
}

criterion_group! {
    name = burst;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500));
    targets = plans
}
criterion_main!(burst);
