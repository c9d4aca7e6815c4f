//! The sources of this machine, each on its own thread. Samples and requests share these threads, so a source
//! that hangs is read once, and the others are still read.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenstep_protocol::{GpuSample, driver};
use evenstep_sensors::boundary::{CpuTime, OtherCpu};
use evenstep_sensors::host::Host;
use evenstep_sensors::process::Process;
use evenstep_sensors::{GpuId, MissingReason, Reading};

use crate::source::gpu::search::Gpus;
use crate::source::readers::{ReaderKey, Readers};
use crate::source::thread::{READING_MAX, SourceState, SourceThread};

/// Threads that read the machine, its processes and its GPUs.
#[derive(Debug)]
pub struct Sources {
    host: SourceThread<Hosts>,
    /// The readers of samples, by process id.
    process: SourceThread<BTreeMap<u32, Process>>,
    gpus: Gpus,
    clients: Mutex<Readers<Client>>,
}

/// Readers of the machine: for samples, and for requests without a process.
#[derive(Debug, Default)]
struct Hosts {
    sampled: Host,
    requested: Host,
}

/// Readers for the requests of a process. They are replaced together, so that no window begins before the
/// process.
#[derive(Debug)]
struct Client {
    process: Process,
    host: Host,
    other: OtherCpu,
}

/// A reading by the readers of a client.
struct ClientReading {
    reading: Reading,
    /// Whether the process has ended or never existed.
    ended: bool,
    /// `None` if the process could not be read.
    client: Option<Client>,
}

/// A reading for the request of a process.
#[derive(Debug)]
pub(crate) struct RequestedReading {
    pub(crate) reading: Reading,
    /// Whether the process is known to exist, because its source has responded.
    pub(crate) has_process: bool,
    /// The requested GPU, without its readings.
    pub(crate) gpu: Option<GpuSample>,
}

/// A reading of the machine.
#[derive(Debug)]
pub(crate) struct HostReading {
    pub(crate) reading: Reading,
    /// Busy time of all cores together since boot.
    pub(crate) busy: Option<CpuTime>,
}

/// A reading of a process.
#[derive(Debug)]
pub(crate) struct ProcessReading {
    pub(crate) reading: Reading,
    /// CPU time of the process.
    pub(crate) cpu: Option<CpuTime>,
    /// Whether the process has ended or never existed.
    pub(crate) ended: bool,
}

impl HostReading {
    /// Takes the time next to the counters, because the reading may have waited for others.
    fn read(host: &mut Host) -> Self {
        let now = Instant::now();
        let reading = host.read(now);
        Self { reading, busy: host.busy_s().map(|busy_s| (now, busy_s)) }
    }

    fn gap(reason: &MissingReason) -> Self {
        Self { reading: Reading::gap(&Host::NAMES, reason), busy: None }
    }
}

impl ProcessReading {
    /// Takes the time next to the counters, because the reading may have waited for others.
    fn read(process: &mut Process) -> Self {
        let now = Instant::now();
        let reading = process.read(now);
        Self { reading, cpu: process.cpu_s().map(|cpu_s| (now, cpu_s)), ended: process.has_ended() }
    }

    fn gap(reason: &MissingReason) -> Self {
        Self { reading: Reading::gap(&Process::NAMES, reason), cpu: None, ended: false }
    }
}

