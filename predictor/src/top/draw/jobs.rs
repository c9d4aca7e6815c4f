//! The list of jobs, and the nodes.

use evenstep_protocol::{JobState, JobSummary};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, StatefulWidget, Table, TableState, Widget, Wrap};

use super::job::state_word;
use super::{DrawContext, nodes, number_format};

/// Seconds without a report after which a running job is marked as silent.
const SILENT_S: f64 = 30.0;

/// Columns with the smallest width at which each is shown. The most important columns are shown longest.
const COLUMNS: [(&str, u16, u16); 11] = [
    ("job", 0, 0),
    ("state", 10, 0),
    ("workers", 7, 50),
    ("slow", 4, 76),
    ("iteration", 11, 120),
    ("step", 7, 0),
    ("throughput", 15, 90),
    ("gain", 8, 60),
    ("lost waiting", 12, 80),
    ("error", 8, 100),
    ("latest decision", 0, 130),
];

const NO_JOBS: [&str; 5] = [
    "",
    "There are no jobs yet.",
    "",
    "Start one with evenstep-trainer launch --workers 4, or create one with PUT /v1/jobs/ID.",
    "",
];

pub(super) fn draw(context: &DrawContext<'_>, area: Rect, buffer: &mut Buffer) {
    let state = context.state;
    let Some((live, _)) = &state.live else {
        say(&["", "Waiting for the predictor to respond."], context, area, buffer);
        return;
    };
    let wanted = if live.jobs.is_empty() { NO_JOBS.len() } else { live.jobs.len() + 1 };
    let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
    let nodes_height = nodes::height(live.nodes.len());
    let (table, rest) = if area.height > wanted + nodes_height {
        let [table, _, rest] = Layout::vertical([
            Constraint::Length(wanted),
            Constraint::Length(1),
            Constraint::Length(nodes_height),
        ])
        .areas(area);
        (table, Some(rest))
    } else {
        (area, None)
    };
    if live.jobs.is_empty() {
        say(&NO_JOBS, context, table, buffer);
    } else {
        draw_jobs(context, &live.jobs, table, buffer);
    }
    if let Some(rest) = rest.filter(|rest| rest.height > 0) {
        nodes::draw(context, &live.nodes, rest, buffer);
    }
}

fn say(words: &[&str], context: &DrawContext<'_>, area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = words.iter().map(|line| Line::styled(*line, context.theme.faint())).collect();
    Paragraph::new(Text::from(lines)).centered().wrap(Wrap { trim: true }).render(area, buffer);
}

fn draw_jobs(context: &DrawContext<'_>, jobs: &[JobSummary], area: Rect, buffer: &mut Buffer) {
    let longest = jobs.iter().map(|job| job.job_id.as_str().len()).max().unwrap_or(0).clamp(8, 40);
    let shown: Vec<usize> = (0..COLUMNS.len()).filter(|column| area.width >= COLUMNS[*column].2).collect();
    let widths = shown.iter().map(|&column| match COLUMNS[column] {
        ("job", ..) => Constraint::Length(u16::try_from(longest).unwrap_or(40)),
        (_, 0, _) => Constraint::Fill(1),
        (_, width, _) => Constraint::Length(width),
    });
    let head = Row::new(shown.iter().map(|&column| right(column, COLUMNS[column].0.to_owned())));
    let rows = jobs.iter().map(|job| {
        let mut cells = cells(context, job);
        Row::new(shown.iter().map(|&column| std::mem::take(&mut cells[column])))
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(head.style(context.theme.faint()))
        .column_spacing(1)
        .row_highlight_style(context.theme.chosen())
        .highlight_symbol("> ");
    let mut chosen = TableState::default().with_selected(context.state.chosen_at());
    StatefulWidget::render(table, area, buffer, &mut chosen);
}

/// A right-aligned cell for numbers.
fn right(column: usize, text: String) -> Cell<'static> {
    let is_number = (2..=9).contains(&column);
    if is_number { Cell::from(Line::from(text).right_aligned()) } else { Cell::from(text) }
}

fn cells(context: &DrawContext<'_>, job: &JobSummary) -> [Cell<'static>; 11] {
    let theme = context.theme;
    let silent = job.at_unix_ms.and_then(|at| context.age_s(at)).filter(|age_s| *age_s > SILENT_S);
    let state = match (job.state, silent) {
        (Some(JobState::Running), Some(age_s)) => {
            Cell::from(format!("! {}", number_format::age(age_s))).style(theme.warning())
        }
        _ => Cell::from(state_word(context, job)),
    };
    let iteration = job.iteration.map_or_else(|| number_format::UNKNOWN.to_owned(), number_format::whole);
    let slow = right(3, if job.slow_workers > 0 { job.slow_workers.to_string() } else { String::new() });
    let throughput =
        job.samples_per_s.map(|speed| format!("{} {}/s", number_format::speed(Some(speed)), job.unit));
    [
        Cell::from(job.job_id.to_string()),
        state,
        right(2, job.live_workers.to_string()),
        slow.style(theme.warning()),
        right(4, iteration),
        right(5, number_format::time(job.step_time_s)),
        right(6, throughput.unwrap_or_else(|| number_format::UNKNOWN.to_owned())),
        right(7, number_format::gain(job.gain)),
        right(8, number_format::share(job.waiting_share)),
        right(9, number_format::share(job.error_ratio)).style(theme.error(job.error_ratio.unwrap_or(0.0))),
        Cell::from(job.reason.clone().unwrap_or_default()).style(theme.faint()),
    ]
}
