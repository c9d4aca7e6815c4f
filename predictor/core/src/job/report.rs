//! Contents of a report for the models: speed by part (the local batch, then the claimed chunks), inputs for
//! the next iteration, signs of a straggler, and gradient norms.

use evenstep_protocol::{WorkerReport, driver};

use crate::hedge::TailWork;
use crate::hedge::learner::Parts;
use crate::learning_rate::{GradientNorms, LocalNorm};
use crate::series::{DriverSet, READING_MAX};
use crate::straggler::StragglerReadings;

/// Returns the parts of a report.
pub fn parts(report: &WorkerReport) -> Parts {
    let base_s = report.compute_time_s;
    if let Some(cost) = report.cost {
        let base = if cost > 0.0 { cost.round().max(1.0) as u64 } else { 0 };
        return Parts { base, base_s, tail: TailWork::default() };
    }
    let tail = report.tail.map_or_else(TailWork::default, |tail| TailWork {
        samples: tail.samples,
        chunks: tail.chunks,
        compute_s: tail.compute_time_s,
        claim_s: tail.claim_time_s,
    });
    let base = report.local_batch.saturating_sub(tail.samples);
    Parts { base, base_s: (base_s - tail.compute_s).max(0.0), tail }
}

/// Returns the speed-up of a worker in its tail: the logarithm of its seconds per sample before the tail over
/// its seconds per sample in the tail.
pub fn tail_speedup(report: &WorkerReport) -> Option<f64> {
    let tail = report.tail?;
    let base = report.local_batch.checked_sub(tail.samples).filter(|base| *base > 0)?;
    let base_pace_s = (report.compute_time_s - tail.compute_time_s) / base as f64;
    let tail_pace_s = tail.compute_time_s / tail.samples as f64;
    Some((base_pace_s / tail_pace_s).ln()).filter(|speedup| speedup.is_finite())
}

/// Returns the drivers that forecasts use.
pub fn drivers() -> DriverSet {
    DriverSet::new(driver::ALL.into_iter().chain([driver::BARRIER_WAIT_S, driver::TAIL_SPEEDUP]))
}

/// Returns the inputs that forecast the next iteration, by name: driver readings, barrier wait, and tail
/// speed-up.
pub fn inputs(report: &WorkerReport) -> impl Iterator<Item = (&str, f64)> {
    let waited = report.barrier_wait_s.map(|wait_s| (driver::BARRIER_WAIT_S, wait_s));
    let ended = tail_speedup(report).map(|speedup| (driver::TAIL_SPEEDUP, speedup));
    report.drivers.iter().map(|(name, value)| (name.as_str(), *value)).chain(waited).chain(ended)
}

/// Returns the inputs of a report in the order of the drivers.
pub fn readings(drivers: &DriverSet, report: &WorkerReport) -> Vec<Option<f64>> {
    drivers.readings(inputs(report))
}

/// Returns the readings that can explain why a worker is slow.
pub fn signs(report: &WorkerReport) -> StragglerReadings {
    let is_plausible = |reading: &f64| reading.abs() <= READING_MAX;
    let reading = |name: &str| report.drivers.get(name).copied().filter(is_plausible);
    StragglerReadings {
        sm_clock_mhz: reading(driver::SM_CLOCK_MHZ),
        gpu_temperature_celsius: reading(driver::GPU_TEMPERATURE_CELSIUS),
        cpu_stall: reading(driver::PSI_CPU_SOME),
        run_queue_wait: reading(driver::RUN_QUEUE_WAIT),
        cpu_throttled: reading(driver::CGROUP_CPU_THROTTLED),
        memory_stall: reading(driver::PSI_MEMORY_SOME),
        loader_share: report
            .loader_wait_s
            .map(|wait_s| wait_s / (wait_s + report.compute_time_s))
            .filter(|share| share.is_finite()),
    }
}

/// Returns the gradient norms of one iteration; `None` if its reports do not contain them.
pub fn gradient_norms<'a>(reports: impl IntoIterator<Item = &'a WorkerReport>) -> Option<GradientNorms> {
    let mut locals = Vec::new();
    let mut global_squared = None;
    for report in reports.into_iter().filter(|report| report.local_batch > 0) {
        locals.push(LocalNorm { local_batch: report.local_batch, squared: report.gradient_sqr? });
        global_squared = report.global_gradient_sqr.or(global_squared);
    }
    Some(GradientNorms { locals, global_squared: global_squared? })
}

#[cfg(test)]
mod tests {
    use crate::curve::CurveLearner;
    use evenstep_protocol::{TailReport, WorkerId};

    use super::*;

    /// 60 samples in 0.9 s; 20 of them, in four chunks, took 0.2 s.
    fn report() -> WorkerReport {
        let tail = TailReport { chunks: 4, samples: 20, compute_time_s: 0.2, claim_time_s: 0.01 };
        WorkerReport { tail: Some(tail), ..WorkerReport::new(WorkerId::new("node/0").unwrap(), 1, 60, 0.9) }
    }

    #[test]
    fn base_and_claimed_samples() {
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
    fn costs_are_integers() {
        let cost = WorkerReport { cost: Some(99.6), tail: None, ..report() };
        assert_eq!(parts(&cost).base, 100);
        let nothing = WorkerReport { local_batch: 0, tail: None, ..report() };
        assert_eq!(parts(&nothing).observation(&CurveLearner::new()), None);
    }
}
