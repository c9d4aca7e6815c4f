//! The file of an SQLite store: locked for this process, checked at start, and watched while it is served.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::log::find_damage;

/// First bytes of an SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Permissions of a new file: only its owner can read it. SQLite gives them to its other files as well.
pub(crate) const PRIVATE: u32 = 0o600;

/// Size of the buffer that reads the log: a large log is read at start.
const LOG_BUFFER_BYTES: usize = 1 << 20;
/// Size of the writes that test whether the disk is full.
const ROOM_BUFFER_BYTES: usize = 1 << 14;

/// Device and inode of a file.
type Identity = (u64, u64);

/// A locked SQLite file. The lock is on the file itself, so that no other name of the file leads around it. It
/// ends with this value.
///
/// Closing this value also ends the locks of SQLite's own connections in this process, so it must be dropped
/// after them.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    path: PathBuf,
    /// Path of the write-ahead log. SQLite names it after the target of a symbolic link.
    log: PathBuf,
    /// Path of the index of the log.
    index: PathBuf,
    /// Path of the file that tests whether the disk is full.
    room: PathBuf,
    /// The log of the open connections, once it exists.
    open_log: Option<Identity>,
}

/// Locks an SQLite file for this process, and creates it if it does not exist.
///
/// # Errors
/// [`StoreError::InUse`] if another process holds the lock, [`StoreError::NotAStore`] if the file is no SQLite
/// database, [`StoreError::LogRemoved`] or [`StoreError::LogDamaged`] if commits are lost, [`StoreError::Lock`] if it
/// cannot be opened.
pub(crate) fn lock(path: &Path) -> Result<LockedFile, StoreError> {
    let failed = |source| StoreError::Lock { path: path.into(), source };
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(PRIVATE).open(path);
    let file = opened.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(path.into())),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    let mut start = Vec::new();
    (&file).take(MAGIC.len() as u64 + 2).read_to_end(&mut start).map_err(failed)?;
    if !start.is_empty() && !start.starts_with(MAGIC) {
        return Err(StoreError::NotAStore("it is not an SQLite database".to_owned()));
    }
    let target = fs::canonicalize(path).map_err(failed)?;
    let [log, index, room] = ["-wal", "-shm", "-room"].map(|ending| beside(&target, ending));
    let locked = LockedFile { file, path: path.to_owned(), log, index, room, open_log: None };
    // Another process may have replaced the file before it was locked.
    locked.check_present()?;
    locked.check_log(page_bytes(&start))?;
    Ok(locked)
}

/// Returns the size of a page from the first bytes of a database. The largest size does not fit into its two bytes.
fn page_bytes(start: &[u8]) -> usize {
    match start.last_chunk().map(|bytes| u16::from_be_bytes(*bytes)) {
        Some(1) => 1 << 16,
        Some(size) => size.into(),
        None => 0,
    }
}

impl LockedFile {
    /// Checks that the write-ahead log of a process that was killed still exists and is whole, before SQLite ignores
    /// what is lost. SQLite removes the log together with its index, so an index alone means that the log was deleted.
    ///
    /// # Errors
    /// [`StoreError::LogRemoved`], [`StoreError::LogDamaged`], or if the log cannot be read.
    fn check_log(&self, page_bytes: usize) -> Result<(), StoreError> {
        let exists = |path: &Path| path.try_exists().unwrap_or(true);
        if is_index_alone(&self.log, &self.index, exists) {
            return Err(StoreError::LogRemoved { log: self.log.clone(), index: self.index.clone() });
        }
        let failed = |source| StoreError::File { path: self.log.clone(), source };
        let log = match File::open(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            log => BufReader::with_capacity(LOG_BUFFER_BYTES, log.map_err(failed)?),
        };
        match find_damage(log, page_bytes).map_err(failed)? {
            Some(at) => Err(StoreError::LogDamaged { log: self.log.clone(), at }),
            None => Ok(()),
        }
    }

    /// Checks that the file and its write-ahead log are still those that the connections use. Otherwise a commit
    /// would be lost.
    ///
    /// # Errors
    /// [`StoreError::Removed`].
    pub fn check_present(&self) -> Result<(), StoreError> {
        let locked = identity(self.file.metadata());
        if locked.is_none() || identity(fs::metadata(&self.path)) != locked {
            return Err(StoreError::Removed(self.path.clone()));
        }
        if self.open_log.is_some() && identity(fs::metadata(&self.log)) != self.open_log {
            return Err(StoreError::Removed(self.log.clone()));
        }
        Ok(())
    }

    /// Checks that the folder of the file has room for this many bytes, by writing them to another file.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub async fn check_room(&self, bytes: usize) -> Result<(), StoreError> {
        let path = self.room.clone();
        let write = move || {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(true).mode(PRIVATE).open(&path);
            let written = file.and_then(|mut file| {
                let zeros = [0; ROOM_BUFFER_BYTES];
                for _ in 0..bytes.div_ceil(zeros.len()) {
                    file.write_all(&zeros)?;
                }
                file.sync_data()
            });
            let removed = fs::remove_file(&path);
            written.and(removed).map_err(|source| StoreError::File { path, source })
        };
        tokio::task::spawn_blocking(write).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Watches the log of the connection that has been opened.
    pub fn watch_log(&mut self) {
        self.open_log = identity(fs::metadata(&self.log));
    }

    /// Stops watching the log, because SQLite replaces it with the last connection.
    pub fn forget_log(&mut self) {
        self.open_log = None;
    }
}

/// Whether an index exists without its log. A connection of an earlier [`Store`](crate::Store) in this process may be
/// closing meanwhile: SQLite then removes the index, and after it the log. So the log is looked for first.
fn is_index_alone(log: &Path, index: &Path, mut exists: impl FnMut(&Path) -> bool) -> bool {
    !exists(log) && exists(index)
}

fn identity(metadata: io::Result<fs::Metadata>) -> Option<Identity> {
    metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The removals that happen before the first look, and between the two looks, are any part of SQLite's.
    #[test]
    fn a_connection_that_closes_meanwhile_removes_no_log() {
        let [log, index] = ["-wal", "-shm"].map(|ending| beside(Path::new("store.db"), ending));
        for [before, between] in [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0]] {
            let removals = [&index, &log];
            let mut steps = [before, before + between].into_iter();
            let exists = |path: &Path| {
                let removed = steps.next().unwrap_or(removals.len());
                !removals[..removed].iter().any(|gone| **gone == path)
            };
            assert!(!is_index_alone(&log, &index, exists), "{before} removed before, {between} between");
        }
        assert!(is_index_alone(&log, &index, |path| path == index));
    }
}
