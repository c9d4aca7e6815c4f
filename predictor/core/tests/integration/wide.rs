//! Wide jobs learn some of their models in turns, and follow changes as fast as others.

use evenstep_core::job::JobState;
use evenstep_protocol::{AllocateRequest, JobId, WorkerReport};

use crate::world::{job, plain, worker};

/// Number of workers of a wide job.
const WORKERS: usize = 1100;

/// Plans an iteration with these reports, and returns its shares and forecast speeds.
fn plan(state: &mut JobState, reports: &[WorkerReport]) -> Vec<(u64, f64)> {
    state.observe(reports);
    let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, state.next_iteration);
    let decided = state.decide(&request).unwrap();
    let shares = decided.answer.allocations.iter();
    let shares =
        shares.map(|share| (share.local_batch, share.predicted_speed_samples_per_s.unwrap_or(0.0))).collect();
    state.apply(decided);
    shares
}

/// Runs a job in which a worker becomes 3 times slower, and later all take twice as long. Returns the forecast speed of the slow worker
/// and of another in each iteration.
fn run(workers: usize) -> Vec<[f64; 2]> {
    let mut state = job(plain(64 * workers as u64), workers);
    let (mut reports, mut speeds) = (Vec::new(), Vec::new());
    for iteration in 0..40u64 {
        let shares = plan(&mut state, &reports);
        speeds.push([3, 4].map(|rank: usize| shares[rank].1));
        let report = |(rank, (share, _)): (usize, &(u64, f64))| {
            let noise = 1.0 + 0.02 * (((iteration as usize * 7 + rank % 8 * 13) % 17) as f64 / 17.0 - 0.5);
            let slow = if rank == 3 && iteration >= 20 { 3.0 } else { 1.0 };
            let all = if iteration >= 30 { 2.0 } else { 1.0 };
            WorkerReport::new(worker(rank), iteration, *share, slow * all * noise * *share as f64 / 1000.0)
        };
        reports = shares.iter().enumerate().map(report).collect();
    }
    speeds
}

#[test]
fn a_wide_job_follows_changes_as_fast_as_a_small_one() {
    let (small, wide) = (run(8), run(WORKERS));
    for (iteration, (small, wide)) in small.iter().zip(&wide).enumerate().skip(15) {
        for (small, wide) in small.iter().zip(wide) {
            assert!((wide / small - 1.0).abs() < 0.05, "{wide} and {small} in iteration {iteration}");
        }
    }
    assert!(small[22][0] < 400.0 && small[32][1] < 600.0, "the small job follows");
}
