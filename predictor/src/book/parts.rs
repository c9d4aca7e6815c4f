//! What a report says of speed, part by part: the local batch, then the chunks that were claimed.

use evenstep_core::curve::CurveLearner;
use evenstep_core::hedge::Took;
use evenstep_core::hedge::learner::Parts;
use evenstep_protocol::WorkerReport;

/// The parts of a report. A worker that computed them in more passes than its curve knows of did so by itself: then a pass is
/// what the curve is of.
pub fn parts(report: &WorkerReport, curve: &CurveLearner) -> Parts {
    let base_s = report.compute_time_s;
    if let Some(cost) = report.cost {
        let base = if cost > 0.0 { cost.round().max(1.0) as u64 } else { 0 };
        return Parts { base, base_s, tail: Took::default(), pass: None };
    }
    let tail = report.tail.map_or_else(Took::default, |tail| Took {
        samples: tail.samples,
        chunks: tail.chunks,
        compute_s: tail.compute_time_s,
        claim_s: tail.claim_time_s,
    });
    let base = report.local_batch.saturating_sub(tail.samples);
    let chunk = tail.samples / tail.chunks.max(1);
    let passes = |size: u64| base.div_ceil(size) + tail.chunks * chunk.div_ceil(size);
    let known = passes(curve.micro_batch().unwrap_or(u64::MAX).max(1));
    let done = report.micro_batches.filter(|done| *done > known);
    let pass = done.map(|done| smallest(base.max(chunk), |size| passes(size) <= done));
    Parts { base, base_s: (base_s - tail.compute_s).max(0.0), tail, pass }
}

/// The smallest size, from 1 to `most`, that is `enough`, where all larger ones are too; `most` where none is.
fn smallest(most: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = low.midpoint(high);
        if enough(middle) { high = middle } else { low = middle + 1 }
    }
    low
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

    /// Base, the size of its passes, and the samples of the tail.
    fn counts(report: &WorkerReport, curve: &CurveLearner) -> (u64, Option<u64>, u64) {
        let parts = parts(report, curve);
        (parts.base, parts.pass, parts.tail.samples)
    }

    #[test]
    fn a_base_and_what_was_claimed() {
        let curve = CurveLearner::new();
        assert_eq!(counts(&report(), &curve), (40, None, 20));
        let seen = parts(&report(), &curve);
        assert!((seen.base_s - 0.7).abs() < 1e-12 && seen.tail.compute_s == 0.2, "{seen:?}");
        let expected: f64 = (0.7 / 40.0 / (0.2 / 20.0f64)).ln();
        assert!((tail_speedup(&report()).unwrap() - expected).abs() < 1e-12);
        let all_in_the_tail = WorkerReport { local_batch: 20, compute_time_s: 0.2, ..report() };
        assert_eq!(counts(&all_in_the_tail, &curve), (0, None, 20));
        assert_eq!(tail_speedup(&all_in_the_tail), None);
        assert_eq!(tail_speedup(&WorkerReport { tail: None, ..report() }), None);
    }

    #[test]
    fn who_accumulates_by_itself_is_seen_pass_by_pass() {
        let by_itself = WorkerReport { micro_batches: Some(7), ..report() };
        // 40 in three passes of at most 14, and four chunks.
        assert_eq!(counts(&by_itself, &CurveLearner::new()), (40, Some(14), 20));
        let by_four = WorkerReport { micro_batches: Some(10 + 4 * 2), ..report() };
        assert_eq!(counts(&by_four, &CurveLearner::new()), (40, Some(4), 20), "chunks of 5 take two");
        assert_eq!(
            counts(&by_itself, &CurveLearner::accumulating(16)),
            (40, None, 20),
            "it knows of three passes"
        );
        let whole = WorkerReport { tail: None, micro_batches: Some(12), ..report() };
        assert_eq!(counts(&whole, &CurveLearner::new()), (60, Some(5), 0));
    }

    #[test]
    fn costs_are_taken_whole() {
        let cost = WorkerReport { cost: Some(99.6), micro_batches: Some(3), tail: None, ..report() };
        assert_eq!(counts(&cost, &CurveLearner::new()), (100, None, 0));
        let nothing = WorkerReport { local_batch: 0, tail: None, ..report() };
        assert_eq!(counts(&nothing, &CurveLearner::new()), (0, None, 0));
        assert_eq!(parts(&nothing, &CurveLearner::new()).observation(&CurveLearner::new()), None);
    }
}
