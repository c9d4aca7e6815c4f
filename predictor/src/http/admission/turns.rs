//! Turns of allocation requests. Training gives up a request after 2 s, so a later response is of no use. A request that
//! waits too long for its turn is therefore rejected. The number of turns follows from their duration: it is halved when
//! one takes too long, and grows while requests wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Longest wait for a turn. With [`LATE`], it is below the time after which training gives up.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(300);
/// Length of the queue above which viewers are rejected.
const PASS_MAX: Duration = Duration::from_millis(100);
/// Time of a turn after which there are too many turns for this machine and store.
const LATE: Duration = Duration::from_millis(700);
/// Time of a turn below which the number of turns may grow fast.
const QUICK: Duration = Duration::from_millis(100);
/// Number of requests on time for each further turn, above [`QUICK`].
const GROWTH: u32 = 8;
/// Number of turns at first, and its bounds.
const TURNS_FIRST: usize = 64;
const TURNS_MIN: usize = 16;
const TURNS_MAX: usize = 512;

/// The turns of allocation requests.
#[derive(Debug)]
pub(super) struct Turns {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    /// Number of turns.
    turns: usize,
    /// Turns above this number that are still taken.
    surplus: usize,
    /// Time of the latest cut. Turns from before it do not count as late: they are why it was made.
    cut: Option<Instant>,
    /// Requests on time since the latest further turn.
    on_time: u32,
}

/// The request waited too long for its turn.
#[derive(Debug, PartialEq)]
pub(super) struct Late;

/// A turn to be handled. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    permit: Option<OwnedSemaphorePermit>,
    began: Instant,
}

impl Turns {
    pub fn new() -> Arc<Self> {
        let pace = Pace { turns: TURNS_FIRST, surplus: 0, cut: None, on_time: 0 };
        let free = Arc::new(Semaphore::new(TURNS_FIRST));
        Arc::new(Self { free, waiting: AtomicUsize::new(0), pace: Mutex::new(pace) })
    }

    /// Waits for a turn, at most [`WAIT_MAX`].
    pub async fn take(self: &Arc<Self>) -> Result<Turn, Late> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                acquire(&self.free, WAIT_MAX).await?
            }
        };
        Ok(Turn { turns: self.clone(), permit: Some(permit), began: Instant::now() })
    }

    /// Passes the queue without a turn, if that takes at most [`PASS_MAX`].
    pub async fn pass(&self) -> Result<(), Late> {
        acquire(&self.free, PASS_MAX).await.map(drop)
    }

    fn end(&self, permit: OwnedSemaphorePermit, began: Instant) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let took = began.elapsed();
        if took > LATE {
            if pace.cut.is_none_or(|cut| began >= cut) {
                let fewer = (pace.turns / 2).max(TURNS_MIN);
                pace.surplus += pace.turns - fewer;
                pace.surplus -= self.free.forget_permits(pace.surplus);
                (pace.turns, pace.cut, pace.on_time) = (fewer, Some(Instant::now()), 0);
            }
        } else if self.waiting.load(Ordering::Relaxed) > 0 && pace.turns < TURNS_MAX {
            pace.on_time += 1;
            if took < QUICK || pace.on_time >= GROWTH {
                (pace.turns, pace.on_time) = (pace.turns + 1, 0);
                if pace.surplus > 0 {
                    pace.surplus -= 1;
                } else {
                    self.free.add_permits(1);
                }
            }
        }
        pace.give_back(permit);
    }
}

impl Turn {
    /// Ends the turn without a judgement of its time.
    pub fn excuse(mut self) {
        if let Some(permit) = self.permit.take() {
            let mut pace = self.turns.pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.give_back(permit);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.turns.end(permit, self.began);
        }
    }
}

impl Pace {
    /// Makes the permit free again, or removes it if there are too many.
    fn give_back(&mut self, permit: OwnedSemaphorePermit) {
        if self.surplus > 0 {
            self.surplus -= 1;
            permit.forget();
        }
    }
}

