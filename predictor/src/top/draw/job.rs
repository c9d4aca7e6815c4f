//! One job: its state and statistics, the verdict, the latest iteration and its decision, the workers, slowest first, the selected worker's
//! history, and the log.

use evenstep_protocol::{JobState, JobSummary, StepView, StepWorker, WorkerState};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, StatefulWidget, Table, TableState, Widget, Wrap};

use super::super::state::OpenJob;
use super::columns::{Column, fitting, short_name, taken, wrapped};
use super::{DrawContext, Theme, bars, chart, log, number_format};

/// Rows of the chart and the log. They are omitted if fewer rows are free.
const LOWER_HEIGHT: u16 = 12;
const LOWER_HEIGHT_MIN: u16 = 6;
/// Rows of workers that take precedence over the chart and the log.
const WORKERS_MIN: u16 = 4;
/// Smallest width at which chart and log are side by side.
const SIDE_BY_SIDE: u16 = 100;
/// Width of the name before a decision, and its limit of lines.
const DECISION_INDENT: usize = 10;
const DECISION_LINES_MAX: usize = 4;
/// Limit of lines of the verdict.
const VERDICT_LINES_MAX: usize = 4;
/// Smallest useful width of a bar.
const BAR_MIN: u16 = 12;

/// Columns of numbers.
const COLUMNS: [Column; 7] = [
    ("batch", 9, 0),
    ("share", 7, 100),
    ("predicted", 9, 84),
    ("actual", 9, 60),
    ("error", 8, 46),
    ("compute", 8, 110),
    ("wait", 8, 66),
];

pub(super) fn draw(context: &DrawContext<'_>, open: &OpenJob, area: Rect, buffer: &mut Buffer) {
    let theme = context.theme;
    if open.gone {
        say(context, format!("Unknown job {}.", open.job_id), area, buffer);
        return;
    }
    let mut lines: Vec<Line<'_>> = state_line(context, open, area.width).into_iter().collect();
    let verdict = summary(context, open).and_then(|line| line.verdict.as_deref()).unwrap_or_default();
    let verdict = wrapped(verdict, usize::from(area.width.saturating_sub(2)), VERDICT_LINES_MAX);
    lines.extend(verdict.into_iter().map(|part| Line::styled(format!(" {part}"), theme.strong())));
    let Some(step) = &open.step else {
        lines.push(Line::default());
        let head = Constraint::Length(u16::try_from(lines.len()).unwrap_or(2));
        let [summary, words, rest] =
            Layout::vertical([head, Constraint::Length(3), Constraint::Min(0)]).areas(area);
        Paragraph::new(Text::from(lines)).render(summary, buffer);
        say(
            context,
            "No worker has reported an iteration since this job was opened.".to_owned(),
            words,
            buffer,
        );
        log::draw(context, open, rest, buffer);
        return;
    };
    lines.push(summary_line(context, open, step, area.width));
    let room = usize::from(area.width).saturating_sub(DECISION_INDENT + 1);
    lines.extend(wrapped(&step.reason, room, DECISION_LINES_MAX).into_iter().enumerate().map(
        |(at, part)| {
            let name = if at == 0 { " decision " } else { "          " };
            Line::from(vec![Span::styled(name, theme.faint()), Span::raw(part)])
        },
    ));
    let head = Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let [summary, rest] = Layout::vertical([head, Constraint::Min(0)]).areas(area);
    Paragraph::new(Text::from(lines)).render(summary, buffer);

    let workers = u16::try_from(step.workers.len() + 1).unwrap_or(u16::MAX);
    let lower = rest
        .height
        .saturating_sub(workers.min(rest.height.saturating_sub(LOWER_HEIGHT).max(WORKERS_MIN + 1)));
    let lower = if lower < LOWER_HEIGHT_MIN { 0 } else { lower };
    let [table, lower] = Layout::vertical([Constraint::Min(0), Constraint::Length(lower)]).areas(rest);
    draw_workers(context, open, step, table, buffer);
    if lower.height == 0 {
        return;
    }
    if lower.width >= SIDE_BY_SIDE {
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(lower);
        chart::draw(context, open, left, buffer);
        log::draw(context, open, right, buffer);
    } else if lower.height >= 2 * LOWER_HEIGHT_MIN {
        let [top, bottom] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(lower);
        chart::draw(context, open, top, buffer);
        log::draw(context, open, bottom, buffer);
    } else {
        log::draw(context, open, lower, buffer);
    }
}

