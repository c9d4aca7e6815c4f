//! The mean loss of an iteration.

/// Mean of the workers' losses, weighted by their samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeanLoss {
    sum: f64,
    samples: f64,
}

impl MeanLoss {
    /// The mean over pairs of a number of samples and their mean loss.
    pub fn over(losses: impl Iterator<Item = (u64, f64)>) -> Self {
        let mut mean = Self::default();
        losses.for_each(|(samples, loss)| mean.add(samples, loss));
        mean
    }

    /// Adds the mean loss of this number of samples.
    pub fn add(&mut self, samples: u64, loss: f64) {
        self.sum += samples as f64 * loss;
        self.samples += samples as f64;
    }

    /// The mean; `None` without samples, or if their losses are too large for a number.
    pub fn value(self) -> Option<f64> {
        Some(self.sum / self.samples).filter(|mean| mean.is_finite())
    }
}
