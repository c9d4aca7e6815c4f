//! Charts of a simulation.

use evenstep_report::{Axis, Bar, Chart, Mark};

use super::results::Results;
use crate::simulate::Summary;
use crate::simulate::{PolicyName, Run, World};

/// Maximum number of workers in the chart of shares; further workers are left out.
const DRAWN_MAX: usize = 8;

/// Mean and 95th percentile of the step time by policy.
pub fn step_times(results: &Results) -> Chart {
    Chart {
        title: "Step time by policy".into(),
        description: "Iterations after the warm-up; lower is better.".into(),
        x: Axis::new("policy", ""),
        y: Axis::new("step time", "s"),
        marks: vec![
            bars(results, "mean", |policy| policy.mean_step_time_s),
            bars(results, "p95", |policy| policy.p95_step_time_s),
        ],
    }
}

/// Barrier wait by policy.
pub fn waits(results: &Results) -> Chart {
    Chart {
        title: "Time lost waiting".into(),
        description: "Mean time per step that a worker waits for the slowest.".into(),
        x: Axis::new("policy", ""),
        y: Axis::new("wait", "s"),
        marks: vec![bars(results, "barrier wait", |policy| policy.barrier_wait_s)],
    }
}

fn bars(results: &Results, name: &str, of: fn(&Summary) -> f64) -> Mark {
    let bar = |policy: &Summary| Bar { category: policy.policy.to_string(), value: of(policy) };
    Mark::Bars { name: name.into(), bars: results.policies.iter().map(bar).collect() }
}

/// Time lost to the oracle since the end of the warm-up, by policy.
pub fn time_lost(results: &Results, runs: &[Run]) -> Option<Chart> {
    let oracle = runs.iter().find(|run| run.policy == PolicyName::Oracle)?;
    let line = |run: &Run| {
        let mut time_lost = 0.0;
        let point = |(at, (step_time_s, oracle_s)): (usize, (&f64, &f64))| {
            time_lost += step_time_s - oracle_s;
            ((results.warmup + at) as f64, time_lost)
        };
        let points = run.step_time_s.iter().zip(&oracle.step_time_s).enumerate().map(point).collect();
        Mark::Line { name: run.policy.to_string(), points, dashed: false }
    };
    Some(Chart {
        title: "Time lost".into(),
        description: "Cumulative step time minus the oracle's.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("lost", "s").from_zero(),
        marks: asked(results, runs).filter(|run| run.policy != PolicyName::Oracle).map(line).collect(),
    })
}

/// Cumulative step time by policy.
pub fn cumulative(results: &Results, runs: &[Run]) -> Chart {
    let line = |run: &Run| {
        let mut sum = 0.0;
        let point = |(at, step_time_s): (usize, &f64)| {
            sum += step_time_s;
            ((results.warmup + at) as f64, sum)
        };
        let points = run.step_time_s.iter().enumerate().map(point).collect();
        Mark::Line { name: run.policy.to_string(), points, dashed: false }
    };
    Chart {
        title: "Cumulative time".into(),
        description: "Sum of step times since the end of the warm-up.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("time", "s").from_zero(),
        marks: asked(results, runs).map(line).collect(),
    }
}

/// Samples of each worker under evenstep.
pub fn shares(results: &Results, runs: &[Run], world: &World) -> Option<Chart> {
    let run = asked(results, runs).find(|run| run.policy == PolicyName::Evenstep)?;
    let line = |(worker, known): (usize, &crate::simulate::Worker)| {
        let point = |(at, shares): (usize, &Vec<u64>)| ((results.warmup + at) as f64, shares[worker] as f64);
        let points = run.shares.iter().enumerate().map(point).collect();
        Mark::Line { name: known.id.clone(), points, dashed: false }
    };
    let left_out = world.workers.len().saturating_sub(DRAWN_MAX);
    let rest = if left_out > 0 { format!(" {left_out} more workers are not shown.") } else { String::new() };
    Some(Chart {
        title: "Shares under evenstep".into(),
        description: format!("Samples of each worker in each iteration.{rest}"),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", "samples").from_zero(),
        marks: world.workers.iter().enumerate().take(DRAWN_MAX).map(line).collect(),
    })
}

/// Runs of the requested policies, in their order.
fn asked<'a>(results: &'a Results, runs: &'a [Run]) -> impl Iterator<Item = &'a Run> {
    results.policies.iter().filter_map(|policy| runs.iter().find(|run| run.policy == policy.policy))
}
