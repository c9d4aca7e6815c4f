//! What a report says of speed, part by part: the local batch, then the chunks that were claimed.

use evenstep_core::hedge::Took;
use evenstep_core::hedge::learner::Parts;
use evenstep_protocol::WorkerReport;

/// The parts of a report.
pub fn parts(report: &WorkerReport) -> Parts {
    let base_s = report.compute_time_s;
    if let Some(cost) = report.cost {
        let base = if cost > 0.0 { cost.round().max(1.0) as u64 } else { 0 };
        return Parts { base, base_s, tail: Took::default() };
    }
    let tail = report.tail.map_or_else(Took::default, |tail| Took {
        samples: tail.samples,
        chunks: tail.chunks,
        compute_s: tail.compute_time_s,
        claim_s: tail.claim_time_s,
    });
    let base = report.local_batch.saturating_sub(tail.samples);
    Parts { base, base_s: (base_s - tail.compute_s).max(0.0), tail }
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
    use evenstep_core::curve::CurveLearner;
    use evenstep_protocol::{TailReport, WorkerId};

    use super::*;

    /// 60 samples in .9 s, of which 20 in four chunks took .2 s.
    fn report() -> WorkerReport {
        let tail = TailReport { chunks: 4, samples: 20, compute_time_s: 0.2, claim_time_s: 0.01 };
        WorkerReport { tail: Some(tail), ..WorkerReport::new(WorkerId::new("node/0").unwrap(), 1, 60, 0.9) }
    }

    #[test]
    fn a_base_and_what_was_claimed() {
        let seen = parts(&report());
        assert_eq!((seen.base, seen.tail.samples, seen.tail.compute_s), (40, 20, 0.2));
        assert!((seen.base_s - 0.7).abs() < 1e-12, "{seen:?}");
        let expected: f64 = (0.7 / 40.0 / (0.2 / 20.0f64)).ln();
        assert!((tail_speedup(&report()).unwrap() - expected).abs() < 1e-12);
        let all_in_the_tail = WorkerReport { local_batch: 20, compute_time_s: 0.2, ..report() };
        assert_eq!((parts(&all_in_the_tail).base, tail_speedup(&all_in_the_tail)), (0, None));
        assert_eq!(tail_speedup(&WorkerReport { tail: None, ..report() }), None);
    }

    #[test]
    fn costs_are_taken_whole() {
        let cost = WorkerReport { cost: Some(99.6), tail: None, ..report() };
        assert_eq!(parts(&cost).base, 100);
        let nothing = WorkerReport { local_batch: 0, tail: None, ..report() };
        assert_eq!(parts(&nothing).observation(&CurveLearner::new()), None);
    }
}
