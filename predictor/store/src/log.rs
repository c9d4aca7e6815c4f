//! SQLite's write-ahead log: whether a bad frame is a torn end, or damage that hides durable commits.
//!
//! SQLite ignores the first frame whose checksum is wrong and everything after it. That is right for the end of a log
//! after a power failure: the last transaction was not synced, and any of its sectors may be missing. It is wrong for
//! a disk that damages synced bytes, because later commits disappear without an error.
//!
//! The order of writes distinguishes the two: SQLite syncs a commit before it writes the next transaction. So a frame that
//! continues a commit proves that everything up to that commit was durable. The checksum of a frame begins with the
//! checksum of the frame before it, so it also proves which frame it continues.
//!
//! The format is described in "WAL-mode file format" at <https://sqlite.org/walformat.html>.

use std::io::{self, Read};

/// The first four bytes of a log, without the lowest bit: 1 if checksums read words in big-endian order.
const MAGIC: u32 = 0x377f_0682;
const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// The two words of a checksum.
type Sum = [u32; 2];

/// Returns the offset of the first bad frame of a log, in bytes, if a commit at or after it was durable. The offset is 0
/// if the header is bad.
///
/// # Errors
/// If the log cannot be read.
pub(crate) fn find_damage(mut log: impl Read, page_bytes: usize) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut log, &mut header)? {
        return Ok(None);
    }
    let magic = word(&header, 0);
    // SQLite writes the order of its machine.
    let is_big_endian = if magic & !1 == MAGIC { magic & 1 == 1 } else { cfg!(target_endian = "big") };
    let begins = checksum([0, 0], &header[..24], is_big_endian);
    let is_whole = magic & !1 == MAGIC && begins == sum(&header, 24);
    let mut bad = (!is_whole).then_some(0);
    let mut salts = is_whole.then(|| [word(&header, 16), word(&header, 20)]);
    // Checksums that the next frame may continue: the stored one, and the one of the content if the stored one is bad.
    let mut continued = [Some(sum(&header, 24)), Some(begins).filter(|_| !is_whole)];
    let (mut at, mut is_commit, mut hides_commit) = (HEADER_BYTES as u64, false, false);
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes];
    while fill(&mut log, &mut frame)? {
        let own = [word(&frame, 8), word(&frame, 12)];
        let stored = sum(&frame, 16);
        let content = |before: Sum| {
            let header = checksum(before, &frame[..8], is_big_endian);
            checksum(header, &frame[FRAME_HEADER_BYTES..], is_big_endian)
        };
        // Salts change whenever the log begins again. If the header is bad, the frame before has them.
        let is_current = salts.is_none_or(|salts| salts == own);
        if !is_whole {
            salts = Some(own);
        }
        let continues = is_current && continued.into_iter().flatten().any(|before| content(before) == stored);
        if bad.is_some() {
            hides_commit |= continues && is_commit;
            continued = [Some(stored), None];
        } else if continues {
            continued = [Some(stored), None];
        } else {
            bad = Some(at);
            continued = [Some(stored), continued[0].map(content)];
        }
        // The size of the database, in pages; 0 in all frames of a transaction but its last one.
        is_commit = word(&frame, 4) != 0;
        at += frame.len() as u64;
    }
    Ok(bad.filter(|_| hides_commit))
}

