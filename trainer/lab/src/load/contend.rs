//! `contend`: a real competing load on one core that changes over time, as other tenants of a machine would
//! cause.

use std::hint;
use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use evenstep_trainer::launch::cores;

use super::clock::{clock_s, clock_seconds};
use super::law::{Load, LoadKind, THREADS_MAX};

/// Interval at which a fully busy thread checks for a new regime.
const REGIME_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Period of the duty cycle of a thread that is busy for a share of the time.
const DUTY_CYCLE: Duration = Duration::from_millis(10);

/// Arguments of `contend`.
#[derive(Debug, Args)]
pub struct ContendArgs {
    /// Core to load
    #[arg(long)]
    pub core: usize,
    /// Kind of change over time
    #[arg(long, value_enum, default_value_t = LoadKind::Regimes)]
    pub load: LoadKind,
    /// Seed of the random changes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Start of the load, in seconds on the machine's monotonic clock [default: now]
    #[arg(long, hide = true, value_parser = clock_seconds)]
    pub since: Option<f64>,
}

/// Loads a core until standard input closes.
///
/// # Errors
/// Fails if the process cannot be pinned to the core.
pub fn run(args: &ContendArgs) -> Result<()> {
    cores::pin(args.core)?;
    let since_s = args.since.unwrap_or_else(clock_s);
    let wanted = Arc::new((Mutex::new(0.0), Condvar::new()));
    for number in 0..THREADS_MAX {
        let wanted = Arc::clone(&wanted);
        thread::Builder::new()
            .spawn(move || run_busy_thread(number, &wanted))
            .context("starting a load thread")?;
    }
    let (closed, closing) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        drop(closed);
    });
    let mut until_s = since_s;
    for regime in (Load { kind: args.load, seed: args.seed }).regimes() {
        // Counted from the start of the load, so that a late wake-up shortens the next regime. The
        // load then follows its law without drift.
        until_s += regime.duration.as_secs_f64();
        let left = Duration::try_from_secs_f64(until_s - clock_s()).unwrap_or_default();
        if left.is_zero() {
            continue;
        }
        let (threads, changed) = &*wanted;
        *threads.lock().unwrap_or_else(PoisonError::into_inner) = regime.threads;
        changed.notify_all();
        match closing.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}

/// Keeps a core busy while more than `number` busy threads are wanted, and sleeps otherwise. If less than one
/// more thread is wanted, it is busy for that share of the time. Never returns.
fn run_busy_thread(number: usize, (wanted, changed): &(Mutex<f64>, Condvar)) {
    let share = |threads: f64| (threads - number as f64).clamp(0.0, 1.0);
    let lock = || wanted.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let guard = changed.wait_while(lock(), |threads| share(*threads) == 0.0);
        let share = share(*guard.unwrap_or_else(PoisonError::into_inner));
        let turn = if share < 1.0 { DUTY_CYCLE } else { REGIME_CHECK_INTERVAL };
        let (begun, busy) = (Instant::now(), turn.mul_f64(share));
        while begun.elapsed() < busy {
            hint::spin_loop();
        }
        let rest = turn.saturating_sub(begun.elapsed());
        if share < 1.0 && !rest.is_zero() {
            drop(changed.wait_timeout(lock(), rest).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
