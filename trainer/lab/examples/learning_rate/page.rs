//! Charts, table and text of the experiment.

use evenstep_report::{Axis, Chart, Mark, Report, RuleAt, Section, Table};

use crate::losses::{Estimate, Length, POINT, Rate, WINDOW};
use crate::noise::Noise;
use crate::training::{LARGE, MOMENTUM, Policy, SMALL};

/// Number of points of a curve before the change.
const POINTS_BEFORE: usize = 10;

pub const COLUMNS: [&str; 9] = [
    "learning rate",
    "before",
    "jump",
    "ramp",
    "rate unchanged",
    "no worker joins",
    "ramp - jump, first",
    "ramp - jump, last",
    "held out",
];

/// Returns the table row of a learning rate.
pub fn row(rate: &Rate) -> [String; COLUMNS.len()] {
    let first = |policy| cell(Estimate::of(&rate.first(policy)));
    let held_out = |policy: Policy| rate.runs(policy).iter().map(|run| run.held_out).collect::<Vec<_>>();
    let compared = |ramp: Vec<f64>, jump: Vec<f64>| match Estimate::difference(&ramp, &jump) {
        Ok(difference) => format!("{:+.3} {}", difference.mean, difference.verdict()),
        Err(count) => format!("{count} diverged"),
    };
    [
        rate.learning_rate.to_string(),
        cell(Estimate::of(&rate.before_change())),
        first(Policy::Jump),
        first(Policy::Ramp),
        first(Policy::Unchanged),
        first(Policy::Undisturbed),
        compared(rate.first(Policy::Ramp), rate.first(Policy::Jump)),
        compared(rate.last(Policy::Ramp), rate.last(Policy::Jump)),
        compared(held_out(Policy::Ramp), held_out(Policy::Jump)),
    ]
}

fn cell(estimate: Result<Estimate, usize>) -> String {
    match estimate {
        Ok(Estimate { mean, error }) => format!("{mean:.3} ± {error:.3}"),
        Err(count) => format!("{count} diverged"),
    }
}

/// Returns a chart of the training losses before and after the change.
pub fn losses(rate: &Rate) -> Chart {
    let seeds = rate.before.len();
    let before = rate.before.first().map_or(0, Vec::len);
    let at = |point: usize| (point as f64 + 0.5) * POINT as f64;
    let mut marks = Vec::new();
    let mut band = |name: &str, points: Vec<(f64, Option<Estimate>)>, dashed| {
        let missing = Estimate { mean: f64::NAN, error: f64::NAN };
        let points = points.into_iter().map(|(x, estimate)| (x, estimate.unwrap_or(missing)));
        marks.push(Mark::Band {
            name: name.into(),
            points: points.clone().map(|(x, e)| (x, e.mean - e.error, e.mean + e.error)).collect(),
        });
        marks.push(Mark::Line {
            name: name.into(),
            points: points.map(|(x, e)| (x, e.mean)).collect(),
            dashed,
        });
    };
    for policy in Policy::ALL {
        let runs = rate.runs(policy);
        let points = (0..runs.first().map_or(0, |run| run.losses.len())).map(|point| {
            let losses: Vec<f64> = runs.iter().map(|run| run.losses[point]).collect();
            (at(point), Estimate::of(&losses).ok())
        });
        band(policy.name(), points.collect(), policy == Policy::Undisturbed);
    }
    let common = (before.saturating_sub(POINTS_BEFORE)..before).map(|point| {
        let losses: Vec<f64> = rate.before.iter().map(|losses| losses[point]).collect();
        (at(point) - before as f64 * POINT as f64, Estimate::of(&losses).ok())
    });
    band("before", common.collect(), false);
    marks.push(Mark::Rule { name: format!("{SMALL} to {LARGE} samples"), at: RuleAt::X(0.0) });
    Chart {
        title: format!(
            "Training loss when the batch grows by a factor of four, learning rate {}",
            rate.learning_rate
        ),
        description: format!("Mean over {seeds} seeds with its standard error; {POINT} samples per point."),
        x: Axis::new("samples since the change", ""),
        y: Axis::new("training loss", ""),
        marks,
    }
}

