//! The view of what a job gained: gain, time lost waiting, slow workers.

use std::collections::BTreeMap;

use evenstep_core::curve::{CurveLearner, Uncertain};
use evenstep_protocol::{
    GainView, HistoryView, SlowWorker, StragglerReason, SummaryView, WorkerHistory, WorkerId, WorkerView,
};

use super::super::account::Account;

/// Gain below which even shares would have done as well.
const PAYS: f64 = 1.02;
/// Speed over the median of the others, below which a worker is slow.
const SLOW: f64 = 0.9;
/// Minimum share of slow iterations of a slow worker.
const SLOW_SHARE_MIN: f64 = 0.05;
/// Share of slow iterations from which on a worker is slow throughout.
const THROUGHOUT: f64 = 0.9;
/// Maximum number of slow workers.
const SLOW_WORKERS_MAX: usize = 8;
/// Maximum number of measurements, of all workers, that slow workers are found by.
const COMPARED_MAX: usize = 100_000;

/// The workers of a job.
#[derive(Debug, Default)]
pub struct SummaryInputs {
    /// Their states.
    pub views: Vec<WorkerView>,
    /// Their curves, as far as known.
    pub curves: BTreeMap<WorkerId, CurveLearner>,
}

/// Values from the live statistics of a job.
#[derive(Debug, Default)]
pub struct Told {
    /// Number of iterations.
    pub iterations: u64,
    /// Unit of batches.
    pub unit: String,
    /// Error of the latest forecasts.
    pub error_ratio: Option<f64>,
    /// Its [verdict](super::verdict).
    pub verdict: String,
}

/// Returns the summary of a job, from its account, an evenly sampled history, its workers, and what its statistics tell.
pub fn summarize(
    history: &HistoryView,
    account: &Account,
    workers: &SummaryInputs,
    told: Told,
) -> SummaryView {
    let (gain, waiting_share) = (account.gain(), account.lost_share());
    let slow = slow_workers(history, workers);
    let Told { iterations, unit, error_ratio, verdict } = told;
    let lines = vec![
        gain_line(gain, account.estimated().min(iterations), iterations),
        waiting_line(waiting_share),
        slow_line(&slow),
    ];
    SummaryView {
        job_id: history.job_id.clone(),
        iterations,
        unit,
        gain,
        time_saved: account.saved(),
        time_lost_s: account.lost_s(),
        waiting_share,
        error_ratio,
        slow,
        verdict,
        lines,
    }
}

fn slow_workers(history: &HistoryView, workers: &SummaryInputs) -> Vec<SlowWorker> {
    let mut compared = Compared::new(history, workers);
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); history.workers.len()];
    let measurements = history.iterations.len() * history.workers.len();
    for at in (0..history.iterations.len()).step_by(measurements.div_ceil(COMPARED_MAX).max(1)) {
        for (ratios, ratio) in ratios.iter_mut().zip(compared.ratios(at)) {
            ratios.extend(ratio);
        }
    }
    let described = |(worker, ratios): (&WorkerHistory, Vec<f64>)| {
        let mut slow: Vec<f64> = ratios.iter().copied().filter(|ratio| *ratio < SLOW).collect();
        slow.sort_by(f64::total_cmp);
        let iterations_share = slow.len() as f64 / ratios.len().max(1) as f64;
        let speed_ratio = *slow.get(slow.len() / 2)?;
        let reason = reason(&worker.worker, &workers.views, iterations_share);
        let found = SlowWorker { worker: worker.worker.clone(), speed_ratio, iterations_share, reason };
        (iterations_share >= SLOW_SHARE_MIN).then_some(found)
    };
    let mut slow: Vec<SlowWorker> = history.workers.iter().zip(ratios).filter_map(described).collect();
    slow.sort_by(|one, other| one.speed_ratio.total_cmp(&other.speed_ratio));
    slow.truncate(SLOW_WORKERS_MAX);
    slow
}

/// Comparison of workers at equal work: their times are converted to the even share of an iteration.
struct Compared<'a> {
    history: &'a HistoryView,
    curves: Vec<Option<&'a CurveLearner>>,
    /// By worker, for the even and the own number of samples: the likely ratio of the times, and a small one.
    known: Vec<BTreeMap<(u64, u64), [f64; 2]>>,
}

impl<'a> Compared<'a> {
    fn new(history: &'a HistoryView, workers: &'a SummaryInputs) -> Self {
        let curves = history.workers.iter().map(|worker| workers.curves.get(&worker.worker)).collect();
        Self { history, curves, known: vec![BTreeMap::new(); history.workers.len()] }
    }

