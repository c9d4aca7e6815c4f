//! Errors for invalid and infeasible problems.

use super::*;

fn error(change: impl FnOnce(&mut Problem)) -> BurstError {
    let mut problem = toy(1.0);
    change(&mut problem);
    plan(&problem).unwrap_err()
}

#[test]
fn requests_are_validated() {
    assert_eq!(error(|p| p.layers.clear()), BurstError::Layers(0));
    assert_eq!(error(|p| p.speeds.clear()), BurstError::Gpus(0));
    assert_eq!(error(|p| p.speeds[1] = 0.0), BurstError::Speed { gpu: 1, speed: 0.0 });
    assert_eq!(error(|p| p.counts = Some(Vec::new())), BurstError::Counts(0));
    assert_eq!(error(|p| p.counts = Some(vec![1, 5])), BurstError::Count { count: 5, gpus: 4 });
    assert_eq!(error(|p| p.global_batch = 0), BurstError::GlobalBatch);
    let limit = |amplification, exempt_below_us| Some(Limit { amplification, exempt_below_us });
    assert_eq!(error(|p| p.limit = limit(0.9, 0.0)), BurstError::Limit(0.9));
    assert!(matches!(
        error(|p| p.limit = limit(1.0, f64::NAN)),
        BurstError::Value { what: "exempt_below_us", .. }
    ));
    let network = Network { bandwidth_bytes_per_s: 0.0, latency_us: 0.0, all_reduce: AllReduce::Ring };
    assert!(matches!(
        error(|p| p.network = Some(network)),
        BurstError::Value { what: "bandwidth_bytes_per_s", .. }
    ));
}

#[test]
fn layers_are_checked() {
    let table = |us: f64| Cost::Table([(1, us)].into());
    assert!(
        matches!(error(|p| p.layers[1].cost = table(-1.0)), BurstError::Measured { layer, .. } if layer == "B")
    );
    assert!(matches!(error(|p| p.layers[1].cost = table(f64::NAN)), BurstError::Measured { .. }));
    assert!(matches!(
        error(|p| p.layers[1].outputs = Some(f64::INFINITY)),
        BurstError::Measured { what: "outputs", .. }
    ));
    let falling = Cost::Profile(vec![(2, 1.0), (1, 1.0)]);
    assert!(matches!(error(|p| p.layers[0].cost = falling), BurstError::Points { what: "compute_us", .. }));
    let zero = vec![(0, 1.0)];
    assert!(matches!(error(|p| p.layers[0].activation_bytes = zero), BurstError::Points { .. }));
    assert_eq!(error(|p| p.layers[1].inputs[0].layer = 1), BurstError::Input { layer: "B".into(), from: 1 });
    let many = |p: &mut Problem| p.layers[2].inputs = vec![p.layers[2].inputs[0].clone(); 65];
    assert_eq!(error(many), BurstError::Inputs { layer: "C".into(), inputs: 65 });
}

#[test]
fn missing_values_are_named() {
    let drop = |p: &mut Problem| {
        if let Some(edge_us) = &mut p.layers[2].inputs[0].edge_us {
            edge_us.remove(&(4, 2));
        }
    };
    let missing = BurstError::MissingEdge { layer: "C".into(), input: "B".into(), from: 4, to: 2 };
    assert_eq!(error(drop), missing);
    let (layer, input) = (String::from("B"), String::from("A"));
    assert_eq!(error(|p| p.layers[1].inputs[0].edge_us = None), BurstError::MissingOutputs { layer, input });
    let made = |p: &mut Problem| {
        p.layers[1].inputs[0].edge_us = None;
        p.layers[0].outputs = Some(1.0);
    };
    assert_eq!(error(made), BurstError::MissingNetwork { layer: "B".into() });
    let no_one = |p: &mut Problem| p.layers[0].cost = Cost::Table([(2, 1.0), (4, 1.0)].into());
    assert_eq!(error(no_one), BurstError::MissingOneGpu { layer: "A".into() });
}

/// Four layers; each of the last two reads both of the first two.
#[test]
fn branches_that_cross() {
    let cross = |p: &mut Problem| {
        let mut layer = |name: &str, inputs: &[usize]| {
            let edge = |at: &usize| Input { layer: *at, ..p.layers[1].inputs[0].clone() };
            let inputs = inputs.iter().map(edge).collect();
            let layer = Layer { name: name.into(), inputs, ..p.layers[0].clone() };
            p.layers.push(layer);
        };
        layer("left", &[2]);
        layer("right", &[2]);
        layer("odd", &[3, 4]);
        layer("even", &[3, 4]);
    };
    assert_eq!(error(cross), BurstError::NotSeriesParallel { layer: "C".into() });
}

#[test]
fn infeasible_says_why() {
    let none = |p: &mut Problem| {
        p.limit = None;
        p.layers[1].cost = Cost::Table([(3, 1.0)].into());
    };
    let (layer, known, allowed) = (String::from("B"), vec![3], vec![1, 2, 4]);
    let expected = Infeasible::NoCount { layer, allowed, known, global_batch: 32 };
    assert_eq!(error(none), expected.into());
    let expected = Infeasible::Limit { layer: "B".into(), limit: 1.0, least: 5.0 / 3.0 };
    assert_eq!(error(|p| p.counts = Some(vec![2, 4])), expected.into());
}

/// Layer B fits on four GPUs but costs three times as much. On one GPU it satisfies the limit but does not
/// fit.
#[test]
fn limit_and_cap_together() {
    let both = |p: &mut Problem| {
        p.layers[1].activation_bytes = vec![(8, 80.0), (32, 320.0)];
        p.memory = Some(Memory { bytes_per_gpu: 100, bytes_per_parameter: 0.0 });
    };
    assert_eq!(error(both), Infeasible::LimitAndMemory { limit: 1.0, cap_bytes: 100 }.into());
}

/// Two unconnected layers. Each fits on one GPU or on four, but both together need 180 bytes.
#[test]
fn unconnected_parts() {
    let part = |name: &str| Layer {
        activation_bytes: vec![(8, 80.0), (32, 90.0)],
        ..Layer::table(name, None, [(1, 3.0), (4, 1.0)].into())
    };
    let under = |bytes_per_gpu| {
        let memory = Some(Memory { bytes_per_gpu, bytes_per_parameter: 0.0 });
        let limit = Some(Limit { amplification: 1.0, exempt_below_us: 0.0 });
        plan(&Problem { memory, limit, ..Problem::new(vec![part("a"), part("b")], 4, 32) })
    };
    assert_eq!(gpus(&under(180).unwrap()), [1, 1]);
    assert_eq!(under(179).unwrap_err(), Infeasible::LimitAndMemory { limit: 1.0, cap_bytes: 179 }.into());
}
