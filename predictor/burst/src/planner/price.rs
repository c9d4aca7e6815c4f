//! Memory at a price: bounds for a search under a cap.
//!
//! Were each byte above the least that layers need to cost `price` femtoseconds, the best plan would be found without remembering more than
//! one way for each part, and `cost - price * spare bytes` is then a bound from below for every plan that fits (Lagrange). The same holds for
//! what lies outside of a part: so a way through a part can be let go where the bound for all plans with it is beyond the
//! time that is looked for. The price is that with the highest bound, where the lines of a plan that holds too much and one that fits meet
//! (Handler and Zang, *Networks* 1980). The time looked for begins just above the bound, and goes up until a plan is found in it, or one
//! that was found beyond it by chance.

use super::bounds::{Bounds, Made, at_price, outside};
use super::costs::Costs;
use super::fold::{Decided, priced, within};
use super::label::Label;
use super::problem::Limit;

/// Prices that are tried at most; and a share of the bound that is not worth another one.
const PRICES_MAX: usize = 16;
const PRICE_GAIN: f64 = 5e-6;
/// How far above the bound the best plan is looked for first, as a share; and how often that is made four times as much.
const FIRST_GAP: f64 = 2e-5;
const ROUNDS: i32 = 10;
/// What sums of floats may be off by.
const SLACK: f64 = 1e-9;

/// The best plan within so many bytes above what layers need at the least. `heavy` is the best that there is, time and bytes, and
/// holds more.
///
/// # Errors
/// Whether there may be a plan all the same.
pub(super) fn decide_capped(
    costs: &Costs,
    limit: Option<Limit>,
    spare_bytes: u128,
    heavy: (u128, u128),
) -> Result<Decided, bool> {
    let point = |plan: &Label| (plan.value.time_fs as f64, plan.memory_bytes as f64);
    let spare = spare_bytes as f64;
    let mut heavy = (heavy.0 as f64, heavy.1 as f64);
    // Where a byte costs more than everything else, the lightest plan is the best.
    let dear = f64::from(u32::MAX) * (1.0 + heavy.0);
    let (lightest, _) = priced(costs, limit, dear).map_err(|_| false)?;
    if lightest.memory_bytes > spare_bytes {
        return Err(false);
    }
    let mut light = point(&lightest);
    let mut best: Option<(f64, f64, Vec<Made>)> = None;
    for _ in 0..PRICES_MAX {
        let price = ((light.0 - heavy.0) / (heavy.1 - light.1)).clamp(0.0, dear);
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

/// Looks for a plan ever further above the bound.
fn search(costs: &Costs, limit: Option<Limit>, below: f64, mut bounds: Bounds) -> Result<Decided, bool> {
    let mut lost = false;
    let mut known: Option<Decided> = None;
    for round in 0..=ROUNDS {
        let gap = if round < ROUNDS { FIRST_GAP * 4f64.powi(round) } else { f64::INFINITY };
        let known_fs = known.as_ref().map_or(f64::INFINITY, |known| known.time_fs as f64);
        let most_fs = known_fs.min(below + gap * below.abs());
        bounds.most = most_fs + bounds.price * bounds.spare_bytes as f64;
        bounds.most += SLACK * bounds.most.abs();
        match within(costs, limit, &bounds) {
            Ok(found) => {
                lost |= found.thinned;
                let proven = found.time_fs as f64 <= most_fs || round == ROUNDS;
                if known.as_ref().is_none_or(|known| found.time_fs <= known.time_fs) {
                    known = Some(found);
                }
                if proven || lost {
                    break;
                }
            }
            Err(thinned) => lost |= thinned,
        }
    }
    known.map(|known| Decided { thinned: lost, ..known }).ok_or(lost)
}
