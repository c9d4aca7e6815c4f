//! Loads of jobs: how many run at once, on which threads, and their end when the service stops.

use evenstep_store::StoreError;
use tokio::sync::{Semaphore, watch};

use super::error::JobError;
use super::job::outcome;
use crate::long::apart;

/// Limit of loads at once. More wait. Each has the reports that it replays in memory.
const LOADS_MAX: usize = 4;
/// Limit of loads of wide jobs among them. Each uses all processors, so the first ones end earlier than they would together.
const WIDE_LOADS_MAX: usize = 1;
/// Number of workers from which on a job is wide.
const WIDE_WORKERS: u64 = 128;

/// The loads of all jobs.
#[derive(Debug)]
pub struct Loads {
    /// Room for loads of jobs that are not wide, and of those that are.
    room: [Semaphore; 2],
    stopped: watch::Sender<bool>,
}

impl Loads {
    /// No loads.
    pub fn new() -> Self {
        let room = [LOADS_MAX - WIDE_LOADS_MAX, WIDE_LOADS_MAX].map(Semaphore::new);
        Self { room, stopped: watch::Sender::new(false) }
    }

    /// Runs the load of a job with this number of workers as soon as there is room for it, on a separate thread: requests of
    /// other jobs share none with it.
    ///
    /// # Errors
    /// The load's error, or an error of the store if the loads were stopped.
    pub async fn run<T: Send + 'static>(
        &self,
        workers: u64,
        load: impl Future<Output = Result<T, JobError>> + Send + 'static,
    ) -> Result<T, JobError> {
        let [narrow, wide] = &self.room;
        let (mut waiting, mut running) = (self.stopped.subscribe(), self.stopped.subscribe());
        let _room = tokio::select! {
            room = if workers < WIDE_WORKERS { narrow } else { wide }.acquire() => room,
            _ = waiting.wait_for(|stopped| *stopped) => return Err(JobError::Store(StoreError::Closed)),
        };
        let load = async move {
            tokio::select! {
                loaded = load => loaded,
                _ = running.wait_for(|stopped| *stopped) => Err(JobError::Store(StoreError::Closed)),
            }
        };
        outcome(apart(load)).await
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
    async fn endless(loads: Arc<Loads>, workers: u64) -> Result<(), JobError> {
        loads.run(workers, pending()).await
    }

    #[tokio::test]
    async fn loads_are_bounded_and_end_with_the_service() {
        let loads = Arc::new(Loads::new());
        let free = |loads: &Loads| [0, 1].map(|kind: usize| loads.room[kind].available_permits());
        let mut running = Vec::from_iter(
            (0..WIDE_LOADS_MAX + 2).map(|_| tokio::spawn(endless(loads.clone(), WIDE_WORKERS))),
        );
        tokio::task::yield_now().await;
        assert_eq!(free(&loads), [LOADS_MAX - WIDE_LOADS_MAX, 0]);
        // No other job waits for wide ones.
        assert_eq!(loads.run(WIDE_WORKERS - 1, async { Ok(7) }).await.unwrap(), 7);
        running.extend((0..LOADS_MAX).map(|_| tokio::spawn(endless(loads.clone(), 8))));
        tokio::task::yield_now().await;
        assert_eq!(free(&loads), [0, 0]);
        loads.stop();
        running.push(tokio::spawn(endless(loads.clone(), 8)));
        for ended in running {
            assert!(matches!(ended.await.unwrap(), Err(JobError::Store(StoreError::Closed))));
        }
        assert_eq!(free(&loads), [LOADS_MAX - WIDE_LOADS_MAX, WIDE_LOADS_MAX]);
    }
}
