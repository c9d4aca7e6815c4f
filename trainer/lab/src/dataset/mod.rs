//! Data sets. Every worker holds the whole data set in memory, in the order of its files.

mod cifar;
mod idx;
mod teacher;

use std::path::{Path, PathBuf};

use evenstep_trainer::{Batch, Dataset};
use tch::{Device, Kind, Tensor};

pub use teacher::TeacherTask;

/// Maximum size of a data file in bytes, also after decompression.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Maximum number of held-out samples of the built-in data sets.
pub(crate) const HELD_OUT_SAMPLES: i64 = 1024;

/// Samples and their labels.
#[derive(Debug)]
pub struct Split {
    /// Features, `[samples, features..]`: floats, or bytes of images that are scaled to 0..1 when read.
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

/// An error in a data file.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Reading failed.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The content of the file violates its format.
    #[error("{path}, byte {offset}: {rule}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset of the error in bytes, after decompression.
        offset: u64,
        /// The offending value and the rule of the format.
        rule: String,
    },
    /// The folder has no data set in a known format.
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
    /// Fails if the folder has no data set in a known format, or if a file violates its format.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        if let Some(found) = idx::find(folder) {
            return idx::read(&found);
        }
        if let Some(found) = cifar::find(folder) {
            return cifar::read(&found);
        }
        Err(DataError::Unknown(folder.to_owned()))
    }

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
        let scale = if rows.kind() == Kind::Uint8 { 1.0 / 255.0 } else { 1.0 };
        let features = rows.to_device(device).to_kind(kind) * scale;
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

/// Reads a whole file, and decompresses it if its name ends in `.gz`.
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
            format!("the file is larger than the maximum of {FILE_BYTES_MAX} bytes"),
        ));
    }
    Ok(bytes)
}

fn malformed(path: &Path, offset: u64, rule: impl Into<String>) -> DataError {
    DataError::Malformed { path: path.to_owned(), offset, rule: rule.into() }
}
