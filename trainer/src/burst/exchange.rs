//! Moving the rows of a tensor between ranks.

use evenstep_c10d::{Group, Result};
use tch::Tensor;

use super::crossing::Crossing;

/// This rank's rows behind a crossing: those that it keeps, then those that it receives. `held` are the rows that it had.
///
/// # Errors
/// A rank is gone or stalls past the timeout.
pub fn cross(group: &Group, crossing: &Crossing, held: &Tensor) -> Result<Tensor> {
    let rank = group.rank();
    if !crossing.concerns(rank) {
        return Ok(held.shallow_clone());
    }
    let held = held.contiguous();
    let mut next = crossing.kept.get(rank).copied().unwrap_or(0);
    let mut parts = vec![held.narrow(0, 0, next)];
    for step in &crossing.moves {
        if step.from == rank {
            group.send(&held.narrow(0, next, step.samples), step.to)?;
            next += step.samples;
        } else if step.to == rank {
            let mut rows = held.size();
            if let Some(count) = rows.first_mut() {
                *count = step.samples;
            }
            let mut part = held.new_empty(rows, (held.kind(), held.device()));
            group.receive(&mut part, step.from)?;
            parts.push(part);
        }
    }
    Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Tensor::cat(&parts, 0) })
}
