//! The latest summary of all jobs, which all streams share.

use std::sync::Arc;
use std::time::Duration;

use evenstep_protocol::LiveView;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::jobs::{JobError, Jobs};

/// Interval at which the summary is read.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The latest summary. All clients share it, so the store is read once a second for any number of clients.
#[derive(Debug, Default)]
pub struct Feed(Mutex<Option<(Instant, u64, Arc<LiveView>)>>);

impl Feed {
    /// Returns the summary, at most one interval old, and its version. The version rises when anything but
    /// the time changed.
    pub async fn look(&self, jobs: &Jobs) -> Result<(u64, Arc<LiveView>), JobError> {
        let mut latest = self.0.lock().await;
        if let Some((at, number, view)) = &*latest
            && at.elapsed() < CHECK_INTERVAL
        {
            return Ok((*number, view.clone()));
        }
        let view = Arc::new(jobs.live().await?);
        let number = match &*latest {
            Some((_, number, before)) if (&before.jobs, &before.nodes) == (&view.jobs, &view.nodes) => {
                *number
            }
            Some((_, number, _)) => number + 1,
            None => 0,
        };
        *latest = Some((Instant::now(), number, view.clone()));
        Ok((number, view))
    }
}
