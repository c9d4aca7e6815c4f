//! The results of a run, compared with its plan.

use std::fmt::Write;

use serde::Serialize;

use super::measured::{LayerTimes, median, middle};
use super::plan::BurstPlan;
use evenstep_trainer::progress::statistics::quantile;

/// Statistics of the iterations of a run, measured on rank 0, which runs all layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Description of the network.
    pub model: String,
    /// Samples per iteration.
    pub global_batch: u64,
    /// Number of GPUs of the plan.
    pub gpus: usize,
    /// Number of worker processes.
    pub workers: usize,
    /// Number of measured iterations.
    pub iterations: usize,
    /// Median duration of an iteration, from the end of the previous one, including reading the samples.
    pub iteration_us: f64,
    /// 10th percentile of the durations.
    pub p10_us: f64,
    /// 90th percentile of the durations.
    pub p90_us: f64,
    /// Planned duration of an iteration.
    pub planned_us: f64,
    /// Ratio of the measured to the planned duration.
    pub ratio: f64,
    /// Loss of the first and of the last iteration.
    pub losses: [f64; 2],
    /// Results by layer.
    pub layers: Vec<MeasuredLayer>,
}

/// The results of one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredLayer {
    /// Name of the layer.
    pub name: String,
    /// Number of GPUs that run the layer.
    pub gpus: usize,
    /// Planned time of transfer, compute and sum.
    pub planned_us: f64,
    /// Measured time of transfer, compute and sum.
    pub measured_us: f64,
    /// Measured time by phase.
    #[serde(flatten)]
    pub times: LayerTimes,
}

impl Measured {
    /// Computes the results from the durations of the iterations, the layer times of each iteration, and
    /// the losses.
    pub fn new(
        plan: &BurstPlan,
        workers: usize,
        lengths_s: &[f64],
        times: &[Vec<LayerTimes>],
        losses: &[f64],
        model: String,
    ) -> Self {
        let us = |share: f64| quantile(lengths_s, share).unwrap_or(0.0) * 1e6;
        let layers = plan.layers.iter().zip(middle(times)).map(|(planned, times)| MeasuredLayer {
            name: planned.name.clone(),
            gpus: planned.gpus,
            planned_us: planned.all_us(),
            measured_us: times.all_us(),
            times,
        });
        let end = |loss: Option<&f64>| loss.copied().unwrap_or(f64::NAN);
        let iteration_us = median(lengths_s) * 1e6;
        Self {
            model,
            global_batch: plan.global_batch,
            gpus: plan.gpus,
            workers,
            iterations: lengths_s.len(),
            iteration_us,
            p10_us: us(0.1),
            p90_us: us(0.9),
            planned_us: plan.iteration_us,
            ratio: iteration_us / plan.iteration_us,
            losses: [end(losses.first()), end(losses.last())],
            layers: layers.collect(),
        }
    }

    /// Formats the results as a table for a terminal, with times in milliseconds.
    pub fn text(&self) -> String {
        let width = self.layers.iter().map(|layer| layer.name.chars().count()).max().unwrap_or(0).max(9);
        let mut text = String::new();
        let mut line = |cells: [&str; 9]| {
            let [name, gpus, rest @ ..] = cells;
            // Writing to a String cannot fail.
            let _ = write!(text, "{name:width$} {gpus:>5}");
            rest.iter().for_each(|cell| {
                let _ = write!(text, " {cell:>9}");
            });
            text.push('\n');
        };
        line(["layer", "GPUs", "planned", "measured", "ratio", "transfer", "forward", "backward", "sum"]);
        let ms = |us: f64| format!("{:.3}", us / 1e3);
        for layer in &self.layers {
            let LayerTimes { transfer_us, forward_us, backward_us, sum_us } = layer.times;
            let all =
                [layer.planned_us, layer.measured_us, transfer_us, forward_us, backward_us, sum_us].map(ms);
            let [planned, measured, transfer, forward, backward, sum] = all.each_ref().map(String::as_str);
            let (gpus, ratio) =
                (layer.gpus.to_string(), format!("{:.2}", layer.measured_us / layer.planned_us));
            line([&layer.name, &gpus, planned, measured, &ratio, transfer, forward, backward, sum]);
        }
        let [planned, measured, p10, p90] =
            [self.planned_us, self.iteration_us, self.p10_us, self.p90_us].map(ms);
        let _ = write!(
            text,
            "\niteration: {measured} ms measured (median of {}; p10 {p10}, p90 {p90}), {planned} ms planned: ratio {:.3}\n\
             {}, global batch {}, {} GPUs on {} workers; loss {:.4} to {:.4}\n",
            self.iterations,
            self.ratio,
            self.model,
            self.global_batch,
            self.gpus,
            self.workers,
            self.losses[0],
            self.losses[1]
        );
        text
    }
}
