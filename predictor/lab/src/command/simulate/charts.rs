//! The charts of a simulation.

use evenstep_report::{Axis, Bar, Chart, Mark};

use super::results::Results;
use crate::simulate::Summary;
use crate::simulate::{PolicyName, Run, World};

/// Workers whose shares are drawn; of more, these are the first.
const DRAWN_MAX: usize = 8;

/// Mean and p95 of the step by policy.
pub fn step_times(results: &Results) -> Chart {
    Chart {
        title: "Step time by policy".into(),
        description: "Over the iterations that count; lower is better.".into(),
        x: Axis::new("policy", ""),
        y: Axis::new("step time", "s"),
        marks: vec![
            bars(results, "mean", |policy| policy.mean_step_time_s),
            bars(results, "95 % are at or under", |policy| policy.p95_step_time_s),
        ],
    }
}

/// Waiting by policy.
pub fn waits(results: &Results) -> Chart {
    Chart {
        title: "Waiting".into(),
        description: "Seconds that a worker waits in a step for the slowest, on average.".into(),
        x: Axis::new("policy", ""),
        y: Axis::new("wait", "s"),
        marks: vec![bars(results, "barrier wait", |policy| policy.barrier_wait_s)],
    }
}

fn bars(results: &Results, name: &str, of: fn(&Summary) -> f64) -> Mark {
    let bar = |policy: &Summary| Bar { category: policy.policy.to_string(), value: of(policy) };
    Mark::Bars { name: name.into(), bars: results.policies.iter().map(bar).collect() }
}

/// Time since the end of the warm-up, over that of the oracle: how far each policy has fallen behind.
pub fn behind(results: &Results, runs: &[Run]) -> Option<Chart> {
    let oracle = runs.iter().find(|run| run.policy == PolicyName::Oracle)?;
    let line = |run: &Run| {
        let mut behind = 0.0;
        let point = |(at, (took_s, oracle_s)): (usize, (&f64, &f64))| {
            behind += took_s - oracle_s;
            ((results.warmup + at) as f64, behind)
        };
        let points = run.took_s.iter().zip(&oracle.took_s).enumerate().map(point).collect();
        Mark::Line { name: run.policy.to_string(), points, dashed: false }
    };
    Some(Chart {
        title: "Time lost".into(),
        description: "Step times added up, less the oracle's: what each policy has lost so far.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("lost", "s").from_zero(),
        marks: asked(results, runs).filter(|run| run.policy != PolicyName::Oracle).map(line).collect(),
    })
}

/// Step times added up.
pub fn cumulative(results: &Results, runs: &[Run]) -> Chart {
    let line = |run: &Run| {
        let mut sum = 0.0;
        let point = |(at, took_s): (usize, &f64)| {
            sum += took_s;
            ((results.warmup + at) as f64, sum)
        };
        let points = run.took_s.iter().enumerate().map(point).collect();
        Mark::Line { name: run.policy.to_string(), points, dashed: false }
    };
    Chart {
        title: "Cumulative time".into(),
        description: "Step times added up since the end of the warm-up.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("time", "s").from_zero(),
        marks: asked(results, runs).map(line).collect(),
    }
}

/// Who got how much from evenstep.
pub fn shares(results: &Results, runs: &[Run], world: &World) -> Option<Chart> {
    let run = asked(results, runs).find(|run| run.policy == PolicyName::Evenstep)?;
    let line = |(worker, known): (usize, &crate::simulate::Worker)| {
        let point = |(at, shares): (usize, &Vec<u64>)| ((results.warmup + at) as f64, shares[worker] as f64);
        let points = run.shares.iter().enumerate().map(point).collect();
        Mark::Line { name: known.id.clone(), points, dashed: false }
    };
    let left_out = world.workers.len().saturating_sub(DRAWN_MAX);
    let rest = if left_out > 0 { format!(" {left_out} more workers are not drawn.") } else { String::new() };
    Some(Chart {
        title: "Shares under evenstep".into(),
        description: format!("Samples of each worker, iteration by iteration.{rest}"),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", "samples").from_zero(),
        marks: world.workers.iter().enumerate().take(DRAWN_MAX).map(line).collect(),
    })
}

/// The runs of the policies that were asked for, in their order.
fn asked<'a>(results: &'a Results, runs: &'a [Run]) -> impl Iterator<Item = &'a Run> {
    results.policies.iter().filter_map(|policy| runs.iter().find(|run| run.policy == policy.policy))
}
