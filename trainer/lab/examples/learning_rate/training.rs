//! A training run that can be forked at the change of the batch.

use evenstep_core::learning_rate::{Controller, LearningRateError};
use evenstep_rules::learning_rate::{RampLength, Rule};
use evenstep_trainer::data::Cursor;
use evenstep_trainer::model::{Sgd, evaluate};
use evenstep_trainer::{Batch, Model};
use evenstep_trainer_lab::dataset::DataSet;
use evenstep_trainer_lab::network::{Architecture, Network};
use tch::{Device, Kind, Tensor, no_grad};

/// The global batch of two workers, and of eight.
pub const SMALL: u64 = 2 * 32;
pub const LARGE: u64 = 8 * 32;
pub const MOMENTUM: f64 = 0.9;
const HIDDEN: [i64; 1] = [64];

/// The policies for the learning rate when workers join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// No worker joins: the batch and the learning rate do not change.
    Undisturbed,
    /// The batch grows, and the learning rate does not change.
    Unchanged,
    /// The learning rate grows with the batch at once.
    Jump,
    /// The learning rate grows with the batch in the ramp of Dynamic SGD.
    Ramp,
}

impl Policy {
    pub const ALL: [Self; 4] = [Self::Jump, Self::Ramp, Self::Unchanged, Self::Undisturbed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Undisturbed => "no worker joins",
            Self::Unchanged => "rate unchanged",
            Self::Jump => "jump",
            Self::Ramp => "ramp",
        }
    }

    fn rule(self) -> Rule {
        match self {
            Self::Undisturbed | Self::Unchanged => Rule::None,
            Self::Jump => Rule::Linear,
            Self::Ramp => Rule::DynamicSgd { ramp: RampLength::default() },
        }
    }

    /// Returns the global batch after the change.
    pub fn batch(self) -> u64 {
        if self == Self::Undisturbed { SMALL } else { LARGE }
    }

    /// Returns a controller in its state before the change, with the small batch.
    pub fn controller(self, change: u64) -> Result<Controller, LearningRateError> {
        let mut controller = Controller::new(self.rule(), SMALL)?;
        let before = controller.preview(change - 1, SMALL)?;
        controller.accept(before);
        Ok(controller)
    }
}

/// A model in training, with its data, optimizer state and position in the data.
pub struct Training<'a> {
    data: &'a DataSet,
    seed: u64,
    model: Network,
    sgd: Sgd,
    cursor: Cursor,
}

impl<'a> Training<'a> {
    /// Creates a model and an order of the samples from the seed.
    pub fn new(data: &'a DataSet, seed: u64) -> Self {
        let model = draw(data, seed);
        let sgd = Sgd::new(&model.parameters(), MOMENTUM);
        Self { data, seed, model, sgd, cursor: Cursor::new(seed, data.train.len()) }
    }

    /// Returns a copy of the run in its current state, with the same order of samples.
    pub fn fork(&self) -> Self {
        let model = draw(self.data, self.seed);
        let mut sgd = Sgd::new(&model.parameters(), MOMENTUM);
        no_grad(|| {
            for (to, from) in model.parameters().iter().zip(&self.model.parameters()) {
                to.shallow_clone().copy_(from);
            }
            sgd.velocity_mut().copy_(self.sgd.velocity());
        });
        Self { data: self.data, seed: self.seed, model, sgd, cursor: self.cursor.clone() }
    }

    /// Returns the run with another order of samples.
    pub fn reordered(self, seed: u64) -> Self {
        Self { cursor: Cursor::new(seed, self.data.train.len()), ..self }
    }

    /// Trains for one iteration. Returns the mean loss of its samples before the update.
    pub fn step(&mut self, global_batch: u64, learning_rate: f64) -> f64 {
        let size = self.cursor.size(global_batch, 0);
        let batch = self.gather(size);
        let (parameters, loss) = (self.model.parameters(), self.model.loss_sum(&batch));
        let gradients = Tensor::run_backward(&[&loss], &parameters, false, false);
        let gradients: Vec<Tensor> = gradients.iter().map(|gradient| gradient.view(-1)).collect();
        let gradient = Tensor::cat(&gradients, 0) / size as f64;
        self.sgd.step(&parameters, &gradient, learning_rate);
        self.cursor.advance(size);
        loss.double_value(&[]) / size as f64
    }

    /// Returns the velocity: the last change of the parameters per unit of learning rate.
    pub fn velocity(&self) -> &Tensor {
        self.sgd.velocity()
    }

    /// Returns the mean loss on the held-out samples.
    pub fn held_out(&self) -> f64 {
        let held_out = &self.data.held_out;
        evaluate(&self.model, &held_out.head(held_out.len() as i64, Kind::Float, Device::Cpu))
    }

    fn gather(&self, size: u64) -> Batch {
        self.data.train.gather(self.cursor.slice(0, size), Kind::Float, Device::Cpu)
    }
}

fn draw(data: &DataSet, seed: u64) -> Network {
    let architecture = Architecture::Mlp { hidden: HIDDEN.to_vec() };
    Network::new(&architecture, data.shape, data.classes, seed, Kind::Float, Device::Cpu)
}
