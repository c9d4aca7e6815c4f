//! Throughput that counts (Qiao et al. 2021, Pollux): a larger batch makes more samples a second, each of less use.

/// The noise scale `phi = tr Sigma / |G|^2`, in samples: batches far below it lose nothing by growing. `None` where the
/// gradient is all noise.
pub fn noise_scale(sample_variance: f64, squared_norm: f64) -> Option<f64> {
    let scale = sample_variance / squared_norm;
    (scale.is_finite() && scale >= 0.0).then_some(scale)
}

/// What a sample of a batch `global_batch` is worth over one of the base batch: `(phi + B_0) / (phi + B)`.
pub fn efficiency(noise_scale: f64, base_global_batch: f64, global_batch: f64) -> f64 {
    (noise_scale + base_global_batch) / (noise_scale + global_batch)
}

/// Throughput in samples per second that count as samples of the base batch.
pub fn goodput(throughput: f64, noise_scale: f64, base_global_batch: f64, global_batch: f64) -> f64 {
    throughput * efficiency(noise_scale, base_global_batch, global_batch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By hand: phi 300, base 100: (300 + 100) / (300 + 500) = 1/2.
    #[test]
    fn follows_the_formulas() {
        assert_eq!(noise_scale(600.0, 2.0), Some(300.0));
        assert_eq!(noise_scale(600.0, 0.0), None);
        assert_eq!(efficiency(300.0, 100.0, 500.0), 0.5);
        assert_eq!(goodput(80.0, 300.0, 100.0, 500.0), 40.0);
    }

    proptest! {
        /// The gain of AdaScale is what the larger batch is worth: `k` times the efficiency.
        #[test]
        fn the_gain_is_scale_times_efficiency(
            phi in 1.0f64..1e6, base in 1.0f64..1e4, scale in 0.1f64..64.0
        ) {
            let (variance, squared) = (phi / base, 1.0);
            let gain = super::super::adascale::gain(variance, squared, scale);
            let worth = scale * efficiency(phi, base, scale * base);
            prop_assert!((gain / worth - 1.0).abs() < 1e-9, "{gain} {worth}");
        }
    }
}
