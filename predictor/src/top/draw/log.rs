//! The log of a job, newest first.

use evenstep_protocol::{LogEntry, LogKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Paragraph, Widget, Wrap};

use super::super::state::OpenJob;
use super::{DrawContext, number_format};

pub(super) fn draw(context: &DrawContext<'_>, open: &OpenJob, area: Rect, buffer: &mut Buffer) {
    let theme = context.theme;
    let block = Block::bordered().border_style(theme.faint()).title(" log ");
    let lines: Vec<Line<'_>> = if open.log.is_empty() {
        vec![Line::styled("no entries yet", theme.faint())]
    } else {
        // Each entry takes at least one row.
        open.log.iter().rev().take(usize::from(area.height)).map(|entry| line(context, entry)).collect()
    };
    Paragraph::new(Text::from(lines)).block(block).wrap(Wrap { trim: false }).render(area, buffer);
}

fn line<'a>(context: &DrawContext<'_>, entry: &'a LogEntry) -> Line<'a> {
    let theme = context.theme;
    let age =
        context.age_s(entry.at_unix_ms).map_or_else(|| number_format::UNKNOWN.to_owned(), number_format::age);
    let style = match entry.kind {
        LogKind::Expired | LogKind::OutOfMemory => theme.bad(),
        LogKind::Left | LogKind::Override | LogKind::Changed | LogKind::Slow => theme.warning(),
        LogKind::Joined | LogKind::Recovered => theme.good(),
        LogKind::Reallocated | LogKind::Refitted => ratatui::style::Style::new(),
    };
    Line::from(vec![Span::styled(format!("{age:>6}  "), theme.faint()), Span::styled(&entry.text, style)])
}
