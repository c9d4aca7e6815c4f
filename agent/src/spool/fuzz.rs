//! Fuzz test: a spool folder with arbitrary and damaged files. The spool opens, sends only samples whose checksums match, and
//! continues.

use evenstep_fuzz::{arbitrary, config, damaged};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::value::RawValue;

use super::tests::{identity, json, sample};
use super::*;

/// Names of files that the spool reads or could confuse with its own.
const NAMES: [&str; 12] = [
    "000000000000.segment",
    "000000000001.segment",
    "000000000002.segment",
    "999999999999.segment",
    "18446744073709551615.segment",
    "+1.segment",
    "1.segment",
    "x.segment",
    "acknowledged",
    "acknowledged.new",
    "rejected/000000000000.json",
    "rejected/18446744073709551615.json",
];
const SAMPLES: i64 = 12;

/// Returns a segment of some samples, and the position after one of them.
fn files() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(directory.path(), SPOOL_BYTES_MIN, identity("a")).unwrap();
    for number in 0..SAMPLES {
        spool.append(&sample(number)).unwrap();
    }
    let batch = spool.next_batch(3).unwrap().unwrap();
    spool.acknowledge(&batch, 2).unwrap();
    ["000000000000.segment", "acknowledged"].map(|name| fs::read(directory.path().join(name)).unwrap()).into()
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn arbitrary_files_are_counted_and_the_spool_continues(
        files in prop::collection::vec(
            (select(NAMES.to_vec()), prop_oneof![1 => arbitrary(), 4 => damaged(files())]), 0..6,
        ),
    ) {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("spool");
        fs::create_dir_all(directory.join("rejected")).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(directory.join(name), bytes).unwrap());
        let mut spool = Spool::open(&directory, SPOOL_BYTES_MIN, identity("b")).unwrap();
        prop_assert!(spool.state().bytes <= SPOOL_BYTES_MIN);
        let waiting = spool.state().waiting;
        prop_assert_eq!(spool.append(&sample(SAMPLES)).unwrap(), 0);
        let batch = spool.next_batch(1).unwrap().unwrap();
        spool.reject(&batch, "400 malformed").unwrap();
        let mut sent = 1;
        let mut last = batch;
        while let Some(batch) = spool.next_batch(5).unwrap() {
            // A line is sent as it was written, or not at all.
            let known = |sample: &RawValue| (0..=SAMPLES).any(|number| json(number) == sample.get());
            prop_assert!(batch.samples.iter().all(|sample| known(sample)), "{:?}", batch);
            sent += batch.samples.len() as u64;
            spool.acknowledge(&batch, batch.sequence.saturating_add(batch.samples.len() as u64)).unwrap();
            last = batch;
        }
        prop_assert_eq!(sent, waiting + 1);
        prop_assert_eq!((last.identity.boot_id.as_str(), last.sequence), ("b", 0));
        drop(spool);
        prop_assert_eq!(Spool::open(&directory, SPOOL_BYTES_MIN, identity("c")).unwrap().state().waiting, 0);
    }
}
