//! Lanes of the timeline chart: busy and idle times by GPU.

use std::collections::BTreeSet;

use crate::response::{BurstPlan, BurstPlanLayer};

/// Maximum number of GPUs with a lane each. With more GPUs, those that run the same layers share a lane.
const LANES_MAX: usize = 16;

/// GPUs that run the same layers: a range of positions in the plan's `gpu_order`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    /// Label in the chart.
    pub name: String,
    first: usize,
}

/// Returns the lanes of a plan, the fastest GPU first.
pub fn lanes(plan: &BurstPlan) -> Vec<Lane> {
    let gpus = plan.gpu_order.len();
    let ends: BTreeSet<usize> = if gpus <= LANES_MAX {
        (1..=gpus).collect()
    } else {
        let used = plan.layers.iter().map(|layer| usize::try_from(layer.gpus).unwrap_or(gpus));
        used.chain([gpus]).collect()
    };
    let mut first = 0;
    let lane = |end: usize| {
        let from = std::mem::replace(&mut first, end);
        Lane { name: name(plan, from, end), first: from }
    };
    ends.into_iter().map(lane).collect()
}

fn name(plan: &BurstPlan, from: usize, end: usize) -> String {
    let number = |place: usize| plan.gpu_order.get(place).copied().unwrap_or_default();
    let worker = usize::try_from(number(from)).ok().and_then(|gpu| plan.workers.get(gpu));
    match (worker, end - from) {
        (Some(worker), 1) => worker.to_string(),
        (None, 1) => format!("GPU {}", number(from)),
        // Ranges are positions in speed order, not GPU numbers.
        _ => format!("GPUs {from}–{}", end - 1),
    }
}

impl Lane {
    /// Returns whether the GPUs of this lane run the layer.
    pub fn runs(&self, layer: &BurstPlanLayer) -> bool {
        layer.gpus > self.first as u64
    }

    /// Returns the idle intervals of the GPUs, (from, to) in microseconds.
    pub fn gaps(&self, plan: &BurstPlan) -> Vec<(f64, f64)> {
        let mut gaps = Vec::new();
        let mut free_from = None;
        for layer in &plan.layers {
            if !self.runs(layer) {
                free_from.get_or_insert(layer.start_us);
            } else if let Some(from) = free_from.take() {
                gaps.push((from, layer.start_us));
            }
        }
        gaps.extend(free_from.map(|from| (from, plan.iteration_us)));
        gaps.retain(|(from, to)| from < to);
        gaps
    }
}

#[cfg(test)]
mod tests {
    use crate::request::BurstRequest;
    use evenstep_protocol::{BurstLayer, BurstProfile};

    use super::*;
    use crate::plan::plan;

    /// Returns a plan of layers that take 1 us and allow exactly one GPU count each, without transfers.
    fn planned(gpus: u64, counts: &[u64]) -> BurstPlan {
        let layer = |count: &u64| BurstLayer {
            name: format!("on {count}"),
            cost_us: Some([(*count, 1.0)].into()),
            inputs: Some(Vec::new()),
            ..BurstLayer::default()
        };
        let profile = BurstProfile { layers: counts.iter().map(layer).collect(), ..BurstProfile::default() };
        plan(&BurstRequest { profile, global_batch: 64, gpus: Some(gpus), ..BurstRequest::default() })
            .unwrap()
    }

    #[test]
    fn gaps_are_the_idle_time() {
        let plan = planned(4, &[4, 1, 2, 1, 4, 1]);
        let lanes = lanes(&plan);
        assert_eq!(
            lanes.iter().map(|lane| lane.name.as_str()).collect::<Vec<_>>(),
            ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
        );
        assert_eq!(lanes[1].gaps(&plan), [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]);
        assert_eq!(lanes[3].gaps(&plan), [(1.0, 4.0), (5.0, 6.0)]);
        for (lane, idle_us) in lanes.iter().zip(&plan.idle_us) {
            assert_eq!(lane.gaps(&plan).iter().map(|(from, to)| to - from).sum::<f64>(), *idle_us);
        }
    }

    #[test]
    fn many_gpus_share_lanes_with_those_that_do_the_same() {
        let names: Vec<String> = lanes(&planned(64, &[32, 1, 8])).into_iter().map(|lane| lane.name).collect();
        assert_eq!(names, ["GPU 0", "GPUs 1–7", "GPUs 8–31", "GPUs 32–63"]);
    }
}
