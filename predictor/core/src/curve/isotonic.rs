//! Isotonic regression (pool adjacent violators, Ayer et al. 1955).

/// Returns points by ascending size, one per size, with non-decreasing times. The times have the smallest
/// squared distance to the given times; each measurement has the same weight.
pub fn isotonic(points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Blocks of neighbours with a common level: the sizes, the sum of the times, and their number.
    let mut blocks: Vec<(Vec<u64>, f64, f64)> = Vec::with_capacity(sorted.len());
    for (size, time_s) in sorted {
        match blocks.last_mut() {
            Some((sizes, sum, count)) if sizes.last() == Some(&size) => {
                *sum += time_s;
                *count += 1.0;
            }
            _ => blocks.push((vec![size], time_s, 1.0)),
        }
    }
    let mut pooled: Vec<(Vec<u64>, f64, f64)> = Vec::with_capacity(blocks.len());
    for mut block in blocks {
        while let Some(mut below) = pooled.pop_if(|below| below.1 / below.2 > block.1 / block.2) {
            below.0.append(&mut block.0);
            block = (below.0, below.1 + block.1, below.2 + block.2);
        }
        pooled.push(block);
    }
    let level = |(sizes, sum, count): (Vec<u64>, f64, f64)| {
        sizes.into_iter().map(move |size| (size, sum / count)).collect::<Vec<_>>()
    };
    pooled.into_iter().flat_map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand: 3 and 1 are pooled to 2. That is below the 2.5 before them, so the three are pooled
    /// to 6.5 / 3. 4 and 6 are times of the same size.
    #[test]
    fn neighbours_that_fall_are_pooled() {
        let level = 6.5 / 3.0;
        assert_eq!(
            isotonic(&[(8, 4.0), (1, 2.5), (2, 3.0), (4, 1.0), (8, 6.0)]),
            [(1, level), (2, level), (4, level), (8, 5.0)]
        );
    }
}