/// Returns a chart of the noise of an update, measured and in closed form.
pub fn noise(policies: &[(Policy, (Noise, Noise))], learning_rate: f64) -> Chart {
    let line = |policy: Policy, kind, points: &Noise, dashed| Mark::Line {
        name: format!("{}, {kind}", policy.name()),
        points: points.clone(),
        dashed,
    };
    // Measured lines come first, so that policies have the same colours as in the chart of losses.
    let measured = policies.iter().map(|(policy, (measured, _))| line(*policy, "measured", measured, false));
    let formula = policies.iter().map(|(policy, (_, formula))| line(*policy, "closed form", formula, true));
    Chart {
        title: format!("Noise of an update, learning rate {learning_rate}, momentum {MOMENTUM}"),
        description: "Variance over replicas that train on different samples, relative to the variance before the change.".into(),
        x: Axis::new("iterations since the change", ""),
        y: Axis::new("noise relative to before", "").from_zero(),
        marks: measured.chain(formula).collect(),
    }
}

/// Lists the learning rates at which the ramp's loss is lower after the change, higher, or not different.
pub fn summary(rates: &[Rate]) -> String {
    let verdict = |rate: &Rate| {
        Estimate::difference(&rate.first(Policy::Ramp), &rate.first(Policy::Jump))
            .map_or("not compared because runs diverged", Estimate::verdict)
    };
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for rate in rates {
        let (verdict, at) = (verdict(rate), rate.learning_rate.to_string());
        match found.iter_mut().find(|(other, _)| *other == verdict) {
            Some((_, rates)) => rates.push(at),
            None => found.push((verdict, vec![at])),
        }
    }
    let parts: Vec<String> =
        found.iter().map(|(verdict, rates)| format!("{verdict} at {}", rates.join(", "))).collect();
    format!("Ramp compared with jump, training loss of the first {WINDOW} samples: {}.", parts.join("; "))
}

/// Returns the page.
pub fn report(rates: &[Rate], charts: Vec<Chart>, length: Length, seeds: u64) -> Report {
    let table = Table {
        title: "Learning rates".into(),
        description: format!(
            "Mean training loss and its standard error over {seeds} seeds: over the last {WINDOW} samples before the change, \
                         and over the first {WINDOW} samples after it, by policy. Then the mean difference of ramp and jump by seed: over \
                         these first samples, over the last {WINDOW} samples, and on held-out samples at the end. \"No difference\" \
                         means within two standard errors."
        ),
        columns: COLUMNS.map(String::from).to_vec(),
        rows: rates.iter().map(|rate| row(rate).map(Into::into).to_vec()).collect(),
    };
    Report {
        title: "Learning rate for a growing batch: jump or ramp".into(),
        subtitle: format!(
            "{seeds} seeds, {} iterations with {SMALL} samples, then {} with {LARGE}; momentum {MOMENTUM}; generated task, each \
                         sample used once",
            length.before, length.after
        ),
        sections: vec![
            Section::Text { heading: String::new(), paragraphs: vec![summary(rates)] },
            Section::Charts(charts),
            Section::Table(table),
            Section::Text {
                heading: "Method".into(),
                paragraphs: vec![
                    "Each seed trains once up to the change. Every policy continues from the same state (parameters, momentum, \
                                         position in the data). The multipliers come from the controller of the service. \"No worker joins\" \
                                         continues with the small batch and is compared at equal samples, not at equal iterations."
                        .into(),
                    "At small learning rates, the speed of progress decides, and a ramp slows it down. At large learning rates, \
                                         the noise of the updates decides. A jump multiplies the noise. An unchanged learning rate with a larger \
                                         batch lowers the loss in the same way as a lower learning rate."
                        .into(),
                    "The noise is measured on replicas of one run that train on samples in different orders from 60 iterations \
                                         before the change: the variance of their updates, summed over parameters. The closed form does not use the \
                                         loss: it assumes constant noise of a sample's gradient. At iteration 0 it uses the velocity before the \
                                         change, while the measured velocity already includes one gradient of the large batch."
                        .into(),
                ],
            },
        ],
    }
}
