//! What the keys do and what the columns mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::Theme;

const TEXT: [&str; 20] = [
    "j k, arrows, PgUp PgDn, g G   choose a job or a worker",
    "Enter     open the job",
    "Esc       back to all jobs",
    "?         this; any key closes it",
    "q         quit",
    "",
    "step      longest time of any worker, its wait included",
    "expected  what the slowest was expected to take",
    "even shares   the same, had all got the same batch",
    "predicted, actual   samples per second of compute time",
    "error     (actual - predicted) / predicted",
    "wait      at the barrier, for the slowest",
    "waiting   share of the workers' time that is wait",
    "",
    "Bars: all workers on one scale of time. A good plan",
    "is a straight edge: all finish at once.",
    "",
    "!         a worker that is slow for long, a job or a",
    "          node that is silent, a connection that is lost",
    "dim       a worker that left",
];

pub(super) fn draw(theme: Theme, area: Rect, buffer: &mut Buffer) {
    let longest = TEXT.iter().map(|line| line.len()).max().unwrap_or(0);
    let width = (u16::try_from(longest).unwrap_or(u16::MAX) + 4).min(area.width);
    let height = (TEXT.len() as u16 + 2).min(area.height);
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let window = Rect { x, y, width, height };
    Clear.render(window, buffer);
    let lines: Vec<Line<'_>> = TEXT.iter().map(|line| Line::from(format!(" {line}"))).collect();
    let block = Block::bordered().title(" help ").border_style(theme.strong());
    Paragraph::new(Text::from(lines)).block(block).render(window, buffer);
}
