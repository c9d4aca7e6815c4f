//! A chart of one step with the times of each worker.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use evenstep_report::{Axis, Chart, Mark, Span};

use crate::record::timeline::{Interval, StepTimeline};
use evenstep_trainer::Policy;

/// The iterations of which all workers have timelines.
#[derive(Debug)]
pub struct Steps(BTreeMap<(Policy, u64), Vec<StepTimeline>>);

impl Steps {
    /// Groups the workers' timelines, given by rank, into iterations.
    pub fn of(ranks: Vec<Vec<StepTimeline>>) -> Self {
        let workers = ranks.len();
        let mut steps: BTreeMap<(Policy, u64), Vec<StepTimeline>> = BTreeMap::new();
        for timeline in ranks.into_iter().flatten() {
            steps.entry((timeline.policy, timeline.iteration)).or_default().push(timeline);
        }
        steps.retain(|_, step| step.len() == workers);
        Self(steps)
    }

    /// Returns the charts of one iteration under each policy. The default is the iteration with the most
    /// claimed chunks.
    ///
    /// # Errors
    /// Fails if not all workers have a timeline of the iteration.
    pub fn charts(&self, iteration: Option<u64>) -> Result<Vec<(Policy, Chart)>> {
        let iteration = match iteration {
            Some(iteration) => iteration,
            None => {
                let most = self.0.iter().max_by_key(|(_, step)| chunks(step).len());
                most.context("the timelines have no iteration that all workers recorded")?.0.1
            }
        };
        let found: Vec<(Policy, Chart)> = self
            .0
            .iter()
            .filter(|((_, number), _)| *number == iteration)
            .map(|((policy, _), step)| (*policy, chart(step)))
            .collect();
        found.first().with_context(|| format!("iteration {iteration}: not recorded by all workers"))?;
        Ok(found)
    }
}

/// Returns the offsets of all chunks in order. The index of an offset is the chunk's number.
fn chunks(step: &[StepTimeline]) -> Vec<u64> {
    let mut chunks: Vec<u64> =
        step.iter().flat_map(|timeline| timeline.parts.iter().skip(1)).map(|part| part.offset).collect();
    chunks.sort_unstable();
    chunks
}

fn chart(step: &[StepTimeline]) -> Chart {
    let began_s = step.iter().map(|timeline| timeline.began_s).fold(f64::MAX, f64::min);
    let last_s = step.iter().map(|timeline| timeline.arrived_s).fold(f64::MIN, f64::max);
    let chunks = chunks(step);
    let span = |timeline: &StepTimeline, at: Interval, label: String, inside: String| Span {
        lane: timeline.worker.to_string(),
        from: at.from_s - began_s,
        to: at.to_s - began_s,
        label,
        inside,
    };
    let (mut bases, mut tail, mut claims, mut sums, mut waits) = (vec![], vec![], vec![], vec![], vec![]);
    for timeline in step {
        for (number, part) in timeline.parts.iter().enumerate() {
            let (which, what) = match chunks.binary_search(&part.offset) {
                Ok(chunk) if number > 0 => (&mut tail, format!("{chunk}: ")),
                _ => (&mut bases, String::new()),
            };
            let label = format!("{what}{} samples from {}", part.samples, part.offset);
            which.push(span(timeline, part.interval, label, part.samples.to_string()));
        }
        let plain =
            |from_s: f64, to_s: f64| span(timeline, Interval { from_s, to_s }, String::new(), String::new());
        claims.extend(timeline.claims.iter().map(|claim| plain(claim.from_s, claim.to_s)));
        waits.push(plain(timeline.arrived_s, last_s));
        sums.push(plain(last_s, timeline.reduced_s.max(last_s)));
    }
    let (policy, iteration) =
        step.first().map_or((Policy::Even, 0), |timeline| (timeline.policy, timeline.iteration));
    let kind = |name: &str, idle: bool, spans: Vec<Span>| Mark::Spans { name: name.into(), idle, spans };
    // The marks that every step has come first, so that their colours are the same in all charts.
    let mut marks = vec![kind("base", false, bases), kind("all-reduce", false, sums)];
    marks.push(kind("waiting for the slowest worker", true, waits));
    if !chunks.is_empty() {
        marks.extend([kind("chunk of the tail", false, tail), kind("claim", false, claims)]);
    }
    Chart {
        title: format!("One step under {policy} (iteration {iteration})"),
        description: "Each row is a worker; numbers are samples. The base batch of a worker is its allocation; free workers \
                    claim chunks of the shared tail."
            .into(),
        x: Axis::new("time since the iteration began", "s").from_zero(),
        y: Axis::new("worker", ""),
        marks,
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::WorkerId;

    use super::*;
    use crate::record::timeline::Part;

    fn timeline(rank: usize, iteration: u64, parts: &[(u64, u64, f64, f64)], arrived_s: f64) -> StepTimeline {
        let part = |&(offset, samples, from_s, to_s): &(u64, u64, f64, f64)| Part {
            offset,
            samples,
            interval: Interval { from_s, to_s },
        };
        StepTimeline {
            worker: WorkerId::new(format!("node/{rank}")).unwrap(),
            policy: Policy::Evenstep,
            iteration,
            began_s: 10.0,
            parts: parts.iter().map(part).collect(),
            claims: Vec::new(),
            arrived_s,
            reduced_s: 10.6,
        }
    }

    #[test]
    fn a_step_is_drawn_from_its_start_with_chunks_in_order() {
        let first = timeline(0, 4, &[(0, 40, 10.0, 10.2), (108, 8, 10.2, 10.25)], 10.25);
        let second =
            timeline(1, 4, &[(40, 60, 10.0, 10.1), (100, 8, 10.1, 10.2), (116, 4, 10.2, 10.5)], 10.5);
        let unfinished = timeline(0, 8, &[(0, 40, 11.0, 11.2); 9], 11.2);
        let steps = Steps::of(vec![vec![first, unfinished], vec![second]]);
        let charts = steps.charts(None).unwrap();
        let [(Policy::Evenstep, chart)] = charts.as_slice() else { panic!("{charts:?}") };
        let spans = |wanted: &str| -> Vec<(String, [f64; 2], String)> {
            let found = chart.marks.iter().find_map(|mark| match mark {
                Mark::Spans { name, spans, .. } if name == wanted => Some(spans),
                _ => None,
            });
            let round = |time: f64| (time * 1e6).round() / 1e6;
            let told =
                |span: &Span| (span.lane.clone(), [round(span.from), round(span.to)], span.label.clone());
            found.unwrap().iter().map(told).collect()
        };
        let span = |lane: &str, times: [f64; 2], label: &str| (lane.to_owned(), times, label.to_owned());
        assert_eq!(
            spans("chunk of the tail"),
            [
                span("node/0", [0.2, 0.25], "1: 8 samples from 108"),
                span("node/1", [0.1, 0.2], "0: 8 samples from 100"),
                span("node/1", [0.2, 0.5], "2: 4 samples from 116"),
            ]
        );
        assert_eq!(
            spans("waiting for the slowest worker"),
            [span("node/0", [0.25, 0.5], ""), span("node/1", [0.5, 0.5], "")]
        );
        assert!(steps.charts(Some(8)).is_err(), "one worker has no timeline of iteration 8");
    }
}
