//! The nodes: the time and the values of their latest samples.

use evenstep_protocol::{NodeSample, NodeSummary, driver};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, Widget};

use super::columns::{Column, fitting};
use super::{DrawContext, number_format};

/// Limit of nodes that are shown.
const SHOWN_MAX: usize = 12;
/// Seconds without a sample after which a node is marked.
const SILENT_S: f64 = 15.0;

/// Columns after the name.
const COLUMNS: [Column; 6] =
    [("last sample", 14, 0), ("cpu", 8, 0), ("cpu waits", 9, 0), ("memory", 8, 0), ("gpu", 8, 0), ("", 7, 0)];

/// Rows of `nodes` nodes, including the header.
pub(super) fn height(nodes: usize) -> u16 {
    if nodes == 0 { 0 } else { u16::try_from(nodes.min(SHOWN_MAX)).unwrap_or(0) + 1 }
}

pub(super) fn draw(context: &DrawContext<'_>, nodes: &[NodeSummary], area: Rect, buffer: &mut Buffer) {
    let rows: Vec<[Line<'static>; 6]> =
        nodes.iter().take(SHOWN_MAX).map(|node| cells(context, node)).collect();
    let more = nodes.len().saturating_sub(SHOWN_MAX);
    let name = if more > 0 { format!("node (+{more})") } else { "node".to_owned() };
    let inner = Rect { x: area.x + 2, width: area.width.saturating_sub(2), ..area };
    let longest = nodes.iter().map(|node| node.node.as_str().len()).max().unwrap_or(0);
    let longest = u16::try_from(longest.max(name.len()).clamp(8, 40)).unwrap_or(40);
    let name_width = longest.min(inner.width / 2);
    let shown = fitting(&COLUMNS, &rows, area.width, inner.width - name_width);
    let mut widths = vec![Constraint::Length(name_width)];
    widths.extend(shown.iter().map(|(_, width)| Constraint::Length(*width)));
    let row = |name: String, mut cells: [Line<'static>; 6]| {
        let cells = shown.iter().map(|(column, _)| std::mem::take(&mut cells[*column]));
        Row::new([Line::from(name)].into_iter().chain(cells).map(Cell::from).collect::<Vec<_>>())
    };
    let heads = std::array::from_fn(|column| aligned(column, Line::from(COLUMNS[column].0)));
    let head = row(name, heads).style(context.theme.faint());
    let rows = nodes.iter().zip(rows).map(|(node, cells)| row(node.node.to_string(), cells));
    Table::new(rows.collect::<Vec<_>>(), widths).header(head).column_spacing(1).render(inner, buffer);
}

/// Aligns the readings to the right.
fn aligned(column: usize, text: Line<'static>) -> Line<'static> {
    if (1..=4).contains(&column) { text.right_aligned() } else { text }
}

fn cells(context: &DrawContext<'_>, node: &NodeSummary) -> [Line<'static>; 6] {
    let theme = context.theme;
    let age_s = context.age_s(node.at_unix_ms);
    let heard = age_s.map_or_else(
        || number_format::UNKNOWN.to_owned(),
        |age_s| format!("{} ago", number_format::age(age_s)),
    );
    let heard = match age_s {
        Some(age_s) if age_s > SILENT_S => Line::styled(format!("! {heard}"), theme.warning()),
        _ => Line::from(heard),
    };
    let known = context.state.nodes.as_ref();
    let sample = known.and_then(|known| known.nodes.iter().find(|view| view.node == node.node));
    let sample = sample.map(|view| &view.latest);
    let reading = |name: &str| {
        Line::from(number_format::share(sample.and_then(|sample| sample.readings.get(name).copied())))
    };
    let demo = if sample.is_some_and(|sample| sample.synthetic) { "demo" } else { "" };
    let mut cells = [
        heard,
        reading(driver::CPU_BUSY),
        reading(driver::PSI_CPU_SOME),
        reading(driver::MEMORY_USED),
        Line::from(gpus(sample)),
        Line::styled(demo, theme.faint()),
    ];
    for (column, cell) in cells.iter_mut().enumerate() {
        *cell = aligned(column, std::mem::take(cell));
    }
    cells
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
