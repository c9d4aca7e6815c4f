//! Metrics of one policy's iterations.

use std::collections::BTreeMap;

use evenstep_observability::metrics::prometheus::Histogram;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::{Family, collect, histogram};
use evenstep_protocol::JobId;

use crate::plan::Policy;
use crate::progress::stream::{Done, Event, Update};

/// Bucket bounds of step times, in seconds.
const STEPS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bucket bounds of round trips, in seconds.
const ROUND_TRIPS: [f64; 11] = [0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

#[derive(Debug)]
pub(super) struct PolicyMetrics {
    job_id: Option<JobId>,
    iterations: u64,
    samples: u64,
    missed: u64,
    regroups: u64,
    request_s: f64,
    compute_s: f64,
    barrier_wait_s: f64,
    loader_wait_s: f64,
    all_reduce_s: f64,
    generation: Option<u64>,
    steps: Histogram,
    round_trips: Histogram,
    latest: Option<Done>,
}

impl Default for PolicyMetrics {
    fn default() -> Self {
        let steps = "Time from the start of an iteration to the end of the optimizer step.";
        let round_trips = "Time of requests for an allocation, on the critical path or not.";
        Self {
            job_id: None,
            iterations: 0,
            samples: 0,
            missed: 0,
            regroups: 0,
            request_s: 0.0,
            compute_s: 0.0,
            barrier_wait_s: 0.0,
            loader_wait_s: 0.0,
            all_reduce_s: 0.0,
            generation: None,
            steps: histogram("evenstep_trainer_step_duration_seconds", steps, &STEPS),
            round_trips: histogram("evenstep_trainer_round_trip_duration_seconds", round_trips, &ROUND_TRIPS),
            latest: None,
        }
    }
}

impl PolicyMetrics {
    pub(super) fn count(&mut self, update: Update) {
        self.job_id = update.job_id;
        let done = match update.event {
            Event::Iteration(done) => done,
            Event::Regrouped => {
                self.regroups += 1;
                return;
            }
        };
        self.iterations += 1;
        self.samples += done.samples;
        self.missed += u64::from(done.generation.is_none());
        self.generation = done.generation.or(self.generation);
        self.request_s += done.request_s;
        self.compute_s += done.compute_s;
        self.barrier_wait_s += done.barrier_wait_s;
        self.loader_wait_s += done.loader_wait_s;
        self.all_reduce_s += done.all_reduce_s;
        self.steps.observe(done.step_time_s);
        done.round_trip_s.into_iter().for_each(|round_trip_s| self.round_trips.observe(round_trip_s));
        self.latest = Some(done);
    }
}

/// A metric of a policy as one number.
type Number = fn(Policy, &PolicyMetrics) -> Option<f64>;

fn latest(metrics: &PolicyMetrics, number: impl FnOnce(&Done) -> f64) -> Option<f64> {
    metrics.latest.as_ref().map(number)
}

const COUNTERS: [(&str, &str, Number); 9] = [
    ("evenstep_trainer_iterations_total", "Iterations done.", |_, metrics| Some(metrics.iterations as f64)),
    ("evenstep_trainer_samples_total", "Samples trained.", |_, metrics| Some(metrics.samples as f64)),
    (
        "evenstep_trainer_allocations_missed_total",
        "Iterations with an earlier allocation.",
        |policy, metrics| policy.requests_allocations().then_some(metrics.missed as f64),
    ),
    ("evenstep_trainer_regroups_total", "Number of times that the set of workers changed.", |_, metrics| {
        Some(metrics.regroups as f64)
    }),
    ("evenstep_trainer_request_seconds_total", "Time of allocation requests in steps.", |_, metrics| {
        Some(metrics.request_s)
    }),
    ("evenstep_trainer_compute_seconds_total", "Compute time of all workers.", |_, metrics| {
        Some(metrics.compute_s)
    }),
    ("evenstep_trainer_barrier_wait_seconds_total", "Barrier wait of all workers.", |_, metrics| {
        Some(metrics.barrier_wait_s)
    }),
    ("evenstep_trainer_loader_wait_seconds_total", "Wait for data of all workers.", |_, metrics| {
        Some(metrics.loader_wait_s)
    }),
    ("evenstep_trainer_all_reduce_seconds_total", "Time inside the all-reduce on rank 0.", |_, metrics| {
        Some(metrics.all_reduce_s)
    }),
];

const GAUGES: [(&str, &str, Number); 8] = [
    ("evenstep_trainer_iteration", "The latest iteration, from 0.", |_, metrics| {
        latest(metrics, |done| done.iteration as f64)
    }),
    ("evenstep_trainer_epoch", "Epoch, from 0.", |_, metrics| latest(metrics, |done| done.epoch as f64)),
    (
        "evenstep_trainer_throughput_samples_per_second",
        "Throughput of the latest iteration.",
        |_, metrics| latest(metrics, |done| done.samples as f64 / done.step_time_s),
    ),
    ("evenstep_trainer_global_batch_samples", "Samples in the latest iteration.", |_, metrics| {
        latest(metrics, |done| done.samples as f64)
    }),
    ("evenstep_trainer_workers", "Workers in the latest iteration.", |_, metrics| {
        latest(metrics, |done| done.workers as f64)
    }),
    ("evenstep_trainer_loss", "Mean loss of the latest iteration.", |_, metrics| {
        latest(metrics, |done| done.loss)
    }),
    (
        "evenstep_trainer_learning_rate_multiplier_ratio",
        "Multiplier of the learning rate in the latest iteration.",
        |_, metrics| latest(metrics, |done| done.lr_multiplier),
    ),
    ("evenstep_trainer_generation", "Generation of the latest plan.", |_, metrics| {
        metrics.generation.map(|generation| generation as f64)
    }),
];

pub(super) fn families(policies: &BTreeMap<Policy, PolicyMetrics>) -> Vec<MetricFamily> {
    let labels = |policy: Policy, metrics: &PolicyMetrics| {
        let job = metrics.job_id.as_ref().map(|job| ("job_id", job.to_string()));
        [("policy", policy.to_string())].into_iter().chain(job).collect::<Vec<_>>()
    };
    let mut families = Vec::new();
    for (name, help, number) in COUNTERS.iter().chain(&GAUGES) {
        let mut family =
            if name.ends_with("_total") { Family::counter(name, help) } else { Family::gauge(name, help) };
        for (policy, metrics) in policies {
            if let Some(number) = number(*policy, metrics) {
                let labels = labels(*policy, metrics);
                family.add(labels.iter().map(|(name, value)| (*name, value.as_str())), number);
            }
        }
        families.extend(family.done());
    }
    for (policy, metrics) in policies {
        let labels = labels(*policy, metrics);
        for histogram in
            [&metrics.steps, &metrics.round_trips].into_iter().filter(|all| all.get_sample_count() > 0)
        {
            let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
            collect(&mut families, histogram, labels);
        }
    }
    families
}
