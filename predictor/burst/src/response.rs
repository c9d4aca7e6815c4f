//! The response: a plan with the names of its layers, and the trade-off over amplification limits.

use evenstep_protocol::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::planner::{Alternative, Front, FrontPoint, Planned, PlannedLayer, Problem};
use crate::request::BurstRequest;

/// A burst-parallel plan. A layer on n GPUs runs on the first n of `gpu_order`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BurstPlan {
    /// Name of the model, from the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Samples per iteration, over all GPUs.
    pub global_batch: u64,
    /// Number of GPUs.
    pub gpus: u64,
    /// The amplification limit; absent if the request has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amplification: Option<f64>,
    /// Layers that take less than this on one GPU are exempt from the limit, in microseconds.
    pub exempt_below_us: f64,
    /// Predicted iteration time, in microseconds.
    pub iteration_us: f64,
    /// GPU time, in microseconds: the sum over layers of time multiplied by GPUs.
    pub gpu_us: f64,
    /// Idle time of each GPU, in microseconds.
    pub idle_us: Vec<f64>,
    /// Assumed speed of each GPU.
    pub speeds: Vec<f64>,
    /// GPUs (indices into `speeds`, from 0) by speed, the fastest first. GPUs of equal speed keep their
    /// order.
    pub gpu_order: Vec<u64>,
    /// The job's workers, in the order of `speeds`; empty if the request names no job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    /// Memory use of the fastest GPU, which runs all layers, in bytes.
    pub memory_bytes: u64,
    /// The layers in execution order.
    pub layers: Vec<BurstPlanLayer>,
    /// All layers on the largest allowed GPU count; null if that is not possible.
    pub data_parallel: Option<Alternative>,
    /// All layers on one GPU; null if that is not possible.
    pub one_gpu: Option<Alternative>,
    /// Plans over amplification limits, from the loosest to the tightest: iteration time rises, GPU time
    /// falls.
    pub front: Vec<FrontPoint>,
    /// Whether `front` is complete.
    pub front_complete: bool,
    /// Whether the plan is proven optimal.
    pub exact: bool,
}

/// One layer of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BurstPlanLayer {
    /// Name in the profile.
    pub name: String,
    /// Number of GPUs that run it.
    pub gpus: u64,
    /// Start of the layer, beginning with its transfers, in microseconds from the start of the iteration.
    pub start_us: f64,
    /// Transfers of activations from its inputs and of gradients back to them, in microseconds.
    pub transfer_us: f64,
    /// Forward and backward, in microseconds; includes the gradient sum if the profile has a table.
    pub compute_us: f64,
    /// The gradient sum, in microseconds; null if a table includes it in the compute time.
    pub sync_us: Option<f64>,
    /// GPU time divided by GPU time on one GPU; null if the latter is 0 or unknown.
    pub amplification: Option<f64>,
    /// Whether the amplification limit does not apply: the layer has one GPU, is short on one GPU, or there
    /// is no limit.
    pub exempt: bool,
    /// Samples of each of its GPUs, the fastest first; their sum is the global batch.
    pub samples: Vec<u64>,
}

/// Returns the response to a request, from the plan and the front of its problem.
pub fn answer(
    request: &BurstRequest,
    problem: &Problem,
    plan: &Planned,
    front: Option<Front>,
    exempt_below_us: f64,
) -> BurstPlan {
    let layers = request.profile.layers.iter().zip(&plan.layers);
    let front = front.unwrap_or(Front { points: Vec::new(), complete: false });
    BurstPlan {
        model: request.profile.model.clone(),
        global_batch: request.global_batch,
        gpus: problem.speeds.len() as u64,
        amplification: request.amplification,
        exempt_below_us,
        iteration_us: plan.iteration_us,
        gpu_us: plan.gpu_us,
        idle_us: plan.idle_us.clone(),
        speeds: problem.speeds.clone(),
        gpu_order: plan.gpu_order.iter().map(|gpu| *gpu as u64).collect(),
        workers: Vec::new(),
        memory_bytes: plan.memory_bytes,
        layers: layers.map(|(measured, planned)| layer(&measured.name, planned, plan)).collect(),
        data_parallel: plan.data_parallel,
        one_gpu: plan.one_gpu,
        front: front.points,
        front_complete: front.complete,
        exact: plan.exact,
    }
}

fn layer(name: &str, layer: &PlannedLayer, plan: &Planned) -> BurstPlanLayer {
    BurstPlanLayer {
        name: name.to_owned(),
        gpus: layer.gpus as u64,
        start_us: layer.begin_us,
        transfer_us: layer.transfer_us,
        compute_us: layer.compute_us,
        sync_us: layer.sync_us,
        amplification: layer.amplification,
        exempt: layer.exempt,
        samples: plan.samples.get(&layer.gpus).cloned().unwrap_or_default(),
    }
}