/// Waits for a permit, at most `patience`.
async fn acquire(semaphore: &Arc<Semaphore>, patience: Duration) -> Result<OwnedSemaphorePermit, Late> {
    let acquired = tokio::time::timeout(patience, semaphore.clone().acquire_owned()).await;
    // The semaphore is never closed.
    acquired.map_err(|_| Late)?.map_err(|_| Late)
}

/// A request in the queue, also if it is dropped there.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// Time after which a client gives up, and number of clients. Each has at most one request.
    const PATIENCE: Duration = Duration::from_secs(2);
    const CLIENTS: usize = 1000;

    #[derive(Debug, Default, Clone, Copy)]
    struct Counts {
        answered: u64,
        rejected: u64,
        given_up: u64,
    }

    /// Lets clients send requests to a machine that handles one request in `work`, and finishes each request even if
    /// its client has given up. Counts what happens between these times.
    async fn overload(
        work: impl Fn(Duration) -> Duration + Send + 'static,
        from: Duration,
        until: Duration,
    ) -> Counts {
        let start = Instant::now();
        let (send, mut queue) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let machine = tokio::spawn(async move {
            while let Some(done) = queue.recv().await {
                tokio::time::sleep(work(start.elapsed())).await;
                let _ = done.send(());
            }
        });
        let turns = Turns::new();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (turns, send) = (turns.clone(), send.clone());
                tokio::spawn(async move {
                    let mut counts = Counts::default();
                    while start.elapsed() < until {
                        let handled = async {
                            let _turn = turns.take().await.map_err(|Late| ())?;
                            let (done, is_done) = oneshot::channel();
                            send.send(done).map_err(drop)?;
                            is_done.await.map_err(drop)
                        };
                        let ended = tokio::time::timeout(PATIENCE, handled).await;
                        let counted = u64::from(start.elapsed() >= from);
                        match ended {
                            Ok(Ok(())) => counts.answered += counted,
                            Ok(Err(())) => {
                                counts.rejected += counted;
                                tokio::time::sleep(Duration::from_secs(1)).await;
                            }
                            Err(_) => counts.given_up += counted,
                        }
                    }
                    counts
                })
            })
            .collect();
        let mut all = Counts::default();
        for client in clients {
            let Counts { answered, rejected, given_up } = client.await.unwrap();
            all.answered += answered;
            all.rejected += rejected;
            all.given_up += given_up;
        }
        machine.abort();
        all
    }

    /// The machine handles as many requests as it can, and hardly any of them too late.
    #[tokio::test(start_paused = true)]
    async fn an_overloaded_machine_answers_in_time_what_it_can() {
        for per_s in [20_u64, 50, 200, 500] {
            let (from, until) = (Duration::from_secs(20), Duration::from_secs(60));
            let counts = overload(move |_| Duration::from_millis(1000 / per_s), from, until).await;
            let able = per_s * 40;
            assert!(counts.answered >= able * 9 / 10, "{per_s}/s: {counts:?} of {able}");
            assert!(counts.given_up <= able / 50 && counts.rejected > 0, "{per_s}/s: {counts:?}");
        }
    }

    /// Viewers pass a short queue, and are rejected before training is.
    #[tokio::test(start_paused = true)]
    async fn viewers_are_rejected_while_training_waits() {
        let turns = Turns::new();
        let mut taken = Vec::new();
        for _ in 0..TURNS_FIRST {
            taken.push(turns.take().await.unwrap());
        }
        let training = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take().await.is_ok() }
        });
        assert!(turns.pass().await.is_err());
        taken.truncate(TURNS_FIRST - 2);
        assert!(turns.pass().await.is_ok());
        assert!(training.await.unwrap());
    }

    /// A machine that becomes ten times slower recovers from requests that are late.
    #[tokio::test(start_paused = true)]
    async fn a_machine_that_becomes_slow_is_in_time_again() {
        let work = |at: Duration| Duration::from_millis(if at < Duration::from_secs(20) { 2 } else { 20 });
        let counts = overload(work, Duration::from_secs(40), Duration::from_secs(60)).await;
        assert!(counts.answered >= 50 * 20 * 9 / 10 && counts.given_up <= 20, "{counts:?}");
    }
}
