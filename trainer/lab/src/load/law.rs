//! Laws of competing loads: the number of busy threads on a worker's core over time.
//!
//! A law and a seed determine the load as a function of the time since its start. Other processes can
//! therefore compute the load at any time from the start, without communication.

use std::collections::VecDeque;
use std::fmt;
use std::iter;
use std::time::Duration;

use clap::ValueEnum;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardNormal};
use serde::{Deserialize, Serialize};

/// Maximum number of busy threads on a core in addition to its worker.
pub const THREADS_MAX: usize = 3;
/// Mean duration of a regime, and its bounds.
const REGIME_MEAN_S: f64 = 3.0;
const REGIME_MIN_S: f64 = 0.75;
const REGIME_MAX_S: f64 = 9.0;
/// Mean time between bursts, and their mean duration.
const BURST_EVERY_S: f64 = 2.0;
const BURST_MEAN_S: f64 = 1.5;
/// Bounds of the period of a square wave.
const PERIOD_MIN_S: f64 = 4.0;
const PERIOD_MAX_S: f64 = 10.0;
/// Time between two steps of a random walk, and the standard deviation of its change in one second, in
/// threads.
const WALK_STEP_S: f64 = 0.25;
const WALK_SPREAD: f64 = 0.5;
/// Duration of the repeated regime of a steady load.
const STEADY_REGIME_S: f64 = 60.0;
/// Maximum number of regimes considered for one piece of work. Work remaining after them counts as
/// unloaded.
const REGIMES_AHEAD_MAX: usize = 1 << 16;

/// The laws: how a load changes over time. All times are wall-clock times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Regimes of 3 s on average (exponential, clamped to 0.75 to 9 s): half of them idle, the others
    /// with one to three busy threads, equally likely
    Regimes,
    /// Constantly one to three busy threads; the number is drawn once
    Steady,
    /// Bursts of one busy thread each: a Poisson process, one every 2 s on average, each 1.5 s long on
    /// average (exponential), at most three at a time
    Bursty,
    /// A square wave: half of the period idle, half with one to three busy threads. Their number, the
    /// period (4 to 10 s) and the phase are drawn once
    Periodic,
    /// A random walk between 0 and 3 threads, reflected at both bounds: a normal step every 0.25 s, with
    /// a standard deviation of 0.5 threads in one second. A fraction of a thread is busy for that share
    /// of every 10 ms
    Walk,
}

impl fmt::Display for LoadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regimes => "regimes",
            Self::Steady => "steady",
            Self::Bursty => "bursty",
            Self::Periodic => "periodic",
            Self::Walk => "walk",
        })
    }
}

/// A law of a load and its random seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The law.
    pub kind: LoadKind,
    /// Seed of the random generator.
    pub seed: u64,
}

/// A period with a constant load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regime {
    /// Duration of the regime.
    pub duration: Duration,
    /// Number of busy threads. A fraction of a thread is busy for that share of the time.
    pub threads: f64,
}

impl Load {
    /// Returns the load on the core of one worker of a run. Seeds differ between workers and between run
    /// seeds, so that the loads are independent.
    pub fn for_worker(rank: usize, kind: LoadKind, run_seed: u64) -> Self {
        Self { kind, seed: run_seed.wrapping_mul(1000).wrapping_add(rank as u64) }
    }

    /// Returns the regimes of the load from its start. The iterator never ends.
    pub fn regimes(self) -> Box<dyn Iterator<Item = Regime>> {
        let random = ChaCha8Rng::seed_from_u64(self.seed);
        match self.kind {
            LoadKind::Regimes => Box::new(regimes(random)),
            LoadKind::Steady => Box::new(steady(random)),
            LoadKind::Bursty => Box::new(bursts(random)),
            LoadKind::Periodic => Box::new(square_wave(random)),
            LoadKind::Walk => Box::new(walk(random)),
        }
    }
}

fn regime(seconds: f64, threads: f64) -> Regime {
    Regime { duration: Duration::from_secs_f64(seconds), threads }
}

fn random_threads(random: &mut impl Rng) -> f64 {
    random.random_range(1..=THREADS_MAX) as f64
}

