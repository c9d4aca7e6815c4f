//! A plan as a page that stands alone.

use evenstep_report::text::{number, seconds};
use evenstep_report::{Cell, Figure, Report, Section, Table};

use super::charts;
use super::text::{headline, samples, verdict};
use crate::planner::{Alternative, FrontPoint};
use crate::response::{BurstPlan, BurstPlanLayer};

const DEFINITIONS: &str = "Layers run one after another. A layer on n GPUs runs on the n fastest; between layers of unlike counts activations go forward \
and gradients back (transfers). Compute is forward and backward; where the profile has tables, the gradient sum is part of it. Amplification: GPU time of \
a layer over that on one GPU. GPU time: each layer's time, as often as it has GPUs.";

/// The whole page. `asked` is the command line in words.
pub fn report(plan: &BurstPlan, asked: &str) -> Report {
    let mut sections = vec![
        Section::Text {
            heading: "What was asked".into(),
            paragraphs: vec![asked.into(), verdict(plan), DEFINITIONS.into()],
        },
        Section::Figures(figures(plan)),
    ];
    if !plan.exact {
        let words = "Not proven to be the best: the memory cap leaves too many ways. Limit and cap hold all the same.";
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
        Figure::new(label, times, format!("as fast: there an iteration takes {}", time(way.iteration_us)))
    };
    let ways = [("Against data parallel on", plan.data_parallel), ("Against one GPU", plan.one_gpu)];
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
            if layer.exempt && limited { "free of the limit".into() } else { "".into() },
        ]
    };
    let columns = [
        "layer",
        "GPUs",
        "start",
        "transfers",
        "compute",
        "gradient sum",
        "samples of a GPU",
        "amplification",
        "",
    ];
    let rows = plan.layers.iter().map(row).collect();
    Table::new("Layers", "In the order in which they run.", &columns, rows)
}

fn front(plan: &BurstPlan) -> Table {
    let row = |point: &FrontPoint| {
        vec![Cell::number(point.amplification, 3), us(point.iteration_us), us(point.gpu_us)]
    };
    let more = if plan.front_complete { "all that there are" } else { "there may be more between them" };
    let description = format!("From which amplification limit on each plan is allowed: {more}.");
    let columns = ["limit from", "iteration", "GPU time"];
    Table::new("What limits buy", description, &columns, plan.front.iter().map(row).collect())
}

fn us(us: f64) -> Cell {
    Cell::Seconds(us / 1e6)
}
