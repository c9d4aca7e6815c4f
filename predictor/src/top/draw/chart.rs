//! Predicted and actual speed of the selected worker over its latest iterations.

use evenstep_protocol::StepWorker;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Widget};

use super::super::state::OpenJob;
use super::{DrawContext, number_format};

pub(super) fn draw(context: &DrawContext<'_>, open: &OpenJob, area: Rect, buffer: &mut Buffer) {
    let theme = context.theme;
    let Some(worker) = open.chosen_worker() else { return };
    let (mut actual, mut predicted) = before(open, worker);
    for step in &open.past {
        let Some(then) = step.workers.iter().find(|then| then.worker == worker.worker) else { continue };
        let at = step.iteration as f64;
        actual.extend(then.actual_samples_per_s.map(|speed| (at, speed)));
        predicted.extend(then.predicted_samples_per_s.map(|speed| (at, speed)));
    }
    let title = Line::from(vec![
        Span::styled(format!(" {} ", worker.worker), theme.strong()),
        Span::raw(format!("{}/s: ", open.step.as_ref().map_or("samples", |step| &step.unit))),
        Span::styled("actual", theme.actual()),
        Span::raw(", "),
        Span::styled("predicted (dots) ", theme.predicted()),
    ]);
    let block = Block::bordered().border_style(theme.faint()).title(title);
    let [from, to] = range(actual.iter().chain(&predicted).map(|point| point.0));
    let [low, high] = range(actual.iter().chain(&predicted).map(|point| point.1));
    if actual.len() + predicted.len() < 2 {
        block.render(area, buffer);
        return;
    }
    // The frame cuts off labels that are wider than a third of it.
    let width = usize::from(area.width.saturating_sub(2) / 3);
    let label = |value: f64, text: String| {
        if text.len() <= width { text } else { number_format::short(value) }
    };
    // Some room above and below, so that no line is on the frame; but never below 0.
    let room = (high - low).max(high * 0.05) * 0.1;
    let (low, high) = ((low - room).max(0.0), high + room);
    let axis = |bounds: [f64; 2], labels: [String; 2]| {
        Axis::default().bounds(bounds).labels(labels).style(theme.faint())
    };
    let datasets = vec![
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(theme.actual())
            .data(&actual),
        Dataset::default()
            .marker(Marker::Dot)
            .graph_type(GraphType::Scatter)
            .style(theme.predicted())
            .data(&predicted),
    ];
    Chart::new(datasets)
        .block(block)
        .x_axis(axis([from, to], [from, to].map(|at| label(at, number_format::whole(at as u64)))))
        .y_axis(axis([low, high], [low, high].map(|speed| label(speed, number_format::speed(Some(speed))))))
        .legend_position(None)
        .render(area, buffer);
}

/// Points of a line: iterations and speeds.
type Points = Vec<(f64, f64)>;

/// Actual and predicted speeds before the first iteration of the stream.
fn before(open: &OpenJob, worker: &StepWorker) -> (Points, Points) {
    let Some(history) = &open.history else { return (Vec::new(), Vec::new()) };
    let Some(known) = history.workers.iter().find(|known| known.worker == worker.worker) else {
        return (Vec::new(), Vec::new());
    };
    let first_live = open.past.front().map_or(u64::MAX, |step| step.iteration);
    let points = |speeds: &[Option<f64>]| -> Points {
        let all = history.iterations.iter().zip(speeds).filter(|(iteration, _)| **iteration < first_live);
        all.filter_map(|(iteration, speed)| Some((*iteration as f64, (*speed)?))).collect()
    };
    (points(&known.actual_samples_per_s), points(&known.predicted_samples_per_s))
}

fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
}
