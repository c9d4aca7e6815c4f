//! The training that runs in the background, divided into pieces.

use std::time::Instant;

use anyhow::Result;
use evenstep_rules::gate::PIECE_US;
use tch::{Device, Kind, Tensor};

use evenstep_trainer::Model;
use evenstep_trainer::data::Cursor;
use evenstep_trainer::model::{evaluate, wait};

use crate::dataset::{DataSet, TeacherTask};
use crate::network::{Architecture, Network};
use evenstep_trainer::model::Sgd;

/// Number of training samples of the generated task.
const SAMPLES: u64 = 4096;
/// Number of samples on which the loss is measured.
const LOSS_SAMPLES: i64 = 512;
const LEARNING_RATE: f64 = 0.02;
const MOMENTUM: f64 = 0.9;
/// Number of measurements per piece size.
const MEASUREMENTS_PER_SIZE: usize = 5;

/// Settings of a background job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Widths of the hidden layers.
    pub hidden: Vec<i64>,
    /// Samples per optimizer step; at least 1.
    pub batch: u64,
    /// Seed of the initial parameters and the task.
    pub seed: u64,
}

/// The pieces of a background job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pieces {
    /// Samples per piece.
    pub samples: u64,
    /// Time of a piece without contention, in microseconds.
    pub alone_us: f64,
}

/// A background job: a small network, its task and its progress.
///
/// A piece computes and accumulates the gradients of some samples, or applies the optimizer step. Except for
/// rounding, the model after a step does not depend on the piece size.
#[derive(Debug)]
pub struct Job {
    data: DataSet,
    model: Network,
    optimizer: Sgd,
    cursor: Cursor,
    batch: u64,
    piece: u64,
    /// Number of finished samples of the current step.
    done: u64,
    steps: u64,
}

impl Job {
    /// Generates the network and the task from the seed.
    pub fn new(settings: Settings, device: Device) -> Self {
        let Settings { hidden, batch, seed } = settings;
        let data = TeacherTask { samples: SAMPLES, seed }.generate();
        let architecture = Architecture::Mlp { hidden };
        let model = Network::new(&architecture, data.shape, data.classes, seed, Kind::Float, device);
        let optimizer = Sgd::new(&model.parameters(), MOMENTUM);
        let cursor = Cursor::new(seed, SAMPLES);
        let batch = batch.clamp(1, SAMPLES);
        Self { data, model, optimizer, cursor, batch, piece: batch, done: 0, steps: 0 }
    }

    /// Chooses the largest piece size, a power of two or the batch, that takes at most about [`PIECE_US`]
    /// on this device now. The training steps during the measurement do not count.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn fit(&mut self) -> Result<Pieces> {
        let mut alone_us = 0.0;
        let mut chosen = 1;
        let mut size = 1;
        while size < 2 * self.batch {
            self.piece = size.min(self.batch);
            let mut us = f64::INFINITY;
            for _ in 0..MEASUREMENTS_PER_SIZE {
                us = us.min(self.timed_us()?);
            }
            if us > PIECE_US && size > 1 {
                break;
            }
            (chosen, alone_us) = (self.piece, us);
            size *= 2;
        }
        self.piece = chosen;
        (self.done, self.steps) = (0, 0);
        self.model.zero_grad();
        Ok(Pieces { samples: chosen, alone_us })
    }

    /// Measures a piece of gradients, in microseconds.
    fn timed_us(&mut self) -> Result<f64> {
        self.done = 0;
        let begun = Instant::now();
        self.piece();
        wait(self.model.device())?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    }

    /// Runs the next piece. Returns its number of samples; 0 for an optimizer step.
    pub fn piece(&mut self) -> u64 {
        let size = self.cursor.size(self.batch, 0);
        if self.done == size {
            self.step(size);
            return 0;
        }
        let count = self.piece.min(size - self.done);
        let indices = self.cursor.slice(self.done, count);
        let batch = self.data.train.gather(indices, self.model.kind(), self.model.device());
        self.model.loss_sum(&batch).backward();
        self.done += count;
        count
    }

    fn step(&mut self, size: u64) {
        let gradients: Vec<Tensor> =
            self.model.parameters().iter().map(|parameter| parameter.grad().view(-1)).collect();
        let mean = Tensor::cat(&gradients, 0) / size as f64;
        self.optimizer.step(&self.model.parameters(), &mean, LEARNING_RATE);
        self.model.zero_grad();
        self.cursor.advance(size);
        self.done = 0;
        self.steps += 1;
    }

    /// Returns the number of optimizer steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the mean loss on the first samples of the task. These are training samples, and the job
    /// soon overfits: its purpose is to use time.
    pub fn loss(&self) -> f64 {
        evaluate(&self.model, &self.data.train.head(LOSS_SAMPLES, self.model.kind(), self.model.device()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained(piece: u64, steps: u64) -> f64 {
        tch::set_num_threads(1);
        let mut job = Job::new(Settings { hidden: vec![8], batch: 32, seed: 3 }, Device::Cpu);
        job.piece = piece;
        while job.steps < steps {
            job.piece();
        }
        job.loss()
    }

    #[test]
    fn chunk_boundaries_do_not_change_the_events() {
        let (whole, cut) = (trained(32, 40), trained(5, 40));
        assert!((whole - cut).abs() < 1e-4, "{whole} {cut}");
        assert!(whole < trained(32, 0), "the loss decreases");
    }
}
