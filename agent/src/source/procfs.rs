//! Files of the kernel's that are read again and again: one open, one `pread` for each reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::Gap;

/// Room for the first read; `/proc/stat` of a small machine fits.
const READ_BYTES_FIRST: usize = 4096;
/// The largest file that is read: `/proc/stat` of a machine with thousands of interrupt lines stays well below.
const READ_BYTES_MAX: usize = 1 << 20;

/// One file of `/proc`, opened when first read and kept open.
///
/// A handle into `/proc/<pid>` stays with the process that it was opened for: once that one has ended every read
/// fails, also when the number belongs to another process by then.
#[derive(Debug)]
pub(crate) struct ProcFile {
    path: PathBuf,
    file: Option<File>,
    text: Vec<u8>,
}

impl ProcFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), file: None, text: Vec::new() }
    }

    /// The whole text of the file as it is now.
    pub(crate) fn read(&mut self) -> Result<&str, Gap> {
        match self.fill() {
            Ok(length) => std::str::from_utf8(&self.text[..length]).map_err(|_| Gap::Unreadable {
                path: self.path.display().to_string(),
                message: "it is not text".to_owned(),
            }),
            Err(error) => Err(unreadable(&self.path, &error)),
        }
    }

    /// Gives the handle back; the next reading opens the file again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// The file's text did not hold `field`.
    pub(crate) fn unexpected(&self, field: &'static str) -> Gap {
        Gap::Unexpected { field, path: self.path.display().to_string() }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        if self.text.is_empty() {
            self.text.resize(READ_BYTES_FIRST, 0);
        }
        loop {
            // These files are one record, which comes whole where there is room: a short read is the end.
            let length = file.read_at(&mut self.text, 0)?;
            if length < self.text.len() {
                return Ok(length);
            }
            if self.text.len() >= READ_BYTES_MAX {
                return Err(io::Error::other(format!("it is larger than {READ_BYTES_MAX} bytes")));
            }
            self.text.resize(self.text.len() * 2, 0);
        }
    }
}

/// A process that ended shows as a path that is not there, or, through a handle opened before, as no such process.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Gap {
    let path = path.display().to_string();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ESRCH) => Gap::NotThere { path },
        _ => Gap::Unreadable { path, message: error.to_string() },
    }
}
