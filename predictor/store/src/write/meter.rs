//! Metrics of the writer; docs/metrics.md says what each means.

use evenstep_observability::metrics::prometheus::{Histogram, IntCounterVec};
use evenstep_observability::metrics::{counters, histogram};

/// Durations of commits, in seconds.
const COMMITS_S: &[f64] =
    &[0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0];

/// What the writer counts.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    /// Groups of writes, from begin to durable, in seconds.
    pub commits: Histogram,
    /// Groups that failed.
    pub failures: IntCounterVec,
}

impl Meter {
    pub fn new() -> Self {
        let failures = counters("evenstep_store_commit_failures_total", "Groups of writes that failed.", &[]);
        // There from the beginning, so that a rate over it is 0 and not absent.
        failures.with_label_values::<&str>(&[]);
        Self {
            commits: histogram(
                "evenstep_store_commit_duration_seconds",
                "One group of writes, from begin to durable.",
                COMMITS_S,
            ),
            failures,
        }
    }
}
