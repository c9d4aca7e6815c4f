//! Costs computed from profiles.

use super::*;

/// Outputs of VGG-16's first block: 64 * 224 * 224 values per sample.
const OUTPUTS: f64 = 3_211_264.0;

fn network(all_reduce: AllReduce) -> Option<Network> {
    Some(Network { bandwidth_bytes_per_s: 266e9, latency_us: 40.0, all_reduce })
}

fn layer(name: &str, inputs: &[usize], compute_us: &[(u64, f64)]) -> Layer {
    let input = |layer: &usize| Input { layer: *layer, edge_us: None };
    let cost = Cost::Profile(compute_us.to_vec());
    let inputs = inputs.iter().map(input).collect();
    Layer { inputs, cost, outputs: Some(OUTPUTS), ..Layer::table(name, None, BTreeMap::new()) }
}

/// The transfers equal those in the artifact's table, which was computed for this network.
#[test]
fn transfers_are_the_artifacts() {
    let golden = [
        (1, 2, 1625.27),
        (1, 4, 2397.905),
        (8, 1, 2784.222),
        (4, 2, 852.635),
        (2, 8, 1238.952),
        (4, 8, 466.317),
        (8, 8, 0.0),
    ];
    for (from, to, transfer_us) in golden {
        let only = |name: &str, inputs: &[usize], count: usize| {
            let edges = |layer: &usize| Input { layer: *layer, edge_us: None };
            let inputs = inputs.iter().map(edges).collect();
            Layer { inputs, outputs: Some(OUTPUTS), ..Layer::table(name, None, [(count, 1.0)].into()) }
        };
        let layers = vec![only("a", &[], from), only("b", &[0], to)];
        let problem = Problem { network: network(AllReduce::Ring), ..Problem::new(layers, 8, 32) };
        let plan = plan(&problem).unwrap();
        assert!(
            (plan.layers[1].transfer_us - transfer_us).abs() < 6e-4,
            "{from}->{to}: {:?}",
            plan.layers[1]
        );
    }
}

/// By hand: 26.6 million parameters take 400 us to send.
#[test]
fn gradient_sums() {
    for (all_reduce, sync_us) in [(AllReduce::Ring, 600.0 + 240.0), (AllReduce::Tree, 800.0 + 160.0)] {
        let layer = Layer { parameters: 26.6e6, ..layer("dense", &[], &[(8, 100.0), (32, 10_000.0)]) };
        let problem = Problem { network: network(all_reduce), ..Problem::new(vec![layer], 4, 32) };
        let plan = plan(&problem).unwrap();
        assert_eq!((plan.layers[0].gpus, plan.layers[0].compute_us), (4, 100.0), "8 samples each");
        assert!((plan.layers[0].sync_us.unwrap() - sync_us).abs() < 1e-6, "{all_reduce:?}: {plan:?}");
        assert_eq!(plan.one_gpu.unwrap().iteration_us, 10_000.0, "one GPU needs no gradient sum");
    }
}

/// 12 samples on speeds 3, 2, 1 are split into 6, 4 and 2, and each GPU takes 2 us. On the two fastest the
/// batches are 8 (7.2 rounded up) and 5.
#[test]
fn unequal_gpus() {
    let profile = || layer("conv", &[], &[(1, 1.0), (100, 100.0)]);
    let problem = Problem {
        speeds: vec![1.0, 3.0, 2.0],
        counts: Some(vec![1, 2, 3]),
        ..Problem::new(vec![profile()], 3, 12)
    };
    let planned = plan(&problem).unwrap();
    assert_eq!((planned.iteration_us, planned.gpu_order.clone()), (2.0, vec![1, 2, 0]));
    assert_eq!(planned.one_gpu.unwrap().iteration_us, 4.0);
    let two = plan(&Problem { counts: Some(vec![2]), ..problem.clone() }).unwrap();
    assert!((two.iteration_us - 8.0 / 3.0).abs() < 1e-6, "{two:?}");
    assert_eq!(two.idle_us, [two.iteration_us, 0.0, 0.0], "the slowest GPU is idle");
    // Tables are for speed 1: 6 us on two GPUs are 12 GPU-us, which take 12 / 5 us on speeds 3 and 2.
    let table = Layer::table("conv", None, [(2, 6.0)].into());
    let plan = plan(&Problem { layers: vec![table], ..problem }).unwrap();
    assert!((plan.iteration_us - 2.4).abs() < 1e-6);
}

/// More GPUs than samples: a layer never runs on a GPU without samples.
#[test]
fn few_samples() {
    let problem = Problem::new(vec![layer("conv", &[], &[(1, 1.0), (3, 30.0)])], 8, 3);
    assert_eq!(gpus(&plan(&problem).unwrap()), [2]);
}

/// Each layer needs 10 bytes per sample and 4 parameters of 5 bytes. It is slower on two GPUs, but on one GPU
/// only one layer fits.
#[test]
fn a_memory_cap() {
    let heavy = |name: &str, inputs: &[usize]| Layer {
        activation_bytes: vec![(1, 10.0), (2, 20.0)],
        parameters: 4.0,
        ..layer(name, inputs, &[(1, 9.0), (8, 9.5)])
    };
    let layers = vec![heavy("a", &[]), heavy("b", &[0])];
    let memory = |bytes_per_gpu| Some(Memory { bytes_per_gpu, bytes_per_parameter: 5.0 });
    let base = Problem { network: network(AllReduce::Ring), ..Problem::new(layers, 2, 8) };
    let under = |bytes| plan(&Problem { memory: memory(bytes), ..base.clone() });
    // A layer needs 80 + 20 bytes on one GPU, 40 + 20 on two.
    assert_eq!(gpus(&under(200).unwrap()), [1, 1]);
    assert_eq!(under(200).unwrap().memory_bytes, 200);
    assert_eq!(
        gpus(&under(199).unwrap()).iter().sum::<usize>(),
        4,
        "changing the count costs more than running both layers on two GPUs"
    );
    let tight = under(120).unwrap();
    assert_eq!((tight.memory_bytes, tight.exact, tight.one_gpu), (120, true, None));
    let Err(BurstError::Infeasible(Infeasible::Memory { needed_bytes, cap_bytes, layer, layer_bytes })) =
        under(119)
    else {
        panic!("{:?}", under(119));
    };
    assert_eq!((needed_bytes, cap_bytes, layer_bytes), (120, 119, 60));
    assert!(layer == "a" || layer == "b");
}
