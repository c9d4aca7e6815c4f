//! Estimates the largest batch that fits into a worker's memory, from reported peaks and failures.
//!
//! Peak memory grows linearly with the batch: `peak(x) = base + per_sample x`. The base is for weights,
//! optimizer state and workspaces, the rest for activations. A reported peak is the highest since the start,
//! so only the largest batch so far determines it. The model therefore keeps two points, the smallest batch
//! and the largest one that ever raised the peak, and uses the line through both.
//!
//! With only one batch size, the whole peak is attributed to the samples. The resulting cap can be too low,
//! but never too high.

use serde::{Deserialize, Serialize};

/// Cap after a failure, as a share of the batch that failed, unless a larger batch has worked.
const AFTER_FAILURE: f64 = 0.9;
/// Share of the memory that stays free under a cap: peaks vary, and allocators fragment.
const HEADROOM: f64 = 0.1;
/// Maximum ratio of the cap to the largest batch that worked.
const GROWTH_MAX: f64 = 2.0;

/// Memory model of one worker.
///
/// # Examples
/// ```
/// let mut memory = evenstep_core::memory::MemoryModel::default();
/// memory.observe(8, Some(2_000_000_000));
/// memory.observe(16, Some(3_000_000_000));
/// // 49 samples would leave a tenth of 8 GB free, but the cap is at most twice the largest batch that worked.
/// assert_eq!(memory.cap(8_000_000_000), Some(32));
/// assert_eq!(memory.after_failure(64, 1), 57);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryModel {
    /// The smallest batch with a reported peak, and that peak in bytes.
    smallest: Option<(u64, u64)>,
    /// The largest batch that raised the peak, and that peak in bytes.
    largest: Option<(u64, u64)>,
    /// The largest batch that worked.
    worked: u64,
}

impl MemoryModel {
    /// Records that a batch of `batch` samples in one pass worked. `peak_bytes` is the highest memory use of
    /// the worker so far.
    pub fn observe(&mut self, batch: u64, peak_bytes: Option<u64>) {
        if batch == 0 {
            return;
        }
        self.worked = self.worked.max(batch);
        let Some(peak) = peak_bytes.filter(|peak| *peak > 0) else { return };
        if self.smallest.is_none() {
            self.smallest = Some((batch, peak));
        }
        // A higher peak without a larger batch updates the value for the largest batch: memory is fragmented
        // and caches fill over time.
        match &mut self.largest {
            Some((largest, highest)) if batch <= *largest => *highest = peak.max(*highest),
            largest => *largest = Some((batch, peak.max(largest.map_or(0, |(_, highest)| highest)))),
        }
    }

    /// Whether a stored model is usable.
    pub(crate) fn is_valid(&self) -> bool {
        [self.smallest, self.largest].iter().flatten().all(|(batch, peak)| *batch > 0 && *peak > 0)
    }

    /// Returns the largest batch that should fit into `memory_bytes` with a tenth left free;
    /// `None` if no peak was reported.
    ///
    /// The result is at least the largest batch that worked in this memory, and at most twice the largest that worked,
    /// because extrapolation far beyond the measured points is unreliable.
    pub fn cap(&self, memory_bytes: u64) -> Option<u64> {
        let (largest, peak) = self.largest?;
        let (smallest, low_peak) = self.smallest?;
        let per_sample = if largest > smallest && peak > low_peak {
            (peak - low_peak) as f64 / (largest - smallest) as f64
        } else {
            peak as f64 / largest as f64
        };
        let room = memory_bytes as f64 * (1.0 - HEADROOM) - peak as f64;
        let cap = largest as f64 + (room / per_sample).floor();
        let worked = self.worked as f64;
        // A batch that worked in this memory stays allowed, also if it left less than the headroom.
        let proven = if peak <= memory_bytes { worked } else { 1.0 };
        Some(cap.clamp(proven.max(1.0), (worked * GROWTH_MAX).max(1.0)) as u64)
    }

    /// Returns the cap after `batch` samples did not fit.
    ///
    /// The cap is the larger of two values: the largest batch that worked, if that is below `batch`, and 0.9
    /// times `batch`. It is rounded down to a multiple of `quantum`, unless that is 0. It is at least 1, and
    /// less than `batch` if `batch` is at least 2.
    pub fn after_failure(&self, batch: u64, quantum: u64) -> u64 {
        let proven = if self.worked < batch { self.worked } else { 0 };
        let below = proven.max((batch as f64 * AFTER_FAILURE) as u64).min(batch.saturating_sub(1));
        let whole = below - below % quantum.max(1);
        if whole > 0 { whole } else { below.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computed by hand: 100 bytes base, 10 a sample, 1,000 bytes of memory, a tenth free: (900 - 100) / 10 =
    /// 80 samples.
    #[test]
    fn two_sizes_tell_base_and_slope_apart() {
        let mut memory = MemoryModel::default();
        assert_eq!(memory.cap(1000), None);
        memory.observe(10, Some(200));
        assert_eq!(
            memory.cap(1000),
            Some(20),
            "one size: 45 by proportion, but at most twice the batch that worked"
        );
        memory.observe(50, Some(600));
        memory.observe(20, Some(600));
        assert_eq!(memory.cap(1000), Some(80));
        assert_eq!(memory.cap(500), Some(35), "less memory than its peak");
        assert_eq!(memory.cap(10), Some(1));
    }

    #[test]
    fn after_a_failure() {
        let mut memory = MemoryModel::default();
        assert_eq!(memory.after_failure(100, 1), 90);
        assert_eq!(memory.after_failure(100, 16), 80);
        assert_eq!(memory.after_failure(2, 16), 1);
        memory.observe(96, None);
        assert_eq!(memory.after_failure(100, 1), 96, "96 has worked");
        memory.observe(128, None);
        assert_eq!(memory.after_failure(100, 1), 90, "a batch that worked before does not fit any more");
    }

    proptest! {
        #[test]
        fn a_cap_after_a_failure_is_below_it(worked in 0u64..300, failed in 2u64..300, quantum in 1u64..40) {
            let mut memory = MemoryModel::default();
            memory.observe(worked, None);
            let cap = memory.after_failure(failed, quantum);
            prop_assert!(cap >= 1 && cap < failed);
        }

        /// For a worker that follows the model, the cap always fits, and nearly fills the memory once sizes
        /// have varied.
        #[test]
        fn a_cap_fits(base in 1u64..10_000, per_sample in 1u64..1000, sizes in prop::collection::vec(1u64..64, 1..20),
                      memory_bytes in 20_000u64..1_000_000) {
            let mut memory = MemoryModel::default();
            let mut peak = 0;
            for &size in &sizes {
                peak = peak.max(base + per_sample * size);
                memory.observe(size, Some(peak));
            }
            prop_assume!(peak as f64 <= 0.9 * memory_bytes as f64);
            let cap = memory.cap(memory_bytes).unwrap();
            prop_assert!((base + per_sample * cap) as f64 <= 0.9 * memory_bytes as f64 + 1.0, "{cap}");
        }
    }
}
