//! A request, and its conversion to the planner's problem. The planner checks times, sizes and limits. This
//! module checks names, mutually exclusive fields and the number of table entries.

use std::collections::BTreeMap;

use evenstep_protocol::{BurstLayer, BurstNetwork, BurstProfile, CountChange, JobId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::PlanError;
use crate::planner::{COUNTS_MAX, Cost, GPUS_MAX, Input, Layer, Limit, Memory, Network, Problem};

/// Default of `exempt_below_us`, as in DeepPool.
pub const EXEMPT_BELOW_US: f64 = 300.0;
/// Maximum of layers times GPUs, because a plan lists the samples of each GPU in each layer.
pub const CELLS_MAX: usize = 1 << 22;

/// Default bytes per parameter: a float32 value, its gradient and Adam's two moments.
const BYTES_PER_PARAMETER: f64 = 16.0;
const GLOBAL_BATCH_MAX: u64 = 1 << 31;
/// Maximum number of table entries: one change between any two counts.
const ENTRIES_MAX: usize = COUNTS_MAX * COUNTS_MAX;
/// Maximum length of a layer name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// Body of `POST /v1/plan/burst`: a request for the number of GPUs of each layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BurstRequest {
    /// Measured costs of the layers.
    pub profile: BurstProfile,
    /// Samples per iteration over all GPUs, 1 to 2^31.
    pub global_batch: u64,
    /// Number of GPUs. Required unless `speeds` or `job_id` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u64>,
    /// Speed of each GPU, relative to the profiled GPU. Default: all 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speeds: Option<Vec<f64>>,
    /// Allowed GPU counts per layer. Default: the powers of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u64>>,
    /// Amplification limit, at least 1: maximum GPU time of a layer as a multiple of its GPU time on one GPU.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amplification: Option<f64>,
    /// Layers that take less than this on one GPU are exempt from the limit, in microseconds. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt_below_us: Option<f64>,
    /// Memory cap per GPU for parameters and activations, in bytes. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes per parameter with gradient and optimizer state: 8 for SGD, 12 with momentum, 16 for Adam.
    /// Default: 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_parameter: Option<f64>,
    /// Network parameters. Each given field replaces the one in the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<BurstNetwork>,
    /// Plan for this job's live workers, in rank order, at their forecast speeds; replaces `gpus` and
    /// `speeds`. The fastest worker has speed 1. An unmeasured worker gets the mean of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
}

/// Converts the request to the planner's problem.
///
/// # Errors
/// [`PlanError::Invalid`] names the layer, the value and the rule.
pub fn problem(request: &BurstRequest) -> Result<Problem, PlanError> {
    let speeds = speeds(request)?;
    within("global_batch", request.global_batch, GLOBAL_BATCH_MAX)?;
    let layers = layers(&request.profile)?;
    if layers.len().saturating_mul(speeds.len()) > CELLS_MAX {
        return invalid(format!(
            "{} layers on {} GPUs: layers times GPUs must be at most {CELLS_MAX}",
            layers.len(),
            speeds.len()
        ));
    }
    let exempt_below_us = request.exempt_below_us.unwrap_or(EXEMPT_BELOW_US);
    let bytes_per_parameter = request.bytes_per_parameter.unwrap_or(BYTES_PER_PARAMETER);
    // The planner checks them only if there is a limit or a cap.
    for (what, value) in [("exempt_below_us", exempt_below_us), ("bytes_per_parameter", bytes_per_parameter)]
    {
        if !(value.is_finite() && value >= 0.0) {
            return invalid(format!("{what} {value} must be finite and at least 0"));
        }
    }
    let network = request.network.unwrap_or_default();
    Ok(Problem {
        layers,
        global_batch: request.global_batch,
        speeds,
        counts: request.counts.as_ref().map(|counts| counts.iter().copied().map(whole).collect()),
        limit: request.amplification.map(|amplification| Limit { amplification, exempt_below_us }),
        memory: request.memory_bytes.map(|bytes_per_gpu| Memory { bytes_per_gpu, bytes_per_parameter }),
        network: described(network, request.profile.network.unwrap_or_default())?,
    })
}

fn speeds(request: &BurstRequest) -> Result<Vec<f64>, PlanError> {
    match (request.gpus, &request.speeds) {
        (None, None) => invalid("gpus: missing; give gpus, speeds or job_id"),
        (Some(gpus), Some(speeds)) if gpus != speeds.len() as u64 => {
            invalid(format!("speeds: {} for {gpus} gpus; give one speed per GPU", speeds.len()))
        }
        (_, Some(speeds)) => Ok(speeds.clone()),
        (Some(gpus), None) => {
            within("gpus", gpus, GPUS_MAX as u64)?;
            Ok(vec![1.0; whole(gpus)])
        }
    }
}

/// Merges the network fields of request and profile; the request takes precedence. `None` if both are empty.
fn described(asked: BurstNetwork, measured: BurstNetwork) -> Result<Option<Network>, PlanError> {
    let network = BurstNetwork {
        bandwidth_bytes_per_s: asked.bandwidth_bytes_per_s.or(measured.bandwidth_bytes_per_s),
        latency_us: asked.latency_us.or(measured.latency_us),
        all_reduce: asked.all_reduce.or(measured.all_reduce),
    };
    if network == BurstNetwork::default() {
        return Ok(None);
    }
    let Some(bandwidth_bytes_per_s) = network.bandwidth_bytes_per_s else {
        return invalid("network: bandwidth_bytes_per_s is missing; add it to the request or the profile");
    };
    Ok(Some(Network {
        bandwidth_bytes_per_s,
        latency_us: network.latency_us.unwrap_or(0.0),
        all_reduce: network.all_reduce.unwrap_or_default(),
    }))
}

