//! Samples of unequal cost, in their order: each worker takes the next stretch of them.

use super::{Infeasible, Share};

/// Splits samples of the given costs (tokens, say; finite, >= 0) into contiguous ranges by rank and answers how many samples each worker
/// takes, such that the last finishes first. A worker's curve is in units of cost; floors and caps are in samples.
///
/// # Errors
/// [`Infeasible`] where the floors take more, or the caps hold less, than there are samples.
pub fn partition(shares: &[Share], costs: &[f64]) -> Result<Vec<u64>, Infeasible> {
    let total = costs.len() as u64;
    super::Problem::new(shares, total, 1)?;
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(costs.iter().scan(0.0, |sum, cost| {
            *sum += cost;
            Some(*sum)
        }))
        .collect();
    // Best finish by (workers so far, samples so far), and the batch of the last of them.
    let mut best = vec![f64::INFINITY; costs.len() + 1];
    best[0] = 0.0;
    let mut taken: Vec<Vec<usize>> = Vec::with_capacity(shares.len());
    for share in shares {
        let reach = |end: usize| {
            let cap = share.cap.map_or(end, |cap| cap.min(end as u64) as usize);
            let floor = (share.floor as usize).min(end + 1);
            (floor..=cap)
                .map(|batch| {
                    let own_s =
                        share.communication.finish_s(share.curve.time_of(sums[end] - sums[end - batch]));
                    (best[end - batch].max(own_s), batch)
                })
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap_or((f64::INFINITY, 0))
        };
        let next: Vec<(f64, usize)> = (0..=costs.len()).map(reach).collect();
        best = next.iter().map(|(time_s, _)| *time_s).collect();
        taken.push(next.into_iter().map(|(_, batch)| batch).collect());
    }
    let mut end = costs.len();
    let mut batches: Vec<u64> = Vec::with_capacity(shares.len());
    for taken in taken.iter().rev() {
        batches.push(taken[end] as u64);
        end -= taken[end];
    }
    batches.reverse();
    Ok(batches)
}
