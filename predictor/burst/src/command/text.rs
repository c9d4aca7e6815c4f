//! A plan as text.

use evenstep_report::text::{aligned, line, number};

use crate::planner::{Alternative, FrontPoint};
use crate::response::{BurstPlan, BurstPlanLayer};

/// Returns the whole text.
pub fn table(plan: &BurstPlan) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}", headline(plan)));
    aligned(&mut text, &layers(plan));
    line(&mut text, format_args!("{}", summary(plan)));
    aligned(&mut text, &ways(plan));
    if !plan.front.is_empty() {
        let more = if plan.front_complete { "" } else { "; other limits may give further plans" };
        line(&mut text, format_args!("trade-off by limit{more}:"));
        aligned(&mut text, &front(plan));
    }
    if !plan.exact {
        line(
            &mut text,
            format_args!(
                "(may not be the fastest plan: under the memory cap, the search had to drop candidates)"
            ),
        );
    }
    text
}

/// Returns the planned problem in one line.
pub fn headline(plan: &BurstPlan) -> String {
    let model = plan.model.as_ref().map(|model| format!("{model}: ")).unwrap_or_default();
    let limit = match plan.amplification {
        None => "no limit".to_owned(),
        Some(limit) => {
            format!(
                "amplification at most {limit}, layers below {} us on one GPU exempt",
                plan.exempt_below_us
            )
        }
    };
    format!(
        "{model}{} layers, {} samples on {} GPUs; {limit}",
        plan.layers.len(),
        plan.global_batch,
        plan.gpus
    )
}

/// Returns the result in one line: iteration time, idle share and the comparison with the alternatives.
pub fn summary(plan: &BurstPlan) -> String {
    let idle_us: f64 = plan.idle_us.iter().sum();
    let all_us = plan.iteration_us * plan.gpus as f64;
    let idle = if all_us > 0.0 { 100.0 * idle_us / all_us } else { 0.0 };
    let against = |what: &str, way: Option<Alternative>| {
        let way = way.filter(|_| plan.iteration_us > 0.0)?;
        let faster = number(Some(way.iteration_us / plan.iteration_us));
        let share = if way.gpu_us > 0.0 { plan.gpu_us / way.gpu_us } else { 1.0 };
        Some(format!("; {faster} times as fast as {what}, with {} of its GPU time", number(Some(share))))
    };
    format!(
        "an iteration takes {} us, {idle:.1} % of the GPUs' time is idle{}{}",
        number(Some(plan.iteration_us)),
        against("data parallel", plan.data_parallel).unwrap_or_default(),
        against("one GPU", plan.one_gpu).unwrap_or_default()
    )
}

fn layers(plan: &BurstPlan) -> Vec<Vec<String>> {
    let header =
        ["layer", "GPUs", "start us", "transfer us", "compute us", "sync us", "samples", "amplification"];
    let row = |layer: &BurstPlanLayer| {
        let mut row = vec![layer.name.clone(), layer.gpus.to_string()];
        let times = [Some(layer.start_us), Some(layer.transfer_us), Some(layer.compute_us), layer.sync_us];
        row.extend(times.map(number));
        row.extend([samples(layer), amplification(plan, layer)]);
        row
    };
    std::iter::once(header.map(str::to_owned).to_vec()).chain(plan.layers.iter().map(row)).collect()
}

/// Returns the range of samples per GPU of a layer, the largest first.
pub fn samples(layer: &BurstPlanLayer) -> String {
    match (layer.samples.iter().min(), layer.samples.iter().max()) {
        (Some(least), Some(most)) if least < most => format!("{most}..{least}"),
        (Some(each), _) => each.to_string(),
        _ => "-".into(),
    }
}

fn amplification(plan: &BurstPlan, layer: &BurstPlanLayer) -> String {
    let free = if layer.exempt && plan.amplification.is_some() && layer.gpus > 1 { " free" } else { "" };
    number(layer.amplification) + free
}

/// Returns name, iteration time and GPU time of the plan and its alternatives, in microseconds.
pub fn alternatives(plan: &BurstPlan) -> Vec<(String, f64, f64)> {
    let other = |name: String, way: Option<Alternative>| way.map(|way| (name, way.iteration_us, way.gpu_us));
    let on = plan.data_parallel.map_or(plan.gpus, |way| way.gpus as u64);
    [
        Some(("this plan".to_owned(), plan.iteration_us, plan.gpu_us)),
        other(format!("data parallel on {on}"), plan.data_parallel),
        other("one GPU".to_owned(), plan.one_gpu),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn ways(plan: &BurstPlan) -> Vec<Vec<String>> {
    let header = ["plan", "iteration us", "GPU time us"].map(str::to_owned).to_vec();
    let row = |(name, iteration_us, gpu_us): (String, f64, f64)| {
        vec![name, number(Some(iteration_us)), number(Some(gpu_us))]
    };
    std::iter::once(header).chain(alternatives(plan).into_iter().map(row)).collect()
}

fn front(plan: &BurstPlan) -> Vec<Vec<String>> {
    let header = ["limit from", "iteration us", "GPU time us"].map(str::to_owned).to_vec();
    let row = |point: &FrontPoint| {
        [point.amplification, point.iteration_us, point.gpu_us].map(|value| number(Some(value))).to_vec()
    };
    std::iter::once(header).chain(plan.front.iter().map(row)).collect()
}
