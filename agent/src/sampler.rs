//! The sampler: reads every source once per sample, and counts missing readings.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use evenstep_protocol::{NodeSample, ProcessSample, driver};
use evenstep_sensors::Reading;
use evenstep_sensors::boundary::OtherCpu;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::source::demo::SyntheticMachine;
use crate::sources::{HostReading, ProcessReading, Sources};
use crate::watch::WatchList;

/// Takes samples of this machine or of a synthetic one.
pub struct Sampler {
    source: Source,
    missing: MissingCounts,
}

enum Source {
    Machine(Box<Machine>),
    SyntheticMachine { demo: Box<SyntheticMachine>, started: Instant },
}

struct Machine {
    sources: Arc<Sources>,
    /// Waits for the threads of the sources.
    runtime: Runtime,
    others: BTreeMap<u32, OtherCpu>,
}

impl Sampler {
    /// Creates a sampler of this machine.
    ///
    /// # Errors
    /// If the operating system cannot create the timer that waits for the sources.
    pub fn for_machine(sources: Arc<Sources>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let machine = Machine { sources, runtime, others: BTreeMap::new() };
        Ok(Self { source: Source::Machine(Box::new(machine)), missing: MissingCounts::default() })
    }

    /// Creates a sampler of synthetic readings.
    pub fn for_synthetic(seed: u64, started: Instant) -> Self {
        Self {
            source: Source::SyntheticMachine { demo: Box::new(SyntheticMachine::new(seed)), started },
            missing: MissingCounts::default(),
        }
    }

    /// Takes a sample. The readings of a synthetic machine are those of `now`. Removes processes that have ended from `watch`. Blocks until every source has responded
    /// or timed out.
    pub fn sample(&mut self, now: Instant, at_unix_ms: i64, watch: &mut WatchList) -> NodeSample {
        let sample = match &mut self.source {
            Source::Machine(machine) => machine.sample(at_unix_ms, watch),
            Source::SyntheticMachine { demo, started } => {
                demo.read(now.saturating_duration_since(*started), at_unix_ms)
            }
        };
        self.missing.count(&sample);
        sample
    }

    /// Returns the counts of missing readings.
    pub fn missing(&self) -> &MissingCounts {
        &self.missing
    }
}

impl Machine {
    fn sample(&mut self, at_unix_ms: i64, watch: &mut WatchList) -> NodeSample {
        let sources = &self.sources;
        let pids = watch.pids().collect();
        let (host, processes, gpus) = self.runtime.block_on(async {
            tokio::join!(sources.sample_host(), sources.sample_processes(pids), sources.sample_gpus())
        });
        for (pid, _) in processes.iter().filter(|(_, process)| process.ended) {
            tracing::info!(pid, "a watched process has ended");
            watch.remove(*pid);
        }
        let HostReading { reading: Reading { window_s, readings, mut missing }, busy } = host;
        let processes = processes.into_iter().map(|(pid, process)| {
            let ProcessReading { mut reading, cpu, .. } = process;
            let other = self.others.entry(pid).or_default();
            reading.put(driver::OTHER_CPU, other.read(busy, cpu));
            ProcessSample { pid, worker: None, readings: reading.readings, missing: reading.missing }
        });
        let processes = processes.collect();
        self.others.retain(|pid, _| watch.contains(*pid));
        let (gpus, gap) = gpus;
        if let Some(gap) = gap {
            missing.insert("gpus".to_owned(), gap.to_string());
        }
        NodeSample { at_unix_ms, window_s, synthetic: false, readings, missing, processes, gpus }
    }
}

/// Number of times that each reading was missing. Bounded by the number of readings that sources have.
#[derive(Debug, Clone, Default)]
pub struct MissingCounts {
    counts: BTreeMap<(&'static str, String), (u64, String)>,
}

/// A reading that was missing.
#[derive(Debug, Serialize)]
pub struct MissingCount {
    /// `host`, `process`, `gpu`, `gpu_instance` or `gpu_process`.
    pub source: &'static str,
    /// Name of the reading.
    pub name: String,
    /// Number of samples in which it was missing since the agent started.
    pub count: u64,
    /// Most recent reason.
    pub last_reason: String,
}

impl MissingCounts {
    fn count(&mut self, sample: &NodeSample) {
        self.add("host", &sample.missing);
        for process in &sample.processes {
            self.add("process", &process.missing);
        }
        for gpu in &sample.gpus {
            self.add("gpu", &gpu.missing);
            for instance in &gpu.instances {
                self.add("gpu_instance", &instance.missing);
            }
            for process in &gpu.processes {
                self.add("gpu_process", &process.missing);
            }
        }
    }

    fn add(&mut self, source: &'static str, missing: &BTreeMap<String, String>) {
        for (name, reason) in missing {
            let (count, last_reason) = self.counts.entry((source, name.clone())).or_default();
            *count += 1;
            last_reason.clone_from(reason);
        }
    }

    /// Returns all counts, by source and name.
    pub fn list(&self) -> Vec<MissingCount> {
        let entry = |((source, name), (count, last_reason)): (&(&'static str, String), &(u64, String))| {
            MissingCount { source, name: name.clone(), count: *count, last_reason: last_reason.clone() }
        };
        self.counts.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn missing_readings_are_counted_and_never_zero() {
        let mut sampler =
            Sampler::for_machine(Arc::new(Sources::start(Duration::from_secs(60)).unwrap())).unwrap();
        let mut watch = WatchList::new(vec![std::process::id()]);
        let start = Instant::now();
        let first = sampler.sample(start, 1, &mut watch);
        assert!(
            first.missing.contains_key(driver::CPU_BUSY) && !first.readings.contains_key(driver::CPU_BUSY)
        );
        let second = sampler.sample(start + Duration::from_secs(1), 2, &mut watch);
        assert_eq!(second.processes.len(), 1);
        assert!(second.processes[0].readings.contains_key(driver::OWN_CPU));
        let missing = sampler.missing().list();
        let own =
            missing.iter().find(|entry| (entry.source, entry.name.as_str()) == ("process", driver::OWN_CPU));
        assert_eq!(own.map(|entry| entry.count), Some(1));
    }

    #[test]
    fn a_missing_process_is_reported_once_and_then_no_longer_watched() {
        let mut sampler =
            Sampler::for_machine(Arc::new(Sources::start(Duration::from_secs(60)).unwrap())).unwrap();
        let mut watch = WatchList::new(vec![u32::MAX - 1]);
        let sample = sampler.sample(Instant::now(), 1, &mut watch);
        assert!(sample.processes[0].readings.is_empty() && !sample.processes[0].missing.is_empty());
        assert!(sampler.sample(Instant::now(), 2, &mut watch).processes.is_empty());
    }
}
