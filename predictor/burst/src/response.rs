//! The response: a plan with the names of its layers, and what each limit buys.

use evenstep_protocol::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::planner::{Alternative, Front, FrontPoint, Plan, PlannedLayer, Problem};
use crate::request::BurstRequest;

/// A burst-parallel plan. A layer on n GPUs runs on the first n of `gpu_order`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BurstPlan {
    /// The profile's words for its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Samples of an iteration.
    pub global_batch: u64,
    /// How many GPUs there are.
    pub gpus: u64,
    /// The limit; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amplification: Option<f64>,
    /// Below this layers are free of the limit, in microseconds.
    pub exempt_below_us: f64,
    /// Predicted time of an iteration, in microseconds.
    pub iteration_us: f64,
    /// GPU time of all layers, in microseconds: each one's time, as often as it has GPUs.
    pub gpu_us: f64,
    /// By GPU: how long it has nothing to do, in microseconds.
    pub idle_us: Vec<f64>,
    /// By GPU: the speeds that the plan believes.
    pub speeds: Vec<f64>,
    /// GPUs (their places in `speeds`, from 0) by speed, the fastest first; of GPUs alike the earlier.
    pub gpu_order: Vec<u64>,
    /// The job's workers, as GPUs are numbered; empty where no job was named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    /// What the fastest GPU, which takes part in all layers, holds.
    pub memory_bytes: u64,
    /// In the order in which they run.
    pub layers: Vec<BurstPlanLayer>,
    /// All layers on the largest allowed count; null where that is not possible.
    pub data_parallel: Option<Alternative>,
    /// All layers on one GPU; null where that is not possible.
    pub one_gpu: Option<Alternative>,
    /// What each amplification limit buys, from the loosest to the tightest: iterations get longer, GPU time less.
    pub front: Vec<FrontPoint>,
    /// Whether these are all points that there are.
    pub front_complete: bool,
    /// Whether it is proven that no plan is better.
    pub exact: bool,
}

/// One layer of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BurstPlanLayer {
    /// Its name in the profile.
    pub name: String,
    /// How many GPUs it has.
    pub gpus: u64,
    /// When it begins, transfers into it first, in microseconds from the beginning of the iteration.
    pub start_us: f64,
    /// Transfers from the layers that it reads, and of gradients back to them.
    pub transfer_us: f64,
    /// Forward and backward; with the gradient sum where the profile has a table.
    pub compute_us: f64,
    /// The gradient sum; null where a table has it in the compute.
    pub sync_us: Option<f64>,
    /// Its GPU time over that on one GPU; null where the latter is 0 or not known.
    pub amplification: Option<f64>,
    /// Whether the limit does not bind it: it has one GPU, is short on one, or there is no limit.
    pub exempt: bool,
    /// Samples of each of its GPUs, the fastest first; together the global batch.
    pub samples: Vec<u64>,
}

/// The response to a request, from the plan and the front of its problem.
pub fn answer(
    request: &BurstRequest,
    problem: &Problem,
    plan: &Plan,
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

fn layer(name: &str, layer: &PlannedLayer, plan: &Plan) -> BurstPlanLayer {
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
