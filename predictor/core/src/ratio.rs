//! The ratio of two sums over successive iterations, with an interval.

/// The 0.95 quantile of the standard normal distribution: intervals of 90 %.
pub const NORMAL_QUANTILE: f64 = 1.645;

/// Half the width of the 90 % interval of the ratio of two sums over blocks of iterations, from how it varies between them.
/// Successive iterations are alike, so blocks, not iterations, are left out (jackknife; Quenouille 1956). Infinite or NaN with
/// fewer than two blocks.
pub fn half_width(blocks: &[(f64, f64)]) -> f64 {
    let sum = |blocks: &[(f64, f64)]| {
        blocks.iter().fold((0.0, 0.0), |sum, block| (sum.0 + block.0, sum.1 + block.1))
    };
    let all = sum(blocks);
    let left_out: Vec<f64> = blocks.iter().map(|block| (all.0 - block.0) / (all.1 - block.1)).collect();
    let count = left_out.len() as f64;
    let mean = left_out.iter().sum::<f64>() / count;
    let squares: f64 = left_out.iter().map(|value| (value - mean).powi(2)).sum();
    t_quantile(count - 1.0) * (squares * (count - 1.0) / count).sqrt()
}

/// The 0.95 quantile of Student's t distribution (Abramowitz and Stegun 26.7.5, two terms): within 1 % from 4 degrees of
/// freedom on.
fn t_quantile(degrees: f64) -> f64 {
    let z = NORMAL_QUANTILE;
    let (first, second) = ((z.powi(3) + z) / 4.0, (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0);
    z + first / degrees + second / degrees.powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of blocks with equal denominators, the ratio is the mean of their ratios, and its half width the textbook's: t s / sqrt(n).
    #[test]
    fn the_mean_of_equal_blocks_has_the_interval_of_a_mean() {
        let values = [1.0, 2.0, 4.0, 3.0, 5.0, 2.5, 1.5, 3.5];
        let mean = values.iter().sum::<f64>() / 8.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 7.0;
        let golden = 1.894_579 * (variance / 8.0).sqrt();
        let ours = half_width(&values.map(|value| (value, 1.0)));
        assert!((ours / golden - 1.0).abs() < 0.01, "{ours} {golden}");
        assert!(half_width(&[(1.0, 1.0)]).is_nan() && half_width(&[]).is_nan());
        assert_eq!(half_width(&[(3.0, 2.0); 8]), 0.0);
    }
}