    /// Returns for each worker its speed in an iteration over the median of the others. It is not below [`SLOW`] if the curve
    /// may explain the difference.
    fn ratios(&mut self, at: usize) -> Vec<Option<f64>> {
        let measured: Vec<Option<(u64, f64)>> =
            self.history.workers.iter().map(|worker| measured(worker, at)).collect();
        let samples = measured.iter().flatten().map(|(samples, _)| samples);
        let even = (samples.clone().sum::<u64>() / samples.count().max(1) as u64).max(1);
        let of = |(worker, measured): (usize, &Option<(u64, f64)>)| {
            let (samples, time_s) = (*measured)?;
            Some(self.times(worker, even, samples).map(|time| 1.0 / (time * time_s)))
        };
        let speeds: Vec<Option<[f64; 2]>> = measured.iter().enumerate().map(of).collect();
        let mut sorted: Vec<f64> = speeds.iter().flatten().map(|[speed, _]| *speed).collect();
        sorted.sort_by(f64::total_cmp);
        let ratio = |[speed, most]: [f64; 2]| {
            let others = median_without(&sorted, speed)?;
            Some(if most < SLOW * others { speed / others } else { (speed / others).max(SLOW) })
        };
        speeds.into_iter().map(|speeds| ratio(speeds?)).collect()
    }

    fn times(&mut self, worker: usize, even: u64, own: u64) -> [f64; 2] {
        let proportional = even as f64 / own as f64;
        let ratio = |curve: &CurveLearner| {
            let Uncertain { mean, deviation } = curve.ratio(own, even);
            // The median of a log-normal distribution, and one deviation below it.
            let spread = (1.0 + (deviation / mean).powi(2)).ln();
            [mean * (-spread / 2.0).exp(), mean * (-spread / 2.0 - spread.sqrt()).exp()]
        };
        let curve = self.curves[worker];
        let times = || curve.map_or([proportional; 2], ratio);
        *self.known[worker].entry((even, own)).or_insert_with(times)
    }
}

/// Returns the samples and the compute time of a worker in an iteration.
fn measured(worker: &WorkerHistory, at: usize) -> Option<(u64, f64)> {
    let (speed, time_s) = (worker.actual_samples_per_s[at]?, worker.compute_time_s[at]?);
    let samples = (speed * time_s).round() as u64;
    (samples > 0).then_some((samples, time_s))
}

/// Returns the median of sorted values without one of them; `None` if there is no other.
fn median_without(sorted: &[f64], own: f64) -> Option<f64> {
    let others = sorted.len().checked_sub(1).filter(|others| *others > 0)?;
    let position = sorted.partition_point(|value| *value < own);
    let other = |at: usize| sorted[if at < position { at } else { at + 1 }];
    Some((other((others - 1) / 2) + other(others / 2)) / 2.0)
}

fn reason(worker: &WorkerId, workers: &[WorkerView], iterations_share: f64) -> String {
    let straggler =
        workers.iter().find(|known| known.worker == *worker).and_then(|known| known.straggler.as_ref());
    match straggler {
        Some(straggler) if straggler.reason != StragglerReason::Unknown => straggler.detail.clone(),
        _ if iterations_share >= THROUGHOUT => "all the time: a slower device, or a constant load".to_owned(),
        _ => "at times: a changing load".to_owned(),
    }
}

fn gain_line(gain: Option<GainView>, estimated: u64, iterations: u64) -> String {
    let Some(GainView { ratio, lower, upper, .. }) = gain else {
        return format!(
            "{iterations} iterations, {estimated} of them with a forecast and a report: too few to estimate the gain over even shares"
        );
    };
    let gain =
        format!("{iterations} iterations, gain {ratio:.2}x (90 % interval {lower:.2}x to {upper:.2}x)");
    if lower > 1.0 && ratio >= PAYS {
        return format!("{gain}: {ratio:.2} times as fast as with even shares");
    }
    format!("{gain}: not faster than with even shares; EVENSTEP_SERVER=off trains without a predictor")
}

fn waiting_line(waiting_share: Option<f64>) -> String {
    match waiting_share {
        Some(share) => format!("workers waited {:.1} % of their time for the slowest one", 100.0 * share),
        None => "no worker has reported how long it waited".to_owned(),
    }
}

