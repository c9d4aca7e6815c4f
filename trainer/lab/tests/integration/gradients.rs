//! Shares of different sizes, one of them empty, over a real all-reduce: the gradient equals the gradient of
//! one process.

use std::thread;
use std::time::Duration;

use evenstep_c10d::{Group, Store};
use evenstep_trainer::Model;
use evenstep_trainer::collective::{Bucket, Contribution, RankReport, Reduced};
use evenstep_trainer::data::Cursor;
use evenstep_trainer::model::Compute;
use evenstep_trainer::plan::Plan;
use evenstep_trainer_lab::dataset::TeacherTask;
use evenstep_trainer_lab::network::{Architecture, Network};
use tch::{Device, Kind, Tensor};

const TIMEOUT: Duration = Duration::from_secs(30);
const BATCHES: [u64; 4] = [5, 0, 64, 27];

/// Returns the mean gradient that this rank gets from the all-reduce, and the other reduced values.
fn reduced(rank: usize, port: u16, architecture: &Architecture, kind: Kind) -> (Tensor, Reduced) {
    let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
    let group = Group::gloo(&store, rank, BATCHES.len(), "127.0.0.1", TIMEOUT).unwrap();
    let data = TeacherTask { samples: 200, seed: 3 }.generate();
    let model = Network::new(architecture, data.shape, data.classes, 3, kind, Device::Cpu);
    let share = Plan::in_rank_order(&BATCHES, 1.0).share(rank);
    let cursor = Cursor::new(3, data.train.len());
    let batch = data.train.gather(cursor.slice(share.offset, share.local_batch), kind, Device::Cpu);
    let mut compute = Compute::new(8, None);
    let mut computed = compute.begin(&model.parameters());
    // In two parts, like a share and a chunk: gradients accumulate.
    for (start, count) in [(0, batch.len() / 3), (batch.len() / 3, batch.len() - batch.len() / 3)] {
        let part = batch.narrow(start, count);
        compute.add(&model, &part, &mut computed, |_, _| Ok(())).unwrap();
    }
    assert_eq!(computed.samples, share.local_batch);
    let mut bucket = Bucket::new(&model.parameters(), BATCHES.len(), Device::Cpu, true);
    let report = RankReport { local_batch: share.local_batch, ..RankReport::default() };
    let own = Contribution { report, loss_sum: computed.loss_sum, ..Contribution::default() };
    let sum = bucket.all_reduce(&group, &model.parameters(), own).unwrap();
    assert_eq!(sum.samples, BATCHES.iter().sum::<u64>());
    (bucket.gradient(Device::Cpu).copy(), sum)
}

/// Returns the mean gradient and the mean loss of `count` samples from `offset` on, computed in one process.
fn alone(architecture: &Architecture, kind: Kind, offset: u64, count: u64) -> (Tensor, f64) {
    let data = TeacherTask { samples: 200, seed: 3 }.generate();
    let model = Network::new(architecture, data.shape, data.classes, 3, kind, Device::Cpu);
    let cursor = Cursor::new(3, data.train.len());
    let whole = data.train.gather(cursor.slice(offset, count), kind, Device::Cpu);
    let loss = model.loss_sum(&whole) / whole.len() as f64;
    let mean = loss.double_value(&[]);
    let gradients = Tensor::run_backward(&[loss], &model.parameters(), false, false);
    let flat: Vec<Tensor> = gradients.iter().map(|gradient| gradient.view(-1)).collect();
    (Tensor::cat(&flat, 0), mean)
}

fn squared(gradient: &Tensor) -> f64 {
    gradient.square().sum(Kind::Double).double_value(&[])
}

#[test]
fn uneven_shares_give_the_gradient_of_one_process() {
    for architecture in [Architecture::Mlp { hidden: vec![32, 16] }, Architecture::Cnn] {
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::Double, 1e-12)] {
            let server = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
            let port = server.port();
            let ranks: Vec<_> = (0..BATCHES.len())
                .map(|rank| {
                    let architecture = architecture.clone();
                    thread::spawn(move || reduced(rank, port, &architecture, kind))
                })
                .collect();
            let (expected, expected_loss) = alone(&architecture, kind, 0, BATCHES.iter().sum());
            let norms: Vec<Option<f64>> = (0..BATCHES.len())
                .map(|rank| {
                    let share = Plan::in_rank_order(&BATCHES, 1.0).share(rank);
                    let own = || alone(&architecture, kind, share.offset, share.local_batch).0;
                    (share.local_batch > 0).then(|| squared(&own()))
                })
                .collect();
            let near = |one: Option<f64>, other: Option<f64>| match (one, other) {
                (Some(one), Some(other)) => (one - other).abs() <= 10.0 * tolerance * other,
                (one, other) => one == other,
            };
            let largest = expected.abs().max().double_value(&[]);
            for (gradient, sum) in ranks.into_iter().map(|rank| rank.join().unwrap()) {
                let difference = (gradient - &expected).abs().max().double_value(&[]) / largest;
                assert!(difference <= tolerance, "{architecture:?} {kind:?}: {difference:e}");
                assert!((sum.loss - expected_loss).abs() <= tolerance * expected_loss);
                assert!(near(sum.gradient_sqr, Some(squared(&expected))), "{:?}", sum.gradient_sqr);
                let said: Vec<Option<f64>> = sum.reports.iter().map(|report| report.gradient_sqr).collect();
                assert!(said.iter().zip(&norms).all(|(&said, &norm)| near(said, norm)), "{said:?} {norms:?}");
            }
        }
    }
}
