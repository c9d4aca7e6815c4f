//! The JSON form of a plan, which ranks in Python exchange and store in checkpoints.

use evenstep_protocol::Ramp;
use serde::{Deserialize, Serialize};

use crate::rate::Rate;
use crate::shares::Share;
use crate::split::Plan;
use crate::tail::{Claimant, Tail};

/// A JSON text that is not a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid plan: {0}")]
pub struct InvalidPlan(String);

#[derive(Serialize, Deserialize)]
struct Written {
    /// Offset and number of samples by rank.
    shares: Vec<(u64, u64)>,
    /// The multiplier. On a ramp also its start, its end, its first iteration and its number of iterations.
    rate: Vec<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tail: Option<WrittenTail>,
}

/// Offset, chunks, number of chunks by pool, and by rank the pool and the speed.
type WrittenTail = (u64, Vec<u64>, Vec<usize>, Vec<Option<usize>>, Vec<Option<f64>>);

impl Plan {
    /// Returns the plan as JSON, without budgets of background work.
    pub fn to_json(&self) -> String {
        let rate = match self.rate.ramp() {
            None => vec![self.rate.multiplier()],
            Some(Ramp { from, to, start_iteration, iterations }) => {
                vec![self.rate.multiplier(), from, to, start_iteration as f64, iterations as f64]
            }
        };
        let tail = self.tail.as_ref().map(|tail| {
            let (pools, speeds) = tail.claimants.iter().map(|own| (own.pool, own.speed)).unzip();
            (tail.offset, tail.chunks.clone(), tail.pools.clone(), pools, speeds)
        });
        let shares = self.shares.iter().map(|share| (share.offset, share.local_batch)).collect();
        // Numbers, lists and field names always have a JSON form.
        serde_json::to_string(&Written { shares, rate, tail }).unwrap_or_default()
    }

    /// Reads the result of [`Plan::to_json`].
    ///
    /// # Errors
    /// The text is not such JSON, or its tail breaks a rule.
    pub fn from_json(text: &str) -> Result<Self, InvalidPlan> {
        let written: Written = serde_json::from_str(text).map_err(|error| InvalidPlan(error.to_string()))?;
        if let Some(negative) = written.rate.iter().find(|number| **number < 0.0) {
            return Err(InvalidPlan(format!("a rate has {negative}: must be at least 0")));
        }
        let rate = match written.rate[..] {
            [multiplier] => Rate::from(multiplier),
            [multiplier, from, to, start, iterations] => {
                let ramp = Ramp { from, to, start_iteration: whole(start)?, iterations: whole(iterations)? };
                Rate::new(multiplier, Some(ramp))
            }
            _ => {
                return Err(InvalidPlan(format!(
                    "a rate of {} numbers must have 1 or 5",
                    written.rate.len()
                )));
            }
        };
        let share = |(offset, local_batch)| Share { local_batch, offset };
        let shares: Vec<Share> = written.shares.into_iter().map(share).collect();
        let tail = match written.tail {
            None => None,
            Some((offset, chunks, pools, seats, speeds)) => {
                if seats.len() != shares.len() || speeds.len() != shares.len() {
                    return Err(InvalidPlan("a tail must have a pool and a speed for each rank".to_owned()));
                }
                let claimant = |(pool, speed)| Claimant { pool, speed };
                let claimants = seats.into_iter().zip(speeds).map(claimant).collect();
                Some(Tail::new(offset, chunks, pools, claimants).map_err(InvalidPlan)?)
            }
        };
        Ok(Self::new(shares, rate, tail))
    }
}

/// Converts an iteration or a number of iterations.
fn whole(number: f64) -> Result<u64, InvalidPlan> {
    if number.fract() == 0.0 && number < 2f64.powi(53) {
        return Ok(number as u64);
    }
    Err(InvalidPlan(format!("a ramp has {number} iterations: must be a whole number below 2^53")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tail::SharedTail;

    proptest! {
        #[test]
        fn a_plan_round_trips_through_json(
            batches in prop::collection::vec(0_u64..5000, 1..9), multiplier in 0.0..9.0_f64, on_ramp in any::<bool>(),
            share in 0.0..1.0_f64,
        ) {
            let ramp = on_ramp.then_some(Ramp { from: 1.0, to: multiplier, start_iteration: 1 << 40, iterations: 32 });
            let rate = Rate::new(multiplier, ramp);
            let plan = Plan::in_rank_order(&batches, rate).with_tail(SharedTail { share, min_chunk: 1 }, 1);
            prop_assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan));
        }
    }

    #[test]
    fn invalid_plans_are_rejected() {
        for (text, says) in [
            ("{", "EOF"),
            (r#"{"shares": [[0, -1]], "rate": [1]}"#, "invalid value"),
            (r#"{"shares": [[0, 1]], "rate": []}"#, "1 or 5"),
            (r#"{"shares": [[0, 1]], "rate": [-1]}"#, "at least 0"),
            (r#"{"shares": [[0, 1]], "rate": [1, 1, 2, -8, 4]}"#, "at least 0"),
            (r#"{"shares": [[0, 1]], "rate": [1, 1, 2, 8, 0.5]}"#, "whole number"),
            (r#"{"shares": [[0, 1]], "rate": [1, 1, 2, 1e300, 4]}"#, "whole number"),
            (r#"{"shares": [[0, 1]], "rate": [1], "tail": [1, [2], [1], [], []]}"#, "each rank"),
            (r#"{"shares": [[0, 1]], "rate": [1], "tail": [1, [2], [1], [7], [null]]}"#, "below the number"),
        ] {
            let error = Plan::from_json(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
