//! The charts of one run.

use evenstep_report::{Axis, Bar, Chart, Layer, Mark, RuleAt};

use crate::report::forecasts::speed;
use crate::report::run::{Run, Training};
use evenstep_trainer::progress::statistics::WARM_UP;
use evenstep_trainer::progress::{IterationLine, WorkerLine};

/// Maximum number of workers with a speed chart.
pub const SPEED_CHARTS_MAX: usize = 8;

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

/// Returns a chart of step time over iterations.
pub fn step_time(run: &Run) -> Chart {
    let mut marks: Vec<Mark> = lines(run, |line| line.step_time_s * 1e3);
    marks.push(warm_up(run));
    Chart {
        title: "Step time".into(),
        description: format!(
            "Each point is one iteration, which ends when the slowest worker finishes. {}",
            turns(run)
        ),
        x: Axis::new("iteration", ""),
        y: Axis::new("step time", "ms").from_zero(),
        marks,
    }
}

/// Returns a chart of step time percentiles, with the ideal step time for comparison.
pub fn percentiles(run: &Run) -> Chart {
    let bars = |training: &Training| Mark::Bars {
        name: training.policy.to_string(),
        bars: QUANTILES
            .iter()
            .map(|(name, share)| Bar {
                category: (*name).into(),
                value: training.figures.step_time_s(*share) * 1e3,
            })
            .collect(),
    };
    let mut marks: Vec<Mark> = run.trainings.iter().map(bars).collect();
    // If the global batch depends on the number of workers, no single ideal exists.
    if let Some(training) = run.trainings.last().filter(|_| run.line.per_worker_batch.is_none()) {
        let ideal_s = run.line.global_batch as f64 / training.figures.ideal_throughput_samples_per_s;
        marks.push(Mark::Rule {
            name: format!("ideal {:.0} ms", ideal_s * 1e3),
            at: RuleAt::Y(ideal_s * 1e3),
        });
    }
    Chart {
        title: "Step time percentiles".into(),
        description: "Lower is better. The ideal is the mean step time if no worker ever waited.".into(),
        x: Axis::new("percentile", ""),
        y: Axis::new("step time", "ms"),
        marks,
    }
}

/// Returns a chart of the predicted and the measured speed of one worker.
pub fn speeds(run: &Run, training: &Training, rank: usize) -> Chart {
    let worker = |line: &IterationLine, value: fn(&WorkerLine) -> Option<f64>| {
        (line.iteration as f64, value(&line.workers[rank]).unwrap_or(f64::NAN))
    };
    let points = |value: fn(&WorkerLine) -> Option<f64>| -> Vec<(f64, f64)> {
        training.iterations.iter().map(|line| worker(line, value)).collect()
    };
    let lower = points(|line| line.speed_lower_samples_per_s);
    let upper = points(|line| line.speed_upper_samples_per_s);
    let interval = lower.iter().zip(upper).map(|((x, lower), (_, upper))| (*x, *lower, upper)).collect();
    let pace = run.line.paces.as_ref().and_then(|paces| paces.get(rank));
    Chart {
        title: format!("Speed of {}", run.line.workers[rank]),
        description: pace.map_or_else(
            || "Prediction before the iteration with its 90 % interval, and the measured speed.".to_owned(),
            |pace| format!("Imposed pace {pace}. Prediction with its 90 % interval, and the measured speed."),
        ),
        x: Axis::new("iteration", ""),
        y: Axis::new("speed", "samples/s").from_zero(),
        marks: vec![
            Mark::Line { name: "measured".into(), points: points(speed), dashed: false },
            Mark::Band { name: "predicted".into(), points: interval },
            Mark::Line {
                name: "predicted".into(),
                points: points(|line| line.predicted_speed_samples_per_s),
                dashed: true,
            },
        ],
    }
}

/// Returns a chart of the local batches over iterations.
pub fn batches(run: &Run, training: &Training) -> Chart {
    let layer = |rank: usize| Layer {
        name: run.line.workers[rank].to_string(),
        points: over(training, |line| line.workers[rank].local_batch as f64),
    };
    Chart {
        title: format!("Batches under {}", training.policy),
        description: format!(
            "Allocation of the {} of an iteration; dips are the incomplete batches at the end of epochs.",
            run.line.samples()
        ),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", "samples"),
        marks: vec![Mark::StackedArea { layers: (0..run.line.workers.len()).map(layer).collect() }],
    }
}

/// Returns a chart of the share of its time that each worker waited.
pub fn waiting(run: &Run) -> Chart {
    let share = |training: &Training, rank: usize| {
        let counted = training.counted();
        let waited_s: f64 = counted.iter().map(|line| line.workers[rank].barrier_wait_s).sum();
        100.0 * waited_s / counted.iter().map(|line| line.step_time_s).sum::<f64>()
    };
    let bars = |training: &Training| Mark::Bars {
        name: training.policy.to_string(),
        bars: run
            .line
            .workers
            .iter()
            .enumerate()
            .map(|(rank, worker)| Bar { category: worker.to_string(), value: share(training, rank) })
            .collect(),
    };
    Chart {
        title: "Waiting at the barrier".into(),
        description: "Share of the step time in which a worker has finished and waits for the slowest one."
            .into(),
        x: Axis::new("worker", ""),
        y: Axis::new("waiting", "% of step time"),
        marks: run.trainings.iter().map(bars).collect(),
    }
}

/// Returns a chart of the training loss.
pub fn loss(run: &Run) -> Chart {
    Chart {
        title: "Training loss".into(),
        description: "Mean over each global batch. All policies train on the same samples in the same order, so the curves \
                    coincide."
            .into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("loss", ""),
        marks: run
            .trainings
            .iter()
            .enumerate()
            .map(|(number, training)| Mark::Line {
                name: training.policy.to_string(),
                points: over(training, |line| line.loss),
                dashed: number > 0,
            })
            .collect(),
    }
}

fn lines(run: &Run, value: fn(&IterationLine) -> f64) -> Vec<Mark> {
    let line = |training: &Training| Mark::Line {
        name: training.policy.to_string(),
        points: over(training, value),
        dashed: false,
    };
    run.trainings.iter().map(line).collect()
}

fn over(training: &Training, value: impl Fn(&IterationLine) -> f64) -> Vec<(f64, f64)> {
    training.iterations.iter().map(|line| (line.iteration as f64, value(line))).collect()
}

fn warm_up(run: &Run) -> Mark {
    let first = run.trainings.iter().filter_map(|training| training.iterations.first());
    let first = first.map(|line| line.iteration).min().unwrap_or(0);
    Mark::Rule { name: "warm-up ends".into(), at: RuleAt::X(first as f64 + WARM_UP as f64) }
}

fn turns(run: &Run) -> String {
    match run.trainings.len() {
        0 | 1 => String::new(),
        _ => format!("The policies took turns, {} iterations each.", run.line.block),
    }
}
