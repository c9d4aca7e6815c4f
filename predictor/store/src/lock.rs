//! Lock file that prevents a second process from serving an SQLite file.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Locks an SQLite file for this process. The lock ends with the process.
///
/// # Errors
/// [`StoreError::InUse`] if another process holds the lock, [`StoreError::Lock`] if the lock file cannot be
/// created.
pub(crate) fn lock(file: &Path) -> Result<File, StoreError> {
    let path = PathBuf::from(format!("{}.lock", file.display()));
    let opened = File::options().create(true).append(true).open(&path);
    let lock = opened.map_err(|source| StoreError::Lock { path: path.clone(), source })?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(file.into())),
        Err(TryLockError::Error(source)) => Err(StoreError::Lock { path, source }),
    }
}