impl Sources {
    /// Starts the threads. GPUs are searched for every `search_every`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(search_every: Duration) -> io::Result<Self> {
        Ok(Self {
            host: SourceThread::start("host", |_| Hosts::default())?,
            process: SourceThread::start("process", |_| BTreeMap::default())?,
            gpus: Gpus::start(search_every)?,
            clients: Mutex::default(),
        })
    }

    /// Returns the state of each source.
    pub fn states(&self) -> Vec<SourceState> {
        let mut states = vec![self.host.state(), self.process.state()];
        states.extend(self.gpus.states());
        states
    }

    /// Reads the machine for a sample.
    pub(crate) async fn sample_host(&self) -> HostReading {
        let read = self.host.sample(|hosts| HostReading::read(&mut hosts.sampled));
        read.await.unwrap_or_else(|gap| HostReading::gap(&gap))
    }

    /// Reads the watched processes for a sample. Forgets all others.
    pub(crate) async fn sample_processes(&self, pids: Vec<u32>) -> Vec<(u32, ProcessReading)> {
        let watched = pids.clone();
        let forget = move |processes: &mut BTreeMap<u32, Process>| {
            processes.retain(|pid, _| watched.contains(pid));
        };
        // If this times out, so do the readings below, and the next sample tries again.
        drop(self.process.sample(forget).await);
        let mut readings = Vec::new();
        // One job per process, so that a request waits for at most one of them.
        for pid in pids {
            let read = move |processes: &mut BTreeMap<u32, Process>| {
                let reading = ProcessReading::read(processes.entry(pid).or_insert_with(|| Process::new(pid)));
                if reading.ended {
                    // Another process may get the same id before the next sample.
                    processes.remove(&pid);
                }
                reading
            };
            let reading = self.process.sample(read).await.unwrap_or_else(|gap| ProcessReading::gap(&gap));
            readings.push((pid, reading));
        }
        readings
    }

    /// Reads all GPUs for a sample. Also returns why GPUs may be missing.
    pub(crate) async fn sample_gpus(&self) -> (Vec<GpuSample>, Option<MissingReason>) {
        self.gpus.sample().await
    }

    /// Reads the machine and, if requested, a GPU for a request without a process.
    pub(crate) async fn request_host(&self, gpu: Option<GpuId>) -> (Reading, Option<GpuSample>) {
        let due = Instant::now() + READING_MAX;
        let read = self.host.request(due, |hosts| hosts.requested.read(Instant::now()));
        let (read, (gpu_reading, gpu)) = tokio::join!(read, self.request_gpu(gpu, due));
        let mut reading = read.unwrap_or_else(|gap| Reading::gap(&Host::NAMES, &gap));
        reading.extend(gpu_reading);
        (reading, gpu)
    }

    /// Reads a process, the machine and, if requested, a GPU for a request; `None` if the process does not
    /// exist.
    pub(crate) async fn request(&self, key: ReaderKey) -> Option<RequestedReading> {
        let due = Instant::now() + READING_MAX;
        let gpu = key.1.clone();
        let (read, (gpu_reading, gpu)) =
            tokio::join!(self.request_process(&key, due), self.request_gpu(gpu, due));
        let ClientReading { mut reading, ended, client } = read;
        if ended {
            return None;
        }
        let has_process = client.is_some();
        if let Some(client) = client {
            self.clients().put(key, client);
        }
        reading.extend(gpu_reading);
        Some(RequestedReading { reading, has_process, gpu })
    }

    async fn request_process(&self, key: &ReaderKey, due: Instant) -> ClientReading {
        let known = self.clients().take(key);
        if let Some(client) = known {
            let read = self.read_client(client, due).await;
            if !read.ended {
                return read;
            }
            // The known process has ended; a new process may have its id.
        }
        self.read_client(Client::new(key.0), due).await
    }

    /// Reads the process and the machine at the same time. The readers move to the threads and back, so a reader
    /// that does not return in time is dropped.
    async fn read_client(&self, client: Client, due: Instant) -> ClientReading {
        let Client { mut process, mut host, mut other } = client;
        let process = self.process.request(due, move |_| {
            let reading = ProcessReading::read(&mut process);
            (reading, process)
        });
        let host = self.host.request(due, move |_| {
            let reading = HostReading::read(&mut host);
            (reading, host)
        });
        let (process, host) = tokio::join!(process, host);
        let (host, host_reader) = host.unwrap_or_else(|gap| (HostReading::gap(&gap), Host::new()));
        let (process, process_reader) = match process {
            Ok((reading, process)) => (reading, Some(process)),
            Err(gap) => (ProcessReading::gap(&gap), None),
        };
        let other_cpu = other.read(host.busy, process.cpu);
        let mut reading = host.reading;
        reading.extend(process.reading);
        reading.put(driver::OTHER_CPU, other_cpu);
        let client = process_reader.map(|process| Client { process, host: host_reader, other });
        ClientReading { reading, ended: process.ended, client }
    }

    fn clients(&self) -> MutexGuard<'_, Readers<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn request_gpu(&self, id: Option<GpuId>, due: Instant) -> (Reading, Option<GpuSample>) {
        match id {
            Some(id) => self.gpus.request(id, due).await,
            None => (Reading::default(), None),
        }
    }
}

impl Client {
    fn new(pid: u32) -> Self {
        Self { process: Process::new(pid), host: Host::new(), other: OtherCpu::default() }
    }
}

#[cfg(test)]
mod tests;
