//! One worker process: claims repeatedly and prints the duration of each claim.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use evenstep_c10d::Store;
use evenstep_rules::CLAIM;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

use crate::Result;
use crate::measure::{CONNECT_TIMEOUT, KEY, PREFIX, Situation};

/// Mean time between two claims of a worker (exponential), except in the situation `AtOnce`.
const THINK_MEAN: Duration = Duration::from_millis(20);
/// Number of claims before the measurement.
const WARM_UP: usize = 20;
/// Maximum number of measured claims per worker; the worker then stops.
const CLAIMS_MAX: usize = 1 << 20;

/// Connects, prints `ready`, waits for a line on standard input, and claims. Then prints the total time and
/// the duration of each claim, one per line, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "simulates workers that compute between claims")]
pub fn run(situation: Situation, port: u16, rank: u32, run_time: Duration) -> Result<()> {
    let store = Store::connect("127.0.0.1", port, CONNECT_TIMEOUT)?.prefix(PREFIX)?;
    for _ in 0..WARM_UP {
        store.add(KEY, CLAIM)?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(rank));
    let mut took: Vec<Duration> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < run_time && took.len() < CLAIMS_MAX {
        if situation != Situation::AtOnce {
            let exponential: f64 = Exp1.sample(&mut random);
            std::thread::sleep(THINK_MEAN.mul_f64(exponential));
        }
        let asked = Instant::now();
        store.add(KEY, CLAIM)?;
        took.push(asked.elapsed());
    }
    let lasted = begun.elapsed();
    writeln!(out, "{}", lasted.as_nanos())?;
    let mut out = io::BufWriter::new(out);
    for time in took {
        writeln!(out, "{}", time.as_nanos())?;
    }
    Ok(out.flush()?)
}
