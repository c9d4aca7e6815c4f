//! The pace of a job: how often it plans an iteration, and whether it is active.

use std::collections::VecDeque;

/// Number of times between iterations that are kept.
const GAPS: usize = 8;
/// Number of usual gaps without a new iteration after which a job is not active any more.
const IDLE_GAPS: i64 = 8;
/// Bounds of that time, in milliseconds. Commits may be slow for a moment. After a step of minutes, reading the state again
/// is no burden.
const IDLE_MS: (i64, i64) = (1_000, 600_000);

/// Times at which a job plans iterations, in milliseconds.
#[derive(Debug, Default)]
pub struct Pace {
    latest_ms: Option<i64>,
    gaps_ms: VecDeque<i64>,
}

impl Pace {
    /// Records that an iteration was planned.
    pub fn step(&mut self, now_ms: i64) {
        let Some(latest_ms) = self.latest_ms.replace(now_ms) else { return };
        if self.gaps_ms.len() == GAPS {
            self.gaps_ms.pop_front();
        }
        self.gaps_ms.push_back(now_ms.saturating_sub(latest_ms));
    }

    /// Whether the job plans iterations regularly, and planned one a few of its steps ago.
    pub fn is_active(&self, now_ms: i64) -> bool {
        let Some(latest_ms) = self.latest_ms else { return false };
        let mut gaps_ms = Vec::from_iter(self.gaps_ms.iter().copied());
        gaps_ms.sort_unstable_by(|one, other| other.cmp(one));
        // The second largest: iterations that are requested ahead come in bursts, and one pause is not usual.
        let Some(usual_ms) = gaps_ms.get(1).or(gaps_ms.first()) else { return false };
        let idle_ms = usual_ms.saturating_mul(IDLE_GAPS).clamp(IDLE_MS.0, IDLE_MS.1);
        now_ms.saturating_sub(latest_ms) <= idle_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last time at which a job is active that planned iterations at these times.
    fn end_ms(steps_ms: &[i64]) -> Option<i64> {
        let mut pace = Pace::default();
        steps_ms.iter().for_each(|at_ms| pace.step(*at_ms));
        let latest_ms = *steps_ms.last()?;
        pace.is_active(latest_ms)
            .then(|| (latest_ms..).take_while(|now_ms| pace.is_active(*now_ms)).last())?
    }

    #[test]
    fn a_job_is_active_for_some_of_its_own_steps() {
        assert_eq!([end_ms(&[]), end_ms(&[5])], [None, None], "it has no pace yet");
        assert_eq!(end_ms(&[0, 5]), Some(1_005));
        assert_eq!(end_ms(&[0, 500]), Some(4_500));
        assert_eq!(end_ms(&[0, 500, 1_000]), Some(5_000));
        assert_eq!(end_ms(&[0, 500, 1_000, 60_000]), Some(64_000), "a pause is not its pace");
        assert_eq!(
            end_ms(&[0, 0, 0, 700, 700, 700, 1_400]),
            Some(7_000),
            "iterations that were requested ahead"
        );
        assert_eq!(end_ms(&[0, 90_000, 180_000]), Some(780_000), "minutes");
    }
}