fn regimes(mut random: ChaCha8Rng) -> impl Iterator<Item = Regime> {
    iter::repeat_with(move || {
        let threads = if random.random_bool(0.5) { random_threads(&mut random) } else { 0.0 };
        let exponential = -REGIME_MEAN_S * (1.0 - random.random::<f64>()).ln();
        regime(exponential.clamp(REGIME_MIN_S, REGIME_MAX_S), threads)
    })
}

fn steady(mut random: ChaCha8Rng) -> impl Iterator<Item = Regime> {
    iter::repeat(regime(STEADY_REGIME_S, random_threads(&mut random)))
}

/// Overlapping bursts as a birth-death chain.
///
/// From n bursts, the number increases at rate `1 / every` (if n < max) and decreases at rate `n / mean`. The
/// time to the next change is exponential with the sum of both rates.
fn bursts(mut random: ChaCha8Rng) -> impl Iterator<Item = Regime> {
    let mut now = 0;
    iter::repeat_with(move || {
        let up = if now < THREADS_MAX { 1.0 / BURST_EVERY_S } else { 0.0 };
        let down = now as f64 / BURST_MEAN_S;
        let exponential: f64 = Exp1.sample(&mut random);
        let stretch = regime(exponential / (up + down), now as f64);
        now = if random.random::<f64>() * (up + down) < up { now + 1 } else { now.saturating_sub(1) };
        stretch
    })
}

fn square_wave(mut random: ChaCha8Rng) -> impl Iterator<Item = Regime> {
    let half = random.random_range(PERIOD_MIN_S..PERIOD_MAX_S) / 2.0;
    let threads = random_threads(&mut random);
    let (cut, quiet_first) = (half * random.random::<f64>(), random.random_bool(0.5));
    let levels = if quiet_first { [0.0, threads] } else { [threads, 0.0] };
    let first = regime(half - cut, levels[0]);
    let rest = [regime(half, levels[1]), regime(half, levels[0])];
    iter::once(first).chain(rest.into_iter().cycle())
}

fn walk(mut random: ChaCha8Rng) -> impl Iterator<Item = Regime> {
    let most = THREADS_MAX as f64;
    let mut threads = random.random_range(0.0..most);
    iter::repeat_with(move || {
        let here = regime(WALK_STEP_S, threads);
        let normal: f64 = StandardNormal.sample(&mut random);
        // Reflect at 0, then at the maximum. The bound `2 * most`, 12 standard deviations away, keeps
        // the result in range for any draw.
        let there = (threads + WALK_SPREAD * WALK_STEP_S.sqrt() * normal).abs().min(2.0 * most);
        threads = if there > most { 2.0 * most - there } else { there };
        here
    })
}

/// A load over time, for queries with non-decreasing times.
pub struct Timeline {
    regimes: Box<dyn Iterator<Item = Regime>>,
    /// Regimes that later queries can still overlap: start, end, threads.
    held: VecDeque<(f64, f64, f64)>,
    known_until_s: f64,
}

/// The load in a time window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowLoad {
    /// Number of busy threads at the start of the window.
    pub start: f64,
    /// Mean number of busy threads in the window.
    pub mean: f64,
}

impl Timeline {
    /// Creates the timeline of a load that started `lead_s` seconds before time 0 of the queries.
    pub fn new(load: Load, lead_s: f64) -> Self {
        Self { regimes: load.regimes(), held: VecDeque::new(), known_until_s: -lead_s }
    }

    /// Returns the load from `from_s` to `to_s`. Later queries must not start before `from_s`.
    pub fn over(&mut self, from_s: f64, to_s: f64) -> WindowLoad {
        self.drop_before(from_s);
        while self.known_until_s <= to_s && self.draw(from_s) {}
        let start = self.held.front().map_or(0.0, |(_, _, threads)| *threads);
        let shares = self.held.iter().map(|(begin_s, end_s, threads)| {
            threads * (end_s.min(to_s) - begin_s.max(from_s)).max(0.0) / (to_s - from_s)
        });
        WindowLoad { start, mean: if to_s > from_s { shares.sum() } else { start } }
    }

