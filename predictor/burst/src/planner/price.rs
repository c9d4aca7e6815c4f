//! Search under a memory cap, by Lagrangian relaxation.
//!
//! Let each byte above the layers' minimum cost `price` femtoseconds. Then one candidate per part suffices to
//! find the cheapest plan, and `cost - price * spare bytes` is a lower bound for every plan that fits. The
//! same holds for the rest of the graph outside a part. The search therefore drops a candidate if the bound
//! for all plans with it exceeds the target time.
//!
//! The price is the one with the highest bound, where the lines of a plan that exceeds the cap and of one
//! that fits intersect (Handler and Zang, *Networks* 1980). The target time starts just above the bound. It
//! rises until a plan is found within it, or until it reaches a plan that an earlier round found above its
//! target.

use super::bounds::{Bounds, PartCosts, at_price, outside};
use super::costs::Costs;
use super::fold::{Solution, priced, within};
use super::label::Label;
use super::problem::Limit;

/// Maximum number of prices.
const PRICES_MAX: usize = 16;
/// Minimum relative gain of the bound that justifies another price.
const PRICE_GAIN: f64 = 5e-6;
/// Relative gap between bound and target time in the first round.
const FIRST_GAP: f64 = 2e-5;
/// Maximum number of rounds; each multiplies the gap by four.
const ROUNDS: i32 = 10;
/// Relative tolerance for sums of floats.
const SLACK: f64 = 1e-9;

/// Returns the best plan within `spare_bytes` above the layers' minimum. `heavy` holds time and bytes of the
/// best plan without the cap, which exceeds it.
///
/// # Errors
/// No plan was found; true if one may still exist.
pub(super) fn solve_capped(
    costs: &Costs,
    limit: Option<Limit>,
    spare_bytes: u128,
    heavy: (u128, u128),
) -> Result<Solution, bool> {
    let point = |plan: &Label| (plan.value.time_fs as f64, plan.memory_bytes as f64);
    let spare = spare_bytes as f64;
    let mut heavy = (heavy.0 as f64, heavy.1 as f64);
    // At a price above all other costs, the cheapest plan is the one with the least memory.
    let price_max = f64::from(u32::MAX) * (1.0 + heavy.0);
    let (lightest, _) = priced(costs, limit, price_max).map_err(|_| false)?;
    if lightest.memory_bytes > spare_bytes {
        return Err(false);
    }
    let mut light = point(&lightest);
    let mut best: Option<(f64, f64, Vec<PartCosts>)> = None;
    for _ in 0..PRICES_MAX {
        let price = ((light.0 - heavy.0) / (heavy.1 - light.1)).clamp(0.0, price_max);
        let (plan, made) = priced(costs, limit, price).map_err(|_| false)?;
        let below = at_price(&plan, price) - price * spare;
        let gain = best.as_ref().map_or(f64::INFINITY, |(known, ..)| below - known);
        if gain > 0.0 {
            best = Some((below, price, made));
        }
        let met = at_price(&plan, price) >= (heavy.0 + price * heavy.1) * (1.0 - SLACK);
        if met || (gain > 0.0 && gain < PRICE_GAIN * below.abs()) {
            break;
        }
        *(if plan.memory_bytes <= spare_bytes { &mut light } else { &mut heavy }) = point(&plan);
    }
    let Some((below, price, made)) = best else { return Err(true) };
    search(costs, limit, below, Bounds { price, spare_bytes, outside: outside(&made), most: 0.0 })
}

/// Searches for a plan with a growing gap above the bound.
fn search(costs: &Costs, limit: Option<Limit>, below: f64, mut bounds: Bounds) -> Result<Solution, bool> {
    let mut lost = false;
    let mut known: Option<Solution> = None;
    for round in 0..=ROUNDS {
        let gap = if round < ROUNDS { FIRST_GAP * 4f64.powi(round) } else { f64::INFINITY };
        let known_fs = known.as_ref().map_or(f64::INFINITY, |known| known.time_fs as f64);
        let most_fs = known_fs.min(below + gap * below.abs());
        bounds.most = most_fs + bounds.price * bounds.spare_bytes as f64;
        bounds.most += SLACK * bounds.most.abs();
        match within(costs, limit, &bounds) {
            Ok(found) => {
                lost |= found.dropped_candidates;
                let proven = found.time_fs as f64 <= most_fs || round == ROUNDS;
                if known.as_ref().is_none_or(|known| found.time_fs <= known.time_fs) {
                    known = Some(found);
                }
                if proven || lost {
                    break;
                }
            }
            Err(dropped_candidates) => lost |= dropped_candidates,
        }
    }
    known.map(|known| Solution { dropped_candidates: lost, ..known }).ok_or(lost)
}
