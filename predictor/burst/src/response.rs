//! A plan in the words of the wire.

use evenstep_protocol::{BurstAlternative, BurstFrontPoint, BurstPlan, BurstPlanLayer, BurstRequest};

use crate::planner::{Alternative, Front, FrontPoint, Plan, PlannedLayer, Problem};

pub fn answer(
    request: &BurstRequest,
    problem: &Problem,
    plan: &Plan,
    front: Option<Front>,
    exempt_below_us: f64,
) -> BurstPlan {
    let layers = request.profile.layers.iter().zip(&plan.layers);
    let front = front.unwrap_or(Front { points: Vec::new(), complete: false });
    let point = |point: &FrontPoint| BurstFrontPoint {
        amplification: point.amplification,
        iteration_us: point.iteration_us,
        gpu_us: point.gpu_us,
    };
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
        data_parallel: plan.data_parallel.map(alternative),
        one_gpu: plan.one_gpu.map(alternative),
        front: front.points.iter().map(point).collect(),
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

fn alternative(way: Alternative) -> BurstAlternative {
    BurstAlternative { gpus: way.gpus as u64, iteration_us: way.iteration_us, gpu_us: way.gpu_us }
}
