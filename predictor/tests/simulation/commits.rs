//! Commits that wait for the scheduler.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use evenstep_store::{Fate, Faults};
use tokio::sync::oneshot;

/// The commits of one life of the service.
#[derive(Debug, Default)]
pub struct Commits {
    waiting: Mutex<Option<oneshot::Sender<Fate>>>,
    /// Whether a commit that was released has not ended.
    running: Mutex<bool>,
}

impl Commits {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether a commit waits for its fate.
    pub fn is_waiting(&self) -> bool {
        self.waiting.lock().unwrap().is_some()
    }

    pub fn is_running(&self) -> bool {
        *self.running.lock().unwrap()
    }

    /// Decides on the waiting commit.
    pub fn decide(&self, fate: Fate) {
        let waiting = self.waiting.lock().unwrap().take().expect("a commit waits");
        *self.running.lock().unwrap() = true;
        // The writer ends only with its service.
        waiting.send(fate).expect("the writer waits");
    }
}

impl Faults for Commits {
    fn begin(&self) -> Pin<Box<dyn Future<Output = Fate> + Send + '_>> {
        let (decide, decided) = oneshot::channel();
        *self.waiting.lock().unwrap() = Some(decide);
        Box::pin(async move { decided.await.unwrap_or(Fate::Fails) })
    }

    fn end(&self) {
        *self.running.lock().unwrap() = false;
    }
}
