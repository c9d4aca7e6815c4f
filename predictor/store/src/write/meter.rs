//! Metrics of the writer; see docs/reference/metrics.md.

use evenstep_observability::metrics::prometheus::{Histogram, IntCounterVec};
use evenstep_observability::metrics::{counters, histogram};

/// Histogram buckets of commit durations, in seconds.
const COMMITS_S: &[f64] =
    &[0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0];

/// Metrics of the writer.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    /// Duration of commits, in seconds.
    pub commits: Histogram,
    /// Number of failed commits.
    pub failures: IntCounterVec,
}

impl Meter {
    pub fn new() -> Self {
        let failures =
            counters("evenstep_store_commit_failures_total", "Failed commits of groups of writes.", &[]);
        // Initialized to 0, so that a rate is 0 rather than absent before the first failure.
        failures.with_label_values::<&str>(&[]);
        Self {
            commits: histogram(
                "evenstep_store_commit_duration_seconds",
                "Duration of the commit of a group of writes, until it is durable.",
                COMMITS_S,
            ),
            failures,
        }
    }
}
