//! Moves rows of a tensor between ranks, and sums tensors over ranks.

use evenstep_c10d::{Group, Result};
use tch::Tensor;

use super::redistribution::Redistribution;
use evenstep_trainer::model::reduce_device;

/// Moves the rows `held` of this rank, and returns its rows after the moves: the kept rows, then the received
/// rows.
///
/// # Errors
/// Fails if a rank is lost or stalls for longer than the timeout.
pub fn cross(group: &Group, crossing: &Redistribution, held: &Tensor) -> Result<Tensor> {
    let rank = group.rank();
    if !crossing.involves(rank) {
        return Ok(held.shallow_clone());
    }
    let wire = reduce_device(held.device());
    let held = held.contiguous();
    let mut next = crossing.kept.get(rank).copied().unwrap_or(0);
    let mut parts = vec![held.narrow(0, 0, next)];
    for step in &crossing.moves {
        if step.from == rank {
            group.send(&held.narrow(0, next, step.samples).to_device(wire), step.to)?;
            next += step.samples;
        } else if step.to == rank {
            let mut rows = held.size();
            if let Some(count) = rows.first_mut() {
                *count = step.samples;
            }
            let mut part = Tensor::empty(rows, (held.kind(), wire));
            group.receive(&mut part, step.from)?;
            parts.push(part.to_device(held.device()));
        }
    }
    Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Tensor::cat(&parts, 0) })
}

/// Returns the sum of the tensors of all ranks in the group.
///
/// # Errors
/// Fails if a rank is lost or stalls for longer than the timeout.
pub fn sum(group: &Group, tensor: &Tensor) -> Result<Tensor> {
    let mut summed = tensor.to_device(reduce_device(tensor.device()));
    group.all_reduce_sum(&mut summed)?;
    Ok(summed.to_device(tensor.device()))
}
