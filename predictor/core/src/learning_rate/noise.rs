//! Effect of a ramp on the noise of an update: the reason why Dynamic SGD ramps increases but not decreases.
//!
//! The update of SGD with momentum `mu` is `c(t) v_t`, with `v` a decaying sum of gradients. At `t = 0` the
//! batch changes by the factor `k`. New gradients then have `1/k` of the noise variance, but the buffer still
//! contains the earlier noise. The variance of an update relative to an update before the change is
//!
//! `N(t) = c(t)^2 (mu^{2t} + (1 - mu^{2t}) / k)`
//!
//! If `c` ends at `k`, `N` also ends at `k`. A jump (`c(0) = k`) starts at `k^2`.

use evenstep_protocol::Ramp;

/// Returns `N(t)`, `t` iterations after the start of a ramp to `k = ramp.to / ramp.from`.
pub fn update_noise(ramp: &Ramp, momentum: f64, t: u64) -> f64 {
    let scale = ramp.to / ramp.from;
    let multiplier = ramp.multiplier(ramp.start_iteration.saturating_add(t)) / ramp.from;
    let held = momentum.powf(2.0 * t as f64);
    multiplier.powi(2) * (held + (1.0 - held) / scale)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Returns the maximum of `N(t)` over the first `iterations` after the start.
    fn peak(ramp: &Ramp, momentum: f64, iterations: u64) -> f64 {
        (0..=iterations).map(|t| update_noise(ramp, momentum, t)).fold(0.0, f64::max)
    }

    fn ramp(to: f64, iterations: u64) -> Ramp {
        Ramp { from: 1.0, to, start_iteration: 100, iterations }
    }

    /// Peaks from an independent computation, compared to its printed precision.
    #[test]
    fn peaks_are_those_of_the_closed_form() {
        let golden = [
            (0.9, 2.0, [(0, 4.0), (8, 2.371), (16, 2.069)]),
            (0.9, 4.0, [(0, 16.0), (8, 6.224), (32, 4.014)]),
            (0.9, 16.0, [(0, 256.0), (8, 60.47), (128, 16.0)]),
            (0.99, 16.0, [(0, 256.0), (8, 220.3), (128, 34.3)]),
        ];
        for (momentum, k, peaks) in golden {
            for (iterations, golden) in peaks {
                let ours = peak(&ramp(k, iterations), momentum, 2000);
                assert!(
                    (ours / golden - 1.0).abs() < 1.5e-3,
                    "mu {momentum} k {k} T {iterations}: {ours} {golden}"
                );
            }
        }
    }

    /// With a ramp down, the step size is too large for the noisier gradients of the small batch.
    #[test]
    fn shrinking_slowly_is_harmful() {
        let slowly = peak(&ramp(1.0 / 16.0, 64), 0.9, 500);
        assert!((slowly - 10.4).abs() < 0.05, "{slowly}");
        assert!(peak(&ramp(1.0 / 16.0, 0), 0.9, 500) <= 1.0);
    }

    /// Compares the closed form with simulated momentum: 4,000 runs give the variance to within some percent.
    #[test]
    fn the_closed_form_is_what_momentum_does() {
        const RUNS: u32 = 4000;
        let (momentum, k, ramp) = (0.9f64, 4.0f64, ramp(4.0, 8));
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut uniform = || 12f64.sqrt() * (rng.random::<f64>() - 0.5);
        let steady = 1.0 / (1.0 - momentum.powi(2));
        let at = 5u64;
        let mut squares = 0.0;
        for _ in 0..RUNS {
            let mut buffer = 0.0;
            for _ in 0..60 {
                buffer = momentum * buffer + uniform();
            }
            for _ in 0..at {
                buffer = momentum * buffer + uniform() / k.sqrt();
            }
            squares += (ramp.multiplier(100 + at) * buffer).powi(2);
        }
        let measured = squares / f64::from(RUNS) / steady;
        let ours = update_noise(&ramp, momentum, at);
        assert!((measured / ours - 1.0).abs() < 0.08, "{measured} {ours}");
    }
}
