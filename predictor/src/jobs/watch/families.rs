//! The metrics of jobs and their workers; docs/reference/metrics.md describes each.

use std::time::Duration;

use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::{Family, collect};
use evenstep_protocol::{JobId, StragglerReason};

use super::live::Live;
use super::seen::Seen;
use super::tally::Tally;
use crate::clock::Now;

/// Limit of workers with series, over all jobs, and of slow workers with series. The workers of further jobs only have
/// sums.
const WORKERS_MAX: usize = 1_000;

/// Declares metric families by name and help text.
macro_rules! families {
    ($($field:ident: $kind:ident $name:literal $help:literal,)*) => {
        /// The families of all jobs, filled job by job.
        #[derive(Debug)]
        pub struct JobFamilies {
            $($field: Family,)*
            step_times: Vec<MetricFamily>,
            workers_shown: usize,
            slow_shown: usize,
        }

        impl Default for JobFamilies {
            fn default() -> Self {
                Self {
                    $($field: Family::$kind($name, $help),)*
                    step_times: Vec::new(),
                    workers_shown: 0,
                    slow_shown: 0,
                }
            }
        }

        impl JobFamilies {
            /// Returns all families that have series.
            pub fn done(self) -> Vec<MetricFamily> {
                let mut all: Vec<MetricFamily> = [$(self.$field.done(),)*].into_iter().flatten().collect();
                all.extend(self.step_times);
                all
            }
        }
    };
}

families! {
    speed: gauge "evenstep_worker_speed_samples_per_second"
        "Measured speed in the latest reported iteration: batch units per second of compute time. evenstep_job_info has the unit.",
    predicted: gauge "evenstep_worker_predicted_speed_samples_per_second"
        "Predicted speed for the latest reported iteration, in batch units per second.",
    lower: gauge "evenstep_worker_predicted_speed_samples_per_second_lower"
        "Lower end of the 90 % interval of the predicted speed.",
    upper: gauge "evenstep_worker_predicted_speed_samples_per_second_upper"
        "Upper end of the 90 % interval of the predicted speed.",
    compute_time: gauge "evenstep_worker_compute_time_seconds"
        "Forward and backward time in the latest reported iteration.",
    predicted_compute_time: gauge "evenstep_worker_predicted_compute_time_seconds"
        "Predicted compute time for the latest reported iteration.",
    local_batch: gauge "evenstep_worker_local_batch_samples" "Local batch in the latest allocation, in the unit of the job.",
    slack: gauge "evenstep_worker_slack_seconds"
        "Expected wait for the slowest worker in the latest allocated iteration; only for jobs with background work.",
    background_budget: gauge "evenstep_worker_background_budget_seconds"
        "Time of background work that may delay the worker in the latest allocated iteration.",
    last_report: gauge "evenstep_worker_last_report_timestamp_seconds" "Time of the latest report of the worker.",
    expected_ratio: gauge "evenstep_worker_expected_speed_ratio"
        "Averaged speed over the usual speed: the best speed of the worker or, on a GPU, the median of the same device.",
    straggler_ratio: gauge "evenstep_worker_straggler_speed_ratio"
        "Speed over the usual speed of a worker that is slow for a long time, with the likely reason.",
    straggler_since: gauge "evenstep_worker_straggler_since_iteration" "First iteration in which this worker was slow.",
    info: gauge "evenstep_worker_info" "Device of the worker.",
    samples: counter "evenstep_worker_samples_total" "Batch units computed by the worker: samples, or the unit of evenstep_job_info.",
    compute: counter "evenstep_worker_compute_seconds_total" "Compute time of the worker.",
    barrier_wait: counter "evenstep_worker_barrier_wait_seconds_total"
        "Time that the worker waited for the slowest worker.",
    loader_wait: counter "evenstep_worker_loader_wait_seconds_total" "Time that the worker waited for its data.",
    forecasts: counter "evenstep_worker_forecasts_total" "Forecasts of the worker's speed that have a report.",
    forecast_error: counter "evenstep_worker_forecast_error_ratio_total"
        "Sum of |actual - predicted| / predicted speed over these forecasts.",
    membership_changes: counter "evenstep_worker_membership_changes_total" "Workers that joined, left, or whose lease expired.",
    job_info: gauge "evenstep_job_info" "Unit of the batches and speeds of the job.",
    state: gauge "evenstep_job_state" "Current state of the job: starting, running, paused, stalled, finished, failed or unreadable.",
    stragglers: gauge "evenstep_job_stragglers" "Workers that are slower than they were, or than others on the same kind of GPU.",
    workers: gauge "evenstep_job_workers" "Workers by state.",
    iteration: gauge "evenstep_job_iteration" "First iteration that was not requested yet.",
    global_batch: gauge "evenstep_job_global_batch_samples" "Global batch, in the unit of the job.",
    predicted_step: gauge "evenstep_job_predicted_step_time_seconds"
        "Predicted time of the slowest worker in the latest allocation.",
    tail: gauge "evenstep_job_tail_samples" "Shared tail of the latest allocation, in the unit of the job.",
    measured: counter "evenstep_job_measured_seconds_total"
        "Step time of the iterations for which the time with even shares can be estimated.",
    even: counter "evenstep_job_even_shares_seconds_total"
        "Estimated time of the same iterations with even shares.",
    stepped: counter "evenstep_job_step_seconds_total"
        "Step time of the iterations for which a worker reported its wait.",
    waited: counter "evenstep_job_waited_seconds_total"
        "Mean time that the workers waited for the slowest worker in these iterations.",
    learning_rate: gauge "evenstep_job_learning_rate_multiplier_ratio" "Multiplier of the learning rate.",
    reallocations: counter "evenstep_reallocations_total" "Allocations whose shares differ from the previous ones.",
    refitted: gauge "evenstep_model_last_refit_timestamp_seconds" "Time of the latest fit of networks of the job.",
}

