//! What is trained on: held in memory by every worker, in the order of its files.

mod cifar;
mod idx;
mod teacher;

use std::path::{Path, PathBuf};

use evenstep_trainer::{Batch, Dataset};
use tch::{Device, Kind, Tensor};

pub use teacher::TeacherTask;

/// The largest file read, in bytes; also after unpacking.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Samples that the built-in sets hold out, at most.
pub(crate) const HELD_OUT_SAMPLES: i64 = 1024;

/// Samples and their labels.
#[derive(Debug)]
pub struct Split {
    /// Rows of bytes (images, scaled to 0..1 when read) or floats, `[samples, features..]`.
    features: Tensor,
    /// Classes, `[samples]`.
    labels: Tensor,
}

/// A training set and a held-out one.
#[derive(Debug)]
pub struct DataSet {
    /// What it is, in words.
    pub name: String,
    /// What is trained on.
    pub train: Split,
    /// What the final loss is measured on; never trained on.
    pub held_out: Split,
    /// Channels, height and width of a sample.
    pub shape: [i64; 3],
    /// How many classes there are.
    pub classes: i64,
}

/// A data file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Reading failed.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its content breaks the format.
    #[error("{path}, byte {offset}: {rule}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where (after unpacking).
        offset: u64,
        /// What was found and what the format demands.
        rule: String,
    },
    /// The folder holds no data set that we know.
    #[error(
        "{0}: found neither MNIST files (train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k, \
         plain or .gz) nor CIFAR-10 binary files (data_batch_1.bin to data_batch_5.bin, test_batch.bin)"
    )]
    Unknown(PathBuf),
}

impl DataSet {
    /// Reads the data set in a folder.
    ///
    /// # Errors
    /// There is none, or a file breaks its format.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        if let Some(found) = idx::find(folder) {
            return idx::read(&found);
        }
        if let Some(found) = cifar::find(folder) {
            return cifar::read(&found);
        }
        Err(DataError::Unknown(folder.to_owned()))
    }

    /// Features of one sample.
    pub fn features(&self) -> i64 {
        self.shape.iter().product()
    }
}

impl Split {
    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.labels.size()[0] as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples with these indices, as a batch on the device.
    pub fn gather(&self, indices: &[i64], kind: Kind, device: Device) -> Batch {
        let indices = Tensor::from_slice(indices);
        let rows = self.features.index_select(0, &indices);
        let scale = if rows.kind() == Kind::Uint8 { 1.0 / 255.0 } else { 1.0 };
        let features = rows.to_device(device).to_kind(kind) * scale;
        Batch { inputs: features, targets: self.labels.index_select(0, &indices).to_device(device) }
    }

    /// The first samples, as many as there are up to `count`.
    pub fn head(&self, count: i64, kind: Kind, device: Device) -> Batch {
        let indices: Vec<i64> = (0..count.min(self.len() as i64)).collect();
        self.gather(&indices, kind, device)
    }
}

/// A split as the trainer reads it: with a name, and its features in the element type of a model.
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

/// Reads a file whole, unpacked where its name ends in `.gz`.
fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    use std::io::Read;
    let failed = |source| DataError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let read = if packed {
        flate2::read::GzDecoder::new(file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    };
    read.map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(malformed(
            path,
            FILE_BYTES_MAX,
            format!("longer than the {FILE_BYTES_MAX} bytes allowed"),
        ));
    }
    Ok(bytes)
}

fn malformed(path: &Path, offset: u64, rule: impl Into<String>) -> DataError {
    DataError::Malformed { path: path.to_owned(), offset, rule: rule.into() }
}
