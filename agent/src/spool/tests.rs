use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use evenstep_protocol::NodeId;
use proptest::prelude::*;

use super::*;

pub(super) fn identity(boot_id: &str) -> SampleIdentity {
    SampleIdentity { node: NodeId::new("node-a").unwrap(), boot_id: boot_id.to_owned() }
}

pub(super) fn sample(at_unix_ms: i64) -> NodeSample {
    let readings = BTreeMap::from([("cpu_busy".to_owned(), 0.1 + at_unix_ms as f64 / 3.0)]);
    NodeSample { at_unix_ms, readings, ..NodeSample::default() }
}

pub(super) fn json(at_unix_ms: i64) -> String {
    serde_json::to_string(&sample(at_unix_ms)).unwrap()
}

fn open(directory: &Path, boot_id: &str) -> Spool {
    Spool::open(directory, 1 << 20, identity(boot_id)).unwrap()
}

/// Returns all waiting samples as (boot id, sequence number, JSON), and acknowledges them.
fn drain(spool: &mut Spool, samples_max: usize) -> Vec<(String, u64, String)> {
    let mut all = Vec::new();
    while let Some(batch) = spool.next_batch(samples_max).unwrap() {
        for (sequence, sample) in (batch.sequence..).zip(&batch.samples) {
            all.push((batch.identity.boot_id.clone(), sequence, sample.get().to_owned()));
        }
        spool.acknowledge(&batch, batch.sequence + batch.samples.len() as u64).unwrap();
    }
    all
}

fn segment_files(directory: &Path) -> Vec<PathBuf> {
    segment::list(directory).unwrap().into_iter().map(|(_, path)| path).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn complete_lines_before_a_cut_at_any_byte_are_kept(count in 1_usize..20, at: prop::sample::Index) {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path(), "a");
        let mut ends = Vec::new();
        for number in 0..count {
            spool.append(&sample(number as i64)).unwrap();
            ends.push(spool.state().bytes);
        }
        drop(spool);
        let [file] = &segment_files(directory.path())[..] else { panic!() };
        let whole = fs::metadata(file).unwrap().len();
        let cut = at.index(whole as usize + 1) as u64;
        OpenOptions::new().write(true).open(file).unwrap().set_len(cut).unwrap();

        let mut spool = open(directory.path(), "b");
        let kept = ends.iter().filter(|end| **end <= cut).count();
        let header_end = fs::read(file).unwrap_or_default().iter().position(|byte| *byte == b'\n').map(|at| at as u64 + 1);
        let at_a_border = ends.contains(&cut) || Some(cut) == header_end || kept == 0;
        if !at_a_border {
            prop_assert_eq!(spool.state().damaged_lines, 1);
        }
        spool.append(&sample(99)).unwrap();
        let all = drain(&mut spool, 7);
        let expected: Vec<_> = (0..kept).map(|number| ("a".to_owned(), number as u64, json(number as i64)))
            .chain([("b".to_owned(), 0, json(99))]).collect();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn acknowledged_samples_do_not_come_back_and_the_others_do(
        count in 1_u64..60, batch_max in 1_usize..20, batches in 0_usize..8, partly in 0_u64..20,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path(), "a");
        for number in 0..count {
            prop_assert_eq!(spool.append(&sample(number as i64)).unwrap(), number);
        }
        let mut next = 0;
        for _ in 0..batches {
            let Some(batch) = spool.next_batch(batch_max).unwrap() else { break };
            prop_assert_eq!(batch.sequence, next);
            next = (batch.sequence + partly.max(1)).min(batch.sequence + batch.samples.len() as u64);
            spool.acknowledge(&batch, next).unwrap();
        }
        prop_assert_eq!(spool.state().waiting, count - next);
        drop(spool);
        let mut spool = open(directory.path(), "b");
        prop_assert_eq!(spool.state().waiting, count - next);
        let sequences: Vec<u64> = drain(&mut spool, batch_max).into_iter().map(|(_, sequence, _)| sequence).collect();
        prop_assert_eq!(sequences, (next..count).collect::<Vec<_>>());
        prop_assert_eq!(spool.state().waiting, 0);
    }

    #[test]
    fn a_full_spool_keeps_the_newest_and_counts_the_rest(count in 1_u64..1500) {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(directory.path(), SPOOL_BYTES_MIN, identity("a")).unwrap();
        for number in 0..count {
            spool.append(&sample(number as i64)).unwrap();
            let on_disk: u64 = segment_files(directory.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
            prop_assert_eq!(on_disk, spool.state().bytes);
            prop_assert!(on_disk <= SPOOL_BYTES_MIN);
        }
        let state = spool.state();
        prop_assert_eq!(state.waiting + state.dropped_full, count);
        let sequences: Vec<u64> = drain(&mut spool, 100).into_iter().map(|(_, sequence, _)| sequence).collect();
        prop_assert_eq!(sequences, (state.dropped_full..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_garbled_line_loses_only_that_sample() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path(), "a");
    let mut ends = Vec::new();
    for number in 0..5 {
        spool.append(&sample(number)).unwrap();
        ends.push(spool.state().bytes as usize);
    }
    drop(spool);
    let [file] = &segment_files(directory.path())[..] else { panic!() };
    let mut bytes = fs::read(file).unwrap();
    bytes[ends[1] + 15] ^= 1;
    fs::write(file, bytes).unwrap();
    let mut spool = open(directory.path(), "b");
    assert_eq!((spool.state().damaged_lines, spool.state().waiting), (1, 4));
    let sequences: Vec<u64> = drain(&mut spool, 100).into_iter().map(|(_, sequence, _)| sequence).collect();
    assert_eq!(sequences, [0, 1, 3, 4]);
}

#[test]
fn an_old_cursor_never_hides_samples_of_a_new_segment() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path(), "a");
    for number in 0..5 {
        spool.append(&sample(number)).unwrap();
    }
    drain(&mut spool, 100);
    drop(spool);
    // Two runs: the first removes finished segments; the second finds no segments and an old cursor.
    drop(open(directory.path(), "b"));
    let mut spool = open(directory.path(), "c");
    for number in 0..3 {
        spool.append(&sample(number)).unwrap();
    }
    drop(spool);
    assert_eq!(open(directory.path(), "d").state().waiting, 3);
}

