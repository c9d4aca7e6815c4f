//! Arbitrary bytes, and files with random changes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Maximum length of arbitrary bytes.
const BYTES_MAX: usize = 512;
/// Maximum number of changes to a file.
const CHANGES_MAX: usize = 8;
/// Maximum number of bytes that one change adds or removes.
const RUN_MAX: usize = 64;

/// A change of a file.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Set(Index, Vec<u8>),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, Index),
    Truncate(Index),
}

/// Arbitrary bytes, also none.
pub fn arbitrary() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..BYTES_MAX)
}

/// Selects a file and makes up to 8 changes: flipped bits, bytes that are overwritten, inserted, removed or repeated, and
/// a truncated end.
pub fn damaged(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(files), vec(change(), 0..=CHANGES_MAX)).prop_map(|(mut file, changes)| {
        for change in &changes {
            change.apply(&mut file);
        }
        file
    })
}

/// Bytes that often have a meaning: the borders of variable-length and fixed integers, and of floats.
fn notable() -> impl Strategy<Value = Vec<u8>> {
    let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX, -1.0, 0.0];
    prop_oneof![
        vec(any::<u8>(), 1..RUN_MAX),
        select(numbers.to_vec()).prop_map(|number| number.to_le_bytes().to_vec()),
        any::<f64>().prop_map(|number| number.to_le_bytes().to_vec()),
        (1..10_usize).prop_map(|length| [vec![0xff; length], vec![0x01]].concat()),
        select(vec![0, 1, 0x7f, 0x80, b'\n', b'"', b',', b'}', 0xff]).prop_map(|byte| vec![byte]),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, 1 << bit)),
        4 => (any::<Index>(), notable()).prop_map(|(at, bytes)| Change::Set(at, bytes)),
        2 => (any::<Index>(), notable()).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (any::<Index>(), 1..RUN_MAX).prop_map(|(at, count)| Change::Remove(at, count)),
        2 => (any::<Index>(), 1..RUN_MAX, any::<Index>()).prop_map(|(from, count, to)| Change::Repeat(from, count, to)),
        1 => any::<Index>().prop_map(Change::Truncate),
    ]
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        let run = |at: &Index, count: usize| {
            let at = at.index(file.len() + 1);
            at..(at + count).min(file.len())
        };
        match self {
            Self::Flip(at, bits) if !file.is_empty() => {
                let at = at.index(file.len());
                file[at] ^= bits;
            }
            Self::Flip(..) => {}
            Self::Set(at, bytes) => drop(file.splice(run(at, bytes.len()), bytes.iter().copied())),
            Self::Insert(at, bytes) => drop(file.splice(run(at, 0), bytes.iter().copied())),
            Self::Remove(at, count) => drop(file.drain(run(at, *count))),
            Self::Repeat(from, count, to) => {
                let copy = file[run(from, *count)].to_vec();
                drop(file.splice(run(to, 0), copy));
            }
            Self::Truncate(at) => file.truncate(at.index(file.len() + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest! {
        #[test]
        fn a_damaged_file_is_at_most_a_few_changes_longer(file in damaged(vec![Vec::new(), vec![7; 100]])) {
            prop_assert!(file.len() <= 100 + CHANGES_MAX * RUN_MAX);
        }
    }
}
