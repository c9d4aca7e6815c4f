//! Wide jobs learn some of their models in turns, and follow changes as fast as others.

use std::collections::BTreeSet;

use evenstep_core::forecast::WIDE;
use evenstep_core::job::{JobState, WorkerState};
use evenstep_protocol::{AllocateRequest, JobId, JoinRequest, WorkerId, WorkerReport};

use crate::world::{job, plain, worker};

/// Number of workers of a wide job.
const WORKERS: usize = 1100;

/// Results of a job before an iteration.
struct Seen {
    /// Forecast speeds of worker 3 and of worker 4.
    speeds: [f64; 2],
    flagged: BTreeSet<WorkerId>,
    is_pooled: bool,
}

/// Lets workers join or leave, until this number of them is live.
fn resize(state: &mut JobState, workers: usize) {
    let live = state.live().len();
    for id in (live..workers).map(worker) {
        assert_eq!(state.members.join(&id, 0), Ok(true));
        state.workers.insert(id.clone(), WorkerState::new(JoinRequest::new(id)));
    }
    assert!((workers..live).all(|rank| state.members.leave(&worker(rank), 0)));
}

/// Runs a job with a number of workers in each iteration, in which worker 3 is 3 times slower in some iterations, and later all take
/// twice as long.
fn run(
    iterations: u64,
    workers: impl Fn(u64) -> usize,
    is_slow: impl Fn(u64) -> bool,
    is_longer: impl Fn(u64) -> bool,
) -> Vec<Seen> {
    let mut state = job(plain(64 * workers(0) as u64), workers(0));
    let (mut reports, mut seen) = (Vec::new(), Vec::new());
    for iteration in 0..iterations {
        state.observe(&reports);
        resize(&mut state, workers(iteration));
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration);
        let decided = state.decide(&request).unwrap();
        let shares = decided.answer.allocations.clone();
        state.apply(decided);
        seen.push(Seen {
            speeds: [3, 4].map(|rank: usize| shares[rank].predicted_speed_samples_per_s.unwrap_or(0.0)),
            flagged: state.stragglers().into_keys().cloned().collect(),
            is_pooled: state.models.forecaster().is_pooled(),
        });
        let report = |(rank, share): (usize, &evenstep_protocol::Allocation)| {
            let noise = 1.0 + 0.02 * (((iteration as usize * 7 + rank % 8 * 13) % 17) as f64 / 17.0 - 0.5);
            let slow = if rank == 3 && is_slow(iteration) { 3.0 } else { 1.0 };
            let all = if is_longer(iteration) { 2.0 } else { 1.0 };
            let compute_time_s = slow * all * noise * share.local_batch as f64 / 1000.0;
            WorkerReport::new(share.worker.clone(), iteration, share.local_batch, compute_time_s)
        };
        reports = shares.iter().enumerate().map(report).collect();
    }
    seen
}

/// Compares the forecasts of two jobs with the same speeds.
fn assert_follows(wide: &[Seen], small: &[Seen]) {
    for (iteration, (small, wide)) in small.iter().zip(wide).enumerate().skip(15) {
        for (small, wide) in small.speeds.iter().zip(wide.speeds) {
            assert!((wide / small - 1.0).abs() < 0.05, "{wide} and {small} in iteration {iteration}");
        }
    }
    assert!(small[22].speeds[0] < 400.0 && small[32].speeds[1] < 600.0, "the small job follows");
}

#[test]
fn a_wide_job_follows_changes_as_fast_as_a_small_one() {
    let run = |workers| run(40, |_| workers, |iteration| iteration >= 20, |iteration| iteration >= 30);
    assert_follows(&run(WORKERS), &run(8));
}

/// Forecasts change from the workers' own models to the pooled one, and back when half as many workers are left.
#[test]
fn a_job_that_becomes_wide_and_narrow_again_follows_changes_as_fast_as_others() {
    let widths = |iteration| match iteration {
        0..12 => WIDE,
        12..18 => WIDE + 1,
        18..26 => WIDE / 2 + 1,
        _ => WIDE / 2,
    };
    let run =
        |width: fn(u64) -> usize| run(40, width, |iteration| iteration >= 20, |iteration| iteration >= 30);
    let wide = run(widths);
    // The reports of an iteration decide on the next one, and the first report of a worker is not learned.
    let pooled: Vec<u64> = (0..).zip(&wide).filter(|(_, seen)| seen.is_pooled).map(|(at, _)| at).collect();
    assert_eq!(pooled, Vec::from_iter(14..27));
    assert_follows(&wide, &run(|_| 8));
}

/// Workers of a wide job are compared with others in turns, those that may be slow more often.
#[test]
fn a_slow_worker_of_a_wide_job_is_flagged_until_it_recovers() {
    let slow = 20..50;
    let seen = run(76, |_| WORKERS, |iteration| slow.contains(&iteration), |iteration| iteration >= 60);
    let flagged = |at: std::ops::Range<usize>| seen[at].iter().map(|seen| seen.flagged.clone());
    assert!(flagged(0..20).all(|flagged| flagged.is_empty()));
    assert!(flagged(40..50).all(|flagged| flagged.into_iter().eq([worker(3)])), "as soon as in a small job");
    assert!(flagged(20..76).flatten().all(|flagged| flagged == worker(3)), "no other");
    assert!(flagged(70..76).all(|flagged| flagged.is_empty()), "it has recovered");
}
