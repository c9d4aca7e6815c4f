//! Reads of files on file systems that may hang.

use std::time::Duration;

use tokio::task::JoinError;

/// Time after which a read of a file counts as one that hangs: the file system does not respond, for example because its
/// server is unreachable.
pub const HANGS_AFTER: Duration = Duration::from_secs(10);

/// Runs `read` on a thread that may block. If it takes longer than `limit`, calls `hangs` once and continues to wait: such a read
/// cannot be ended, and each further one would block another thread.
///
/// # Errors
/// `read` panicked.
pub async fn read_files<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
    limit: Duration,
    hangs: impl FnOnce(),
) -> Result<T, JoinError> {
    let mut reading = tokio::task::spawn_blocking(read);
    if let Ok(done) = tokio::time::timeout(limit, &mut reading).await {
        return done;
    }
    hangs();
    reading.await
}
