//! Loads of jobs: how many run at once, and their end when the service stops.

use evenstep_store::StoreError;
use tokio::sync::{Semaphore, watch};

use super::error::JobError;

/// Limit of loads at once. More wait. Each has the reports that it replays in memory.
const LOADS_MAX: usize = 4;

/// The loads of all jobs.
#[derive(Debug)]
pub struct Loads {
    room: Semaphore,
    stopped: watch::Sender<bool>,
}

impl Loads {
    /// No loads.
    pub fn new() -> Self {
        Self { room: Semaphore::new(LOADS_MAX), stopped: watch::Sender::new(false) }
    }

    /// Runs a load as soon as fewer than [`LOADS_MAX`] others run.
    ///
    /// # Errors
    /// The load's error, or an error of the store if the loads were stopped.
    pub async fn run<T>(&self, load: impl Future<Output = Result<T, JobError>>) -> Result<T, JobError> {
        let in_turn = async {
            let _room = self.room.acquire().await;
            load.await
        };
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            loaded = in_turn => loaded,
            _ = stopped.wait_for(|stopped| *stopped) => Err(JobError::Store(StoreError::Closed)),
        }
    }

    /// Ends all loads, now and later. A load only reads, so nothing is lost.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    /// A load without an end.
    async fn endless(loads: Arc<Loads>) -> Result<(), JobError> {
        loads.run(pending()).await
    }

    #[tokio::test]
    async fn loads_are_bounded_and_end_with_the_service() {
        let loads = Arc::new(Loads::new());
        let mut running = Vec::from_iter((1..LOADS_MAX).map(|_| tokio::spawn(endless(loads.clone()))));
        tokio::task::yield_now().await;
        // There is room for one more.
        assert_eq!(loads.run(async { Ok(7) }).await.unwrap(), 7);
        running.extend((0..2).map(|_| tokio::spawn(endless(loads.clone()))));
        tokio::task::yield_now().await;
        assert_eq!(loads.room.available_permits(), 0);
        loads.stop();
        running.push(tokio::spawn(endless(loads.clone())));
        for ended in running {
            assert!(matches!(ended.await.unwrap(), Err(JobError::Store(StoreError::Closed))));
        }
        assert_eq!(loads.room.available_permits(), LOADS_MAX);
    }
}