    /// Returns the time at which a worker finishes work that it starts at `from_s` and that takes
    /// `alone_s` seconds without a load.
    ///
    /// With n busy threads the worker gets a share of 1 / (1 + n) of the core. Later queries must not
    /// start before `from_s`.
    pub fn finish_time(&mut self, from_s: f64, alone_s: f64) -> f64 {
        self.drop_before(from_s);
        let (mut at_s, mut left_s) = (from_s, alone_s);
        for next in 0..REGIMES_AHEAD_MAX {
            while next >= self.held.len() {
                if !self.draw(from_s) {
                    return at_s + left_s;
                }
            }
            let (_, end_s, threads) = self.held[next];
            let needed_s = left_s * (1.0 + threads);
            if at_s + needed_s <= end_s {
                return at_s + needed_s;
            }
            left_s -= (end_s - at_s) / (1.0 + threads);
            at_s = end_s;
        }
        at_s + left_s
    }

    fn drop_before(&mut self, from_s: f64) {
        while self.held.front().is_some_and(|(_, end_s, _)| *end_s <= from_s) {
            self.held.pop_front();
        }
    }

    /// Draws one more regime and stores it unless it ends before `from_s`. Returns false if the load has
    /// no more regimes.
    fn draw(&mut self, from_s: f64) -> bool {
        let Some(Regime { duration, threads }) = self.regimes.next() else { return false };
        let begin_s = self.known_until_s;
        self.known_until_s += duration.as_secs_f64();
        if self.known_until_s > from_s {
            self.held.push_back((begin_s, self.known_until_s, threads));
        }
        true
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("known_until_s", &self.known_until_s).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(kind: LoadKind, seed: u64, count: usize) -> Vec<Regime> {
        Load { kind, seed }.regimes().take(count).collect()
    }

    /// Returns the share of time in which `holds` is true for the load.
    fn share(all: &[Regime], holds: impl Fn(f64) -> bool) -> f64 {
        let seconds = |regime: &Regime| regime.duration.as_secs_f64();
        let held: f64 = all.iter().filter(|regime| holds(regime.threads)).map(seconds).sum();
        held / all.iter().map(seconds).sum::<f64>()
    }

    #[test]
    fn a_seed_decides_and_bounds_hold() {
        for &kind in LoadKind::value_variants() {
            let all = some(kind, 5, 4000);
            assert_eq!(all, some(kind, 5, 4000), "{kind}");
            assert!((6..12).any(|seed| some(kind, seed, 4000) != all), "{kind}");
            assert!(all.iter().all(|regime| (0.0..=THREADS_MAX as f64).contains(&regime.threads)), "{kind}");
        }
    }

    #[test]
    fn regimes_are_bounded_and_quiet_for_half_of_the_time() {
        let all = some(LoadKind::Regimes, 5, 4000);
        let quiet = share(&all, |threads| threads == 0.0);
        assert!((quiet - 0.5).abs() < 0.05, "{quiet}");
        for regime in &all {
            assert!((REGIME_MIN_S..=REGIME_MAX_S).contains(&regime.duration.as_secs_f64()));
        }
    }

    #[test]
    fn bursts_overlap_as_erlangs_formula_says() {
        let all = some(LoadKind::Bursty, 5, 40_000);
        // Erlang's loss formula: a^n / n!, for up to three bursts, with a = mean / every.
        let weights: Vec<f64> = iter::successors(Some((0.0, 1.0)), |&(n, weight): &(f64, f64)| {
            Some((n + 1.0, weight * (BURST_MEAN_S / BURST_EVERY_S) / (n + 1.0)))
        })
        .take(THREADS_MAX + 1)
        .map(|(_, weight)| weight)
        .collect();
        for (n, weight) in weights.iter().enumerate() {
            let expected = weight / weights.iter().sum::<f64>();
            let measured = share(&all, |threads| threads == n as f64);
            assert!((measured - expected).abs() < 0.02, "{n} at once: {measured}, not {expected}");
        }
    }

    #[test]
    fn a_square_wave_repeats() {
        for seed in 0..20 {
            let all = some(LoadKind::Periodic, seed, 5);
            assert_eq!((all[1], all[2]), (all[3], all[4]));
            assert!(all[0].duration <= all[1].duration && all[1].duration == all[2].duration);
            let period = (all[1].duration + all[2].duration).as_secs_f64();
            assert!((PERIOD_MIN_S..=PERIOD_MAX_S).contains(&period), "{period}");
            assert!((all[1].threads == 0.0) != (all[2].threads == 0.0));
        }
    }

    #[test]
    fn a_random_walk_takes_small_steps_and_covers_its_range_evenly() {
        let all = some(LoadKind::Walk, 5, 100_000);
        let steps: Vec<f64> = all.windows(2).map(|pair| pair[1].threads - pair[0].threads).collect();
        assert!(steps.iter().all(|step| step.abs() < 6.0 * WALK_SPREAD * WALK_STEP_S.sqrt()));
        for third in 0..3 {
            let within = share(&all, |threads| (f64::from(third)..f64::from(third + 1)).contains(&threads));
            assert!((within - 1.0 / 3.0).abs() < 0.05, "{third}: {within}");
        }
    }

    #[test]
    fn windows_see_the_regimes_they_meet() {
        let load = Load { kind: LoadKind::Bursty, seed: 3 };
        let all: Vec<Regime> = load.regimes().take(3).collect();
        let lengths: Vec<f64> = all.iter().map(|regime| regime.duration.as_secs_f64()).collect();
        let lead = 0.25 * lengths[0];
        let ends = [lengths[0] - lead, lengths[0] + lengths[1] - lead];
        let mut timeline = Timeline::new(load, lead);
        assert_eq!(
            timeline.over(0.0, ends[0] / 2.0),
            WindowLoad { start: all[0].threads, mean: all[0].threads }
        );
        // From the middle of the remaining first regime to the end of the second.
        let seen = timeline.over(ends[0] / 2.0, ends[1]);
        let (first, second) = (ends[0] / 2.0, lengths[1]);
        let mean = (first * all[0].threads + second * all[1].threads) / (first + second);
        assert_eq!(seen.start, all[0].threads);
        assert!((seen.mean - mean).abs() < 1e-9, "{seen:?} {mean}");
        // A window can start inside an earlier window, and long after it.
        assert_eq!(timeline.over(ends[0], ends[0] + 1e-3).start, all[1].threads);
        let far = timeline.over(1e4, 1e4 + 2e4);
        assert!((far.mean - 0.71).abs() < 0.05, "{far:?}");
        assert!(timeline.held.len() < 100_000);
    }

    #[test]
    fn work_takes_as_long_as_the_shares_of_the_core_add_up_to() {
        for &kind in LoadKind::value_variants() {
            let (load, lead) = (Load { kind, seed: 7 }, 0.6);
            let mut work = Timeline::new(load, lead);
            for (from, alone) in [(0.0, 0.1), (0.05, 2.5), (0.05, 2.6), (3.0, 0.0), (4.0, 9.0)] {
                let done = work.finish_time(from, alone);
                // Sum of the worker's shares of the core, in steps of 0.1 ms.
                let mut law = Timeline::new(load, lead);
                let steps = ((done - from) / 1e-4).round() as u32;
                let times = (0..steps).map(|number| from + f64::from(number) * 1e-4);
                let counted: f64 = times.map(|at| 1e-4 / (1.0 + law.over(at, at).start)).sum();
                assert!((counted - alone).abs() < 1e-3, "{kind}: {counted} s of {alone} s by {done} s");
            }
        }
    }

    #[test]
    fn work_that_spans_a_change_is_done_at_both_speeds() {
        let load = Load { kind: LoadKind::Periodic, seed: 3 };
        let all: Vec<Regime> = load.regimes().take(2).collect();
        let (length, [before, after]) = (all[0].duration.as_secs_f64(), [all[0].threads, all[1].threads]);
        assert!((before == 0.0) != (after == 0.0));
        // 0.1 s of work on either side of the change.
        let from = length - 0.1 * (1.0 + before);
        let done = Timeline::new(load, 0.0).finish_time(from, 0.2);
        assert!((done - (length + 0.1 * (1.0 + after))).abs() < 1e-9, "{done} {length}");
    }
}
