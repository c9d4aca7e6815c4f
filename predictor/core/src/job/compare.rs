//! Compares an iteration with planned shares, with even ones, and without its tail.

use super::balance::{Compared, ITERATIONS_MAX, Used};
use super::even_time::{base, before_s, took_s};
use super::models::{Models, ratio};
use super::open::Closed;
use super::report::parts;
use crate::parallel;

/// Least share of the planned samples that all workers have computed. The ragged end of an epoch has fewer.
const WHOLE: f64 = 0.9;
/// Maximum ratio of the work of a worker to its share, compared with all workers, if work is not counted in samples.
const SCALE_MAX: f64 = 1.2;

/// Times of a worker, in seconds.
struct Times {
    took_s: f64,
    even_s: f64,
    held_s: Option<f64>,
    without_tail_s: Option<f64>,
    is_even: bool,
}

/// Returns the times of an iteration with each choice; `None` unless all its workers have reported a whole iteration.
/// `since` is the number of iterations since the one before.
pub fn compared(models: &Models, closed: &Closed<'_>, since: u64) -> Option<Compared> {
    if !closed.is_complete || closed.samples == 0 {
        return None;
    }
    let sum = closed.reports.iter().map(|(report, _)| parts(report).units()).fold(0, u64::saturating_add);
    let usual = sum as f64 / closed.samples as f64;
    if usual < WHOLE {
        return None;
    }
    let workers: Vec<_> = closed.reports.iter().map(|(report, _)| &report.worker).collect();
    let known = models.of(&workers);
    let reports: Vec<_> = closed.reports.iter().zip(known).collect();
    let times = parallel::map(&reports, |((report, planned), known)| {
        let choices = planned.as_ref()?.choices;
        let (own, compute_s) = base(report);
        // Samples have even shares whichever plan the client used. Work in a job's own unit differs from shares, because samples are
        // whole.
        let scale = match sum == closed.samples {
            true => 1.0,
            false if choices.own == 0 => usual,
            false => own as f64 / choices.own as f64,
        };
        if sum != closed.samples && !(usual / SCALE_MAX..=usual * SCALE_MAX).contains(&scale) {
            return None;
        }
        let with = |batch: u64| {
            let samples = (batch as f64 * scale).round() as u64;
            let ratio = match samples {
                0 => return 0.0,
                _ if samples == own => 1.0,
                _ => ratio(*known, own, samples).mean,
            };
            before_s(report) + ratio * compute_s
        };
        Some(Times {
            took_s: took_s(report),
            even_s: with(choices.even),
            held_s: choices.held.map(with),
            without_tail_s: choices.without_tail.map(with),
            is_even: (choices.even as f64 * scale).round() as u64 == own,
        })
    });
    let times: Vec<Times> = times.into_iter().collect::<Option<_>>()?;
    let slowest = |of: fn(&Times) -> f64| times.iter().map(of).fold(0.0, f64::max);
    let is_held = times.iter().any(|times| times.held_s.is_some());
    let has_tail = times.iter().any(|times| times.without_tail_s.is_some());
    let took_s = slowest(|times| times.took_s);
    let without_tail_s = has_tail.then(|| slowest(|times| times.without_tail_s.unwrap_or(times.took_s)));
    let mut even_s = slowest(|times| times.even_s);
    let mut planned_s = without_tail_s.unwrap_or(took_s);
    if is_held {
        planned_s = slowest(|times| times.held_s.unwrap_or(0.0));
    }
    for (worker, choices) in &closed.idle {
        let expected_s = |samples: u64| match samples {
            0 => Some(0.0),
            _ => Some(models.expected(worker, None)?.1.time(samples)),
        };
        even_s = even_s.max(expected_s(choices.even)?);
        planned_s = planned_s.max(expected_s(choices.held.unwrap_or(0))?);
    }
    let used = match () {
        () if has_tail => Used::Neither,
        () if times.iter().all(|times| times.is_even) => Used::Even,
        () if is_held => Used::Neither,
        () => Used::Planned,
    };
    let size = (closed.samples, (times.len() + closed.idle.len()) as u64);
    let tail = without_tail_s.map(|without_s| (took_s, without_s));
    // Fast jobs report only some iterations.
    let said = closed.reports.iter().filter_map(|(report, _)| report.iterations).reduce(f64::max);
    let iterations = said.unwrap_or(since as f64).clamp(1.0, ITERATIONS_MAX);
    let least_s =
        times.iter().map(|times| times.even_s).filter(|even_s| *even_s > 0.0).fold(f64::INFINITY, f64::min);
    Some(Compared { planned_s, even_s, least_s, used, size, tail, iterations, is_held })
}