fn say(context: &DrawContext<'_>, words: String, area: Rect, buffer: &mut Buffer) {
    let lines = vec![Line::default(), Line::styled(words, context.theme.faint())];
    Paragraph::new(Text::from(lines)).centered().wrap(Wrap { trim: true }).render(area, buffer);
}

/// The job in the list of all jobs.
fn summary<'a>(context: &DrawContext<'a>, open: &OpenJob) -> Option<&'a JobSummary> {
    context.state.jobs().iter().find(|job| job.job_id == open.job_id)
}

/// Whether the job is running. If it is not, its throughput is of the past.
pub(super) fn is_running(job: &JobSummary) -> bool {
    job.state == Some(JobState::Running)
}

/// The state of the job and its statistics so far: does it pay, where is time lost, is the forecast right.
fn state_line(context: &DrawContext<'_>, open: &OpenJob, width: u16) -> Option<Line<'static>> {
    let (theme, plain) = (context.theme, Style::new());
    let line = summary(context, open)?;
    let mut said = Line::from(vec![Span::raw(" "), state_word(context, line)]);
    if !matches!(line.state, None | Some(JobState::Running)) {
        let age = line.state_since_unix_ms.and_then(|at| context.age_s(at));
        let age = age.map_or_else(String::new, |age_s| format!(" for {}", number_format::age(age_s)));
        said.push_span(Span::styled(format!("{age} "), theme.faint()));
    }
    let mut figures = vec![("workers", line.live_workers.to_string(), plain)];
    if line.slow_workers > 0 {
        figures.push(("slow", line.slow_workers.to_string(), theme.warning()));
    }
    if let Some(gain) = line.gain {
        figures.push(("gain", number_format::gain(Some(gain)), theme.strong()));
    }
    if line.waiting_share.is_some() {
        figures.push(("lost waiting", number_format::share(line.waiting_share), theme.strong()));
    }
    if let Some(error) = line.error_ratio {
        figures.push(("forecast error", number_format::share(Some(error)), theme.error(error)));
    }
    if let Some(saved) = line.time_saved {
        figures.push(("saved", number_format::span(saved.seconds), plain));
    }
    Some(appended(theme, said, figures, width))
}

/// The state of a job in one word, marked if it needs attention.
pub(super) fn state_word(context: &DrawContext<'_>, job: &JobSummary) -> Span<'static> {
    let theme = context.theme;
    match job.state {
        None => Span::styled("elsewhere", theme.faint()),
        Some(JobState::Running) => Span::styled("running", theme.good()),
        Some(state @ (JobState::Starting | JobState::Finished)) => Span::styled(state.word(), theme.faint()),
        Some(state @ (JobState::Paused | JobState::Stalled)) => {
            Span::styled(format!("! {}", state.word()), theme.warning())
        }
        Some(state @ (JobState::Failed | JobState::Unreadable)) => {
            Span::styled(format!("! {}", state.word()), theme.bad())
        }
    }
}

/// The latest iteration in a line. The most important values come first, because the end is omitted if the line is too
/// long.
fn summary_line(context: &DrawContext<'_>, open: &OpenJob, step: &StepView, width: u16) -> Line<'static> {
    let (theme, plain) = (context.theme, Style::new());
    let line = summary(context, open).filter(|line| is_running(line));
    let attempt = if step.attempt > 1 { format!(" of attempt {}", step.attempt) } else { String::new() };
    let mut said = vec![
        ("iteration", number_format::whole(step.iteration) + &attempt, theme.strong()),
        ("step", number_format::time(step.step_time_s), theme.strong()),
        ("expected", number_format::time(step.predicted_step_time_s), plain),
    ];
    let per_second = format!("{}/s", step.unit);
    if let Some(line) = line {
        said.push((&per_second, number_format::speed(line.samples_per_s), theme.strong()));
    }
    said.push(("even shares", number_format::time(step.even_step_time_s), plain));
    said.push(("batch", number_format::whole(step.global_batch), plain));
    if step.tail_samples > 0 {
        said.push(("on demand", number_format::whole(step.tail_samples), plain));
    }
    if step.lr_multiplier != 1.0 {
        said.push(("learning rate", format!("x{:.3}", step.lr_multiplier), plain));
    }
    if let Some(age_s) = context.age_s(step.at_unix_ms) {
        said.push(("reported", format!("{} ago", number_format::age(age_s)), plain));
    }
    said.push(("generation", step.generation.to_string(), plain));
    appended(theme, Line::default(), said, width)
}

/// Appends names and values as long as they fit. A value is omitted rather than cut off, because a number with missing
/// digits is wrong.
fn appended(
    theme: Theme,
    mut line: Line<'static>,
    said: Vec<(&str, String, Style)>,
    width: u16,
) -> Line<'static> {
    for (name, value, style) in said {
        let more =
            [Span::styled(format!(" {name} "), theme.faint()), Span::styled(value, style), Span::raw(" ")];
        if line.width() + more.iter().map(Span::width).sum::<usize>() > usize::from(width) {
            break;
        }
        line.spans.extend(more);
    }
    line
}

fn draw_workers(context: &DrawContext<'_>, open: &OpenJob, step: &StepView, area: Rect, buffer: &mut Buffer) {
    let theme = context.theme;
    let longest = step.workers.iter().map(|worker| worker.worker.as_str().len()).max().unwrap_or(0);
    // One column more, for a mark.
    let name_width = u16::try_from(longest + 1).unwrap_or(u16::MAX).clamp(6, 6.max(area.width / 4));
    let order = open.by_slowness();
    let rows: Vec<[Line<'static>; 7]> = order.iter().map(|worker| numbers(context, step, worker)).collect();
    let shown = fitting(&COLUMNS, &rows, area.width, area.width.saturating_sub(2 + name_width));
    let bar_width = area.width.saturating_sub(2 + name_width + taken(&shown) + 2);
    let scale = bars::Scale::of(step, bar_width);

    let mut widths = vec![Constraint::Length(name_width)];
    widths.extend(shown.iter().map(|(_, width)| Constraint::Length(*width)));
    let mut head = vec![Cell::from("worker")];
    head.extend(shown.iter().map(|(column, _)| Cell::from(Line::from(COLUMNS[*column].0).right_aligned())));
    let with_bars = bar_width >= BAR_MIN;
    if with_bars {
        widths.push(Constraint::Length(bar_width));
        head.push(Cell::from(scale.head()));
    }
    let rows = order.iter().zip(rows).map(|(worker, mut numbers)| {
        let mut cells = vec![name(context, open, worker, usize::from(name_width))];
        cells.extend(shown.iter().map(|(column, _)| Cell::from(std::mem::take(&mut numbers[*column]))));
        if with_bars {
            cells.push(Cell::from(scale.bar(theme, worker)));
        }
        Row::new(cells)
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths)
        .header(Row::new(head).style(theme.faint()))
        .column_spacing(1)
        .row_highlight_style(theme.strong())
        .highlight_symbol("> ");
    let mut chosen = TableState::default().with_selected(Some(open.chosen_at(&order)));
    StatefulWidget::render(table, area, buffer, &mut chosen);
}

/// The worker's ID, marked if it is a straggler or has left.
fn name(context: &DrawContext<'_>, open: &OpenJob, worker: &StepWorker, width: usize) -> Cell<'static> {
    let id = short_name(worker.worker.as_str(), width.saturating_sub(1));
    match open.worker(worker) {
        Some(known) if known.state != WorkerState::Live => Cell::from(id).style(context.theme.faint()),
        Some(known) if known.straggler.is_some() => {
            Cell::from(format!("!{id}")).style(context.theme.warning())
        }
        _ => Cell::from(id),
    }
}

fn numbers(context: &DrawContext<'_>, step: &StepView, worker: &StepWorker) -> [Line<'static>; 7] {
    let number = |text: String| Line::from(text).right_aligned();
    let samples = worker.samples.unwrap_or(worker.local_batch);
    let claimed = samples.saturating_sub(worker.local_batch);
    let batch = number_format::whole(worker.local_batch);
    let batch = if claimed > 0 { format!("{batch}+{}", number_format::whole(claimed)) } else { batch };
    let share = (step.global_batch > 0).then(|| samples as f64 / step.global_batch as f64);
    let error = number_format::error(worker.actual_samples_per_s, worker.predicted_samples_per_s);
    [
        number(batch),
        number(number_format::share(share)),
        number(number_format::speed(worker.predicted_samples_per_s)),
        number(number_format::speed(worker.actual_samples_per_s)),
        number(number_format::signed(error)).style(context.theme.error(error.unwrap_or(0.0))),
        number(number_format::time(worker.compute_time_s)),
        number(number_format::time(worker.barrier_wait_s)),
    ]
}
