//! Compares an iteration with planned shares and with even ones.

use super::even_time::{EvenWork, before_s};
use super::models::Models;
use super::open::Closed;
use super::plans::Choices;
use super::report::parts;
use super::worth::{Compared, Used};
use crate::curve::Uncertain;
use crate::parallel;

/// Times of a worker, in seconds.
struct Times {
    took_s: f64,
    even_s: f64,
    held_s: Option<f64>,
    is_even: bool,
}

/// Returns the times of an iteration with both choices of shares; `None` unless all its workers have reported.
pub fn compared(models: &Models, closed: &Closed<'_>) -> Option<Compared> {
    if !closed.is_complete || closed.samples == 0 {
        return None;
    }
    let units = parallel::map(&closed.reports, |(report, _)| parts(report).units());
    // Workers may have computed another number of samples: at the end of an epoch, or in units of their own.
    let sum = units.iter().fold(0, |sum: u64, units| sum.saturating_add(*units));
    let scaled = |samples: u64| (samples as f64 * sum as f64 / closed.samples as f64).round() as u64;
    let ranked: Vec<_> = closed.reports.iter().zip(units).collect();
    let times = parallel::map(&ranked, |((report, planned), units)| {
        let Choices { even, held } = planned.as_ref()?.choices;
        let even = scaled(even);
        let work = EvenWork {
            before_s: before_s(report),
            compute_s: report.compute_time_s,
            ratio: Uncertain { mean: 1.0, deviation: 0.0 },
            communication: models.communication(&report.worker, closed.overlap_begins),
        };
        let with = |samples: u64| match samples {
            0 => 0.0,
            _ if samples == *units => work.finish_s(1.0),
            _ => work.finish_s(models.ratio(&report.worker, *units, samples).mean),
        };
        let held_s = held.map(|held| with(scaled(held)));
        Some(Times { took_s: work.finish_s(1.0), even_s: with(even), held_s, is_even: even == *units })
    });
    let times: Vec<Times> = times.into_iter().collect::<Option<_>>()?;
    let slowest = |of: fn(&Times) -> f64| times.iter().map(of).fold(0.0, f64::max);
    let is_held = times.iter().any(|times| times.held_s.is_some());
    let mut even_s = slowest(|times| times.even_s);
    let mut planned_s =
        if is_held { slowest(|times| times.held_s.unwrap_or(0.0)) } else { slowest(|times| times.took_s) };
    for (worker, Choices { even, held }) in &closed.idle {
        let expected_s = |samples: u64| match samples {
            0 => Some(0.0),
            _ => Some(models.expected(worker, None)?.1.time(samples)),
        };
        even_s = even_s.max(expected_s(*even)?);
        planned_s = planned_s.max(expected_s(held.unwrap_or(0))?);
    }
    let used = match is_held {
        _ if times.iter().all(|times| times.is_even) => Used::Even,
        false => Used::Planned,
        // Even shares with a tail.
        true => Used::Neither,
    };
    let size = (closed.samples, (times.len() + closed.idle.len()) as u64);
    Some(Compared { planned_s, even_s, used, size })
}
