//! MNIST and Fashion-MNIST: IDX files, big-endian, plain or compressed with gzip.

use std::path::{Path, PathBuf};

use tch::Tensor;

use super::{DataError, DataSet, Split, malformed, read_file};

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const CLASSES: u8 = 10;

/// The four files of a data set.
pub(super) struct Files {
    folder: PathBuf,
    train: [PathBuf; 2],
    test: [PathBuf; 2],
}

/// Finds the files by their usual names; `None` if one is missing.
pub(super) fn find(folder: &Path) -> Option<Files> {
    let locate = |set: &str, what: &str| {
        ["-", "."]
            .iter()
            .flat_map(|dash| {
                ["", ".gz"].map(|end| folder.join(format!("{set}-{}{end}", what.replace('~', dash))))
            })
            .find(|path| path.is_file())
    };
    let pair = |set| Some([locate(set, "images~idx3-ubyte")?, locate(set, "labels~idx1-ubyte")?]);
    Some(Files { folder: folder.to_owned(), train: pair("train")?, test: pair("t10k")? })
}

/// Reads and validates the files.
pub(super) fn read(files: &Files) -> Result<DataSet, DataError> {
    let (train, shape) = read_split(&files.train)?;
    let (held_out, test_shape) = read_split(&files.test)?;
    if test_shape != shape {
        let rule =
            format!("image size {test_shape:?}: must equal the size of the training images, {shape:?}");
        return Err(malformed(&files.test[0], 8, rule));
    }
    let name = format!("IDX images in {}, {} samples", files.folder.display(), train.len());
    Ok(DataSet { name, train, held_out, shape: [1, shape[0], shape[1]], classes: CLASSES.into() })
}

fn read_split([images, labels]: &[PathBuf; 2]) -> Result<(Split, [i64; 2]), DataError> {
    let image_bytes = read_file(images)?;
    let [count, height, width] = header(images, &image_bytes, IMAGES_MAGIC)?;
    if height == 0 || width == 0 || count == 0 {
        return Err(malformed(
            images,
            4,
            format!("{count} images of {height} x {width} pixels: count, height and width must be above 0"),
        ));
    }
    let pixels = body(images, &image_bytes, 16, [count, height, width].map(u64::from))?;
    let label_bytes = read_file(labels)?;
    let [label_count] = header(labels, &label_bytes, LABELS_MAGIC)?;
    if label_count != count {
        return Err(malformed(
            labels,
            4,
            format!("{label_count} labels: must equal the number of images, {count}"),
        ));
    }
    let classes = body(labels, &label_bytes, 8, [label_count, 1, 1].map(u64::from))?;
    if let Some(at) = classes.iter().position(|&class| class >= CLASSES) {
        let rule = format!("label {}: must be below {CLASSES}", classes[at]);
        return Err(malformed(labels, 8 + at as u64, rule));
    }
    let labels: Vec<i64> = classes.iter().map(|&class| class.into()).collect();
    let features = Tensor::from_slice(pixels).view([i64::from(count), i64::from(height) * i64::from(width)]);
    Ok((Split { features, labels: Tensor::from_slice(&labels) }, [height.into(), width.into()]))
}

/// Checks the magic number and returns the `N` sizes after it.
fn header<const N: usize>(path: &Path, bytes: &[u8], magic: u32) -> Result<[u32; N], DataError> {
    let word = |index: usize| {
        let found = bytes.get(4 * index..4 * index + 4).and_then(|word| word.try_into().ok());
        found.map(u32::from_be_bytes).ok_or_else(|| {
            malformed(
                path,
                bytes.len() as u64,
                format!("the file ends inside the header of {} bytes", 4 * (N + 1)),
            )
        })
    };
    let found = word(0)?;
    if found != magic {
        return Err(malformed(path, 0, format!("magic number {found:#010x}: must be {magic:#010x}")));
    }
    let mut sizes = [0; N];
    for (index, size) in sizes.iter_mut().enumerate() {
        *size = word(index + 1)?;
    }
    Ok(sizes)
}

fn body<'a>(path: &Path, bytes: &'a [u8], start: usize, sizes: [u64; 3]) -> Result<&'a [u8], DataError> {
    let body = &bytes[start..];
    let expected = sizes.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
    if expected == Some(body.len() as u64) {
        return Ok(body);
    }
    let rule = format!("{} bytes follow the header: must be the product of the sizes {sizes:?}", body.len());
    Err(malformed(path, start as u64, rule))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use tch::{Device, Kind};

    use super::*;

    fn idx(magic: u32, sizes: &[u32], body: &[u8]) -> Vec<u8> {
        let words = std::iter::once(&magic).chain(sizes).flat_map(|word| word.to_be_bytes());
        words.chain(body.iter().copied()).collect()
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let pixels: Vec<u8> = (0..3 * 4).map(|value| value * 20).collect();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", &idx(IMAGES_MAGIC, &[3, 2, 2], &pixels));
        write("train-labels-idx1-ubyte", &idx(LABELS_MAGIC, &[3], &[9, 0, 5]));
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&idx(IMAGES_MAGIC, &[1, 2, 2], &[255, 0, 51, 102])).unwrap();
        write("t10k-images-idx3-ubyte.gz", &packed.finish().unwrap());
        write("t10k-labels.idx1-ubyte", &idx(LABELS_MAGIC, &[1], &[3]));
        folder
    }

    #[test]
    fn plain_and_packed_files_are_read_and_scaled() {
        let folder = folder();
        let data = DataSet::open(folder.path()).unwrap();
        assert_eq!((data.train.len(), data.shape, data.classes), (3, [1, 2, 2], 10));
        let batch = data.train.gather(&[2, 0], Kind::Double, Device::Cpu);
        assert_eq!(Vec::<i64>::try_from(batch.targets).unwrap(), [5, 9]);
        assert_eq!(batch.inputs.double_value(&[0, 3]), 220.0 / 255.0);
        let held_out = data.held_out.head(10, Kind::Float, Device::Cpu);
        assert_eq!((held_out.len(), held_out.inputs.double_value(&[0, 0])), (1, 1.0));
    }

    #[test]
    fn malformed_files_are_named_with_the_place() {
        let cases: [(&str, Vec<u8>, u64); 6] = [
            ("train-images-idx3-ubyte", idx(LABELS_MAGIC, &[3, 2, 2], &[0; 12]), 0),
            ("train-images-idx3-ubyte", idx(IMAGES_MAGIC, &[3], &[]), 8),
            ("train-images-idx3-ubyte", idx(IMAGES_MAGIC, &[3, 2, 2], &[0; 11]), 16),
            ("train-images-idx3-ubyte", idx(IMAGES_MAGIC, &[u32::MAX, u32::MAX, u32::MAX], &[0; 12]), 16),
            ("train-labels-idx1-ubyte", idx(LABELS_MAGIC, &[2], &[1, 2]), 4),
            ("train-labels-idx1-ubyte", idx(LABELS_MAGIC, &[3], &[1, 10, 2]), 9),
        ];
        for (name, bytes, place) in cases {
            let folder = folder();
            fs::write(folder.path().join(name), bytes).unwrap();
            let Err(DataError::Malformed { path, offset, .. }) = DataSet::open(folder.path()) else {
                panic!("{name} passed");
            };
            assert_eq!((path, offset), (folder.path().join(name), place));
        }
    }

    #[test]
    fn an_empty_data_folder_is_an_error_that_names_the_expected_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(DataSet::open(folder.path()), Err(DataError::Unknown(_))));
    }
}
