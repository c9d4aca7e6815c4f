//! A real competing load on one core, that changes over time: what other tenants of a machine do.

use std::hint;
use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cli::ContendArgs;
use crate::pin;

/// Busy threads that a core carries at most beside its worker.
const BURNERS_MAX: usize = 3;
/// Regimes last this long on average, and between these bounds.
const REGIME_MEAN_S: f64 = 3.0;
const REGIME_MIN_S: f64 = 0.75;
const REGIME_MAX_S: f64 = 9.0;
/// A burner looks this often whether its regime still lasts.
const SLICE: Duration = Duration::from_millis(2);

/// A stretch of time with a steady load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Regime {
    duration: Duration,
    burners: usize,
}

/// The load over time: half of the regimes are quiet, the others carry one to three busy threads.
fn regimes(seed: u64) -> impl Iterator<Item = Regime> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let burners = if random.random_bool(0.5) { random.random_range(1..=BURNERS_MAX) } else { 0 };
        let exponential = -REGIME_MEAN_S * (1.0 - random.random::<f64>()).ln();
        let duration = Duration::from_secs_f64(exponential.clamp(REGIME_MIN_S, REGIME_MAX_S));
        Regime { duration, burners }
    })
}

/// Loads a core until standard input closes.
///
/// # Errors
/// The core cannot be pinned to.
pub fn run(args: &ContendArgs) -> Result<()> {
    pin::to_core(args.core)?;
    let wanted = Arc::new((Mutex::new(0), Condvar::new()));
    for number in 0..BURNERS_MAX {
        let wanted = Arc::clone(&wanted);
        thread::Builder::new().spawn(move || burn(number, &wanted)).context("starting a burner")?;
    }
    let (closed, closing) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        drop(closed);
    });
    for regime in regimes(args.seed) {
        let (burners, changed) = &*wanted;
        *burners.lock().unwrap_or_else(PoisonError::into_inner) = regime.burners;
        changed.notify_all();
        match closing.recv_timeout(regime.duration) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}

/// Burns while at least `number + 1` burners are wanted, and sleeps otherwise. Ends with the process.
fn burn(number: usize, (burners, changed): &(Mutex<usize>, Condvar)) {
    loop {
        let guard = burners.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(guard, |burners| *burners <= number).unwrap_or_else(PoisonError::into_inner));
        let until = Instant::now() + SLICE;
        while Instant::now() < until {
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_the_time_is_loaded_and_regimes_are_bounded() {
        let all: Vec<Regime> = regimes(5).take(4000).collect();
        assert_eq!(all, regimes(5).take(4000).collect::<Vec<_>>());
        assert_ne!(all, regimes(6).take(4000).collect::<Vec<_>>());
        let seconds = |loaded: bool| -> f64 {
            all.iter()
                .filter(|regime| (regime.burners > 0) == loaded)
                .map(|regime| regime.duration.as_secs_f64())
                .sum()
        };
        let share = seconds(true) / (seconds(true) + seconds(false));
        assert!((share - 0.5).abs() < 0.05, "{share}");
        for regime in &all {
            assert!(regime.burners <= BURNERS_MAX);
            assert!((REGIME_MIN_S..=REGIME_MAX_S).contains(&regime.duration.as_secs_f64()));
        }
    }
}
