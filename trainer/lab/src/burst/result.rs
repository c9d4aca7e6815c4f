//! What a run came to, beside its plan.

use std::fmt::Write;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use evenstep_report::output::put;
use serde::Serialize;

use super::measured::{LayerTimes, median, middle};
use super::page;
use super::plan::Plan;
use super::timeline::Timeline;
use evenstep_trainer::progress::statistics::quantile;

/// Medians over the iterations of a run, on rank 0, which runs all layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The network, in words.
    pub model: String,
    /// Samples of an iteration.
    pub global_batch: u64,
    /// The plan's GPUs.
    pub gpus: usize,
    /// Processes that took part.
    pub workers: usize,
    /// How many iterations were measured.
    pub iterations: usize,
    /// An iteration, from the end of the one before; samples are read in it.
    pub iteration_us: f64,
    /// The fastest and the slowest tenth end here.
    pub p10_us: f64,
    /// As above.
    pub p90_us: f64,
    /// An iteration as planned.
    pub planned_us: f64,
    /// Measured over planned.
    pub ratio: f64,
    /// The loss of the first iteration, and of the last.
    pub losses: [f64; 2],
    /// By layer.
    pub layers: Vec<MeasuredLayer>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredLayer {
    /// Its name.
    pub name: String,
    /// Its GPUs.
    pub gpus: usize,
    /// Transfer, compute and sum as planned.
    pub planned_us: f64,
    /// The same, measured.
    pub measured_us: f64,
    /// What of it is what.
    #[serde(flatten)]
    pub times: LayerTimes,
}

impl Measured {
    /// Of iterations with these lengths, and these times of each layer.
    pub fn new(
        plan: &Plan,
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

    /// Prints it, and writes it to the files that are wanted.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn tell(
        &self,
        plan: &Plan,
        timeline: &Timeline,
        json: Option<&Path>,
        report: Option<&Path>,
    ) -> Result<()> {
        if let Some(path) = json {
            put(path, (serde_json::to_string_pretty(self)? + "\n").as_bytes())?;
        }
        if let Some(path) = report {
            put(path, page::report(self, plan, timeline).to_html().as_bytes())?;
        }
        io::stdout().lock().write_all(self.text().as_bytes()).context("writing the table")
    }

    /// As a table for a terminal; times in milliseconds.
    fn text(&self) -> String {
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
            "\niteration: {measured} ms measured (median of {}; {p10} to {p90} in four of five), {planned} ms planned: ratio {:.3}\n\
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
