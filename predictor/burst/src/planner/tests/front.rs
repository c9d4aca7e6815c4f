//! The front over amplification limits.

use super::*;

/// The amplification of B is 3.0 on four GPUs and 5.5 * 2 / 6 on two; that of C is 1.5 on four and 1.25 on
/// two.
#[test]
fn golden() {
    let front = front(&toy(7.0), 20).unwrap();
    let points = front.points.iter().map(|point| (point.amplification, point.iteration_us, point.gpu_us));
    let expected =
        [(3.0, 7.5, 30.0), (11.0 / 6.0, 9.0, 25.0), (1.5, 10.0, 20.5), (1.25, 11.0, 19.5), (1.0, 12.5, 18.5)];
    assert_eq!(points.collect::<Vec<_>>(), expected);
    assert!(front.complete);
}

/// With fewer plans than points, the front omits some inner points, keeps both ends and is marked incomplete.
#[test]
fn few_plans() {
    for plans in 2..5 {
        let front = front(&toy(1.0), plans).unwrap();
        assert!(!front.complete && front.points.len() <= plans, "{plans} plans: {front:?}");
        let ends = (front.points.first().unwrap().iteration_us, front.points.last().unwrap().iteration_us);
        assert_eq!(ends, (7.5, 12.5), "{plans} plans");
    }
    assert_eq!(super::front(&toy(1.0), 0).unwrap(), Front { points: Vec::new(), complete: false });
}

/// Without a count of 1, tight limits have no plan, and the front ends at the last feasible limit.
#[test]
fn training_ends_when_the_plans_end() {
    let problem = Problem { counts: Some(vec![2, 4]), ..toy(1.0) };
    let front = front(&problem, 20).unwrap();
    assert!(front.complete);
    let last = front.points.last().unwrap();
    // B on two GPUs: 5 * 2 / 6.
    assert!((last.amplification - 5.0 / 3.0).abs() < 1e-9, "{front:?}");
    let under = |amplification| {
        plan(&Problem { limit: Some(Limit { amplification, exempt_below_us: 0.0 }), ..problem.clone() })
    };
    assert_eq!(under(last.amplification).unwrap().iteration_us, last.iteration_us);
    assert!(matches!(under(1.6), Err(BurstError::Infeasible(Infeasible::Limit { .. }))));
}
