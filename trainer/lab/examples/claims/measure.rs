//! Measures one situation: a store, worker processes, and the durations of their claims.

use std::hint;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use evenstep_c10d::Store;
use evenstep_trainer::launch::cores;
use evenstep_trainer::progress::statistics::quantile;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::Result;

/// Prefix of the counter in the store.
pub const PREFIX: &str = "claims";
/// Name of the counter.
pub const KEY: &str = "pool";
/// Timeout for workers to connect.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The behavior of workers between claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Situation {
    /// Workers pause for random times between claims.
    Calm,
    /// Like `Calm`, while a thread computes on every core.
    Busy,
    /// Workers claim again immediately.
    AtOnce,
}

impl Situation {
    /// All situations.
    pub const ALL: [Self; 3] = [Self::Calm, Self::Busy, Self::AtOnce];
}

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Behavior of the workers between claims.
    pub situation: Situation,
    /// Number of worker processes.
    pub workers: u32,
    /// Number of measured claims.
    pub claims: usize,
    /// Median duration of a claim, in milliseconds.
    pub claim_ms_p50: f64,
    /// 99th percentile of the duration of a claim, in milliseconds.
    pub claim_ms_p99: f64,
    /// Claims per second of all workers together.
    pub claims_per_s: f64,
    /// CPU time per claim of the process that hosts the store, in milliseconds. Absent in the situation
    /// `Busy`, in which this process also runs the busy threads.
    pub store_cpu_ms: Option<f64>,
}

/// Measures a situation.
pub fn measure(situation: Situation, workers: u32, run_time: Duration) -> Result<Figures> {
    let store = Store::host("127.0.0.1", 0, CONNECT_TIMEOUT)?;
    let processes: Vec<Worker> = (0..workers)
        .map(|rank| Worker::start(situation, store.port(), rank, run_time))
        .collect::<Result<_>>()?;
    let mut processes = processes.into_iter().map(Worker::ready).collect::<Result<Vec<_>>>()?;
    let busy = Busy::begin(if situation == Situation::Busy { cores::allowed()? } else { Vec::new() })?;
    let counter = store.prefix(PREFIX)?;
    let (before_s, before) = (cpu_s(), counter.add(KEY, 0)?);
    processes.iter_mut().try_for_each(Worker::go)?;
    let claiming_s = processes.iter_mut().map(Worker::claiming_s).collect::<Result<Vec<_>>>()?;
    let store_s = cpu_s() - before_s;
    drop(busy);
    let times_ms = processes.into_iter().map(Worker::times_ms).collect::<Result<Vec<_>>>()?;
    let claims: usize = times_ms.iter().map(Vec::len).sum();
    let counted = counter.add(KEY, 0)? - before;
    if usize::try_from(counted) != Ok(claims) {
        return Err(format!("the counter has {counted} claims, but the workers measured {claims}").into());
    }
    let claims_per_s = times_ms
        .iter()
        .zip(claiming_s)
        .map(|(times_ms, claiming_s)| times_ms.len() as f64 / claiming_s)
        .sum();
    let times_ms: Vec<f64> = times_ms.into_iter().flatten().collect();
    let (Some(claim_ms_p50), Some(claim_ms_p99)) = (quantile(&times_ms, 0.5), quantile(&times_ms, 0.99))
    else {
        return Err("no worker claimed within the measured time; raise --seconds".into());
    };
    let store_cpu_ms = (situation != Situation::Busy).then_some(store_s * 1e3 / claims as f64);
    Ok(Figures { situation, workers, claims, claim_ms_p50, claim_ms_p99, claims_per_s, store_cpu_ms })
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A worker process, which is killed when this value is dropped.
struct Worker {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Worker {
    fn start(situation: Situation, port: u16, rank: u32, run_time: Duration) -> Result<Self> {
        let name = situation.to_possible_value().ok_or("the situation has no name")?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg(format!("--situation={}", name.get_name()))
            .args([format!("--store={port}"), format!("--rank={rank}")])
            .arg(format!("--seconds={}", run_time.as_secs_f64()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("a worker has no output")?);
        Ok(Self { child, said })
    }

    /// Waits until the worker has connected to the store.
    fn ready(mut self) -> Result<Self> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line == "ready\n" { Ok(self) } else { Err("a worker ended before it was ready".into()) }
    }

    fn go(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or("a worker has no input")?;
        Ok(writeln!(input, "go")?)
    }

    /// Waits until the worker stops claiming. Returns the duration of its claiming, in seconds.
    fn claiming_s(&mut self) -> Result<f64> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim_end().parse::<f64>().map_err(|_| "a worker failed")? * 1e-9)
    }

    /// Returns the duration of each claim, in milliseconds.
    fn times_ms(mut self) -> Result<Vec<f64>> {
        let times = self.said.by_ref().lines().map(|line| Ok(line?.parse::<f64>()? * 1e-6)).collect();
        if self.child.wait()?.success() { times } else { Err("a worker failed".into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads that keep cores busy until this value is dropped, one per core.
struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn begin(cores: Vec<usize>) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let threads = cores.into_iter().map(|core| {
            let over = Arc::clone(&over);
            thread::Builder::new().spawn(move || {
                // If pinning fails, the thread keeps another core busy.
                let _ = cores::pin(core);
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            })
        });
        let threads = threads.collect::<std::io::Result<_>>()?;
        Ok(Self { over, threads })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
