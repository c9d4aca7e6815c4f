//! The nodes: the time and the values of their latest samples.

use evenstep_protocol::{NodeSample, NodeSummary, driver};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, Widget};

use super::{DrawContext, number_format};

/// Limit of nodes that are shown.
const SHOWN_MAX: usize = 12;
/// Seconds without a sample after which a node is marked.
const SILENT_S: f64 = 15.0;

/// Rows of `nodes` nodes, including the header.
pub(super) fn height(nodes: usize) -> u16 {
    if nodes == 0 { 0 } else { u16::try_from(nodes.min(SHOWN_MAX)).unwrap_or(0) + 1 }
}

pub(super) fn draw(context: &DrawContext<'_>, nodes: &[NodeSummary], area: Rect, buffer: &mut Buffer) {
    let theme = context.theme;
    let rows = nodes.iter().take(SHOWN_MAX).map(|node| {
        let age_s = context.age_s(node.at_unix_ms);
        let heard = age_s.map_or_else(
            || number_format::UNKNOWN.to_owned(),
            |age_s| format!("{} ago", number_format::age(age_s)),
        );
        let heard = match age_s {
            Some(age_s) if age_s > SILENT_S => Cell::from(format!("! {heard}")).style(theme.warning()),
            _ => Cell::from(heard),
        };
        let known = context.state.nodes.as_ref();
        let sample = known.and_then(|known| known.nodes.iter().find(|view| view.node == node.node));
        let sample = sample.map(|view| &view.latest);
        let reading =
            |name: &str| number_format::share(sample.and_then(|sample| sample.readings.get(name).copied()));
        let number = |text: String| Cell::from(Line::from(text).right_aligned());
        Row::new([
            Cell::from(node.node.to_string()),
            heard,
            number(reading(driver::CPU_BUSY)),
            number(reading(driver::PSI_CPU_SOME)),
            number(reading(driver::MEMORY_USED)),
            number(gpus(sample)),
            Cell::from(if sample.is_some_and(|sample| sample.synthetic) { "demo" } else { "" })
                .style(theme.faint()),
        ])
    });
    let longest = nodes.iter().map(|node| node.node.as_str().len()).max().unwrap_or(0).clamp(8, 40);
    let more = nodes.len().saturating_sub(SHOWN_MAX);
    let name = if more > 0 { format!("node (+{more})") } else { "node".to_owned() };
    let number = |text: &'static str| Cell::from(Line::from(text).right_aligned());
    let head = [
        Cell::from(name),
        Cell::from("last sample"),
        number("cpu"),
        number("cpu waits"),
        number("memory"),
        number("gpu"),
        Cell::from(""),
    ];
    let widths = [
        Constraint::Length(u16::try_from(longest).unwrap_or(40)),
        Constraint::Length(14),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(7),
    ];
    let inner = Rect { x: area.x + 2, width: area.width.saturating_sub(2), ..area };
    Table::new(rows.collect::<Vec<_>>(), widths)
        .header(Row::new(head).style(theme.faint()))
        .column_spacing(1)
        .render(inner, buffer);
}

/// Utilization of the node's busiest GPU, or the number of GPUs that cannot be read.
fn gpus(sample: Option<&NodeSample>) -> String {
    let unread = sample.iter().flat_map(|sample| &sample.gpus).filter(|gpu| gpu.gap.is_some()).count();
    if unread > 0 {
        return format!("! {unread} down");
    }
    let busy =
        sample.iter().flat_map(|sample| &sample.gpus).filter_map(|gpu| gpu.readings.get(driver::GPU_BUSY));
    number_format::share(busy.copied().reduce(f64::max))
}
