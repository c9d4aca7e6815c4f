//! Plans of a toy table, small enough to check by hand.

use super::*;

/// The plans at all limits, from an exhaustive search over all 27 choices.
#[test]
fn golden() {
    let table = [
        (1.0, 12.5, 18.5, [4, 1, 1]),
        (1.4, 11.0, 19.5, [4, 1, 2]),
        (1.5, 10.0, 20.5, [4, 1, 4]),
        (1.9, 9.0, 25.0, [4, 2, 4]),
        (3.0, 7.5, 30.0, [4, 4, 4]),
        (9.0, 7.5, 30.0, [4, 4, 4]),
    ];
    for (limit, iteration_us, gpu_us, expected) in table {
        let plan = plan(&toy(limit)).unwrap();
        assert_eq!(gpus(&plan), expected, "limit {limit}");
        assert_eq!((plan.iteration_us, plan.gpu_us), (iteration_us, gpu_us), "limit {limit}");
    }
}

/// By hand: A takes 2 us on four GPUs, B 0.5 + 6 us on one, C 0.5 + 1 us on four.
#[test]
fn a_timeline() {
    let plan = plan(&toy(1.5)).unwrap();
    let times =
        plan.layers.iter().map(|layer| (layer.begin_us, layer.transfer_us, layer.compute_us, layer.end_us));
    assert_eq!(
        times.collect::<Vec<_>>(),
        [(0.0, 0.0, 2.0, 2.0), (2.0, 0.5, 6.0, 8.5), (8.5, 0.5, 1.0, 10.0)]
    );
    assert_eq!(plan.layers[2].amplification, Some(1.5));
    assert_eq!(plan.layers.iter().map(|layer| layer.exempt).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(plan.layers[0].sync_us, None, "the table includes the gradient sum in the compute time");
    assert_eq!(plan.idle_us, [0.0, 6.5, 6.5, 6.5]);
    let one_gpu = Alternative { gpus: 1, iteration_us: 18.0, gpu_us: 18.0 };
    let data_parallel = Alternative { gpus: 4, iteration_us: 7.5, gpu_us: 30.0 };
    assert_eq!((plan.one_gpu, plan.data_parallel), (Some(one_gpu), Some(data_parallel)));
    assert!(plan.exact);
}

/// Ties in time are broken by GPU time (a layer of 1 us at any count), then by the number of GPUs (a layer of
/// 0 us).
#[test]
fn ties() {
    for us in [1.0, 0.0] {
        let layer = Layer::table("any", None, [(1, us), (2, us), (4, us)].into());
        assert_eq!(gpus(&plan(&Problem::new(vec![layer], 4, 32)).unwrap()), [1], "{us} us");
    }
}

/// Layer C is short: it takes 4 us on one GPU and is exempt below 5.
#[test]
fn exemption() {
    let mut problem = toy(1.0);
    problem.limit = Some(Limit { amplification: 1.0, exempt_below_us: 5.0 });
    assert_eq!(gpus(&plan(&problem).unwrap()), [4, 1, 4]);
    problem.limit = Some(Limit { amplification: 1.0, exempt_below_us: 4.0 });
    assert_eq!(gpus(&plan(&problem).unwrap()), [4, 1, 1], "4 is not below 4");
}

/// Ratios that equal the limit except for rounding: 0.1 * 3 / 0.3 = 1 and 0.49 * 2 / 0.7 = 1.4.
#[test]
fn a_limit_can_be_met_exactly() {
    for (amplification, gpus, one_us, us) in [(1.0, 3, 0.3, 0.1), (1.4, 2, 0.7, 0.49)] {
        let layer = Layer::table("even", None, [(1, one_us), (gpus, us)].into());
        let limit = Some(Limit { amplification, exempt_below_us: 0.0 });
        let problem = Problem { limit, counts: Some(vec![gpus, 1]), ..Problem::new(vec![layer], 3, 32) };
        assert_eq!(super::gpus(&plan(&problem).unwrap()), [gpus], "limit {amplification}");
    }
}

/// A join pays for both transfers, and both count towards the limit: 1 + 1 + 1 us on two GPUs are twice the 3
/// us on one GPU. With only one transfer the ratio would be lower.
#[test]
fn all_transfers_into_a_join_count() {
    let change = BTreeMap::from([((1, 2), 1.0), ((2, 1), 9.0)]);
    let input = |layer| Input { layer, edge_us: Some(change.clone()) };
    let on_one = |name: &str| Layer::table(name, None, [(1, 1.0)].into());
    let mut join = Layer::table("join", None, [(1, 3.0), (2, 0.5)].into());
    join.inputs = vec![input(0), input(1)];
    let layers = vec![on_one("left"), on_one("right"), join];
    let mut problem = Problem::new(layers, 2, 32);
    problem.limit = Some(Limit { amplification: 1.6, exempt_below_us: 0.0 });
    assert_eq!(gpus(&plan(&problem).unwrap()), [1, 1, 1], "2.5 us * 2 / 3 us is 1.67");
    problem.limit = Some(Limit { amplification: 1.7, exempt_below_us: 0.0 });
    assert_eq!(gpus(&plan(&problem).unwrap()), [1, 1, 2]);
}
