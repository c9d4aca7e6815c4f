//! Measures layers by local batch.

use std::collections::BTreeMap;

use anyhow::Result;
use evenstep_protocol::BurstLayer;

use super::bench::Bench;
use crate::burst::{BurstPlan, LayerTimes};

/// Size of a float32 value, the unit of plans.
const VALUE_BYTES: u64 = 4;

/// Measures forward and backward of each layer at each of these local batches. The activations of a layer are
/// its stored outputs.
///
/// # Errors
/// Fails if a worker is lost.
pub fn measure(bench: &Bench<'_>, batches: &[u64]) -> Result<Vec<BurstLayer>> {
    let layers = bench.layers();
    let mut profiles = bench.layer_profiles(&layers);
    let mut batches = batches.to_vec();
    batches.sort_unstable();
    batches.dedup();
    for batch in batches {
        let plan = BurstPlan::even(&layers, &vec![1; layers.len()], batch);
        let times = bench.times(&plan, true)?;
        let all_us: f64 = times.iter().map(LayerTimes::compute_us).sum();
        bench.say(&format!("{batch} samples: {:.3} ms", all_us / 1e3));
        for (profile, times) in profiles.iter_mut().zip(times) {
            let put = |table: &mut Option<BTreeMap<u64, f64>>, us| {
                table.get_or_insert_default().insert(batch, us);
            };
            put(&mut profile.compute_us, times.compute_us());
            put(&mut profile.forward_us, times.forward_us);
            let bytes = VALUE_BYTES * profile.outputs.unwrap_or(0) * batch;
            profile.activation_bytes.get_or_insert_default().insert(batch, bytes);
        }
    }
    Ok(profiles)
}
