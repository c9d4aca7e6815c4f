//! Limits on the work of a request, so that none takes minutes: the size of one plan, and the number of plans
//! for the front.

use crate::error::PlanError;
use crate::planner::Problem;

/// Maximum number of plans computed for one front.
const FRONT_PLANS_MAX: u64 = 32;
/// Maximum number of candidates examined for one plan: some seconds of work.
const CANDIDATES_MAX: u64 = 1 << 27;
/// Maximum number of candidates examined for all plans of a front.
const FRONT_CANDIDATES_MAX: u64 = 1 << 25;
/// Approximate growth of the number of candidates when a memory cap binds.
const CAPPED_FACTOR: u64 = 8;
const CAPPED_FRONT_FACTOR: u64 = 64;

/// Returns the number of plans to compute for the front, 0 if fewer than two would be possible.
///
/// # Errors
/// [`PlanError::Invalid`] if a single plan would exceed the work limit.
pub fn front_plans(problem: &Problem) -> Result<usize, PlanError> {
    let layers = problem.layers.len() as u64;
    let counts = match &problem.counts {
        Some(counts) => counts.len() as u64,
        None => u64::from(problem.speeds.len().max(1).ilog2()) + 1,
    };
    // In a chain, each layer is combined with the counts of the previous layer; in a block, also with those
    // at its start.
    let in_blocks = problem.layers.iter().any(|layer| layer.inputs.len() > 1);
    let ways = layers.saturating_mul(counts.saturating_pow(if in_blocks { 3 } else { 2 }));
    let times = |capped: u64| ways.saturating_mul(if problem.memory.is_some() { capped } else { 1 });
    if times(CAPPED_FACTOR) > CANDIDATES_MAX {
        return Err(PlanError::Invalid(format!(
            "{layers} layers with {counts} GPU counts each{}: about {} candidates exceed the limit of {CANDIDATES_MAX}; allow fewer counts",
            if problem.memory.is_some() { " under a memory cap" } else { "" },
            times(CAPPED_FACTOR)
        )));
    }
    let plans = (FRONT_CANDIDATES_MAX / times(CAPPED_FRONT_FACTOR).max(1)).min(FRONT_PLANS_MAX);
    Ok(if plans < 2 { 0 } else { plans as usize })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::planner::{Input, Layer, Memory};

    use super::*;

    fn problem(layers: usize, reads: usize, counts: usize) -> Problem {
        let input = Input { layer: 0, edge_us: None };
        let layer = Layer { inputs: vec![input; reads], ..Layer::table("any", None, BTreeMap::new()) };
        Problem { counts: Some((1..=counts).collect()), ..Problem::new(vec![layer; layers], counts, 1) }
    }

    #[test]
    fn large_plans_have_smaller_fronts_and_the_largest_are_refused() {
        let plans = |layers, reads, counts| front_plans(&problem(layers, reads, counts));
        assert_eq!(plans(500, 1, 11), Ok(32));
        assert_eq!(plans(4096, 1, 32), Ok(8));
        assert_eq!(plans(4096, 2, 32), Ok(0), "the plan itself is possible");
        let memory = Some(Memory { bytes_per_gpu: 1, bytes_per_parameter: 0.0 });
        assert_eq!(front_plans(&Problem { memory, ..problem(500, 1, 11) }), Ok(8));
        let error = front_plans(&Problem { memory, ..problem(4096, 2, 32) }).unwrap_err().to_string();
        assert!(error.contains("4096 layers with 32 GPU counts each under a memory cap"), "{error}");
    }
}
