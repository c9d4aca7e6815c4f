//! The sources of this machine, each on its own thread. Samples and requests share these threads, so a source
//! that hangs is read once, and the others are still read.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use evenstep_protocol::{GpuSample, driver};

use crate::boundary::OtherCpu;
#[cfg(feature = "gpu")]
use crate::source::gpu::Gpu;
use crate::source::host::Host;
use crate::source::process::Process;
use crate::source::readers::{ReaderKey, Readers};
use crate::source::thread::{SourceState, SourceThread};
use crate::{MissingReason, Reading};

/// Threads that read the machine, its processes and its GPUs.
#[derive(Debug)]
pub struct Sources {
    host: SourceThread<Hosts>,
    process: SourceThread<Processes>,
    #[cfg(feature = "gpu")]
    gpu: SourceThread<Vec<Gpu>>,
    /// CPU time of everything except the requested processes.
    others: Mutex<Readers<OtherCpu>>,
}

/// Readers of the machine: for samples, for requests without a process, and for requests of processes.
#[derive(Debug, Default)]
struct Hosts {
    sampled: Host,
    machine: Host,
    requested: Readers<Host>,
}

/// Readers of processes: for samples, and for requests.
#[derive(Debug, Default)]
struct Processes {
    sampled: BTreeMap<u32, Process>,
    requested: Readers<Process>,
}

/// A reading of the machine.
#[derive(Debug)]
pub(crate) struct HostReading {
    pub(crate) reading: Reading,
    /// Busy time of all cores together, in seconds since boot.
    pub(crate) busy_s: Option<f64>,
}

/// A reading of a process.
#[derive(Debug)]
pub(crate) struct ProcessReading {
    pub(crate) reading: Reading,
    /// CPU time of the process, in seconds.
    pub(crate) cpu_s: Option<f64>,
    /// Whether the process has ended or never existed.
    pub(crate) ended: bool,
}

impl HostReading {
    fn read(host: &mut Host, now: Instant) -> Self {
        let reading = host.read(now);
        Self { reading, busy_s: host.busy_s() }
    }

    fn gap(reason: &MissingReason) -> Self {
        Self { reading: Reading::gap(&Host::NAMES, reason), busy_s: None }
    }
}

impl ProcessReading {
    fn read(process: &mut Process, now: Instant) -> Self {
        let reading = process.read(now);
        Self { reading, cpu_s: process.cpu_s(), ended: process.has_ended() }
    }

    fn gap(reason: &MissingReason) -> Self {
        Self { reading: Reading::gap(&Process::NAMES, reason), cpu_s: None, ended: false }
    }
}

