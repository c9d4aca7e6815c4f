//! One frame as text, for scripts and pipes.

use std::io::{self, Write};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Args;
use super::draw::{Theme, draw};
use super::feed::Feed;
use super::state::{ConnectionState, FeedEvent, State, StreamEvent};

/// Time limit for all data of a frame.
const DATA_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the latest iteration of a job, the first event of its stream. After it, the job has none.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Width if the environment does not set one.
const WIDTH: u16 = 120;
const WIDTH_MAX: u16 = 1000;
/// Limit of rows.
const HEIGHT_MAX: u16 = 2000;
/// Rows in addition to the workers: the header, the verdict, the lines of the iteration, the column headers, the chart and
/// the log.
const HEIGHT_OF_A_JOB: usize = 24;
/// Rows in addition to jobs and nodes, with the verdict on one of them.
const HEIGHT_OF_JOBS: usize = 11;

/// Writes one frame to standard output.
///
/// # Errors
/// An error if no predictor responds, the job does not exist, or standard output is closed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (mut feed, news) = Feed::start(args.server.clone(), args.tls.load()?)?;
    let mut state = State::new(args.server.urls()[0].clone(), args.job.clone());
    if let Some(job) = &args.job {
        feed.follow(job.clone()).map_err(anyhow::Error::msg)?;
    }
    let now = listen(&mut state, &news)?;
    let text = text(&state, now, width());
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Receives events until the requested data is complete.
fn listen(state: &mut State, news: &Receiver<FeedEvent>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let mut step_due = None;
    loop {
        if let ConnectionState::Lost(_, why) = &state.link {
            bail!("no predictor responds: {why}");
        }
        if let Some(open) = &state.open {
            if open.gone {
                bail!("unknown job {}; run without --job to list all jobs", open.job_id);
            }
            if let ConnectionState::Lost(_, why) = &open.link {
                bail!("cannot follow job {}: {why}", open.job_id);
            }
            if open.workers.is_some() && step_due.is_none() {
                step_due = Some(Instant::now() + STEP_TIMEOUT);
            }
        }
        let has_step = state.open.as_ref().is_none_or(|open| {
            open.workers.is_some()
                && (open.step.is_some() || step_due.is_some_and(|due| Instant::now() >= due))
        });
        if state.nodes.is_some() && state.live.is_some() && has_step {
            return Ok(started.elapsed());
        }
        let left = DATA_TIMEOUT.saturating_sub(started.elapsed());
        if left.is_zero() {
            bail!("{} did not send all data within {} s; retry", state.server, DATA_TIMEOUT.as_secs());
        }
        let wait = step_due.map_or(left, |due| due.saturating_duration_since(Instant::now()).min(left));
        if let Ok(news) = news.recv_timeout(wait.max(Duration::from_millis(1))) {
            let signs_of_life =
                matches!(news, FeedEvent::All(StreamEvent::Alive, _) | FeedEvent::Job(_, StreamEvent::Alive));
            if !signs_of_life {
                state.apply(news, started.elapsed());
            }
        }
    }
}

fn width() -> u16 {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    said.unwrap_or(WIDTH).clamp(1, WIDTH_MAX)
}

/// A frame with room for all rows, without the line of keys and without unused rows.
fn text(state: &State, now: Duration, width: u16) -> String {
    let rows = match &state.open {
        Some(open) => HEIGHT_OF_A_JOB + open.step.as_ref().map_or(0, |step| step.workers.len()),
        None => {
            let nodes = state.live.as_ref().map_or(0, |(live, _)| live.nodes.len());
            HEIGHT_OF_JOBS + state.jobs().len() + nodes
        }
    };
    let height = u16::try_from(rows).unwrap_or(u16::MAX).min(HEIGHT_MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(state, now, Theme::new(false), buffer.area, &mut buffer);
    let line = |y: u16| {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol);
        cells.collect::<String>().trim_end().to_owned()
    };
    let mut lines: Vec<String> = (0..height - 1).map(line).collect();
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    lines.iter().fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{job_id, live, step};
    use super::*;

    #[test]
    fn a_frame_as_text_has_everything_and_no_keys() {
        let mut state = State::new("http://a:1".into(), None);
        let names: Vec<String> = (0..60).map(|at| format!("job-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        state.apply(FeedEvent::All(StreamEvent::Jobs(live(&names)), "http://a:1".into()), Duration::ZERO);
        let text = text(&state, Duration::ZERO, 100);
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert!(!text.contains("quit") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn all_workers_of_a_job_are_shown() {
        let mut state = State::new("http://a:1".into(), Some(job_id("a")));
        state.apply(FeedEvent::Job(job_id("a"), StreamEvent::Step(Box::new(step(3, 64)))), Duration::ZERO);
        let text = text(&state, Duration::ZERO, 120);
        assert!((0..64).all(|rank| text.contains(&format!("node-a/{rank} "))), "{text}");
    }
}