#[test]
fn rejected_batches_are_kept_within_a_limit_and_later_batches_are_sent() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(directory.path(), SPOOL_BYTES_MIN, identity("a")).unwrap();
    for number in 0..300 {
        spool.append(&sample(number)).unwrap();
        let batch = spool.next_batch(1).unwrap().unwrap();
        spool.reject(&batch, "400 malformed").unwrap();
    }
    let state = spool.state();
    assert_eq!((state.rejected_batches, state.rejected_samples, state.waiting), (300, 300, 0));
    let kept: Vec<u64> = fs::read_dir(directory.path().join("rejected"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert!(
        !kept.is_empty() && kept.len() <= 32 && kept.iter().sum::<u64>() <= SPOOL_BYTES_MIN / REJECTED_SHARE
    );
    spool.append(&sample(300)).unwrap();
    assert_eq!(drain(&mut spool, 10).len(), 1);
}

#[test]
fn a_spool_has_one_agent() {
    let directory = tempfile::tempdir().unwrap();
    let _held = open(directory.path(), "a");
    assert!(matches!(Spool::open(directory.path(), 1 << 20, identity("b")), Err(SpoolError::InUse(_))));
}

#[test]
fn a_sample_larger_than_the_spool_is_dropped_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(directory.path(), SPOOL_BYTES_MIN, identity("a")).unwrap();
    let mut large = sample(0);
    large.missing.insert("x".to_owned(), "y".repeat(SPOOL_BYTES_MIN as usize));
    assert!(matches!(spool.append(&large), Err(SpoolError::SampleTooLarge { .. })));
    assert_eq!(spool.state().dropped_unwritable, 1);
    assert_eq!(spool.append(&sample(1)).unwrap(), 0);
}

#[test]
fn only_its_owner_can_read_a_spool() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("new").join("spool");
    let mut spool = open(&directory, "a");
    for number in 0..3 {
        spool.append(&sample(number)).unwrap();
    }
    let batch = spool.next_batch(1).unwrap().unwrap();
    spool.reject(&batch, "unknown").unwrap();
    let entries = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let rejected = directory.join("rejected");
    let mut paths = vec![directory.parent().unwrap().to_owned(), directory.clone()];
    paths.extend(entries(&directory).chain(entries(&rejected)));
    // Two parents, a lock, a segment, a position, and the directory of rejected batches with one of them.
    assert_eq!(paths.len(), 7, "{paths:?}");
    for path in paths {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
}

/// The events are: append a sample, send a batch, remove a segment, truncate a segment, remove the directory.
#[derive(Debug, Clone, Copy)]
enum Event {
    Append,
    Send,
    RemoveSegment(prop::sample::Index),
    Truncate(prop::sample::Index),
    RemoveDirectory,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Append),
        3 => Just(Event::Send),
        1 => any::<prop::sample::Index>().prop_map(Event::RemoveSegment),
        1 => any::<prop::sample::Index>().prop_map(Event::Truncate),
        1 => Just(Event::RemoveDirectory),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever another program removes, the spool continues. Each sample is sent once or counted as lost, and no
    /// second agent can use the directory.
    #[test]
    fn files_that_another_program_removes_are_counted_and_the_spool_continues(
        events in prop::collection::vec(event(), 1..200),
    ) {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("spool");
        // Small segments, so that several exist.
        let mut spool = Spool::open(&directory, SPOOL_BYTES_MIN / 8, identity("a")).unwrap();
        let (mut appended, mut sent) = (0, Vec::new());
        for event in events {
            let pick = |at: prop::sample::Index| {
                let files = segment::list(&directory).unwrap_or_default();
                (!files.is_empty()).then(|| files[at.index(files.len())].1.clone())
            };
            match event {
                Event::Append => {
                    prop_assert_eq!(spool.append(&sample(appended)).unwrap(), appended as u64);
                    appended += 1;
                }
                Event::Send => if let Some(batch) = spool.next_batch(7).unwrap() {
                    let next = batch.sequence + batch.samples.len() as u64;
                    sent.extend(batch.sequence..next);
                    spool.acknowledge(&batch, next).unwrap();
                },
                Event::RemoveSegment(at) => drop(pick(at).map(fs::remove_file)),
                Event::Truncate(at) => drop(pick(at).map(|path| File::create(path).unwrap())),
                Event::RemoveDirectory => fs::remove_dir_all(&directory).unwrap_or_default(),
            }
            let published = spool.published();
            prop_assert_eq!(&*published.lock().unwrap(), &spool.state());
        }
        spool.append(&sample(appended)).unwrap();
        let second = Spool::open(&directory, SPOOL_BYTES_MIN, identity("b"));
        prop_assert!(matches!(second, Err(SpoolError::InUse(_))), "{:?}", second);
        sent.extend(drain(&mut spool, 7).into_iter().map(|(_, sequence, _)| sequence));
        prop_assert!(sent.is_sorted_by(|one, other| one < other), "{:?}", sent);
        prop_assert_eq!(sent.last(), Some(&(appended as u64)));
        let state = spool.state();
        let lost = state.dropped_removed + state.dropped_full + state.damaged_lines;
        prop_assert_eq!(sent.len() as u64 + lost, appended as u64 + 1);
    }
}
