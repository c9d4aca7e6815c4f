//! Burst-parallel plans over real groups: under any plan, the parameters equal those of training in one
//! process.

use std::thread;
use std::time::Duration;

use evenstep_c10d::{Group, Store};
use evenstep_trainer::Model;
use evenstep_trainer::data::Cursor;
use evenstep_trainer::model::Sgd;
use evenstep_trainer_lab::burst::{BurstPlan, Executor};
use evenstep_trainer_lab::dataset::TeacherTask;
use evenstep_trainer_lab::network::{Architecture, Layer, Network};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

const TIMEOUT: Duration = Duration::from_secs(60);
const LEARNING_RATE: f64 = 0.1;
const MOMENTUM: f64 = 0.9;
const ITERATIONS: usize = 4;
const TASK: TeacherTask = TeacherTask { samples: 200, seed: 3 };

fn model(architecture: &Architecture) -> Network {
    let data = TASK.generate();
    Network::new(architecture, data.shape, data.classes, 3, Kind::Double, Device::Cpu)
}

/// Returns a plan with these samples by layer and rank.
fn plan(architecture: &Architecture, shares: &[Vec<u64>]) -> BurstPlan {
    let gpus: Vec<usize> = shares.iter().map(Vec::len).collect();
    let mut plan = BurstPlan::even(model(architecture).layers(), &gpus, shares[0].iter().sum());
    assert_eq!(plan.layers.len(), shares.len());
    for (layer, samples) in plan.layers.iter_mut().zip(shares) {
        layer.samples.clone_from(samples);
    }
    plan
}

/// Returns the sample indices of an iteration.
fn batch(cursor: &Cursor, iteration: usize, global_batch: u64) -> Vec<i64> {
    cursor.slice(iteration as u64 * global_batch, global_batch).to_vec()
}

/// Trains as one rank. Returns its final parameters, flat and layer by layer, and its part of each loss.
fn rank(
    rank: usize,
    world_size: usize,
    port: u16,
    architecture: &Architecture,
    plan: &BurstPlan,
) -> (Vec<Tensor>, Vec<f64>) {
    let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
    let join = |prefix: String, size| {
        Group::gloo(&store.prefix(&prefix).unwrap(), rank, size, "127.0.0.1", TIMEOUT).unwrap()
    };
    let data = TASK.generate();
    plan.check(model(architecture).layers(), world_size).unwrap();
    let world = join("world".to_owned(), world_size);
    let first = |size| Ok(join(format!("first-{size}"), size));
    let shape = [data.features()];
    let mut executor = Executor::new(plan, model(architecture), &shape, MOMENTUM, world, first).unwrap();
    let cursor = Cursor::new(3, data.train.len());
    let losses = (0..ITERATIONS).map(|iteration| {
        let batch = batch(&cursor, iteration, plan.global_batch);
        executor.iterate(&data.train, &batch, LEARNING_RATE).unwrap().loss
    });
    let losses = losses.collect();
    (executor.parameters().iter().map(|part| part.detach().reshape([-1])).collect(), losses)
}

/// Trains the whole network in one process. Returns its final parameters and losses.
fn alone(architecture: &Architecture, global_batch: u64) -> (Vec<Tensor>, Vec<f64>) {
    let data = TASK.generate();
    let model = model(architecture);
    let cursor = Cursor::new(3, data.train.len());
    let mut sgd = Sgd::new(&model.parameters(), MOMENTUM);
    let losses = (0..ITERATIONS)
        .map(|iteration| {
            let batch =
                data.train.gather(&batch(&cursor, iteration, global_batch), Kind::Double, Device::Cpu);
            let loss = model.loss_sum(&batch) / global_batch as f64;
            let gradients = Tensor::run_backward(&[&loss], &model.parameters(), false, false);
            let flat: Vec<Tensor> = gradients.iter().map(|gradient| gradient.reshape([-1])).collect();
            sgd.step(&model.parameters(), &Tensor::cat(&flat, 0), LEARNING_RATE);
            loss.double_value(&[])
        })
        .collect();
    let layers = model.into_layers();
    let parts = layers.iter().flat_map(Layer::parameters).map(|part| part.detach().reshape([-1]));
    (parts.collect(), losses)
}

/// Returns the largest difference of any rank's parameters, or of the losses, to training in one process.
fn difference(architecture: &Architecture, shares: &[Vec<u64>]) -> f64 {
    let plan = plan(architecture, shares);
    let server = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let (port, world_size) = (server.port(), plan.gpus);
    let ranks: Vec<_> = (0..world_size)
        .map(|at| {
            let (architecture, plan) = (architecture.clone(), plan.clone());
            thread::spawn(move || rank(at, world_size, port, &architecture, &plan))
        })
        .collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let (expected, expected_losses) = alone(architecture, plan.global_batch);
    let mut worst = 0_f64;
    for (at, (parts, _)) in ranks.iter().enumerate() {
        // A rank has the layers whose groups it belongs to, each with a weight and a bias.
        let own = shares.iter().enumerate().filter(|(_, samples)| at < samples.len());
        let own: Vec<usize> = own.flat_map(|(layer, _)| [2 * layer, 2 * layer + 1]).collect();
        assert_eq!(parts.len(), own.len());
        for (part, layer) in parts.iter().zip(own) {
            worst = worst.max((part - &expected[layer]).abs().max().double_value(&[]));
        }
    }
    for (iteration, expected) in expected_losses.iter().enumerate() {
        let loss: f64 = ranks.iter().map(|(_, losses)| losses[iteration]).sum();
        worst = worst.max((loss - expected).abs());
    }
    worst
}

fn mlp() -> Architecture {
    Architecture::Mlp { hidden: vec![24, 16] }
}

#[test]
fn plans_of_all_shapes_train_as_one_process_does() {
    let even = |gpus: u64| vec![24 / gpus; gpus as usize];
    let plans: [(&str, Vec<Vec<u64>>); 7] = [
        ("data parallel", vec![even(4); 3]),
        ("one GPU", vec![even(1); 3]),
        ("4, 2, 1", vec![even(4), even(2), even(1)]),
        ("1, 2, 4", vec![even(1), even(2), even(4)]),
        ("4, 1, 4", vec![even(4), even(1), even(4)]),
        ("uneven", vec![vec![13, 11], vec![5, 9, 10], vec![20, 4]]),
        ("a rank without samples", vec![vec![12, 0, 12], vec![0, 24], vec![8, 16, 0]]),
    ];
    for (name, shares) in &plans {
        let difference = difference(&mlp(), shares);
        assert!(difference <= 1e-12, "{name}: {difference:e}");
    }
    for shares in [vec![even(4), even(4), even(2), even(1)], vec![even(1), even(3), even(2), even(4)]] {
        let difference = difference(&Architecture::Cnn, &shares);
        assert!(difference <= 1e-12, "cnn {shares:?}: {difference:e}");
    }
}

/// Generates shares of `samples` over 1 to 4 ranks.
fn shares(samples: u64) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..=samples, 0..4).prop_map(move |mut cuts| {
        cuts.sort_unstable();
        let ends = cuts.into_iter().chain([samples]);
        ends.scan(0, |begin, end| Some(end - std::mem::replace(begin, end))).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_trains_as_one_process_does(
        shares in (1_u64..40).prop_flat_map(|samples| prop::collection::vec(shares(samples), 3))
    ) {
        let difference = difference(&mlp(), &shares);
        prop_assert!(difference <= 1e-12, "{:?}: {:e}", shares, difference);
    }
}