fn layers(profile: &BurstProfile) -> Result<Vec<Layer>, PlanError> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, layer) in profile.layers.iter().enumerate() {
        places.entry(&layer.name).or_default().push(at);
    }
    let named = |(at, measured): (usize, &BurstLayer)| {
        let name = &measured.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let shown: String = name.chars().take(40).collect();
            return invalid(format!(
                "layer number {at}: name {shown:?} must have 1 to {NAME_BYTES_MAX} bytes"
            ));
        }
        // If several layers share a name, errors add the layer's number.
        let alone = places.get(name.as_str()).is_some_and(|places| places.len() == 1);
        let name = if alone { name.clone() } else { format!("{name} (number {at})") };
        layer(at, measured, &places)
            .map_err(|wrong| PlanError::Invalid(format!("layer {name}: {wrong}")))
            .map(|layer| Layer { name, ..layer })
    };
    profile.layers.iter().enumerate().map(named).collect()
}

/// Converts a layer, without its name.
///
/// # Errors
/// A message that names the field and the rule.
fn layer(at: usize, layer: &BurstLayer, places: &BTreeMap<&str, Vec<usize>>) -> Result<Layer, String> {
    let entries = [
        ("compute_us", layer.compute_us.as_ref().map(BTreeMap::len)),
        ("cost_us", layer.cost_us.as_ref().map(BTreeMap::len)),
        ("edge_us", layer.edge_us.as_ref().map(BTreeMap::len)),
        ("activation_bytes", layer.activation_bytes.as_ref().map(BTreeMap::len)),
    ];
    if let Some((what, entries)) = entries.iter().find(|(_, entries)| *entries > Some(ENTRIES_MAX)) {
        return Err(format!("{what} has {} entries, the maximum is {ENTRIES_MAX}", entries.unwrap_or(0)));
    }
    let cost = match (&layer.compute_us, &layer.cost_us) {
        (Some(compute_us), None) => Cost::Profile(points(compute_us, |us| us)),
        (None, Some(cost_us)) => Cost::Table(cost_us.iter().map(|(gpus, us)| (whole(*gpus), *us)).collect()),
        (Some(_), Some(_)) => {
            return Err("compute_us and cost_us are mutually exclusive; give one of them".into());
        }
        (None, None) => return Err("compute_us and cost_us are both missing; give one of them".into()),
    };
    Ok(Layer {
        name: String::new(),
        inputs: inputs(at, layer, places)?,
        cost,
        outputs: layer.outputs.map(|outputs| outputs as f64),
        parameters: layer.parameters.unwrap_or(0) as f64,
        activation_bytes: layer
            .activation_bytes
            .as_ref()
            .map_or_else(Vec::new, |bytes| points(bytes, |bytes| bytes as f64)),
    })
}

fn inputs(at: usize, layer: &BurstLayer, places: &BTreeMap<&str, Vec<usize>>) -> Result<Vec<Input>, String> {
    let read: Vec<usize> = match &layer.inputs {
        Some(names) => names.iter().map(|name| place(at, name, places)).collect::<Result<_, _>>()?,
        None => at.checked_sub(1).into_iter().collect(),
    };
    let edge_us = layer.edge_us.as_ref().map(|edge_us| {
        let pair = |change: &CountChange| (whole(change.from), whole(change.to));
        edge_us.iter().map(|(change, us)| (pair(change), *us)).collect::<BTreeMap<_, _>>()
    });
    if edge_us.is_some() && read.len() > 1 {
        return Err(format!("edge_us requires a single input, the layer has {}", read.len()));
    }
    Ok(read.into_iter().map(|layer| Input { layer, edge_us: edge_us.clone() }).collect())
}

/// Returns the index of the layer with this name, which must come before index `at`.
fn place(at: usize, name: &str, places: &BTreeMap<&str, Vec<usize>>) -> Result<usize, String> {
    match places.get(name).map(Vec::as_slice) {
        None => Err(format!("inputs: layer {name:?} does not exist")),
        Some([place]) if *place < at => Ok(*place),
        Some([_]) => Err(format!("inputs: layer {name:?} must come before the layer that reads it")),
        Some(several) => Err(format!(
            "inputs: {} layers have the name {name:?}; names of inputs must be unique",
            several.len()
        )),
    }
}

fn points<T: Copy>(table: &BTreeMap<u64, T>, value: impl Fn(T) -> f64) -> Vec<(u64, f64)> {
    table.iter().map(|(batch, measured)| (*batch, value(*measured))).collect()
}

/// Converts a count, saturating at `usize::MAX`: such a count exceeds every limit anyway.
fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn within(what: &str, value: u64, most: u64) -> Result<(), PlanError> {
    if (1..=most).contains(&value) { Ok(()) } else { invalid(format!("{what}: {value} must be 1 to {most}")) }
}

fn invalid<T>(what: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError::Invalid(what.into()))
}
