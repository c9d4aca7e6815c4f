//! Metrics of the launcher's run; `docs/reference/metrics.md` lists the names.

mod policy;
mod serve;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenstep_observability::Gather;
use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;

use crate::plan::Policy;
use crate::progress::stream::Update;
use policy::PolicyMetrics;
pub use serve::Exposition;

/// Maximum length of a line of the metrics stream, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Metrics of the run.
#[derive(Debug, Default)]
pub struct RunMetrics(Mutex<MetricsState>);

#[derive(Debug, Default)]
struct MetricsState {
    processes: Processes,
    restarts: u64,
    restarts_left: Option<u64>,
    updates_lost: u64,
    /// Metrics by policy. A run has a few policies with one job each.
    policies: BTreeMap<Policy, PolicyMetrics>,
}

/// Worker processes by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Processes {
    /// Number of running workers.
    pub running: usize,
    /// Number of workers that wait for a restart.
    pub waiting: usize,
    /// Number of ended workers.
    pub ended: usize,
}

impl RunMetrics {
    /// Sets the states of the worker processes.
    pub fn set_processes(&self, processes: Processes) {
        self.lock().processes = processes;
    }

    /// Sets the number of restarts that are left.
    pub fn set_restarts_left(&self, left: u64) {
        self.lock().restarts_left = Some(left);
    }

    /// Counts the restart of a worker.
    pub fn restarted(&self) {
        let mut known = self.lock();
        known.restarts += 1;
        known.restarts_left = known.restarts_left.map(|left| left.saturating_sub(1));
    }

    /// Reads the metrics stream of rank 0, whichever worker that is, until all workers and the launcher have
    /// closed it.
    pub fn listen(&self, from: UnixStream) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => self.read_line(&line),
            }
        }
    }

    fn read_line(&self, line: &[u8]) {
        let mut known = self.lock();
        match serde_json::from_slice::<Update>(line) {
            Ok(update) => {
                known.updates_lost += update.lost;
                known.policies.entry(update.policy).or_default().count(update);
            }
            // A worker that was killed while it wrote a line leaves a partial line.
            Err(_) => known.updates_lost += 1,
        }
    }

    /// Returns the function that gathers the metrics.
    pub fn gather(self: Arc<Self>) -> Gather {
        Arc::new(move || self.families())
    }

    fn families(&self) -> Vec<MetricFamily> {
        let known = self.lock();
        let mut info = Family::gauge("evenstep_launcher_info", "Version of the launcher.");
        info.add([("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let Processes { running, waiting, ended } = known.processes;
        let mut workers = Family::gauge("evenstep_launcher_workers", "Worker processes by state.");
        for (state, count) in [("running", running), ("waiting", waiting), ("ended", ended)] {
            workers.add([("state", state)], count as f64);
        }
        let mut restarts = Family::counter("evenstep_launcher_restarts_total", "Number of worker restarts.");
        restarts.add([], known.restarts as f64);
        let mut left = Family::gauge("evenstep_launcher_restarts_left", "Number of restarts left.");
        known.restarts_left.into_iter().for_each(|count| left.add([], count as f64));
        let mut lost = Family::counter(
            "evenstep_launcher_iterations_lost_total",
            "Iterations that rank 0 could not report.",
        );
        lost.add([], known.updates_lost as f64);
        let mut families: Vec<_> =
            [info, workers, restarts, left, lost].into_iter().filter_map(Family::done).collect();
        families.extend(policy::families(&known.policies));
        families.sort_by(|one, other| one.name().cmp(other.name()));
        families
    }

    fn lock(&self) -> MutexGuard<'_, MetricsState> {
        // The values are counters: a panic elsewhere leaves each of them valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use evenstep_observability::metrics::text;
    use evenstep_protocol::JobId;

    use super::*;
    use crate::progress::stream::{Done, Event};

    /// Documentation of the names.
    const NAMES: &str = include_str!("../../../../docs/reference/metrics.md");

    fn done(iteration: u64) -> Event {
        Event::Iteration(Done {
            iteration,
            epoch: 0,
            samples: 64,
            workers: 2,
            step_time_s: 0.25,
            request_s: 0.001,
            round_trip_s: Some(0.002),
            generation: (iteration > 0).then_some(3),
            compute_s: 0.4,
            barrier_wait_s: 0.1,
            loader_wait_s: 0.0,
            all_reduce_s: 0.01,
            loss: 1.5,
            lr_multiplier: 1.0,
        })
    }

    #[test]
    fn the_progress_of_rank_0_is_counted() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let job_id = Some(JobId::new("run").unwrap());
        for iteration in 0..3 {
            let policy = Policy::Evenstep;
            let update = Update { policy, job_id: job_id.clone(), lost: iteration, event: done(iteration) };
            theirs.write_all(&serde_json::to_vec(&update).unwrap()).unwrap();
            theirs.write_all(b"\n").unwrap();
        }
        let even = Update { policy: Policy::Even, job_id: None, lost: 0, event: done(0) };
        theirs.write_all(&serde_json::to_vec(&even).unwrap()).unwrap();
        theirs.write_all(b"\n{\"torn").unwrap();
        drop(theirs);
        let metrics = Arc::new(RunMetrics::default());
        metrics.set_restarts_left(10);
        metrics.restarted();
        metrics.set_processes(Processes { running: 2, waiting: 1, ended: 0 });
        metrics.listen(ours);
        let text = text(&metrics.gather()()).unwrap();
        for series in [
            "evenstep_launcher_workers{state=\"running\"} 2",
            "evenstep_launcher_restarts_total 1",
            "evenstep_launcher_restarts_left 9",
            "evenstep_launcher_iterations_lost_total 4",
            "evenstep_trainer_iterations_total{policy=\"even\"} 1",
            "evenstep_trainer_iterations_total{policy=\"evenstep\",job_id=\"run\"} 3",
            "evenstep_trainer_samples_total{policy=\"evenstep\",job_id=\"run\"} 192",
            "evenstep_trainer_allocations_missed_total{policy=\"evenstep\",job_id=\"run\"} 1",
            "evenstep_trainer_throughput_samples_per_second{policy=\"evenstep\",job_id=\"run\"} 256",
            "evenstep_trainer_step_duration_seconds_bucket{policy=\"evenstep\",job_id=\"run\",le=\"0.25\"} 3",
            "evenstep_trainer_generation{policy=\"evenstep\",job_id=\"run\"} 3",
        ] {
            assert!(text.lines().any(|line| line == series), "{series} in\n{text}");
        }
        assert!(
            !text.contains("missed_total{policy=\"even\"}"),
            "a policy without requests misses none:\n{text}"
        );
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap();
            assert!(NAMES.contains(&format!("`{name}`")), "{name} is not in docs/reference/metrics.md");
        }
    }
}