/// The reason as in the API.
fn word(reason: StragglerReason) -> &'static str {
    match reason {
        StragglerReason::ThermalThrottling => "thermal_throttling",
        StragglerReason::CpuContention => "cpu_contention",
        StragglerReason::LoaderWait => "loader_wait",
        StragglerReason::MemoryPressure => "memory_pressure",
        StragglerReason::Unknown => "unknown",
    }
}

fn seconds(unix_ms: i64) -> f64 {
    Duration::from_millis(unix_ms.max(0).cast_unsigned()).as_secs_f64()
}

impl JobFamilies {
    /// Adds the series of a job. Jobs with few workers come first, so that wide ones do not take their series.
    pub fn add(&mut self, job_id: &JobId, live: &Live, now: Now) {
        let job = job_id.as_str();
        let guard = live.lock();
        let seen = &*guard;
        self.job(job, seen, now);
        if self.workers_shown + seen.workers.len() <= WORKERS_MAX {
            self.workers_shown += seen.workers.len();
            self.each_worker(job, seen);
        } else {
            self.totals(&[("job_id", job)], &seen.total);
        }
        if self.slow_shown + seen.slow.len() <= WORKERS_MAX {
            self.slow_shown += seen.slow.len();
            for (worker, straggler) in &seen.slow {
                let labels =
                    [("job_id", job), ("worker", worker.as_str()), ("reason", word(straggler.reason))];
                self.straggler_ratio.add(labels, straggler.speed_ratio);
                self.straggler_since.add(labels, straggler.since_iteration as f64);
            }
        }
        drop(guard);
        collect(&mut self.step_times, &live.step_times, [("job_id", job)]);
    }

    fn job(&mut self, job: &str, seen: &Seen, now: Now) {
        let of_job = [("job_id", job)];
        for (event, count) in seen.log.membership_changes() {
            self.membership_changes.add([("job_id", job), ("event", event)], *count as f64);
        }
        for (reason, count) in seen.log.reallocations() {
            self.reallocations.add([("job_id", job), ("reason", reason)], *count as f64);
        }
        if let Some(members) = &seen.members {
            self.workers.add([("job_id", job), ("state", "live")], members.live as f64);
            self.workers.add([("job_id", job), ("state", "departed")], members.departed as f64);
            self.global_batch.add(of_job, members.global_batch as f64);
            self.job_info.add([("job_id", job), ("unit", members.unit.as_str())], 1.0);
            self.state.add([("job_id", job), ("state", seen.status(now).state.word())], 1.0);
            self.stragglers.add(of_job, seen.slow.len() as f64);
            // From 0 on, so that the first iterations count in rates.
            self.measured.add(of_job, seen.sums.measured_s);
            self.even.add(of_job, seen.sums.even_s);
            self.stepped.add(of_job, seen.sums.stepped_s);
            self.waited.add(of_job, seen.sums.waited_s);
        }
        if let Some(at_unix_ms) = seen.refitted_unix_ms {
            self.refitted.add(of_job, seconds(at_unix_ms));
        }
        let Some(answer) = seen.steps.latest_answer() else { return };
        self.iteration.add(of_job, (seen.attempts.at(answer.iteration).iteration + 1) as f64);
        self.learning_rate.add(of_job, answer.optimizer.lr_multiplier);
        let tail: u64 = answer.tail.iter().flat_map(|tail| &tail.chunks).sum();
        self.tail.add(of_job, tail as f64);
        if let Some(step_time_s) = answer.decision.predicted_step_time_s {
            self.predicted_step.add(of_job, step_time_s);
        }
    }

    fn each_worker(&mut self, job: &str, seen: &Seen) {
        for (worker, tally) in &seen.workers {
            self.worker(job, worker.as_str(), tally);
        }
        for share in seen.steps.latest_answer().iter().flat_map(|answer| &answer.allocations) {
            // Workers that have left meanwhile are not shown.
            if seen.workers.contains_key(&share.worker) {
                let labels = [("job_id", job), ("worker", share.worker.as_str())];
                self.local_batch.add(labels, share.local_batch as f64);
                if let Some(background) = share.background {
                    self.slack.add(labels, background.slack_s);
                    self.background_budget.add(labels, background.budget_s);
                }
            }
        }
    }

