//! A program that the processes of one user on this machine start, find and share.
//!
//! Its folder has two files:
//! - The run file, `PROGRAM.json`, names the address of the running program. The program holds an exclusive lock on it,
//!   so a file without a lock is of a program that has ended, and at most one runs.
//! - `users`: every process that needs the programs of this folder holds a shared lock on it. The system releases the
//!   lock when the process ends, in whatever way. A program without users ends after a while.
//!
//! All locks are those of `flock(2)`.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

/// Interval at which the lock of users is tried.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of attempts to lock the run file, and the pause between them.
const ATTEMPTS_MAX: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);
/// Permissions of new files: only their owner can read them.
const PRIVATE: u32 = 0o600;
/// Maximum size of a run file, in bytes.
const RUN_FILE_MAX: u64 = 4096;

/// Contents of a run file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// URL of the program.
    pub url: String,
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Its network namespace. Processes in other ones, such as containers, cannot reach the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// Contents of the run file of a program that has not finished its start.
#[derive(Debug, Serialize, Deserialize)]
struct Starting {
    previous: String,
}

/// A reason why a program cannot run in a folder.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The program runs there already.
    #[error("{0}: another process holds its lock; only one can run")]
    Running(PathBuf),
    /// A file cannot be used.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
}

/// The place of a running program in its folder.
#[derive(Debug)]
pub struct Local {
    run_file: File,
    users: PathBuf,
    previous: Option<SocketAddr>,
    version: &'static str,
}

impl Local {
    /// Takes the place of `program` in `folder`; its run file then names no running program.
    ///
    /// # Errors
    /// [`LocalError::Running`] if the program runs already, [`LocalError::File`] if a file cannot be used.
    pub fn enter(folder: &Path, program: &str, version: &'static str) -> Result<Self, LocalError> {
        let path = folder.join(format!("{program}.json"));
        let failed = |error| LocalError::File(path.clone(), error);
        let run_file = open(&path).map_err(failed)?;
        let mut attempts = 1..ATTEMPTS_MAX;
        loop {
            match run_file.try_lock() {
                Ok(()) => break,
                // Readers of the file hold a shared lock for a moment.
                Err(TryLockError::WouldBlock) if attempts.next().is_some() => pause(),
                Err(TryLockError::WouldBlock) => return Err(LocalError::Running(path)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let mut text = Vec::new();
        (&run_file).take(RUN_FILE_MAX).read_to_end(&mut text).map_err(failed)?;
        let url = serde_json::from_slice(&text).map(|running: Running| running.url);
        let url = url.or_else(|_| serde_json::from_slice(&text).map(|starting: Starting| starting.previous));
        let previous = url.as_ref().ok().and_then(|url| url.split_once("://")?.1.parse().ok());
        let mut local = Self { run_file, users: folder.join("users"), previous, version };
        // The address is not lost if this start fails.
        let starting = url.ok().map(|previous| serde_json::to_vec(&Starting { previous }));
        let starting = starting.transpose().map_err(|error| failed(error.into()))?.unwrap_or_default();
        local.write(&starting).map_err(failed)?;
        Ok(local)
    }

    /// Returns the address of the previous process, which clients may still know; `None` for the first one.
    pub fn previous(&self) -> Option<SocketAddr> {
        self.previous
    }

    /// Writes the run file: the program listens at `url`, which is `http` or `https` and an address.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn announce(&mut self, url: &str) -> io::Result<()> {
        let running = Running {
            url: url.to_owned(),
            pid: std::process::id(),
            version: self.version.to_owned(),
            network: std::fs::read_link("/proc/self/ns/net").ok().map(|link| link.display().to_string()),
        };
        self.write(&serde_json::to_vec(&running)?)
    }

    fn write(&mut self, contents: &[u8]) -> io::Result<()> {
        self.run_file.set_len(0)?;
        self.run_file.seek(SeekFrom::Start(0))?;
        self.run_file.write_all(contents)
    }

    /// Completes when the program has had no user for `linger`. While the result is held, new users wait, so that none
    /// takes a program that is about to end. Time in which the machine is suspended does not count.
    pub async fn unused(&self, linger: Duration) -> Option<File> {
        let mut tick = tokio::time::interval(TICK.min(linger));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unused = Duration::ZERO;
        loop {
            tick.tick().await;
            // Without its folder no process can find the program.
            let users = open(&self.users).ok();
            let is_used = users.as_ref().is_some_and(|users| users.try_lock().is_err());
            unused = if is_used { Duration::ZERO } else { unused + tick.period() };
            if unused > linger {
                return users;
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing reports that a lock of flock is free")]
fn pause() {
    std::thread::sleep(ATTEMPT_PAUSE);
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(PRIVATE).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_runs_and_the_next_knows_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let enter = || Local::enter(folder.path(), "predictor", "1.2.3");
        let mut first = enter().unwrap();
        assert_eq!(first.previous(), None);
        first.announce("https://127.0.0.1:4567").unwrap();
        assert!(matches!(enter(), Err(LocalError::Running(_))));
        let text = std::fs::read(folder.path().join("predictor.json")).unwrap();
        let running: Running = serde_json::from_slice(&text).unwrap();
        assert_eq!((running.url.as_str(), running.version.as_str()), ("https://127.0.0.1:4567", "1.2.3"));
        drop(first);
        // A start that fails does not lose the address.
        drop(enter().unwrap());
        assert_eq!(enter().unwrap().previous(), Some("127.0.0.1:4567".parse().unwrap()));
    }

    #[test]
    fn a_run_file_with_other_contents_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("predictor.json"), [b'x'; 10_000]).unwrap();
        let mut local = Local::enter(folder.path(), "predictor", "1.2.3").unwrap();
        local.announce("http://127.0.0.1:1").unwrap();
        let text = std::fs::read(folder.path().join("predictor.json")).unwrap();
        assert!(serde_json::from_slice::<Running>(&text).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_ends_only_without_users() {
        let folder = tempfile::tempdir().unwrap();
        let local = Local::enter(folder.path(), "predictor", "1.2.3").unwrap();
        let user = open(&folder.path().join("users")).unwrap();
        user.lock_shared().unwrap();
        let day = Duration::from_secs(86_400);
        let linger = Duration::from_secs(300);
        assert!(tokio::time::timeout(day, local.unused(linger)).await.is_err());
        drop(user);
        let ends = tokio::time::Instant::now();
        let held = local.unused(linger).await.unwrap();
        assert!(ends.elapsed() >= linger);
        let late = open(&folder.path().join("users")).unwrap();
        assert!(late.try_lock_shared().is_err(), "new users wait until the program has ended");
        drop(held);
        assert!(late.try_lock_shared().is_ok());
    }
}
