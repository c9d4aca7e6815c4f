//! The list of jobs, and the nodes.

use evenstep_protocol::{JobState, JobSummary};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, StatefulWidget, Table, TableState, Widget, Wrap};

use super::columns::{Column, fitting, taken};
use super::job::state_word;
use super::{DrawContext, nodes, number_format};

/// Seconds without a report after which a running job is marked as silent.
const SILENT_S: f64 = 30.0;

/// Columns between the name and the decision. The most important columns are shown longest.
const COLUMNS: [Column; 9] = [
    ("state", 10, 0),
    ("workers", 7, 50),
    ("slow", 4, 76),
    ("iteration", 11, 120),
    ("step", 7, 0),
    ("throughput", 15, 90),
    ("gain", 8, 60),
    ("lost waiting", 12, 80),
    ("error", 8, 100),
];
/// Smallest screen width at which the latest decision is shown.
const WITH_DECISION: u16 = 130;

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
    let rows: Vec<[Line<'static>; 9]> = jobs.iter().map(|job| cells(context, job)).collect();
    let longest = jobs.iter().map(|job| job.job_id.as_str().len()).max().unwrap_or(0).clamp(8, 40);
    let room = area.width.saturating_sub(2);
    let always = taken(&fitting(&COLUMNS, &rows, 0, room));
    let name_width = u16::try_from(longest).unwrap_or(40).min(room - always);
    let with_decision = area.width >= WITH_DECISION;
    // A space precedes the decision.
    let for_numbers = room.saturating_sub(name_width + u16::from(with_decision));
    let shown = fitting(&COLUMNS, &rows, area.width, for_numbers);
    let mut widths = vec![Constraint::Length(name_width)];
    widths.extend(shown.iter().map(|(_, width)| Constraint::Length(*width)));
    widths.extend(with_decision.then_some(Constraint::Fill(1)));
    let row = |name: String, mut cells: [Line<'static>; 9], decision: Line<'static>| {
        let numbers = shown.iter().map(|(column, _)| std::mem::take(&mut cells[*column]));
        let decision = with_decision.then_some(decision);
        Row::new(
            [Line::from(name)].into_iter().chain(numbers).chain(decision).map(Cell::from).collect::<Vec<_>>(),
        )
    };
    let heads = std::array::from_fn(|column| aligned(column, Line::from(COLUMNS[column].0)));
    let head = row("job".to_owned(), heads, Line::from("latest decision"));
    let rows = jobs.iter().zip(rows).map(|(job, cells)| {
        let reason = job.reason.clone().unwrap_or_default();
        row(job.job_id.to_string(), cells, Line::styled(reason, context.theme.faint()))
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths)
        .header(head.style(context.theme.faint()))
        .column_spacing(1)
        .row_highlight_style(context.theme.chosen())
        .highlight_symbol("> ");
    let mut chosen = TableState::default().with_selected(context.state.chosen_at());
    StatefulWidget::render(table, area, buffer, &mut chosen);
}

/// Aligns all columns but the state, which is a word, to the right.
fn aligned(column: usize, text: Line<'static>) -> Line<'static> {
    if column == 0 { text } else { text.right_aligned() }
}

fn cells(context: &DrawContext<'_>, job: &JobSummary) -> [Line<'static>; 9] {
    let theme = context.theme;
    let silent = job.at_unix_ms.and_then(|at| context.age_s(at)).filter(|age_s| *age_s > SILENT_S);
    let state = match (job.state, silent) {
        (Some(JobState::Running), Some(age_s)) => {
            Line::styled(format!("! {}", number_format::age(age_s)), theme.warning())
        }
        _ => Line::from(state_word(context, job)),
    };
    let or_unknown = |known: Option<String>| known.unwrap_or_else(|| number_format::UNKNOWN.to_owned());
    let slow = if job.slow_workers > 0 { job.slow_workers.to_string() } else { String::new() };
    let throughput =
        job.samples_per_s.map(|speed| format!("{} {}/s", number_format::speed(Some(speed)), job.unit));
    let error = theme.error(job.error_ratio.unwrap_or(0.0));
    let mut cells = [
        state,
        Line::from(job.live_workers.to_string()),
        Line::styled(slow, theme.warning()),
        Line::from(or_unknown(job.iteration.map(number_format::whole))),
        Line::from(number_format::time(job.step_time_s)),
        Line::from(or_unknown(throughput)),
        Line::from(number_format::gain(job.gain)),
        Line::from(number_format::share(job.waiting_share)),
        Line::styled(number_format::share(job.error_ratio), error),
    ];
    for (column, cell) in cells.iter_mut().enumerate() {
        *cell = aligned(column, std::mem::take(cell));
    }
    cells
}