fn slow_line(slow: &[SlowWorker]) -> String {
    let Some(SlowWorker { worker, speed_ratio, iterations_share, reason }) = slow.first() else {
        return format!("no worker was slower than {SLOW} times the median of the others");
    };
    let more = match slow.len() {
        1 => String::new(),
        _ => format!("; {} more", slow.len() - 1),
    };
    format!(
        "slowest: {worker}, {speed_ratio:.2} times the median speed of the others in {:.0} % of the iterations ({reason}){more}",
        100.0 * iterations_share
    )
}

#[cfg(test)]
mod tests {
    use evenstep_core::attempts::Attempts;
    use evenstep_protocol::JobId;
    use proptest::prelude::*;

    use super::super::super::account::{EvenStep, IterationTimes};
    use super::*;

    /// The summary of a history that the account has seen as well.
    fn summarize(history: &HistoryView, workers: &SummaryInputs, iterations: u64) -> SummaryView {
        let times = history.iterations.iter().enumerate().map(|(at, iteration)| {
            let waits: Vec<f64> =
                history.workers.iter().filter_map(|worker| worker.barrier_wait_s[at]).collect();
            let times = IterationTimes {
                took_s: history.step_time_s[at].unwrap(),
                waited_s: Some(waits.iter().sum::<f64>() / waits.len() as f64),
                even: history.even_step_time_s[at].map(|even_s| EvenStep { even_s, doubt_s: 0.0 }),
                iterations: None,
            };
            (*iteration, times)
        });
        let account = Account::of(times, &Attempts::default(), history.every, None, u64::MAX);
        super::summarize(
            history,
            &account,
            workers,
            Told { iterations, verdict: "A verdict.".into(), ..Told::default() },
        )
    }

    /// A history of workers with constant speeds and given batches, whose forecasts are wrong by `bias`.
    fn history(speeds: &[f64], batches: &[u64], length: usize, bias: f64) -> HistoryView {
        let time = |batch: f64, speed: f64| batch / speed;
        let step =
            speeds.iter().zip(batches).map(|(speed, batch)| time(*batch as f64, *speed)).fold(0.0, f64::max);
        let mean = batches.iter().sum::<u64>() as f64 / batches.len() as f64;
        let even = speeds.iter().map(|speed| time(mean, *speed)).fold(0.0, f64::max);
        let worker = |(at, (speed, batch)): (usize, (&f64, &u64))| WorkerHistory {
            worker: WorkerId::new(format!("node/{at}")).unwrap(),
            local_batch: vec![Some(*batch); length],
            predicted_samples_per_s: vec![Some(*speed / bias); length],
            lower_samples_per_s: vec![None; length],
            upper_samples_per_s: vec![None; length],
            actual_samples_per_s: vec![Some(*speed); length],
            compute_time_s: vec![Some(time(*batch as f64, *speed)); length],
            barrier_wait_s: vec![Some(step - time(*batch as f64, *speed)); length],
        };
        HistoryView {
            job_id: JobId::new("job").unwrap(),
            every: 1,
            attempts: vec![1; length],
            iterations: (0..length as u64).collect(),
            at_unix_ms: vec![0; length],
            step_time_s: vec![Some(step); length],
            predicted_step_time_s: vec![Some(step * bias); length],
            even_step_time_s: vec![Some(even); length],
            lr_multiplier: vec![Some(1.0); length],
            loss: vec![None; length],
            workers: speeds.iter().zip(batches).enumerate().map(worker).collect(),
        }
    }

    /// Fast jobs report only some iterations. Each stands for those since the reported one before it.
    #[test]
    fn sums_are_over_all_iterations() {
        let mut history = history(&[100.0, 200.0], &[30, 30], 64, 1.0);
        history.iterations = (0..64).map(|at| 4 * at).collect();
        let summary = summarize(&history, &SummaryInputs::default(), 253);
        assert!((summary.time_lost_s.unwrap() - 0.075 * (1.0 + 63.0 * 4.0)).abs() < 1e-9, "{summary:?}");
        assert_eq!(summary.waiting_share, Some(0.25));
        // Of a long history, some iterations are read, which need not be evenly apart.
        history.every = 10;
        history.iterations = (0..64).map(|at| 10 * at + 7 * (at % 2)).collect();
        let lost_s = summarize(&history, &SummaryInputs::default(), 650).time_lost_s.unwrap();
        assert!((lost_s - 0.075 * (10.0 + 637.0)).abs() < 1e-9, "{lost_s}");
    }

