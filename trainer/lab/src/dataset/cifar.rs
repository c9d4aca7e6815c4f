//! CIFAR-10 in its binary version: records of one label byte and 3,072 pixel bytes.

use std::path::{Path, PathBuf};

use tch::Tensor;

use super::{DataError, DataSet, Split, malformed, read_file};

const SHAPE: [i64; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;
const RECORD_BYTES: usize = 1 + PIXELS;
const CLASSES: u8 = 10;
const TRAIN_FILES: usize = 5;

/// The files of the data set.
pub(super) struct Files {
    folder: PathBuf,
    train: Vec<PathBuf>,
    test: PathBuf,
}

/// Finds the files by their names; `None` if one is missing.
pub(super) fn find(folder: &Path) -> Option<Files> {
    let train: Vec<PathBuf> =
        (1..=TRAIN_FILES).map(|number| folder.join(format!("data_batch_{number}.bin"))).collect();
    let test = folder.join("test_batch.bin");
    let complete = train.iter().chain([&test]).all(|path| path.is_file());
    complete.then(|| Files { folder: folder.to_owned(), train, test })
}

/// Reads and validates the files.
pub(super) fn read(files: &Files) -> Result<DataSet, DataError> {
    let train = read_split(&files.train)?;
    let held_out = read_split(std::slice::from_ref(&files.test))?;
    let name = format!("CIFAR-10 in {}, {} samples", files.folder.display(), train.len());
    Ok(DataSet { name, train, held_out, shape: SHAPE, classes: CLASSES.into() })
}

fn read_split(paths: &[PathBuf]) -> Result<Split, DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for path in paths {
        let bytes = read_file(path)?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD_BYTES) {
            let rule = format!(
                "file size {} bytes: must be a multiple of the record size of {RECORD_BYTES} bytes",
                bytes.len()
            );
            return Err(malformed(path, (bytes.len() / RECORD_BYTES * RECORD_BYTES) as u64, rule));
        }
        for (number, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
            if record[0] >= CLASSES {
                let rule = format!("label {}: must be below {CLASSES}", record[0]);
                return Err(malformed(path, (number * RECORD_BYTES) as u64, rule));
            }
            labels.push(i64::from(record[0]));
            pixels.extend_from_slice(&record[1..]);
        }
    }
    let features = Tensor::from_slice(&pixels).view([labels.len() as i64, PIXELS as i64]);
    Ok(Split { features, labels: Tensor::from_slice(&labels) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tch::{Device, Kind};

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, label) in (1..=TRAIN_FILES as u8)
            .map(|n| (format!("data_batch_{n}.bin"), n))
            .chain([("test_batch.bin".into(), 0)])
        {
            let mut record = vec![label; RECORD_BYTES];
            record[RECORD_BYTES - 1] = 255;
            fs::write(folder.path().join(file), record).unwrap();
        }
        folder
    }

    #[test]
    fn records_are_read_in_order() {
        let folder = folder();
        let data = DataSet::open(folder.path()).unwrap();
        assert_eq!((data.train.len(), data.held_out.len(), data.features()), (5, 1, 3072));
        let batch = data.train.gather(&[4], Kind::Float, Device::Cpu);
        assert_eq!(batch.targets.int64_value(&[0]), 5);
        assert_eq!(batch.inputs.double_value(&[0, 3071]), 1.0);
    }

    #[test]
    fn malformed_files_are_named_with_the_place() {
        for (bytes, place) in [
            (vec![1; RECORD_BYTES + 7], RECORD_BYTES),
            (Vec::new(), 0),
            ([1; RECORD_BYTES].into_iter().chain([10; RECORD_BYTES]).collect(), RECORD_BYTES),
        ] {
            let folder = folder();
            fs::write(folder.path().join("data_batch_3.bin"), bytes).unwrap();
            let Err(DataError::Malformed { path, offset, .. }) = DataSet::open(folder.path()) else {
                panic!("passed");
            };
            assert_eq!((path, offset), (folder.path().join("data_batch_3.bin"), place as u64));
        }
    }
}
