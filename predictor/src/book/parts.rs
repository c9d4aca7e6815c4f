//! What a report says of speed, part by part: the local batch, then the chunks that were claimed.

use evenstep_core::curve::CurveLearner;
use evenstep_core::series::Observation;
use evenstep_protocol::WorkerReport;

/// Passes of about one size, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Samples (or what they cost) of all of them, at least 1.
    samples: u64,
    /// Of one of them, at least 1.
    batch: u64,
    /// Time of all of them, in seconds.
    compute_time_s: f64,
}

impl Part {
    fn new(samples: u64, passes: u64, compute_time_s: f64) -> Option<Self> {
        let mean = samples as f64 / passes.max(1) as f64;
        (samples > 0).then(|| Self { samples, batch: (mean.round() as u64).max(1), compute_time_s })
    }

    /// The size that stands for all, and its time.
    pub fn measured(&self) -> (u64, f64) {
        (self.batch, self.compute_time_s * self.batch as f64 / self.samples as f64)
    }

    fn work(&self, curve: &CurveLearner) -> f64 {
        curve.work(self.batch) * (self.samples as f64 / self.batch as f64)
    }
}

/// The parts of a report in the order of time. A worker that computed its samples in more passes than its curve knows of did
/// so by itself: then a pass is what the curve is of.
pub fn parts(report: &WorkerReport, curve: &CurveLearner) -> Vec<Part> {
    let time_s = report.compute_time_s;
    if let Some(cost) = report.cost {
        let cost = if cost > 0.0 { cost.round().max(1.0) as u64 } else { 0 };
        return Part::new(cost, 1, time_s).into_iter().collect();
    }
    // Passes that the curve counts by itself.
    let passes = |batch: u64| curve.micro_batch().map_or(1, |size| batch.div_ceil(size));
    let passes_of = |samples: u64, done: Option<u64>| match done {
        Some(done) if done > passes(samples) => done,
        _ => 1,
    };
    let Some(tail) = report.tail else {
        let passes = passes_of(report.local_batch, report.micro_batches);
        return Part::new(report.local_batch, passes, time_s).into_iter().collect();
    };
    let base = report.local_batch.saturating_sub(tail.samples);
    let in_chunks = tail.chunks * passes(tail.samples / tail.chunks.max(1));
    let passes = passes_of(base, report.micro_batches.map(|all| all.saturating_sub(in_chunks)));
    let base = Part::new(base, passes, (time_s - tail.compute_time_s).max(0.0));
    base.into_iter().chain(Part::new(tail.samples, tail.chunks, tail.compute_time_s)).collect()
}

/// What all parts together say of speed, by the curve as it is known now.
pub fn observation(report: &WorkerReport, curve: &CurveLearner) -> Option<Observation> {
    let work = parts(report, curve).iter().map(|part| part.work(curve)).sum();
    Observation::new(work, report.compute_time_s)
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

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-12
    }

    #[test]
    fn a_base_and_the_mean_chunk() {
        let curve = CurveLearner::new();
        let seen: Vec<(u64, f64)> = parts(&report(), &curve).iter().map(Part::measured).collect();
        assert_eq!(seen.len(), 2);
        assert!(seen[0].0 == 40 && close(seen[0].1, 0.7), "{seen:?}");
        assert!(seen[1].0 == 5 && close(seen[1].1, 0.05), "{seen:?}");
        let seen = observation(&report(), &curve).unwrap();
        assert_eq!((seen.batch, seen.compute_time_s), (60.0, 0.9));
        assert!(close(tail_speedup(&report()).unwrap(), (0.7f64 / 40.0 / (0.2 / 20.0)).ln()));
        let all_in_the_tail = WorkerReport { local_batch: 20, compute_time_s: 0.2, ..report() };
        assert_eq!(parts(&all_in_the_tail, &curve).len(), 1);
        assert_eq!(tail_speedup(&all_in_the_tail), None);
        assert_eq!(tail_speedup(&WorkerReport { tail: None, ..report() }), None);
    }

    /// 40 samples in 3 passes, and 4 chunks: the mean pass has 13 1/3; all work counts.
    #[test]
    fn who_accumulates_by_itself_is_seen_pass_by_pass() {
        let by_itself = WorkerReport { micro_batches: Some(7), ..report() };
        let curve = CurveLearner::new();
        let (batch, time_s) = parts(&by_itself, &curve)[0].measured();
        assert!(batch == 13 && close(time_s, 0.7 * 13.0 / 40.0), "{time_s}");
        assert!(close(observation(&by_itself, &curve).unwrap().batch, 60.0));
        // A curve that knows of passes of 16 counts them itself.
        let known = CurveLearner::accumulating(16);
        assert_eq!(parts(&by_itself, &known)[0].measured().0, 40);
    }

    #[test]
    fn costs_are_taken_whole() {
        let cost = WorkerReport { cost: Some(99.6), micro_batches: Some(3), tail: None, ..report() };
        let curve = CurveLearner::new();
        let seen: Vec<(u64, f64)> = parts(&cost, &curve).iter().map(Part::measured).collect();
        assert_eq!(seen, [(100, 0.9)]);
        let nothing = WorkerReport { local_batch: 0, tail: None, ..report() };
        assert!(parts(&nothing, &curve).is_empty() && observation(&nothing, &curve).is_none());
    }
}
