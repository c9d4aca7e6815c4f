//! The service under simulation, its database and its clock.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use evenstep_predictor::clock::{Clock, ManualClock};
use evenstep_predictor::jobs::Jobs;
use evenstep_store::{Address, Fate, Store};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::commits::Commits;

/// Scheduler turns without any movement after which nothing moves any more. Every task that can run gets a turn in each.
const QUIET_TURNS: u32 = 64;
/// A folder in memory, if the system has one. Synced commits are slow on disks, and a crash of the simulated service loses
/// no page of the system's cache.
const MEMORY: &str = "/dev/shm";

/// The service, and what outlives it.
pub struct World {
    folder: TempDir,
    clock: Clock,
    now: Arc<ManualClock>,
    /// Budget for the memory of jobs, in bytes.
    budget: u64,
    service: Option<Service>,
}

/// One life of the service.
struct Service {
    jobs: Arc<Jobs>,
    store: Store,
    commits: Arc<Commits>,
    writer: JoinHandle<()>,
}

impl World {
    /// A service with an empty database.
    pub async fn new() -> Self {
        Self::with_memory(u64::MAX).await
    }

    /// A service with an empty database and this budget for the memory of jobs, in bytes.
    pub async fn with_memory(budget: u64) -> Self {
        let memory = PathBuf::from(MEMORY);
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let (clock, now) = Clock::manual(1_000_000);
        let mut world = Self { folder, clock, now, budget, service: None };
        world.start().await;
        world
    }

    /// The job registry.
    pub fn jobs(&self) -> Arc<Jobs> {
        self.service().jobs.clone()
    }

    /// The store.
    pub fn store(&self) -> Store {
        self.service().store.clone()
    }

    pub fn commits(&self) -> &Commits {
        &self.service().commits
    }

    /// Advances the clock.
    pub fn advance(&self, ms: i64) {
        self.now.advance(ms);
    }

    fn service(&self) -> &Service {
        self.service.as_ref().expect("the service runs")
    }

    async fn start(&mut self) {
        let address: Address =
            format!("sqlite://{}/evenstep.db", self.folder.path().display()).parse().unwrap();
        let commits = Commits::new();
        let (store, writer) = Store::open_with_faults(&address, None, Some(commits.clone())).await.unwrap();
        let jobs = Arc::new(Jobs::new(store.clone(), self.clock.clone(), self.budget));
        self.service = Some(Service { jobs, store, commits, writer });
    }

    /// Ends the service as a crash does, and starts it again. The caller has aborted all requests.
    pub async fn crash(&mut self) {
        let Service { jobs, store, writer, commits } = self.service.take().expect("the service runs");
        writer.abort();
        let _ = writer.await;
        drop((jobs, commits));
        while store.reads_in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        drop(store);
        self.start().await;
    }

    /// Waits until nothing moves: every request has ended or waits for a commit, and no commit is running.
    pub async fn settle(&self) {
        let Service { store, commits, .. } = self.service();
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            tokio::task::yield_now().await;
            let moves = store.reads_in_flight() > 0 || commits.is_running();
            quiet = if moves { 0 } else { quiet + 1 };
        }
    }

    /// Runs a request to its end, with commits that proceed.
    pub async fn finish<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> T {
        let request = tokio::spawn(request);
        loop {
            self.settle().await;
            if self.commits().is_waiting() {
                self.commits().decide(Fate::Proceeds);
            } else {
                assert!(request.is_finished(), "the request waits, and no commit does");
                return request.await.unwrap();
            }
        }
    }
}