impl Sources {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            host: SourceThread::start("host", Hosts::default)?,
            process: SourceThread::start("process", Processes::default)?,
            #[cfg(feature = "gpu")]
            gpu: SourceThread::start("gpu", Gpu::all)?,
            others: Mutex::default(),
        })
    }

    /// Returns the state of each source.
    pub fn states(&self) -> Vec<SourceState> {
        vec![
            self.host.state(),
            self.process.state(),
            #[cfg(feature = "gpu")]
            self.gpu.state(),
        ]
    }

    /// Reads the machine for a sample.
    pub(crate) async fn sample_host(&self, now: Instant) -> HostReading {
        let read = self.host.read(move |hosts| HostReading::read(&mut hosts.sampled, now));
        read.await.unwrap_or_else(|gap| HostReading::gap(&gap))
    }

    /// Reads the watched processes for a sample. Forgets all others.
    pub(crate) async fn sample_processes(&self, pids: Vec<u32>, now: Instant) -> Vec<(u32, ProcessReading)> {
        let watched = pids.clone();
        let forget = move |processes: &mut Processes| {
            processes.sampled.retain(|pid, _| watched.contains(pid));
        };
        // If this times out, so do the readings below, and the next sample tries again.
        drop(self.process.read(forget).await);
        let mut readings = Vec::new();
        // One job per process, so that a request waits for at most one of them.
        for pid in pids {
            let read = move |processes: &mut Processes| {
                let process = processes.sampled.entry(pid).or_insert_with(|| Process::new(pid));
                ProcessReading::read(process, now)
            };
            let reading = self.process.read(read).await.unwrap_or_else(|gap| ProcessReading::gap(&gap));
            readings.push((pid, reading));
        }
        readings
    }

    /// Reads the GPU at a position in NVML's order for a sample; `None` after the last one.
    #[cfg(feature = "gpu")]
    pub(crate) async fn sample_gpu(&self, position: usize) -> Result<Option<GpuSample>, MissingReason> {
        self.gpu.read(move |gpus| gpus.get_mut(position).map(Gpu::read)).await
    }

    /// Returns that there is no GPU.
    #[cfg(not(feature = "gpu"))]
    pub(crate) async fn sample_gpu(&self, _position: usize) -> Result<Option<GpuSample>, MissingReason> {
        Ok(None)
    }

    /// Reads the machine for a request without a process.
    pub(crate) async fn request_host(&self, now: Instant) -> Reading {
        let read = self.host.read(move |hosts| hosts.machine.read(now));
        read.await.unwrap_or_else(|gap| Reading::gap(&Host::NAMES, &gap))
    }

    /// Reads a process, the machine and, if requested, a GPU for a request; `None` if the process does not
    /// exist.
    pub(crate) async fn request(&self, key: ReaderKey, now: Instant) -> Option<Reading> {
        let process = self.process.read(move |processes| processes.request(key, now));
        let process = process.await.unwrap_or_else(|gap| ProcessReading::gap(&gap));
        if process.ended {
            return None;
        }
        let host = self
            .host
            .read(move |hosts| hosts.requested.with(key, Host::new, |host| HostReading::read(host, now)));
        let (host, gpu) = tokio::join!(host, self.request_gpu(key.1));
        let host = host.unwrap_or_else(|gap| HostReading::gap(&gap));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let other = |other: &mut OtherCpu| other.read(now, host.busy_s, process.cpu_s);
        let other = others.with(key, OtherCpu::default, other);
        let mut reading = host.reading;
        reading.extend(process.reading);
        reading.put(driver::OTHER_CPU, other);
        reading.extend(gpu);
        Some(reading)
    }

    #[cfg(feature = "gpu")]
    async fn request_gpu(&self, index: Option<u32>) -> Reading {
        let Some(index) = index else { return Reading::default() };
        let read =
            move |gpus: &mut Vec<Gpu>| gpus.iter().find(|gpu| gpu.index() == index).map(Gpu::read_device);
        match self.gpu.read(read).await {
            Ok(Some(reading)) => reading,
            Ok(None) => Reading::gap(&Gpu::NAMES, &crate::boundary::no_gpu(index)),
            Err(gap) => Reading::gap(&Gpu::NAMES, &gap),
        }
    }

    #[cfg(not(feature = "gpu"))]
    async fn request_gpu(&self, index: Option<u32>) -> Reading {
        index.map_or_else(Reading::default, |_| crate::boundary::without_gpus())
    }
}

impl Processes {
    /// Reads the process of a request. A process that does not exist leaves no reader.
    fn request(&mut self, key: ReaderKey, now: Instant) -> ProcessReading {
        let known = self.requested.take(key);
        let is_known = known.is_some();
        let mut process = known.unwrap_or_else(|| Process::new(key.0));
        let mut reading = ProcessReading::read(&mut process, now);
        if is_known && reading.ended {
            // The known process has ended; a new process may have its id.
            process = Process::new(key.0);
            reading = ProcessReading::read(&mut process, now);
        }
        if !reading.ended {
            self.requested.put(key, process);
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_kept_between_requests_and_a_missing_process_leaves_none() {
        let mut processes = Processes::default();
        let key = (std::process::id(), None);
        assert_eq!(processes.request(key, Instant::now()).reading.window_s, None);
        assert!(processes.request(key, Instant::now()).reading.window_s.is_some());
        assert!(processes.request((u32::MAX - 1, None), Instant::now()).ended);
        assert!(processes.requested.take((u32::MAX - 1, None)).is_none());
        assert!(processes.requested.take(key).is_some());
    }
}
