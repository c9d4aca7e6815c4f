//! The generated data set. Every worker holds all of it in memory.

mod teacher;

use evenstep_trainer::{Batch, Dataset};
use tch::{Device, Kind, Tensor};

pub use teacher::TeacherTask;

/// Maximum number of held-out samples of the built-in data sets.
pub(crate) const HELD_OUT_SAMPLES: i64 = 1024;

/// Samples and their labels.
#[derive(Debug)]
pub struct Split {
    /// Features, `[samples, features..]`.
    features: Tensor,
    /// Class of each sample, `[samples]`.
    labels: Tensor,
}

/// A training set and a held-out set.
#[derive(Debug)]
pub struct DataSet {
    /// Description of the data set, for people.
    pub name: String,
    /// The training set.
    pub train: Split,
    /// The held-out set, on which the final loss is measured.
    pub held_out: Split,
    /// Channels, height and width of a sample.
    pub shape: [i64; 3],
    /// Number of classes.
    pub classes: i64,
}

impl DataSet {
    /// Returns the number of features of one sample.
    pub fn features(&self) -> i64 {
        self.shape.iter().product()
    }
}

impl Split {
    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.labels.size()[0] as u64
    }

    /// Returns whether the split has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples with these indices, as a batch on the device.
    pub fn gather(&self, indices: &[i64], kind: Kind, device: Device) -> Batch {
        let indices = Tensor::from_slice(indices);
        let rows = self.features.index_select(0, &indices);
        let features = rows.to_device(device).to_kind(kind);
        Batch { inputs: features, targets: self.labels.index_select(0, &indices).to_device(device) }
    }

    /// Returns the first samples, at most `count`.
    pub fn head(&self, count: i64, kind: Kind, device: Device) -> Batch {
        let indices: Vec<i64> = (0..count.min(self.len() as i64)).collect();
        self.gather(&indices, kind, device)
    }
}

/// A named split whose features are converted to the element type of the model.
#[derive(Debug)]
pub struct Samples {
    /// The data set's name.
    pub name: String,
    /// The samples.
    pub split: Split,
    /// The element type of the features.
    pub kind: Kind,
}

impl Dataset for Samples {
    fn len(&self) -> u64 {
        self.split.len()
    }

    fn batch(&self, indices: &[i64], device: Device) -> Batch {
        self.split.gather(indices, self.kind, device)
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
