//! Work that grows or shrinks for all workers: longer sequences, or another phase of the training. It changes all speeds, and makes
//! no worker slow.

use serde::{Deserialize, Serialize};

use super::others::quantile;
use crate::series::LOG_SPEED_MAX;
use crate::straggler::Vote;

/// Share of the workers that are slower than before if the work has grown.
const MOST: f64 = 0.8;
/// Minimum number of workers that can tell.
const WORKERS_MIN: usize = 2;
/// Change of all speeds, in log, that is no noise.
const CHANGE_MIN: f64 = 0.1;
/// Number of iterations after which a change is no pause.
const LASTING: u32 = 12;
/// Number of iterations in which the work follows a change, and the weight of each of them.
const FOLLOWS: u32 = 100;
const WEIGHT: f64 = 0.05;

/// The work of a sample.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Work {
    /// Log of the work, compared with the first iterations.
    log: f64,
    /// Number of iterations since all speeds changed.
    lasting: u32,
    /// Whether they became larger.
    is_faster: bool,
    /// Number of iterations in which the work still follows the change.
    follows: u32,
}

impl Work {
    /// Whether a stored value is usable.
    pub fn is_valid(&self) -> bool {
        self.log.abs() <= LOG_SPEED_MAX && self.lasting <= LASTING && self.follows <= FOLLOWS
    }

    /// Returns the log of the work.
    pub fn log(&self) -> f64 {
        self.log
    }

    /// Learns from the votes of the workers in an iteration; `None` is a worker whose speed a reading explains. Returns the log of
    /// the ratio to their best speeds that they have in common; 0 if they have none.
    pub fn observe(&mut self, votes: &[Option<Vote>]) -> f64 {
        let known: Vec<Vote> = votes.iter().copied().flatten().collect();
        let changes: Vec<f64> = known.iter().map(|vote| vote.change).collect();
        let healthy: Vec<f64> = known.iter().filter(|vote| !vote.is_slow).map(|vote| vote.change).collect();
        let tell = |some: &[f64]| some.len() >= WORKERS_MIN && 2 * some.len() > votes.len();
        let least = changes.iter().copied().fold(f64::INFINITY, f64::min);
        let most = quantile(changes.clone(), MOST).unwrap_or(0.0);
        // Slow workers that recover together are faster, too.
        let is_faster = tell(&healthy) && least > CHANGE_MIN;
        let is_slower = tell(&changes) && most < -CHANGE_MIN;
        if is_faster || is_slower {
            self.lasting =
                if is_faster == self.is_faster { self.lasting.saturating_add(1).min(LASTING) } else { 1 };
            self.is_faster = is_faster;
        } else {
            self.lasting = 0;
        }
        if self.lasting >= LASTING {
            self.follows = FOLLOWS;
        }
        if !(is_faster || is_slower || self.follows > 0 && tell(&changes)) {
            self.follows = self.follows.saturating_sub(1);
            return 0.0;
        }
        let common = middle(if tell(&healthy) { healthy } else { changes });
        if self.follows > 0 {
            self.log = (self.log - WEIGHT * common).clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX);
            self.follows -= 1;
        }
        common
    }
}

/// Returns the median; of two middle values the one that is nearer to 0, because one of two workers may be slow.
fn middle(mut changes: Vec<f64>) -> f64 {
    changes.sort_by(f64::total_cmp);
    let at = |position: usize| changes.get(position).copied().unwrap_or(0.0);
    let [lower, upper] = [at(changes.len().saturating_sub(1) / 2), at(changes.len() / 2)];
    if lower.abs() < upper.abs() { lower } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(healthy: &[f64], slow: &[f64]) -> Vec<Option<Vote>> {
        let vote = |is_slow| move |change: &f64| Some(Vote { change: *change, is_slow });
        healthy.iter().map(vote(false)).chain(slow.iter().map(vote(true))).collect()
    }

    #[test]
    fn what_most_workers_share_is_common() {
        let common = |healthy: &[f64], slow: &[f64]| Work::default().observe(&votes(healthy, slow));
        assert_eq!(common(&[-0.7, -0.7, -0.6, -0.7], &[]), -0.7);
        assert_eq!(common(&[-0.7, -0.7, -0.7, 0.0], &[]), 0.0);
        assert_eq!(common(&[-0.7], &[]), 0.0, "a single worker");
        assert_eq!(common(&[-0.7], &[-0.7]), -0.7);
        assert_eq!(common(&[-0.7, -0.2], &[]), -0.2);
        assert_eq!(common(&[0.5, 0.5], &[0.0]), 0.0, "a slow worker is not faster");
        assert_eq!(common(&[0.5, 0.5], &[0.5]), 0.5);
        assert_eq!(common(&[], &[0.5, 0.5]), 0.0, "slow workers recover");
        assert_eq!(Work::default().observe(&[Some(Vote { change: -0.7, is_slow: false }), None]), 0.0);
    }

    /// The work follows changes that last, in both directions, and no pauses.
    #[test]
    fn the_work_follows_lasting_changes() {
        let mut work = Work::default();
        let mut run = |count: usize, speed: f64| {
            for _ in 0..count {
                work.observe(&votes(&[speed + work.log(); 3], &[]));
            }
            work.log()
        };
        for _ in 0..50 {
            run(96, 0.0);
            assert_eq!(run(4, -1.1), 0.0);
        }
        for _ in 0..20 {
            assert!((run(150, -0.7) - 0.7).abs() < 0.01);
            assert!(run(150, 0.0).abs() < 0.01);
        }
    }
}
