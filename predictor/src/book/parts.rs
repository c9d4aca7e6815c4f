//! What a report says of speed, part by part: the local batch, then the chunks that were claimed.

use evenstep_core::curve::CurveLearner;
use evenstep_core::hedge::Took;
use evenstep_core::hedge::learner::Parts;
use evenstep_protocol::WorkerReport;

/// The parts of a report. A worker that computed its local batch in more passes than its curve knows of did so by itself: then
/// a pass is what the curve is of.
pub fn parts(report: &WorkerReport, curve: &CurveLearner) -> Parts {
    let base_s = report.compute_time_s;
    if let Some(cost) = report.cost {
        let base = if cost > 0.0 { cost.round().max(1.0) as u64 } else { 0 };
        return Parts { base, base_passes: 1, base_s, tail: Took::default() };
    }
    let tail = report.tail.map_or_else(Took::default, |tail| Took {
        samples: tail.samples,
        chunks: tail.chunks,
        compute_s: tail.compute_time_s,
        claim_s: tail.claim_time_s,
    });
    let base = report.local_batch.saturating_sub(tail.samples);
    // Passes that the curve counts by itself.
    let known = |batch: u64| curve.micro_batch().map_or(1, |size| batch.div_ceil(size).max(1));
    let in_chunks = tail.chunks * known(tail.samples / tail.chunks.max(1));
    let done = report.micro_batches.map_or(1, |all| all.saturating_sub(in_chunks));
    let base_passes = if done > known(base) { done } else { 1 };
    Parts { base, base_passes, base_s: (base_s - tail.compute_s).max(0.0), tail }
}

/// How much faster a worker was at the end of an iteration, in its tail: the log of the pace before over the pace then.
pub fn tail_speedup(report: &WorkerReport) -> Option<f64> {
    let tail = report.tail?;
    let base = report.local_batch.checked_sub(tail.samples).filter(|base| *base > 0)?;
    let base_pace_s = (report.compute_time_s - tail.compute_time_s) / base as f64;
    let tail_pace_s = tail.compute_time_s / tail.samples as f64;
    Some((base_pace_s / tail_pace_s).ln()).filter(|speedup| speedup.is_finite())
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{TailReport, WorkerId};

    use super::*;

    /// 60 samples in .9 s, of which 20 in four chunks took .2 s.
    fn report() -> WorkerReport {
        let tail = TailReport { chunks: 4, samples: 20, compute_time_s: 0.2, claim_time_s: 0.01 };
        WorkerReport { tail: Some(tail), ..WorkerReport::new(WorkerId::new("node/0").unwrap(), 1, 60, 0.9) }
    }

    /// Base, its passes, and the samples of the tail.
    fn counts(report: &WorkerReport, curve: &CurveLearner) -> (u64, u64, u64) {
        let parts = parts(report, curve);
        (parts.base, parts.base_passes, parts.tail.samples)
    }

    #[test]
    fn a_base_and_what_was_claimed() {
        let curve = CurveLearner::new();
        assert_eq!(counts(&report(), &curve), (40, 1, 20));
        let seen = parts(&report(), &curve);
        assert!((seen.base_s - 0.7).abs() < 1e-12 && seen.tail.compute_s == 0.2, "{seen:?}");
        let expected: f64 = (0.7 / 40.0 / (0.2 / 20.0f64)).ln();
        assert!((tail_speedup(&report()).unwrap() - expected).abs() < 1e-12);
        let all_in_the_tail = WorkerReport { local_batch: 20, compute_time_s: 0.2, ..report() };
        assert_eq!(counts(&all_in_the_tail, &curve), (0, 1, 20));
        assert_eq!(tail_speedup(&all_in_the_tail), None);
        assert_eq!(tail_speedup(&WorkerReport { tail: None, ..report() }), None);
    }

    #[test]
    fn who_accumulates_by_itself_is_seen_pass_by_pass() {
        let by_itself = WorkerReport { micro_batches: Some(7), ..report() };
        assert_eq!(counts(&by_itself, &CurveLearner::new()), (40, 3, 20));
        assert_eq!(
            counts(&by_itself, &CurveLearner::accumulating(16)),
            (40, 1, 20),
            "it knows of three passes"
        );
        let whole = WorkerReport { tail: None, micro_batches: Some(12), ..report() };
        assert_eq!(counts(&whole, &CurveLearner::new()), (60, 12, 0));
    }

    #[test]
    fn costs_are_taken_whole() {
        let cost = WorkerReport { cost: Some(99.6), micro_batches: Some(3), tail: None, ..report() };
        assert_eq!(counts(&cost, &CurveLearner::new()), (100, 1, 0));
        let nothing = WorkerReport { local_batch: 0, tail: None, ..report() };
        assert_eq!(counts(&nothing, &CurveLearner::new()), (0, 1, 0));
        assert_eq!(parts(&nothing, &CurveLearner::new()).observation(&CurveLearner::new()), None);
    }
}
