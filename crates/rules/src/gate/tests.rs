use proptest::prelude::*;

use super::*;

fn limit(ratio: f64) -> Limit {
    Limit::new(ratio).unwrap()
}

/// Returns a gate for tasklets with these benchmarks.
fn gate(ratio: f64, tasklets: &[(Kind, f64)]) -> Gate {
    let mut benchmark = Benchmark::default();
    tasklets.iter().enumerate().for_each(|(place, (kind, us))| benchmark.observe(place, *kind, *us));
    benchmark.gate(limit(ratio))
}

/// Runs a tasklet and returns whether the gate is open for it the next time.
fn run(gate: &mut Gate, place: usize, took_us: f64) -> bool {
    gate.begins(place);
    gate.ends(took_us);
    gate.begins(place);
    gate.verdict().open
}

/// The published example: 105 changes the recent time a little. 130 replaces it at once and closes the gate.
/// Then the recent time decreases by a tenth of the difference each time.
#[test]
fn golden() {
    let mut gate = gate(1.1, &[(Kind::Compute, 100.0)]);
    let table = [
        (105.0, 100.5, true),
        (130.0, 130.0, false),
        (100.0, 127.0, false),
        (100.0, 124.3, false),
        (100.0, 121.87, false),
    ];
    for (took_us, recent_us, open) in table {
        assert_eq!(run(&mut gate, 0, took_us), open, "after {took_us}");
        assert!((gate.recent_us(0).unwrap() - recent_us).abs() < 1e-9, "{:?}", gate.recent_us(0));
    }
    // 30 * 0.9^n < 10 from n = 11 on.
    let more = (0..).find(|_| run(&mut gate, 0, 100.0)).unwrap();
    assert_eq!(3 + more + 1, 11);
}

#[test]
fn rules_apply_in_order() {
    let tasklets = [
        (Kind::Compute, 100.0),
        (Kind::Receive, 500.0),
        (Kind::Receive, 500.1),
        (Kind::AllReduce, 2000.0),
        (Kind::AllReduce, 2000.0),
    ];
    let mut gate = gate(1.1, &tasklets);
    gate.flag(4);
    let rule = |gate: &mut Gate, place: usize| {
        gate.begins(place);
        (gate.verdict().open, gate.verdict().rule)
    };
    assert_eq!(rule(&mut gate, 0), (true, Rule::WithinLimit));
    assert_eq!(rule(&mut gate, 1), (true, Rule::WithinLimit), "too short for a gap");
    assert_eq!(rule(&mut gate, 2), (true, Rule::Gap));
    assert_eq!(rule(&mut gate, 3), (false, Rule::AllReduce));
    assert_eq!(rule(&mut gate, 4), (true, Rule::Flagged));
    for (place, (_, us)) in tasklets.iter().enumerate() {
        run(&mut gate, place, 2.0 * us);
    }
    assert_eq!(rule(&mut gate, 0), (false, Rule::SlowedDown));
    assert_eq!(rule(&mut gate, 1), (false, Rule::SlowedDown));
    assert_eq!(rule(&mut gate, 2), (true, Rule::Gap), "slowed down or not");
    assert_eq!(rule(&mut gate, 3), (false, Rule::AllReduce));
    assert_eq!(rule(&mut gate, 4), (true, Rule::Flagged));
    assert_eq!(rule(&mut gate, 5), (false, Rule::SlowedDown), "it has no benchmark");
}

/// Rules for kinds of tasklets and flags no longer apply when the tasklet has ended.
#[test]
fn between_tasklets_the_slow_down_decides() {
    let mut gate = gate(1.1, &[(Kind::AllReduce, 100.0), (Kind::Receive, 1000.0)]);
    gate.begins(0);
    gate.ends(100.0);
    assert_eq!(gate.verdict().rule, Rule::WithinLimit);
    gate.begins(1);
    gate.ends(2000.0);
    assert_eq!(gate.verdict().rule, Rule::SlowedDown);
}

#[test]
fn a_single_client_keeps_more_in_flight() {
    let mut gate = gate(1.1, &[(Kind::Compute, 100.0)]);
    assert_eq!(gate.verdict(), Verdict { open: true, rule: Rule::NoForeground, in_flight: 4 });
    gate.begins(0);
    assert_eq!(gate.verdict().in_flight, 1);
    gate.leaves();
    assert_eq!(gate.verdict().in_flight, 4);
}