/// Fills a buffer; returns false at the end of the log, which may be within a frame.
fn fill(log: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

fn sum(bytes: &[u8], at: usize) -> Sum {
    [word(bytes, at), word(bytes, at + 4)]
}

/// Continues a checksum with a multiple of 8 bytes.
fn checksum(before: Sum, bytes: &[u8], is_big_endian: bool) -> Sum {
    let word =
        |bytes: [u8; 4]| if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    bytes.as_chunks::<4>().0.as_chunks::<2>().0.iter().fold(before, |[first, second], [one, other]| {
        let first = first.wrapping_add(word(*one)).wrapping_add(second);
        [first, second.wrapping_add(word(*other)).wrapping_add(first)]
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;
    use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
    use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

    use super::*;

    const PAGE_BYTES: usize = 4096;
    const SECTOR_BYTES: usize = 512;

    /// The log after each of some commits, and before the first.
    struct Logs(Vec<Vec<u8>>);

    impl Logs {
        /// Lets SQLite write a transaction of each of these sizes, in rows of half a page. The log lies on the remains of
        /// an earlier one with `earlier` rows.
        fn write(earlier: usize, sizes: &[usize]) -> Self {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let folder = tempfile::tempdir().unwrap();
                let (file, log) = (folder.path().join("a.db"), folder.path().join("a.db-wal"));
                let mut connection = connect(&file).await;
                run(&mut connection, "PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (x BLOB)").await;
                for _ in 0..earlier {
                    insert(&mut connection, 1).await;
                }
                run(&mut connection, "PRAGMA wal_checkpoint(RESTART)").await;
                let mut logs = Vec::new();
                for (number, size) in sizes.iter().enumerate() {
                    insert(&mut connection, *size).await;
                    if number + 2 >= sizes.len() {
                        logs.push(fs::read(&log).unwrap());
                    }
                }
                connection.close().await.unwrap();
                Self(logs)
            })
        }

        fn last(&self) -> &[u8] {
            self.0.last().unwrap()
        }

        /// The frames of the last transaction, in bytes of the log.
        fn last_transaction(&self) -> std::ops::Range<usize> {
            let [.., before, after] = &self.0[..] else { panic!() };
            let frame = FRAME_HEADER_BYTES + PAGE_BYTES;
            let is_same = |at: &usize| before.get(*at..at + frame) == after.get(*at..at + frame);
            let mut starts = (HEADER_BYTES..after.len()).step_by(frame);
            let begin = starts.clone().find(|at| !is_same(at)).unwrap();
            // The last frame with the salts of the log; those after it are remains.
            let end = starts.rfind(|at| after[at + 8..at + 16] == after[16..24]).unwrap() + frame;
            begin..end
        }
    }

    async fn connect(file: &Path) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        options.connect().await.unwrap()
    }

    async fn run(connection: &mut SqliteConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
    }

    async fn insert(connection: &mut SqliteConnection, rows: usize) {
        run(
            connection,
            &format!("BEGIN; {} COMMIT", "INSERT INTO t VALUES (randomblob(2000));".repeat(rows)),
        )
        .await;
    }

    fn damage(log: &[u8]) -> Option<u64> {
        find_damage(log, PAGE_BYTES).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any of the sectors of the last transaction, which was not synced, may be missing after a power failure: as they
        /// were before, or zero. The log may end anywhere in it.
        #[test]
        fn a_torn_end_is_no_damage(
            earlier in 0_usize..12,
            sizes in prop::collection::vec(1_usize..6, 2..6),
            missing in prop::collection::vec(0_u8..3, 64),
            cut: prop::sample::Index,
        ) {
            let logs = Logs::write(earlier, &sizes);
            let mut torn = logs.last().to_vec();
            prop_assert_eq!(damage(&torn), None);
            let unsynced = logs.last_transaction();
            let before = &logs.0[logs.0.len() - 2];
            for at in unsynced.clone() {
                match missing[at / SECTOR_BYTES % missing.len()] {
                    0 => torn[at] = before.get(at).copied().unwrap_or(0),
                    1 if before.len() <= at => torn[at] = 0,
                    _ => {}
                }
            }
            prop_assert_eq!(damage(&torn), None);
            torn.truncate(unsynced.start + cut.index(unsynced.len()));
            prop_assert_eq!(damage(&torn), None);
        }

        /// Bytes that change before the last transaction, in the header, in one frame or in several, hide durable commits.
        #[test]
        fn damage_before_the_last_transaction_is_found(
            earlier in 0_usize..12,
            sizes in prop::collection::vec(1_usize..6, 2..6),
            place: prop::sample::Index,
            length in prop_oneof![Just(1_usize), 1_usize..10_000],
            change in 1_u8..,
        ) {
            let logs = Logs::write(earlier, &sizes);
            let mut log = logs.last().to_vec();
            let durable = logs.last_transaction().start;
            let begin = place.index(durable);
            let end = (begin + length).min(durable);
            log[begin..end].iter_mut().for_each(|byte| *byte ^= change);
            let frame = FRAME_HEADER_BYTES + PAGE_BYTES;
            // Of the commit before the last transaction only its own frame is a witness: not if it lost its size, or its
            // checksum together with something else.
            let witness = durable - frame;
            let is_lost = word(&log, witness + 4) == 0 || (begin < witness + 24 && witness < end && end - begin > 1);
            prop_assume!(!is_lost);
            let first = if begin < HEADER_BYTES { 0 } else { HEADER_BYTES + (begin - HEADER_BYTES) / frame * frame };
            prop_assert_eq!(damage(&log), Some(first as u64));
        }
    }
}
