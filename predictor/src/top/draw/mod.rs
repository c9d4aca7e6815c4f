//! Draws the state. The frame is a pure function of the state, the time and the size of the screen.

mod bars;

mod chart;

mod columns;

mod context;

mod help;

mod job;

mod jobs;

mod log;

mod nodes;

mod theme;

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::state::{ConnectionState, State};
use crate::number_format::{self, age};
use context::DrawContext;
pub use theme::Theme;

/// Smallest width at which anything is readable.
const WIDTH_MIN: u16 = 30;
const HEIGHT_MIN: u16 = 5;

/// Draws the state into `area`.
pub fn draw(state: &State, now: Duration, theme: Theme, area: Rect, buffer: &mut Buffer) {
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let small = format!("{}x{} is too small; enlarge the terminal", area.width, area.height);
        Line::from(small).render(area, buffer);
        return;
    }
    let [head, rest, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(area);
    draw_head(state, now, theme, head, buffer);
    let context = DrawContext { state, now, theme };
    match &state.open {
        Some(open) => job::draw(&context, open, rest, buffer),
        None => jobs::draw(&context, rest, buffer),
    }
    draw_foot(state, theme, foot, buffer);
    if state.help {
        help::draw(theme, rest, buffer);
    }
}

fn draw_head(state: &State, now: Duration, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let (jobs, nodes) = (state.jobs().len(), state.live.as_ref().map_or(0, |(live, _)| live.nodes.len()));
    let mut left = vec![Span::styled(" evenstep ", theme.title())];
    match &state.open {
        Some(open) => left.push(Span::styled(format!("job {}", open.job_id), theme.strong())),
        None if state.live.is_some() => {
            left.push(Span::raw(format!(
                "{}, {}",
                number_format::count(jobs, "job"),
                number_format::count(nodes, "node")
            )));
        }
        None => {}
    }
    let link = match &state.open {
        Some(open) if state.link.without_events_for(now).is_none() => &open.link,
        _ => &state.link,
    };
    let right = match (link, link.without_events_for(now)) {
        (ConnectionState::Connecting, _) => Span::styled("connecting ", theme.faint()),
        (ConnectionState::Lost(..), Some(silent)) => {
            Span::styled(format!("! lost {} ago ", age(silent.as_secs_f64())), theme.bad())
        }
        (_, Some(silent)) => {
            Span::styled(format!("! silent for {} ", age(silent.as_secs_f64())), theme.bad())
        }
        (_, None) => Span::styled("live ", theme.good()),
    };
    let server = Span::styled(format!("{}  ", state.server), theme.faint());
    let room = usize::from(area.width).saturating_sub(right.width());
    if state.open.is_none() && Line::from(left.clone()).width() > room {
        left.truncate(1);
    }
    let left = Line::from(left);
    let wide = Line::from(vec![server, right.clone()]);
    // The address is the first to be omitted.
    let right = if left.width() + wide.width() < area.width as usize { wide } else { Line::from(right) };
    left.render(area, buffer);
    let width = u16::try_from(right.width()).unwrap_or(u16::MAX).min(area.width);
    right.render(Rect { x: area.right() - width, width, ..area }, buffer);
}

fn draw_foot(state: &State, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let lost = match (&state.link, &state.open) {
        (ConnectionState::Lost(_, why), _) => Some(why),
        (_, Some(open)) => match &open.link {
            ConnectionState::Lost(_, why) => Some(why),
            _ => None,
        },
        _ => None,
    };
    if let Some(why) = lost.or(state.notice.as_ref()) {
        Line::styled(format!(" {why}"), theme.bad()).render(area, buffer);
        return;
    }
    let keys: &[(&str, &str)] = match &state.open {
        Some(_) => &[("j k", "select a worker"), ("Esc", "all jobs"), ("?", "help"), ("q", "quit")],
        None => &[("j k", "select"), ("Enter", "open"), ("?", "help"), ("q", "quit")],
    };
    let said = keys.iter().flat_map(|(key, what)| {
        [Span::styled(format!(" {key} "), theme.strong()), Span::styled(format!("{what} "), theme.faint())]
    });
    Line::from(said.collect::<Vec<_>>()).render(area, buffer);
}

#[cfg(test)]
mod tests;
