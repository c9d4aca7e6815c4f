use evenstep_core::attempts::Attempts;
use evenstep_protocol::StepView;

use super::super::seen::Seen;
use super::super::view::step::latest;
use super::*;

fn view(steps: &Steps) -> StepView {
    latest(steps.latest().unwrap(), &Attempts::default(), "samples")
}

/// An allocation for `workers` workers, each with ten samples at 100 samples/s.
fn answer(iteration: u64, workers: usize) -> Arc<AllocateResponse> {
    let share = |rank: usize| {
        serde_json::json!({"worker": format!("w/{rank}"), "rank": rank, "local_batch": 10, "offset": 10 * rank,
            "gradient_weight": 1.0 / workers as f64, "predicted_speed_samples_per_s": 100.0})
    };
    let answer = serde_json::json!({
        "job_id": "job", "generation": 1, "iteration": iteration, "global_batch": 10 * workers,
        "allocations": (0..workers).map(share).collect::<Vec<_>>(),
        "optimizer": {"rule": "none", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0, "ramp": null},
        "decision": {"kind": "held", "reason": "a test"},
    });
    Arc::new(serde_json::from_value(answer).unwrap())
}

/// A worker's report with this compute time. It waited at the barrier for the rest of 0.3 s.
fn report(worker: usize, iteration: u64, compute_time_s: f64) -> WorkerReport {
    let worker = evenstep_protocol::WorkerId::new(format!("w/{worker}")).unwrap();
    WorkerReport {
        barrier_wait_s: Some(0.3 - compute_time_s),
        ..WorkerReport::new(worker, iteration, 10, compute_time_s)
    }
}

#[test]
fn a_step_is_over_when_all_have_reported_or_a_later_one_is_reported() {
    let mut steps = Steps::default();
    (0..4).for_each(|iteration| steps.answered(answer(iteration, 2), 0));
    assert!(steps.reported(&report(0, 0, 0.1), 1, 0).is_some());
    assert!(steps.close().is_empty() && steps.latest().is_none());
    // A wrong hint of the rank has no effect.
    assert_eq!(steps.reported(&report(1, 0, 0.2), 2, 0).unwrap().rank, 1);
    assert_eq!(steps.close().iter().map(|(_, times)| times.took_s).collect::<Vec<_>>(), [0.3]);
    // An iteration that one worker reported is completed by a report of the next one. An iteration
    // without reports never is.
    steps.reported(&report(0, 1, 0.1), 3, 0);
    steps.reported(&report(0, 3, 0.1), 4, 0);
    assert_eq!(steps.close().len(), 1);
    assert_eq!(steps.latest().unwrap().iteration(), 1);
    assert!(steps.close().is_empty(), "each iteration is closed once");
    // An iteration that was not requested is computed with the allocation before it.
    assert_eq!(steps.reported(&report(1, 9, 0.1), 5, 1).unwrap().rank, 1);
    steps.reported(&report(0, 9, 0.1), 5, 0);
    assert_eq!(steps.close().iter().map(|(iteration, _)| *iteration).collect::<Vec<_>>(), [3, 9]);
    let mut empty = Steps::default();
    assert!(empty.reported(&report(0, 9, 0.1), 5, 0).is_none(), "no allocation is known");
}

/// A run was at iteration 9 and starts again from iteration 4. No slow-down begins in the attempt before.
#[test]
fn a_slow_down_began_in_this_attempt() {
    let mut seen = Seen::default();
    for position in 0..13 {
        if position == 10 {
            seen.attempts.push(seen.attempts.next(4, position, true));
        }
        seen.steps.answered(answer(position, 1), 0);
        seen.steps.reported(&report(0, position, 0.1), 1_000 * (position as i64 + 1), 0);
    }
    assert_eq!(
        [0, 5, 6, 7].map(|iteration| seen.reported_from(iteration)),
        [Some(11_000), Some(12_000), Some(13_000), None]
    );
}

#[test]
fn means_are_those_of_the_reports() {
    let mut steps = Steps::default();
    steps.answered(answer(0, 2), 0);
    steps.reported(&report(0, 0, 0.1), 1, 0);
    steps.reported(&report(1, 0, 0.2), 1, 1);
    steps.close();
    let means = steps.means().unwrap();
    assert!((means.samples_per_s - 20.0 / 0.3).abs() < 1e-9);
    // 50 and 100 samples/s, with 100 predicted.
    assert!((means.error_ratio.unwrap() - 0.25).abs() < 1e-9);
    let view = view(&steps);
    assert_eq!(view.workers[1].actual_samples_per_s, Some(50.0));
}

#[test]
fn the_loss_is_the_mean_over_the_samples_that_have_one() {
    let mut steps = Steps::default();
    steps.answered(answer(0, 3), 0);
    let with = |worker, local_batch, loss| WorkerReport { local_batch, loss, ..report(worker, 0, 0.1) };
    for (worker, report) in
        [with(0, 30, Some(2.0)), with(1, 10, Some(6.0)), with(2, 50, None)].iter().enumerate()
    {
        steps.reported(report, 1, worker);
    }
    steps.close();
    assert_eq!(view(&steps).loss, Some(3.0));
    steps.answered(answer(1, 1), 0);
    steps.reported(&report(0, 1, 0.1), 2, 0);
    steps.close();
    assert_eq!(view(&steps).loss, None);
}

/// The ragged end of an epoch is not shown, but the first smaller iteration of a new generation is, and so is a smaller one
/// that others follow.
#[test]
fn the_latest_full_iteration_is_not_the_ragged_end() {
    let mut steps = Steps::default();
    let mut done = |iteration, global_batch, generation| {
        let answer = AllocateResponse { global_batch, generation, ..(*answer(iteration, 1)).clone() };
        steps.answered(Arc::new(answer), 0);
        steps.reported(&report(0, iteration, 0.1), 1, 0);
        steps.close();
        steps.latest_full().unwrap().iteration()
    };
    let shown = [(0, 10, 1), (1, 3, 1), (2, 10, 1), (3, 5, 2), (4, 2, 2), (5, 2, 2)];
    assert_eq!(
        shown.map(|(iteration, batch, generation)| done(iteration, batch, generation)),
        [0, 0, 2, 3, 3, 5]
    );
}

#[test]
fn a_new_allocation_replaces_the_voided_one() {
    let mut steps = Steps::default();
    steps.answered(answer(0, 3), 0);
    steps.answered(answer(1, 3), 0);
    steps.reported(&report(2, 0, 0.1), 1, 2);
    steps.answered(answer(0, 2), 0);
    assert!(steps.reported(&report(2, 0, 0.1), 1, 2).is_none(), "the worker has no share any more");
    assert_eq!(steps.latest_answer().unwrap().iteration, 1);
}

#[test]
fn wide_jobs_keep_fewer_steps() {
    for (workers, kept) in [(2, STEPS_MAX), (1024, 64), (SHARES_MAX, STEPS_MIN)] {
        let mut steps = Steps::default();
        let one = answer(0, workers);
        for iteration in 0..2 * kept as u64 {
            steps.answered(Arc::new(AllocateResponse { iteration, ..(*one).clone() }), 0);
        }
        assert_eq!(steps.steps.len(), kept, "{workers} workers");
    }
}
