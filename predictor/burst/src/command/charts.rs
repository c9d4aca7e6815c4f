//! The charts of a plan.

use evenstep_report::{Axis, Bar, Chart, Mark, Span};

use super::text::alternatives;
use super::timeline::{Lane, lanes};
use crate::response::{BurstPlan, BurstPlanLayer};

const US_PER_S: f64 = 1e6;

/// The timeline: layers over GPUs and time, with idle times.
pub fn timeline(plan: &BurstPlan) -> Chart {
    let lanes = lanes(plan);
    let idle = |lane: &Lane| {
        let gap = |(from, to): (f64, f64)| span(lane, from, to, "");
        lane.gaps(plan).into_iter().map(gap).collect::<Vec<_>>()
    };
    let transfer = |layer: &BurstPlanLayer| (layer.start_us, layer.start_us + layer.transfer_us);
    let compute = |layer: &BurstPlanLayer| (transfer(layer).1, transfer(layer).1 + layer.compute_us);
    let sync = |layer: &BurstPlanLayer| (compute(layer).1, compute(layer).1 + layer.sync_us.unwrap_or(0.0));
    let busy = |name: &str, part: &dyn Fn(&BurstPlanLayer) -> (f64, f64)| {
        let spans_of = |lane: &Lane| {
            let layers = plan.layers.iter().filter(|layer| lane.runs(layer));
            let parts = layers.map(|layer| (layer, part(layer))).filter(|(_, (from, to))| from < to);
            parts.map(|(layer, (from, to))| span(lane, from, to, &layer.name)).collect::<Vec<_>>()
        };
        Mark::Spans { name: name.into(), idle: false, spans: lanes.iter().flat_map(spans_of).collect() }
    };
    let mut marks =
        vec![busy("compute", &compute), busy("transfers", &transfer), busy("gradient sum", &sync)];
    marks.push(Mark::Spans { name: "idle".into(), idle: true, spans: lanes.iter().flat_map(idle).collect() });
    marks.retain(|mark| !matches!(mark, Mark::Spans { spans, .. } if spans.is_empty()));
    Chart {
        title: "Timeline".into(),
        description: "One iteration. Each bar is the forward and backward pass of a layer on a GPU that runs it. The fastest GPU, which runs \
                      all layers, is at the top."
            .into(),
        x: Axis::new("time", "s").from_zero(),
        y: Axis::new("GPU", ""),
        marks,
    }
}

fn span(lane: &Lane, from_us: f64, to_us: f64, layer: &str) -> Span {
    Span {
        lane: lane.name.clone(),
        from: from_us / US_PER_S,
        to: to_us / US_PER_S,
        label: layer.into(),
        inside: layer.into(),
    }
}

/// Iteration time over GPU time for each amplification limit, with the alternatives.
pub fn front(plan: &BurstPlan) -> Chart {
    let point = |iteration_us: f64, gpu_us: f64| (gpu_us / US_PER_S, iteration_us / US_PER_S);
    let limits = plan.front.iter().map(|at| point(at.iteration_us, at.gpu_us)).collect();
    let mut marks =
        vec![Mark::Line { name: "best plans under all limits".into(), points: limits, dashed: false }];
    marks.extend(alternatives(plan).into_iter().map(|(name, iteration_us, gpu_us)| Mark::Line {
        name,
        points: vec![point(iteration_us, gpu_us)],
        dashed: false,
    }));
    Chart {
        title: "Trade-off by limit".into(),
        description: "Iteration time over GPU time. Lower left is better: a tighter amplification limit saves GPU time but takes longer."
            .into(),
        x: Axis::new("GPU time", "s"),
        y: Axis::new("iteration", "s").from_zero(),
        marks,
    }
}

/// Iteration times of the plan and its alternatives.
pub fn iterations(plan: &BurstPlan) -> Chart {
    bars(plan, "Iteration time", "Lower is better.", |(_, iteration_us, _)| *iteration_us)
}

/// GPU times of the plan and its alternatives.
pub fn gpu_times(plan: &BurstPlan) -> Chart {
    bars(
        plan,
        "GPU time",
        "Sum over layers of time multiplied by GPUs. The remaining GPU time is free for other work.",
        |(_, _, gpu_us)| *gpu_us,
    )
}

fn bars(plan: &BurstPlan, title: &str, description: &str, of: fn(&(String, f64, f64)) -> f64) -> Chart {
    let ways = alternatives(plan);
    let bar = |way: &(String, f64, f64)| Bar { category: way.0.clone(), value: of(way) / US_PER_S };
    Chart {
        title: title.into(),
        description: description.into(),
        x: Axis::new("plan", ""),
        y: Axis::new("time", "s"),
        marks: vec![Mark::Bars { name: title.to_lowercase(), bars: ways.iter().map(bar).collect() }],
    }
}