    /// Adds the counters and the time of the latest report, of one worker or of a whole job.
    fn totals(&mut self, labels: &[(&str, &str)], tally: &Tally) {
        let counters = [
            (&mut self.samples, tally.samples as f64),
            (&mut self.compute, tally.compute_s),
            (&mut self.barrier_wait, tally.barrier_wait_s),
            (&mut self.loader_wait, tally.loader_wait_s),
            (&mut self.forecasts, tally.forecasts as f64),
            (&mut self.forecast_error, tally.forecast_error),
        ];
        // From 0 on, so that the first report counts in rates.
        for (family, value) in counters {
            family.add(labels.iter().copied(), value);
        }
        if let Some(latest) = tally.latest {
            self.last_report.add(labels.iter().copied(), seconds(latest.at_unix_ms));
        }
    }

    fn worker(&mut self, job: &str, worker: &str, tally: &Tally) {
        let labels = [("job_id", job), ("worker", worker)];
        self.info.add(
            [("job_id", job), ("worker", worker), ("device", tally.device.as_deref().unwrap_or(""))],
            1.0,
        );
        self.totals(&labels, tally);
        if let Some(ratio) = tally.expected_ratio {
            self.expected_ratio.add(labels, ratio);
        }
        let Some(latest) = tally.latest else { return };
        self.compute_time.add(labels, latest.done.compute_time_s);
        let known = [
            (&mut self.speed, latest.done.speed()),
            (&mut self.predicted, latest.predicted.speed),
            (&mut self.lower, latest.predicted.lower),
            (&mut self.upper, latest.predicted.upper),
            (&mut self.predicted_compute_time, latest.predicted.compute_time_s),
        ];
        for (family, value) in known {
            if let Some(value) = value {
                family.add(labels, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenstep_core::attempts::Attempts;
    use evenstep_observability::metrics::text;
    use evenstep_protocol::{WorkerId, WorkerReport};
    use proptest::prelude::*;

    use super::*;

    /// The sum over the series of a metric that have these labels.
    fn sum(text: &str, metric: &str, label: &str) -> f64 {
        let of_metric = |line: &&str| line.starts_with(&format!("{metric}{{")) && line.contains(label);
        text.lines().filter(of_metric).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    const NOW: Now = Now { unix_ms: 1_000, steady_ms: 1_000 };

    /// A job of workers that each computed 2 samples in 0.5 s.
    fn job(job: &str, width: usize) -> (JobId, Live) {
        let (job, live) = (JobId::new(job).unwrap(), Live::new(0));
        let worker = |rank: usize| WorkerId::new(format!("node/{rank}")).unwrap();
        live.lock().workers.extend((0..width).map(|rank| (worker(rank), Tally::default())));
        let report = |rank| {
            let report = serde_json::json!({
                "worker": worker(rank), "iteration": 0, "local_batch": 2, "compute_time_s": 0.5,
            });
            serde_json::from_value::<WorkerReport>(report).unwrap()
        };
        live.allocated(
            &job,
            &Attempts::default(),
            None,
            &(0..width).map(report).collect::<Vec<_>>(),
            &[],
            NOW,
        );
        (job, live)
    }

    fn shown(jobs: &[(JobId, Live)]) -> String {
        let mut families = JobFamilies::default();
        jobs.iter().for_each(|(job, live)| families.add(job, live, NOW));
        text(&families.done()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// The series of a job add up to its sum, however many workers have a series.
        #[test]
        fn sums_count_all_workers_and_few_have_series(widths in prop::collection::vec(1_usize..600, 1..8)) {
            let jobs: Vec<_> =
                widths.iter().enumerate().map(|(at, width)| job(&format!("job-{at}"), *width)).collect();
            let text = shown(&jobs);
            for (at, width) in widths.iter().enumerate() {
                let label = format!("job_id=\"job-{at}\"");
                let samples = sum(&text, "evenstep_worker_samples_total", &label);
                prop_assert_eq!(samples, 2.0 * *width as f64);
                prop_assert_eq!(sum(&text, "evenstep_worker_compute_seconds_total", &label), samples / 4.0);
                prop_assert!(sum(&text, "evenstep_worker_last_report_timestamp_seconds", &label) >= 1.0);
            }
            let series = text.matches("evenstep_worker_info{").count();
            prop_assert!(series <= WORKERS_MAX);
            if widths.iter().sum::<usize>() <= WORKERS_MAX {
                prop_assert_eq!(series, widths.iter().sum::<usize>(), "small installations have all series");
            }
        }
    }

    /// A sum that fell would count as a restart of the predictor, and its whole value as an increase.
    #[test]
    fn the_sum_of_a_job_does_not_fall_when_workers_leave() {
        let wide = [job("wide", WORKERS_MAX + 2)];
        let samples = || sum(&shown(&wide), "evenstep_worker_samples_total", "job_id=\"wide\"}");
        let before = samples();
        wide[0].1.lock().workers.pop_first();
        assert_eq!((before, samples()), (2.0 * (WORKERS_MAX + 2) as f64, before));
    }
}
