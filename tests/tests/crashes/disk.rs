//! A small disk that a test can fill, free and lock: a file system in memory.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenstep_tests::binaries::skip;
use tempfile::TempDir;

/// The disk, unmounted with the test.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// Mounts a disk of this size. Returns `None` and reports the test as skipped if this user may not mount
    /// one.
    pub fn mount(test: &str, mebibytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match mount(&format!("size={mebibytes}m,mode=755"), folder.path()) {
            Ok(()) => Some(Self { folder }),
            Err(said) => {
                skip(test, &format!("a small disk cannot be mounted here: {said}"));
                None
            }
        }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the free space to the last byte.
    pub fn fill(&self) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.filler()).unwrap();
        // From large to small: a write that does not fit is done in part or not at all.
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
        }
    }

    /// Frees the filled space.
    pub fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// Makes the disk read-only. No process must have a file of it open for writing.
    pub fn lock(&self) {
        mount("remount,ro", self.path()).unwrap();
    }

    /// Makes the disk writable.
    pub fn unlock(&self) {
        mount("remount,rw", self.path()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy, because a process of the test may still be ending.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(
            std::thread::panicking() || unmounted.is_ok_and(|status| status.success()),
            "{} stays mounted",
            self.path().display()
        );
    }
}

fn mount(options: &str, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder).stdin(Stdio::null());
    let ran = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    if ran.status.success() { Ok(()) } else { Err(said) }
}
