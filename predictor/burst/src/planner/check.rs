//! Validation of a problem: every number against its rule.

use super::error::BurstError;
use super::problem::{
    BYTES_MAX, COUNTS_MAX, Cost, EDGES_MAX, GPUS_MAX, INPUTS_MAX, LAYERS_MAX, Layer, Problem, US_MAX,
    VALUES_MAX,
};

/// Validates a problem.
///
/// # Errors
/// The first violated rule.
pub(super) fn check(problem: &Problem) -> Result<(), BurstError> {
    let Problem { layers, speeds, .. } = problem;
    if layers.is_empty() || layers.len() > LAYERS_MAX {
        return Err(BurstError::Layers(layers.len()));
    }
    let edges = layers.iter().map(|layer| layer.inputs.len()).sum();
    if edges > EDGES_MAX {
        return Err(BurstError::Edges(edges));
    }
    if speeds.is_empty() || speeds.len() > GPUS_MAX {
        return Err(BurstError::Gpus(speeds.len()));
    }
    let wrong = |speed: &f64| !(speed.is_normal() && *speed > 0.0);
    if let Some(gpu) = speeds.iter().position(wrong) {
        return Err(BurstError::Speed { gpu, speed: speeds[gpu] });
    }
    if problem.global_batch == 0 {
        return Err(BurstError::GlobalBatch);
    }
    counts(problem)?;
    rules(problem)?;
    layers.iter().enumerate().try_for_each(|(at, layer)| check_layer(at, layer))
}

fn counts(problem: &Problem) -> Result<(), BurstError> {
    let gpus = problem.speeds.len();
    let counts = problem.allowed();
    if counts.is_empty() || counts.len() > COUNTS_MAX {
        return Err(BurstError::Counts(counts.len()));
    }
    match counts.into_iter().find(|count| *count == 0 || *count > gpus) {
        Some(count) => Err(BurstError::Count { count, gpus }),
        None => Ok(()),
    }
}

fn rules(problem: &Problem) -> Result<(), BurstError> {
    let at_least_0 = |what: &'static str, value: f64| match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(BurstError::Value { what, value, rule: "at least 0" }),
    };
    if let Some(limit) = problem.limit {
        if !(limit.amplification.is_finite() && limit.amplification >= 1.0) {
            return Err(BurstError::Limit(limit.amplification));
        }
        at_least_0("exempt_below_us", limit.exempt_below_us)?;
    }
    if let Some(memory) = problem.memory {
        at_least_0("bytes_per_parameter", memory.bytes_per_parameter)?;
    }
    if let Some(network) = problem.network {
        at_least_0("latency_us", network.latency_us)?;
        let value = network.bandwidth_bytes_per_s;
        if !(value.is_normal() && value > 0.0) {
            return Err(BurstError::Value { what: "bandwidth_bytes_per_s", value, rule: "positive" });
        }
    }
    Ok(())
}

fn check_layer(at: usize, layer: &Layer) -> Result<(), BurstError> {
    let name = || layer.name.clone();
    let within = |what: &'static str, value: f64, most: f64| match (0.0..=most).contains(&value) {
        true => Ok(()),
        false => Err(BurstError::Measured { layer: name(), what, value }),
    };
    if layer.inputs.len() > INPUTS_MAX {
        return Err(BurstError::Inputs { layer: name(), inputs: layer.inputs.len() });
    }
    for input in &layer.inputs {
        if input.layer >= at {
            return Err(BurstError::Input { layer: name(), from: input.layer });
        }
        let costs = input.edge_us.iter().flat_map(|edge_us| edge_us.values());
        costs.into_iter().try_for_each(|us| within("edge_us", *us, US_MAX))?;
    }
    match &layer.cost {
        Cost::Table(cost_us) => cost_us.values().try_for_each(|us| within("cost_us", *us, US_MAX))?,
        Cost::Profile(points) => {
            points.iter().try_for_each(|(_, us)| within("compute_us", *us, US_MAX))?;
            if points.is_empty() || !rising(points) {
                return Err(BurstError::Points { layer: name(), what: "compute_us" });
            }
        }
    }
    within("outputs", layer.outputs.unwrap_or(0.0), VALUES_MAX)?;
    within("parameters", layer.parameters, VALUES_MAX)?;
    layer.activation_bytes.iter().try_for_each(|(_, bytes)| within("activation_bytes", *bytes, BYTES_MAX))?;
    if rising(&layer.activation_bytes) {
        Ok(())
    } else {
        Err(BurstError::Points { layer: name(), what: "activation_bytes" })
    }
}

fn rising(points: &[(u64, f64)]) -> bool {
    points.iter().all(|(batch, _)| *batch > 0) && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
}
