//! Help: the keys and the columns.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::Theme;

/// Fits a terminal of 80x24.
const TEXT: [&str; 20] = [
    "j k, arrows, PgUp PgDn, g G   select a job or a worker",
    "Enter     open the job",
    "Esc       back to all jobs",
    "?         help; any key closes it",
    "q         quit",
    "",
    "step      longest time of any worker, including its wait",
    "expected  expected time of the slowest worker",
    "even shares   the same, with equal batches for all",
    "predicted, actual   samples or tokens per second of compute",
    "error     (actual - predicted) / predicted",
    "wait      barrier wait for the slowest worker",
    "lost waiting   share of the step times so far spent waiting",
    "gain      time with even shares over measured time, so far",
    "saved     time saved so far, compared with even shares",
    "Bars: one time scale, the slowest worker first. With a good",
    "plan, all workers finish at the same time.",
    "!         a straggler, no new data, or a lost connection",
    "dim       a worker that has left",
    "All words: the glossary of the predictor's page (#/glossary)",
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
