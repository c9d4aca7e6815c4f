//! Finish times of workers as bars on one time scale. With a good plan, all bars end at the same column.

use evenstep_protocol::{StepView, StepWorker};
use ratatui::text::{Line, Span};

use super::{Theme, number_format};

/// Fractions of a character cell, from one eighth to the whole.
const EIGHTHS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
/// Marks barrier wait.
const WAIT: &str = "░";
/// Marks the expected finish time.
const EXPECTED: &str = "┃";

/// A scale from the beginning of the iteration to its end.
pub(super) struct Scale {
    longest_s: f64,
    /// Expected finish time of all workers if the iteration has a tail, because the claims of each worker are
    /// not known in advance.
    together_s: Option<f64>,
    width: u16,
}

impl Scale {
    /// A scale on which the longest actual or expected time takes the whole width.
    pub(super) fn of(step: &StepView, width: u16) -> Self {
        let together_s = step.predicted_step_time_s.filter(|_| step.tail_samples > 0);
        let took = |worker: &StepWorker| {
            let took_s = worker.compute_time_s.unwrap_or(0.0) + worker.barrier_wait_s.unwrap_or(0.0);
            took_s.max(worker.predicted_compute_time_s.unwrap_or(0.0))
        };
        let longest_s = step.workers.iter().map(took).fold(together_s.unwrap_or(0.0), f64::max);
        Self { longest_s, together_s, width }
    }

    /// The legend, and the length of the longest bar.
    pub(super) fn head(&self) -> String {
        let width = usize::from(self.width);
        let longest = number_format::time((self.longest_s > 0.0).then_some(self.longest_s));
        let words = format!("computes, waits {WAIT}, expected {EXPECTED}");
        let fits = |words: &str| words.chars().count() + longest.len() < width;
        let words = [words.as_str(), "finish", ""].into_iter().find(|words| fits(words)).unwrap_or_default();
        let gap = width.saturating_sub(words.chars().count() + longest.len());
        format!("{words}{}{longest}", " ".repeat(gap))
    }

    /// Width of a time, in eighths of a cell.
    fn eighths(&self, time_s: f64) -> usize {
        if self.longest_s <= 0.0 {
            return 0;
        }
        let all = f64::from(self.width) * 8.0;
        (time_s / self.longest_s * all).round().clamp(0.0, all) as usize
    }

    /// The bar of one worker.
    pub(super) fn bar(&self, theme: Theme, worker: &StepWorker) -> Line<'static> {
        let compute_s = worker.compute_time_s.unwrap_or(0.0);
        let computed = self.eighths(compute_s);
        let ended = self.eighths(compute_s + worker.barrier_wait_s.unwrap_or(0.0)).div_ceil(8);
        let expected = self.together_s.or(worker.predicted_compute_time_s);
        let expected = expected.map(|time_s| self.eighths(time_s).saturating_sub(1) / 8);
        let cells = (0..usize::from(self.width)).map(|cell| {
            let filled = computed.saturating_sub(cell * 8).min(8);
            if expected == Some(cell) {
                Span::styled(EXPECTED, theme.predicted())
            } else if filled > 0 {
                Span::styled(EIGHTHS[filled - 1], theme.actual())
            } else if cell < ended {
                Span::styled(WAIT, theme.waiting())
            } else {
                Span::raw(" ")
            }
        });
        Line::from(cells.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::state::tests::step;
    use super::*;

    fn text(line: &Line<'_>) -> String {
        line.spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn bars_share_one_scale() {
        let mut step = step(1, 2);
        step.tail_samples = 0;
        let scale = Scale::of(&step, 21);
        // 0.21 s over 21 cells, expected after 0.20 s. The second worker computes for 0.20 s and waits for
        // 0.01 s.
        assert_eq!(text(&scale.bar(Theme::new(false), &step.workers[0])), format!("{}┃█", "█".repeat(19)));
        assert_eq!(text(&scale.bar(Theme::new(false), &step.workers[1])), format!("{}┃░", "█".repeat(19)));
    }

    #[test]
    fn without_speeds_no_worker_expects_a_share_of_the_tail() {
        let step = step(1, 2);
        let scale = Scale::of(&step, 42);
        let ends: Vec<_> =
            step.workers.iter().map(|worker| text(&scale.bar(Theme::new(false), worker)).find('┃')).collect();
        // The iteration of 0.21 s was expected to take 0.205 s.
        assert_eq!(ends, [Some(40 * "█".len()); 2]);
    }

    #[test]
    fn missing_reports_have_no_bar() {
        let mut step = step(1, 1);
        let worker = &mut step.workers[0];
        (worker.compute_time_s, worker.barrier_wait_s, worker.predicted_compute_time_s) = (None, None, None);
        step.tail_samples = 0;
        let scale = Scale::of(&step, 8);
        assert_eq!(text(&scale.bar(Theme::new(false), &step.workers[0])), " ".repeat(8));
        assert_eq!(scale.head(), "finish -");
    }
}
