//! Measures layers by GPU count, for one global batch.

use anyhow::Result;
use evenstep_protocol::{BurstLayer, CountChange};

use super::bench::Bench;
use crate::burst::{BurstPlan, LayerTimes};

/// Measures each layer at GPU counts that are powers of two, and the transfers between layers with different
/// counts.
///
/// For the compute time with gradient sum, all layers run on the same count. For the transfers, consecutive
/// layers alternate between two counts.
///
/// # Errors
/// Fails if a worker is lost.
pub fn measure(bench: &Bench<'_>, global_batch: u64) -> Result<Vec<BurstLayer>> {
    let layers = bench.layers();
    let mut profiles = bench.layer_profiles(&layers);
    let ranks = bench.process.world_size;
    let counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|&count| count <= ranks).collect();
    for &count in &counts {
        let times =
            bench.times(&BurstPlan::even(&layers, &vec![count; layers.len()], global_batch), false)?;
        let cost = |times: &LayerTimes| times.compute_us() + times.sum_us;
        bench.say(&format!("all layers on {count}: {:.3} ms", times.iter().map(cost).sum::<f64>() / 1e3));
        for (profile, times) in profiles.iter_mut().zip(&times) {
            profile.cost_us.get_or_insert_default().insert(count as u64, cost(times));
        }
    }
    let pairs = counts.iter().flat_map(|&even| counts.iter().map(move |&odd| [even, odd]));
    for turns in pairs.filter(|[even, odd]| even != odd) {
        let gpus: Vec<usize> = turns.iter().copied().cycle().take(layers.len()).collect();
        let times = bench.times(&BurstPlan::even(&layers, &gpus, global_batch), false)?;
        let changes = gpus.iter().zip(gpus.iter().skip(1));
        for ((profile, times), (&from, &to)) in profiles.iter_mut().zip(&times).skip(1).zip(changes) {
            let change = CountChange { from: from as u64, to: to as u64 };
            profile.edge_us.get_or_insert_default().insert(change, times.transfer_us);
        }
        bench.say(&format!("layers alternately on {} and {}", turns[0], turns[1]));
    }
    Ok(profiles)
}
