//! Totals of a job, which are stored: a restart continues with them instead of reading the history of the job.

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::steps::Means;

/// Totals of the iterations of a job before iteration `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// The first iteration that is not included.
    pub until: u64,
    /// Time saved and time lost.
    pub account: Account,
    /// Means over the latest of the iterations; `None` without one.
    pub means: Option<Means>,
}

impl Totals {
    /// Totals without an iteration.
    pub fn none() -> Self {
        Self { until: 0, account: Account::default(), means: None }
    }

    /// Reads stored totals; `None` if they cannot be continued. The history of the job is read then.
    pub fn read(stored: &str) -> Option<Self> {
        serde_json::from_str(stored).ok().filter(|totals: &Self| totals.account.is_valid())
    }

    /// The totals for the store.
    pub fn write(&self) -> Option<String> {
        // Sums that are not finite have no JSON that could be read again.
        serde_json::to_string(self).ok().filter(|stored| Self::read(stored).is_some())
    }
}
