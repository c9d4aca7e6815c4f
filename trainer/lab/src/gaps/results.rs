//! The results of the measurement.

use std::collections::BTreeMap;

use evenstep_rules::gate::Limit;
use serde::Serialize;

use super::rank::{CONFIGURATIONS, Configuration, RankMeasurements, Turn};

/// The results of a measurement.
///
/// Throughputs are relative to each job alone: the foreground with data parallelism on all ranks, and a
/// background job without the foreground.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Median iteration time of each configuration on rank 0, which runs every layer, in milliseconds.
    pub iteration_ms: BTreeMap<Configuration, f64>,
    /// Ratio of the plan's median iteration time with and without background work, by round.
    pub slow_down_by_round: Vec<f64>,
    /// Median of these ratios.
    pub slow_down: f64,
    /// Maximum ratio allowed by `--slow-down-limit`.
    pub slow_down_limit: f64,
    /// Samples per second of each rank's background job in the gaps.
    pub background_samples_per_s: Vec<f64>,
    /// Samples per second of each rank's background job without the foreground.
    pub background_alone_samples_per_s: Vec<f64>,
    /// Relative throughput of the foreground with background work.
    pub foreground_throughput: f64,
    /// Sum of the relative throughputs of the background jobs.
    pub background_throughput: f64,
    /// Sum of the foreground's and the background jobs' relative throughput.
    pub throughput: f64,
    /// Relative throughput of the plan without background work.
    pub burst_throughput: f64,
    /// Relative throughput of one rank for the foreground and the other ranks for background jobs,
    /// without plan or gate.
    pub one_each_throughput: f64,
    /// Whether the final parameters with and without background work are bitwise equal on all ranks.
    pub unchanged: bool,
}

impl Figures {
    /// Computes the results from the ranks' measurements, in rank order.
    pub fn of(ranks: &[RankMeasurements], limit: Limit) -> Self {
        let first: &[Turn] = ranks.first().map_or(&[], |rank| &rank.turns);
        let iterations =
            |arm| of_configuration(first, arm).flat_map(|turn| turn.iterations_s.iter().copied());
        let iteration_s = |arm| median(iterations(arm));
        let iteration_ms = CONFIGURATIONS.map(|arm| (arm, 1e3 * iteration_s(arm))).into();
        let rounds =
            of_configuration(first, Configuration::Burst).zip(of_configuration(first, Configuration::Filled));
        let ratio = |(alone, filled): (&Turn, &Turn)| {
            median(filled.iterations_s.iter().copied()) / median(alone.iterations_s.iter().copied())
        };
        let slow_down_by_round: Vec<f64> = rounds.map(ratio).collect();
        let rate = |rank: &RankMeasurements, arm| {
            let (samples, wall_s) = of_configuration(&rank.turns, arm)
                .fold((0, 0.0), |(samples, wall_s), turn| {
                    (samples + turn.background_samples, wall_s + turn.wall_s)
                });
            samples as f64 / wall_s
        };
        let rates = |arm| -> Vec<f64> { ranks.iter().map(|rank| rate(rank, arm)).collect() };
        let (background_samples_per_s, background_alone_samples_per_s) =
            (rates(Configuration::Filled), rates(Configuration::Background));
        let background_throughput = background_samples_per_s
            .iter()
            .zip(&background_alone_samples_per_s)
            .map(|(rate, alone)| rate / alone)
            .sum();
        // Medians, because other activity on the machine can make a few iterations as long as all
        // others together.
        let relative = |arm| iteration_s(Configuration::DataParallel) / iteration_s(arm);
        let foreground_throughput = relative(Configuration::Filled);
        Self {
            iteration_ms,
            slow_down: median(slow_down_by_round.iter().copied()),
            slow_down_by_round,
            slow_down_limit: limit.ratio(),
            background_samples_per_s,
            background_alone_samples_per_s,
            foreground_throughput,
            background_throughput,
            throughput: foreground_throughput + background_throughput,
            burst_throughput: relative(Configuration::Burst),
            one_each_throughput: relative(Configuration::OneRank) + ranks.len().saturating_sub(1) as f64,
            unchanged: ranks.iter().all(|rank| rank.parameters[0] == rank.parameters[1]),
        }
    }

    /// Returns a summary for people.
    pub fn to_summary(&self) -> String {
        let ms = |arm| self.iteration_ms.get(&arm).copied().unwrap_or(f64::NAN);
        format!(
            "iteration: data parallel {:.2} ms, burst plan {:.2} ms, with background {:.2} ms (slow-down {:.3}, limit {:.2}), one rank \
             {:.2} ms; throughput: data parallel 1, burst plan {:.2}, with background {:.2} + {:.2} = {:.2}, one rank per job {:.2}; \
             parameters {}",
            ms(Configuration::DataParallel),
            ms(Configuration::Burst),
            ms(Configuration::Filled),
            self.slow_down,
            self.slow_down_limit,
            ms(Configuration::OneRank),
            self.burst_throughput,
            self.foreground_throughput,
            self.background_throughput,
            self.throughput,
            self.one_each_throughput,
            if self.unchanged { "unchanged" } else { "CHANGED" }
        )
    }
}

fn of_configuration(turns: &[Turn], arm: Configuration) -> impl Iterator<Item = &Turn> {
    turns.iter().filter(move |turn| turn.arm == arm)
}

/// Returns the median; NaN without values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.get(half.wrapping_sub(1)), values.get(half)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => (below + above) / 2.0,
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::{BackgroundResult, WorkDone};
    use crate::gaps::RankBackground;

    /// Two ranks: the second runs background work on half of its core, and the foreground slows down by 5
    /// %.
    #[test]
    fn by_hand() {
        let turn = |arm, iteration_s: f64, background_samples| Turn {
            arm,
            iterations_s: vec![iteration_s; 10],
            wall_s: 10.0 * iteration_s,
            background_samples,
        };
        let ran = BackgroundResult { spent: WorkDone::default(), steps: 0, loss: (1.0, 0.5) };
        let beside = RankBackground { piece_samples: 8, piece_us: 500.0, ran };
        let rank = |samples| RankMeasurements {
            turns: vec![
                turn(Configuration::Burst, 0.1, 0),
                turn(Configuration::Filled, 0.105, samples),
                turn(Configuration::DataParallel, 0.084, 0),
                turn(Configuration::OneRank, 0.12, 0),
                turn(Configuration::Background, 0.1, 1000),
            ],
            background: beside,
            parameters: [7, 7],
        };
        let figures = Figures::of(&[rank(0), rank(525)], Limit::default());
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(figures.slow_down, 1.05);
        close(figures.iteration_ms[&Configuration::Filled], 105.0);
        close(figures.foreground_throughput, 0.8);
        close(figures.background_throughput, 0.5);
        close(figures.throughput, 1.3);
        close(figures.burst_throughput, 0.84);
        close(figures.one_each_throughput, 1.7);
        assert!(figures.unchanged);
        let changed = RankMeasurements { parameters: [7, 8], ..rank(0) };
        assert!(!Figures::of(&[rank(0), changed], Limit::default()).unchanged);
        assert!(median([].into_iter()).is_nan());
        close(median([3.0, 1.0, 2.0, 10.0].into_iter()), 2.5);
    }
}