    #[test]
    fn two_workers_with_speeds_in_proportion_to_their_batches_gain_one_half() {
        let summary = summarize(&history(&[100.0, 200.0], &[20, 40], 64, 1.3), &SummaryInputs::default(), 64);
        let gain = summary.gain.unwrap();
        assert!((gain.ratio - 1.5).abs() < 1e-9, "{gain:?}");
        assert!(gain.upper - gain.lower < 1e-9, "{gain:?}");
        assert_eq!(summary.waiting_share, Some(0.0));
        let slow: Vec<(&str, f64)> =
            summary.slow.iter().map(|slow| (slow.worker.as_str(), slow.speed_ratio)).collect();
        assert_eq!(slow, [("node/0", 0.5)]);
        assert_eq!(
            summary.lines[0],
            "64 iterations, gain 1.50x (90 % interval 1.50x to 1.50x): 1.50 times as fast as with even shares"
        );
        assert_eq!(summary.verdict, "A verdict.");
        assert_eq!(summary.lines[1], "workers waited 0.0 % of their time for the slowest one");
        assert!(summary.lines[2].starts_with("slowest: node/0, 0.50 times"), "{}", summary.lines[2]);
    }

    /// A worker with a fixed cost has a small share. In samples per second it seems many times slower.
    #[test]
    fn workers_are_compared_at_equal_work() {
        let time_s = |batch: u64| 0.1 + 0.001 * batch as f64;
        let mut curve = CurveLearner::new();
        for iteration in 0..200_u64 {
            let batch = 1 + iteration * 7 % 64;
            curve.observe(batch, time_s(batch) * (1.0 + 0.01 * (iteration % 3) as f64));
        }
        let mut history = history(&[1000.0 / 3.0; 4], &[33, 33, 33, 1], 64, 1.0);
        let fixed = &mut history.workers[3];
        fixed.compute_time_s = vec![Some(time_s(1)); 64];
        fixed.actual_samples_per_s = vec![Some(1.0 / time_s(1)); 64];
        let of = |curves| summarize(&history, &SummaryInputs { curves, ..SummaryInputs::default() }, 64).slow;
        assert!(of(BTreeMap::new())[0].speed_ratio < 0.05);
        let slow = of(BTreeMap::from([(WorkerId::new("node/3").unwrap(), curve)]));
        assert!(slow.len() == 1 && (0.55..0.65).contains(&slow[0].speed_ratio), "{slow:?}");
    }

    #[test]
    fn equal_workers_gain_nothing_and_the_summary_says_so() {
        let summary = summarize(&history(&[100.0; 4], &[8; 4], 64, 1.0), &SummaryInputs::default(), 64);
        assert_eq!(summary.gain.unwrap().ratio, 1.0);
        assert!(summary.lines[0].contains("not faster than with even shares"), "{}", summary.lines[0]);
        assert!(summary.slow.is_empty());
    }

    #[test]
    fn few_iterations_give_no_estimate() {
        assert_eq!(
            summarize(&history(&[1.0, 2.0], &[1, 2], 7, 1.0), &SummaryInputs::default(), 7).gain,
            None
        );
        assert_eq!(
            summarize(&history(&[1.0, 2.0], &[1, 2], 0, 1.0), &SummaryInputs::default(), 0).waiting_share,
            None
        );
    }

    proptest! {
        #[test]
        fn the_median_of_the_others_is_that_of_the_list_without_the_value(
            mut values in prop::collection::vec(1u32..50, 2..12), at in 0usize..12
        ) {
            let at = at % values.len();
            let own = f64::from(values[at]);
            let mut sorted: Vec<f64> = values.iter().copied().map(f64::from).collect();
            sorted.sort_by(f64::total_cmp);
            values.remove(at);
            values.sort_unstable();
            let n = values.len();
            let expected = f64::from(values[(n - 1) / 2] + values[n / 2]) / 2.0;
            prop_assert_eq!(median_without(&sorted, own), Some(expected));
        }

        /// Time lost by uneven shares of equal workers is a gain below 1 by the same factor.
        #[test]
        fn the_gain_is_the_ratio_of_the_step_times(slow in 1u64..30, fast in 1u64..30, speed in 1.0f64..100.0) {
            let gain = summarize(&history(&[speed, speed], &[slow, fast], 40, 1.0), &SummaryInputs::default(), 40).gain.unwrap();
            let expected = (slow + fast) as f64 / 2.0 / slow.max(fast) as f64;
            prop_assert!((gain.ratio - expected).abs() < 1e-9);
        }
    }
}
