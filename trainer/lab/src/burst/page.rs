//! The HTML page of a run: the planned and the measured timeline, and the timeline of one iteration.

use evenstep_report::text::seconds;
use evenstep_report::{Axis, Cell, Chart, Figure, Mark, Report, Section, Span, Table};

use super::measured::LayerTimes;
use super::plan::BurstPlan;
use super::result::Measured;
use super::timeline::Timeline;
use super::watch::{Phase, PhaseInterval};

/// Returns the page.
pub fn report(measured: &Measured, plan: &BurstPlan, timeline: &Timeline) -> Report {
    let median = format!("median of {} iterations", measured.iterations);
    let percent = format!("{:+.1} %", (measured.ratio - 1.0) * 100.0);
    Report {
        title: "Burst-parallel plan: prediction and measurement".into(),
        subtitle: format!(
            "evenstep-trainer {}: {}, global batch {}, {} GPUs on {} workers",
            env!("CARGO_PKG_VERSION"),
            measured.model,
            measured.global_batch,
            measured.gpus,
            measured.workers
        ),
        sections: vec![
            Section::Figures(vec![
                Figure::new("iteration, planned", seconds(measured.planned_us / 1e6), "sum of its layers"),
                Figure::new("iteration, measured", seconds(measured.iteration_us / 1e6), median),
                Figure::new("deviation from the plan", percent, "measured over planned"),
            ]),
            Section::Charts(vec![planned_and_measured(measured, plan)]),
            Section::Charts(vec![iteration_timeline(plan, timeline)]),
            Section::Table(table(measured)),
        ],
    }
}

/// Returns a chart with one block per layer and rank, planned above measured.
fn planned_and_measured(measured: &Measured, plan: &BurstPlan) -> Chart {
    let (mut planned_us, mut measured_us) = (0.0, 0.0);
    let mut marks = Vec::new();
    let mut idle = Vec::new();
    // The first span of a lane determines its position: rank by rank, planned above measured.
    for (layer, planned) in measured.layers.iter().zip(&plan.layers) {
        let mut spans = Vec::new();
        let ends = [(planned_us, planned.all_us()), (measured_us, layer.measured_us)];
        for rank in 0..plan.gpus {
            for (what, (begin_us, long_us)) in ["planned", "measured"].iter().zip(ends) {
                let runs = rank < layer.gpus;
                let span = Span {
                    lane: format!("rank {rank} {what}"),
                    from: begin_us / 1e3,
                    to: (begin_us + long_us) / 1e3,
                    label: format!("{} on {} GPUs, {:.3} ms", layer.name, layer.gpus, long_us / 1e3),
                    inside: if runs { layer.name.clone() } else { String::new() },
                };
                if runs { &mut spans } else { &mut idle }.push(span);
            }
        }
        planned_us += planned.all_us();
        measured_us += layer.measured_us;
        marks.push(Mark::Spans { name: layer.name.clone(), idle: false, spans });
    }
    marks.push(Mark::Spans { name: "idle".into(), idle: true, spans: idle });
    Chart {
        title: "Planned and measured".into(),
        description: "Each block is a layer on a rank: the sum of transfers, forward, backward, gradient sum and step, as in \
                    plans. Measured times are means over the middle half of the iterations by length, on rank 0, which runs all \
                    layers. A layer begins on all of its ranks when the one before ends."
            .into(),
        x: Axis::new("time since the iteration began", "ms").from_zero(),
        y: Axis::new("rank", ""),
        marks,
    }
}

