//! A plan as a self-contained HTML page.

use evenstep_report::text::{number, seconds};
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::text::{headline, samples, summary};
use crate::planner::{Alternative, FrontPoint};
use crate::response::{BurstPlan, BurstPlanLayer};

const DEFINITIONS: &str = "Layers run one after another. A layer on n GPUs runs on the n fastest. Transfers move activations and their gradients between \
layers with different GPU counts. Compute is forward and backward; if the profile has tables, it includes the gradient sum. Amplification is the GPU time \
of a layer divided by its GPU time on one GPU. GPU time is the sum over layers of time multiplied by GPUs.";

/// Returns the whole page. `asked` is the command line.
pub fn report(plan: &BurstPlan, asked: &str) -> Report {
    let mut sections = vec![
        Section::Text {
            heading: "Request".into(),
            paragraphs: vec![asked.into(), summary(plan), DEFINITIONS.into()],
        },
        Section::Figures(figures(plan)),
    ];
    if !plan.exact {
        let words = "This plan may not be the fastest: under the memory cap, the search had to drop candidates. The plan satisfies limit and cap.";
        sections.push(Section::Notice(words.into()));
    }
    sections.extend([
        Section::Charts(vec![charts::timeline(plan)]),
        Section::Charts(vec![charts::front(plan)]),
        Section::Charts(vec![charts::iterations(plan), charts::gpu_times(plan)]),
        Section::Table(layers(plan)),
        Section::Table(front(plan)),
    ]);
    let subtitle = format!("evenstep-predictor {}: {}", env!("CARGO_PKG_VERSION"), headline(plan));
    Report { title: "Burst-parallel plan".into(), subtitle, sections }
}

fn figures(plan: &BurstPlan) -> Vec<Figure> {
    let time = |us: f64| seconds(us / 1e6);
    let note = format!("{} of GPU time", time(plan.gpu_us));
    let mut figures = vec![Figure::new("Iteration", time(plan.iteration_us), note)];
    let against = |label: String, way: Alternative| {
        let times = format!("{} ×", number(Some(way.iteration_us / plan.iteration_us)));
        Figure::new(
            label,
            times,
            format!("as fast: the alternative takes {} per iteration", time(way.iteration_us)),
        )
    };
    let ways =
        [("Compared with data parallel on", plan.data_parallel), ("Compared with one GPU", plan.one_gpu)];
    for (label, way) in ways.into_iter().filter_map(|(label, way)| Some((label, way?))) {
        let label = if way.gpus > 1 { format!("{label} {}", way.gpus) } else { label.to_owned() };
        figures.push(against(label, way));
    }
    let idle_us: f64 = plan.idle_us.iter().sum();
    let idle = format!("{:.1} %", 100.0 * idle_us / (plan.iteration_us * plan.gpus as f64));
    figures.push(Figure::new("Idle", idle, format!("of the time of {} GPUs", plan.gpus)));
    figures
}

fn layers(plan: &BurstPlan) -> Table {
    let row = |layer: &BurstPlanLayer| {
        let limited = plan.amplification.is_some() && layer.gpus > 1;
        vec![
            layer.name.as_str().into(),
            Cell::number(layer.gpus as f64, 0),
            us(layer.start_us),
            us(layer.transfer_us),
            us(layer.compute_us),
            layer.sync_us.map_or(Cell::Missing, us),
            samples(layer).into(),
            layer.amplification.map_or(Cell::Missing, |amplification| Cell::number(amplification, 3)),
            if layer.exempt && limited { "exempt from the limit".into() } else { "".into() },
        ]
    };
    let columns = [
        "layer",
        "GPUs",
        "start",
        "transfers",
        "compute",
        "gradient sum",
        "samples per GPU",
        "amplification",
        "",
    ];
    let rows = plan.layers.iter().map(row).collect();
    Table::new("Layers", "In execution order.", &columns, rows)
}

fn front(plan: &BurstPlan) -> Table {
    let row = |point: &FrontPoint| {
        vec![Cell::number(point.amplification, 3), us(point.iteration_us), us(point.gpu_us)]
    };
    let more =
        if plan.front_complete { "the list is complete" } else { "other limits may give further plans" };
    let description = format!("Each plan with the smallest amplification limit that allows it; {more}.");
    let columns = ["limit from", "iteration", "GPU time"];
    Table::new("Trade-off by limit", description, &columns, plan.front.iter().map(row).collect())
}

fn us(us: f64) -> Cell {
    Cell::Seconds(us / 1e6)
}