#[test]
fn a_benchmark_is_the_median_of_the_usable_times() {
    let mut benchmark = Benchmark::default();
    for us in [90.0, f64::NAN, 5000.0, -1.0, 110.0, 100.0] {
        benchmark.observe(0, Kind::Compute, us);
    }
    benchmark.observe(2, Kind::Compute, 7.0);
    (0..2 * ROUNDS_MAX).for_each(|round| benchmark.observe(1, Kind::Compute, round as f64));
    let gate = benchmark.gate(Limit::default());
    assert_eq!(gate.recent_us(0), Some(105.0), "of 90, 100, 110 and 5000");
    assert_eq!(gate.recent_us(1), Some(15.5), "of 0 to 31");
    assert_eq!(gate.recent_us(2), None, "position 1 was not reported before it");
    let unknown = Benchmark::default().gate(Limit::default());
    assert!(unknown.verdict().open, "no foreground yet");
}

#[test]
fn absent_limits() {
    for ratio in [0.99, 10.1, f64::NAN, f64::INFINITY] {
        assert!(Limit::new(ratio).is_err(), "{ratio}");
    }
    assert_eq!(Limit::new(0.5).unwrap_err().to_string(), "slow-down limit 0.5 is not between 1 and 10");
    assert_eq!(Limit::default().ratio(), 1.1);
}

#[test]
fn budgets_by_hand() {
    let budgets = budgets(&[0.2, 0.15, 0.0], limit(1.1));
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    for (budget, (slack_s, budget_s)) in budgets.iter().zip([(0.0, 0.02), (0.05, 0.07), (0.2, 0.22)]) {
        close(budget.slack_s, slack_s);
        close(budget.budget_s, budget_s);
    }
    assert_eq!(super::budgets(&[], limit(1.1)), []);
}

proptest! {
    /// While times stay within the limit, the gate never closes. One time above it closes the gate at once.
    /// It opens again after enough times within the limit.
    #[test]
    fn the_gate_closes_at_once_and_opens_again(
        ratio in 1.01f64..3.0, benchmark in 1.0f64..1e5, times in prop::collection::vec(0.0f64..1.0, 0..40), over in 1.01f64..5.0,
    ) {
        let mut gate = gate(ratio, &[(Kind::Compute, benchmark)]);
        for part in times {
            prop_assert!(run(&mut gate, 0, benchmark * part * ratio));
        }
        prop_assert!(!run(&mut gate, 0, benchmark * ratio * over));
        let rounds = ((over * ratio - 1.0) / (ratio - 1.0)).ln() / -(0.9f64.ln());
        let opened = (0..).find(|_| run(&mut gate, 0, benchmark)).unwrap();
        prop_assert!((opened as f64) < rounds + 1.0, "{opened} rounds, {rounds} expected");
    }

    /// A recent time is never outside the range of observed times.
    #[test]
    fn recent_times_are_among_those_seen(ratio in 1.0f64..3.0, times in prop::collection::vec(0.1f64..500.0, 1..60)) {
        let mut gate = gate(ratio, &[(Kind::Compute, 100.0)]);
        times.iter().for_each(|us| { run(&mut gate, 0, *us); });
        let least = times.iter().copied().fold(100.0, f64::min);
        let most = times.iter().copied().fold(100.0, f64::max);
        let recent = gate.recent_us(0).unwrap();
        prop_assert!(least - 1e-9 <= recent && recent <= most + 1e-9);
    }

    /// If every worker uses its whole budget, the step is within the limit. With a limit of 1 the slowest
    /// worker has no budget, and the budget of the others is their slack. The allowed slow-down and the
    /// allowed seconds agree.
    #[test]
    fn budgets_keep_the_limit(finish_s in prop::collection::vec(0.001f64..10.0, 1..20), ratio in 1.0f64..2.0, slow in 1.0f64..4.0) {
        let step_s = finish_s.iter().copied().fold(0.0, f64::max);
        for (budget, finish_s) in budgets(&finish_s, limit(ratio)).iter().zip(&finish_s) {
            prop_assert!(finish_s + budget.budget_s <= ratio * step_s * (1.0 + 1e-12));
            prop_assert!(budget.slack_s <= budget.budget_s);
            prop_assert_eq!(budget.slack_s == 0.0, *finish_s == step_s);
            let spent_s = finish_s * (slow - 1.0);
            prop_assume!((slow - ratio * step_s / finish_s).abs() > 1e-9);
            prop_assert_eq!(slow <= ratio * step_s / finish_s, spent_s <= budget.budget_s);
        }
        for (budget, finish_s) in budgets(&finish_s, limit(1.0)).iter().zip(&finish_s) {
            prop_assert_eq!(budget.budget_s, budget.slack_s);
            prop_assert!(*finish_s < step_s || budget.budget_s == 0.0);
        }
    }
}
