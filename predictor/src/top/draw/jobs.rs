//! The list of jobs, and the nodes.

use evenstep_protocol::JobSummary;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, StatefulWidget, Table, TableState, Widget, Wrap};

use super::columns::{Column, fitting, short_name, shortened, taken, wrapped};
use super::job::{is_running, state_word};
use super::{DrawContext, nodes, number_format};

/// Columns between the name and the verdict. The most important columns are shown longest.
const COLUMNS: [Column; 9] = [
    ("state", 10, 0),
    ("workers", 7, 64),
    ("slow", 4, 56),
    ("iteration", 11, 120),
    ("step", 7, 46),
    ("throughput", 15, 90),
    ("gain", 6, 0),
    ("lost waiting", 12, 100),
    ("error", 7, 40),
];
/// Smallest screen width at which each job has its verdict. Below it, only the selected job has.
const WITH_VERDICTS: u16 = 150;
/// Limit of lines of that verdict.
const VERDICT_LINES_MAX: u16 = 4;

/// Rows of jobs that take precedence over the verdict.
const JOBS_MIN: u16 = 4;

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
    let room = area.height.saturating_sub(wanted.min(JOBS_MIN) + 1).min(VERDICT_LINES_MAX);
    let verdict = verdict(context, area.width, room);
    let said = u16::try_from(verdict.len()).unwrap_or(0);
    let nodes_height = nodes::height(live.nodes.len());
    let after_table = u16::from(said > 0) + said;
    let rows = wanted.min(area.height.saturating_sub(after_table));
    // The last row is the number of jobs without one.
    let for_more = u16::from(wanted > rows && rows >= JOBS_MIN && !live.jobs.is_empty());
    let has_nodes = area.height > wanted.saturating_add(after_table + nodes_height);
    let [table, hint, _, words, _, rest] = Layout::vertical([
        Constraint::Length(rows - for_more),
        Constraint::Length(for_more),
        Constraint::Length(u16::from(said > 0)),
        Constraint::Length(said),
        Constraint::Length(u16::from(has_nodes)),
        Constraint::Length(if has_nodes { nodes_height } else { 0 }),
    ])
    .areas(area);
    if live.jobs.is_empty() {
        say(&NO_JOBS, context, table, buffer);
    } else {
        draw_jobs(context, &live.jobs, table, buffer);
    }
    let hidden = (live.jobs.len() + 1).saturating_sub(usize::from(table.height));
    let hidden = number_format::whole(hidden as u64);
    Line::styled(format!("  … {hidden} more"), context.theme.faint()).render(hint, buffer);
    Paragraph::new(Text::from(verdict)).render(words, buffer);
    if rest.height > 0 {
        nodes::draw(context, &live.nodes, rest, buffer);
    }
}

/// The verdict on the selected job in this number of lines, unless each job has its own.
fn verdict(context: &DrawContext<'_>, width: u16, room: u16) -> Vec<Line<'static>> {
    let chosen = context.state.chosen_at().and_then(|at| context.state.jobs().get(at));
    let words = chosen.filter(|_| width < WITH_VERDICTS && room > 0).and_then(|job| job.verdict.as_deref());
    let lines = words.map(|words| wrapped(words, usize::from(width.saturating_sub(3)), usize::from(room)));
    lines.into_iter().flatten().map(|line| Line::from(format!("  {line}"))).collect()
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
    let with_verdicts = area.width >= WITH_VERDICTS;
    // A space precedes the verdict.
    let for_numbers = room.saturating_sub(name_width + u16::from(with_verdicts));
    let shown = fitting(&COLUMNS, &rows, area.width, for_numbers);
    let mut widths = vec![Constraint::Length(name_width)];
    widths.extend(shown.iter().map(|(_, width)| Constraint::Length(*width)));
    widths.extend(with_verdicts.then_some(Constraint::Fill(1)));
    let for_verdict = usize::from(for_numbers.saturating_sub(taken(&shown)));
    let row = |name: String, mut cells: [Line<'static>; 9], verdict: Line<'static>| {
        let numbers = shown.iter().map(|(column, _)| std::mem::take(&mut cells[*column]));
        let verdict = with_verdicts.then_some(verdict);
        Row::new(
            [Line::from(name)].into_iter().chain(numbers).chain(verdict).map(Cell::from).collect::<Vec<_>>(),
        )
    };
    let heads = std::array::from_fn(|column| aligned(column, Line::from(COLUMNS[column].0)));
    let head = row("job".to_owned(), heads, Line::from("verdict"));
    let rows = jobs.iter().zip(rows).map(|(job, cells)| {
        let verdict = shortened(job.verdict.as_deref().unwrap_or_default(), for_verdict);
        let name = short_name(job.job_id.as_str(), usize::from(name_width));
        row(name, cells, Line::styled(verdict, context.theme.faint()))
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
    let or_unknown = |known: Option<String>| known.unwrap_or_else(|| number_format::UNKNOWN.to_owned());
    let slow = if job.slow_workers > 0 { job.slow_workers.to_string() } else { String::new() };
    let throughput = job.samples_per_s.filter(|_| is_running(job));
    let throughput = throughput.map(|speed| format!("{} {}/s", number_format::speed(Some(speed)), job.unit));
    let error = theme.error(job.error_ratio.unwrap_or(0.0));
    let mut cells = [
        Line::from(state_word(context, job)),
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