/// Returns a chart of the phases of the median iteration.
fn iteration_timeline(plan: &BurstPlan, Timeline(ranks): &Timeline) -> Chart {
    let name = |layer: usize| plan.layers.get(layer).map_or("", |layer| layer.name.as_str());
    let kinds = [
        ("forward", &[Phase::Load, Phase::Forward][..]),
        ("backward and step", &[Phase::Backward, Phase::Step]),
        ("gradient sum", &[Phase::Sum]),
        ("transfer", &[Phase::Arrive, Phase::Return]),
    ];
    let span = |rank: usize, moment: &PhaseInterval, from_s: f64, to_s: f64| Span {
        lane: format!("rank {rank}"),
        from: from_s * 1e3,
        to: to_s * 1e3,
        label: format!("{}, {:.3} ms", name(moment.layer), (to_s - from_s) * 1e3),
        inside: name(moment.layer).to_owned(),
    };
    let mut idle = Vec::new();
    let mut marks: Vec<Mark> = kinds
        .iter()
        .map(|(kind, phases)| {
            let mut spans = Vec::new();
            for (rank, intervals) in ranks.iter().enumerate() {
                for moment in intervals.iter().filter(|moment| phases.contains(&moment.phase)) {
                    let begin_s = started_s(ranks, rank, moment);
                    if begin_s > moment.from_s {
                        let wait = span(rank, moment, moment.from_s, begin_s);
                        idle.push(Span { inside: String::new(), ..wait });
                    }
                    spans.push(span(rank, moment, begin_s, moment.to_s));
                }
            }
            Mark::Spans { name: (*kind).into(), idle: false, spans }
        })
        .collect();
    marks.push(Mark::Spans { name: "waiting for others".into(), idle: true, spans: idle });
    Chart {
        title: "Timeline of one iteration".into(),
        description: "The median iteration, forward through the layers and backward again. Machines have no common clock: with \
                    several machines, compare only times of the same rank."
            .into(),
        x: Axis::new("time since the iteration began", "ms").from_zero(),
        y: Axis::new("rank", ""),
        marks,
    }
}

/// Returns the time at which a collective operation began, which is when its last rank arrived. Before that
/// time, this rank waited.
fn started_s(ranks: &[Vec<PhaseInterval>], rank: usize, moment: &PhaseInterval) -> f64 {
    if !matches!(moment.phase, Phase::Arrive | Phase::Return | Phase::Sum) {
        return moment.from_s;
    }
    let others = ranks.iter().enumerate().filter(|(other, _)| *other != rank);
    let same = |other: &&PhaseInterval| (other.layer, other.phase) == (moment.layer, moment.phase);
    let came_s = others.filter_map(|(_, intervals)| intervals.iter().find(same)).map(|other| other.from_s);
    came_s.fold(moment.from_s, f64::max).min(moment.to_s)
}

fn table(measured: &Measured) -> Table {
    let time = |us: f64| Cell::Seconds(us / 1e6);
    let row = |layer: &super::result::MeasuredLayer| {
        let LayerTimes { transfer_us, forward_us, backward_us, sum_us } = layer.times;
        let mut row = vec![layer.name.as_str().into(), Cell::number(layer.gpus as f64, 0)];
        row.extend([layer.planned_us, layer.measured_us].map(time));
        row.push(Cell::number(layer.measured_us / layer.planned_us, 2));
        row.extend([transfer_us, forward_us, backward_us, sum_us].map(time));
        row
    };
    Table::new(
        "Layers",
        "On rank 0; transfers and sums include its waits for other ranks.",
        &["layer", "GPUs", "planned", "measured", "ratio", "transfer", "forward", "backward and step", "sum"],
        measured.layers.iter().map(row).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_drawn_as_idle_and_transfers_are_not() {
        let moment = |layer, phase, from_s, to_s| PhaseInterval { layer, phase, from_s, to_s };
        let first = vec![
            moment(0, Phase::Forward, 0.0, 0.004),
            moment(1, Phase::Arrive, 0.004, 0.005),
            moment(1, Phase::Sum, 0.005, 0.009),
        ];
        let second = vec![moment(1, Phase::Arrive, 0.001, 0.005), moment(1, Phase::Sum, 0.007, 0.009)];
        let plan = BurstPlan { gpus: 2, global_batch: 8, iteration_us: 9.0, layers: Vec::new() };
        let chart = iteration_timeline(&plan, &Timeline(vec![first, second]));
        let spans = |wanted: &str| -> Vec<(String, f64, f64)> {
            let found = chart.marks.iter().find_map(|mark| match mark {
                Mark::Spans { name, spans, .. } if name == wanted => Some(spans),
                _ => None,
            });
            found
                .unwrap()
                .iter()
                .map(|span| (span.lane.clone(), span.from.round(), span.to.round()))
                .collect()
        };
        let span = |rank: usize, from: f64, to: f64| (format!("rank {rank}"), from, to);
        assert_eq!(spans("waiting for others"), [span(0, 5.0, 7.0), span(1, 1.0, 4.0)]);
        assert_eq!(spans("transfer"), [span(0, 4.0, 5.0), span(1, 4.0, 5.0)]);
        assert_eq!(spans("gradient sum"), [span(0, 7.0, 9.0), span(1, 7.0, 9.0)]);
    }
}
