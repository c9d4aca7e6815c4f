//! A request, and the planner's problem that it asks. The planner checks times, sizes and rules; here is what it cannot see: names,
//! fields that exclude each other, the number of entries.

use std::collections::BTreeMap;

use evenstep_protocol::{BurstLayer, BurstNetwork, BurstProfile, CountChange, JobId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::PlanError;
use crate::planner::{COUNTS_MAX, Cost, GPUS_MAX, Input, Layer, Limit, Memory, Network, Problem};

/// Layers that take less than this on one GPU are free of the limit, unless said otherwise: DeepPool's.
pub const EXEMPT_BELOW_US: f64 = 300.0;
/// The most layers times GPUs: a plan says the samples of each GPU in each layer.
pub const CELLS_MAX: usize = 1 << 22;

/// Bytes of a parameter unless said otherwise: float32 with its gradient and Adam's two moments.
const BYTES_PER_PARAMETER: f64 = 16.0;
const GLOBAL_BATCH_MAX: u64 = 1 << 31;
/// The most entries of a table: a change between any two counts.
const ENTRIES_MAX: usize = COUNTS_MAX * COUNTS_MAX;
/// The longest name of a layer, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// `POST /v1/plan/burst`: how many GPUs each layer should get.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BurstRequest {
    /// What layers cost.
    pub profile: BurstProfile,
    /// Samples of an iteration over all GPUs, 1 to 2^31.
    pub global_batch: u64,
    /// How many GPUs there are. Needed where neither `speeds` nor a job says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u64>,
    /// A speed for each GPU, relative to the one that the profile was measured on. Default: all 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speeds: Option<Vec<f64>>,
    /// GPU counts that a layer may have. Default: the powers of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u64>>,
    /// How many times its GPU time on one GPU a layer may cost, at least 1. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amplification: Option<f64>,
    /// Layers that take less than this on one GPU are free of that limit, in microseconds. Default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt_below_us: Option<f64>,
    /// The most that a GPU may hold of parameters and activations. Default: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of a parameter with its gradient and the optimizer's state: 8 for SGD, 12 with momentum, 16 for Adam. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_parameter: Option<f64>,
    /// What holds of the network instead of what the profile says of it, each figure for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<BurstNetwork>,
    /// The GPUs are this job's live workers, in rank order, as fast as they are forecast to be: the fastest has speed 1, and a worker
    /// that is not known yet the mean of the others. Instead of `gpus` and `speeds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
}

/// The planner's problem.
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
    // The core looks at them where there is a limit, or a cap.
    for (what, value) in [("exempt_below_us", exempt_below_us), ("bytes_per_parameter", bytes_per_parameter)]
    {
        if !(value.is_finite() && value >= 0.0) {
            return invalid(format!("{what} is {value}: it must be finite and at least 0"));
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
        (None, None) => invalid("gpus: missing; it says how many GPUs there are"),
        (Some(gpus), Some(speeds)) if gpus != speeds.len() as u64 => {
            invalid(format!("speeds: {} for {gpus} gpus: each GPU must have one", speeds.len()))
        }
        (_, Some(speeds)) => Ok(speeds.clone()),
        (Some(gpus), None) => {
            within("gpus", gpus, GPUS_MAX as u64)?;
            Ok(vec![1.0; whole(gpus)])
        }
    }
}

/// A network, where anything is said of it: what was asked for, else what the profile says.
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
        return invalid("network: bandwidth_bytes_per_s is missing");
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
                "layer number {at}: its name {shown:?} must have 1 to {NAME_BYTES_MAX} bytes"
            ));
        }
        // Where several have one name, errors say which of them it is.
        let alone = places.get(name.as_str()).is_some_and(|places| places.len() == 1);
        let name = if alone { name.clone() } else { format!("{name} (number {at})") };
        layer(at, measured, &places)
            .map_err(|wrong| PlanError::Invalid(format!("layer {name}: {wrong}")))
            .map(|layer| Layer { name, ..layer })
    };
    profile.layers.iter().enumerate().map(named).collect()
}

/// A layer, without its name.
///
/// # Errors
/// What is wrong, in words.
fn layer(at: usize, layer: &BurstLayer, places: &BTreeMap<&str, Vec<usize>>) -> Result<Layer, String> {
    let entries = [
        ("compute_us", layer.compute_us.as_ref().map(BTreeMap::len)),
        ("cost_us", layer.cost_us.as_ref().map(BTreeMap::len)),
        ("edge_us", layer.edge_us.as_ref().map(BTreeMap::len)),
        ("activation_bytes", layer.activation_bytes.as_ref().map(BTreeMap::len)),
    ];
    if let Some((what, entries)) = entries.iter().find(|(_, entries)| *entries > Some(ENTRIES_MAX)) {
        return Err(format!("{what} has {} entries: {ENTRIES_MAX} are the most", entries.unwrap_or(0)));
    }
    let cost = match (&layer.compute_us, &layer.cost_us) {
        (Some(compute_us), None) => Cost::Profile(points(compute_us, |us| us)),
        (None, Some(cost_us)) => Cost::Table(cost_us.iter().map(|(gpus, us)| (whole(*gpus), *us)).collect()),
        (Some(_), Some(_)) => {
            return Err("it has compute_us and cost_us, and must have one of them".into());
        }
        (None, None) => return Err("it has neither compute_us nor cost_us, and must have one of them".into()),
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
        return Err(format!("edge_us is the edge from one layer, and it reads {}", read.len()));
    }
    Ok(read.into_iter().map(|layer| Input { layer, edge_us: edge_us.clone() }).collect())
}

/// The place of the layer of this name that comes before the one at `at`.
fn place(at: usize, name: &str, places: &BTreeMap<&str, Vec<usize>>) -> Result<usize, String> {
    match places.get(name).map(Vec::as_slice) {
        None => Err(format!("inputs: there is no layer {name:?}")),
        Some([place]) if *place < at => Ok(*place),
        Some([_]) => Err(format!("inputs: layer {name:?} must come before it")),
        Some(several) => Err(format!(
            "inputs: {} layers have the name {name:?}; names that are read must differ",
            several.len()
        )),
    }
}

fn points<T: Copy>(table: &BTreeMap<u64, T>, value: impl Fn(T) -> f64) -> Vec<(u64, f64)> {
    table.iter().map(|(batch, measured)| (*batch, value(*measured))).collect()
}

/// What is past any number of GPUs is past the bound all the same.
fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn within(what: &str, value: u64, most: u64) -> Result<(), PlanError> {
    if (1..=most).contains(&value) { Ok(()) } else { invalid(format!("{what}: {value} must be 1 to {most}")) }
}

fn invalid<T>(what: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError::Invalid(what.into()))
}
