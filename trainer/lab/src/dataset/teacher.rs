//! A generated teacher task: a fixed random network labels random samples, and the model learns to reproduce
//! the labels.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use tch::Tensor;

use super::{DataSet, HELD_OUT_SAMPLES, Split};

/// Height and width of a sample. Samples are square images, so that convolutions apply.
const SIDE: i64 = 16;
const FEATURES: i64 = SIDE * SIDE;
const HIDDEN: i64 = 32;
const CLASSES: i64 = 10;

/// The teacher task. The same seed gives the same samples and labels on every worker.
#[derive(Debug, Clone, Copy)]
pub struct TeacherTask {
    /// Number of training samples.
    pub samples: u64,
    /// Seed of the random generator for the teacher and the samples.
    pub seed: u64,
}

impl TeacherTask {
    /// Generates the teacher, the training samples and the held-out samples.
    pub fn generate(self) -> DataSet {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut normal = |rows: i64, columns: i64| {
            let values: Vec<f32> =
                (&mut random).sample_iter(StandardNormal).take((rows * columns) as usize).collect();
            Tensor::from_slice(&values).view([rows, columns])
        };
        let first = normal(FEATURES, HIDDEN) / (FEATURES as f64).sqrt();
        let second = normal(HIDDEN, CLASSES);
        let mut split = |samples: i64| {
            let features = normal(samples, FEATURES);
            let labels = (features.matmul(&first) * 2.0).tanh().matmul(&second).argmax(1, false);
            Split { features, labels }
        };
        let train = split(self.samples as i64);
        DataSet {
            name: format!("generated teacher task, {} samples, seed {}", self.samples, self.seed),
            train,
            held_out: split(HELD_OUT_SAMPLES),
            shape: [1, SIDE, SIDE],
            classes: CLASSES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_task_and_every_class_occurs() {
        let draw = |seed| TeacherTask { samples: 2000, seed }.generate();
        let (one, same, other) = (draw(3), draw(3), draw(4));
        assert!(one.train.features.equal(&same.train.features) && one.train.labels.equal(&same.train.labels));
        assert!(!one.train.features.equal(&other.train.features));
        let counts = one.train.labels.bincount::<Tensor>(None, CLASSES);
        assert!(counts.min().int64_value(&[]) > 20, "{counts:?}");
    }
}
