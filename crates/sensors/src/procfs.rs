//! Kernel files that are read repeatedly: opened once, then one `pread` per reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::MissingReason;

/// Initial buffer size; fits `/proc/stat` of a small machine.
const READ_BYTES_FIRST: usize = 4096;
/// Maximum file size; far above `/proc/stat` of a machine with thousands of interrupts.
const READ_BYTES_MAX: usize = 1 << 20;

/// A file of `/proc`, opened at the first reading and kept open.
///
/// A handle to a file of `/proc/<pid>` refers to the process for which it was opened. After that process has
/// ended every read fails, even if another process has the same id.
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

    /// Reads the whole file.
    pub(crate) fn read(&mut self) -> Result<&str, MissingReason> {
        let length = self.fill().map_err(|error| unreadable(&self.path, &error))?;
        let text = &mut self.text[..length];
        if std::str::from_utf8(text).is_err() {
            // The kernel cuts the name of a process after 15 bytes, also within a character.
            text.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        std::str::from_utf8(text).map_err(|error| unreadable(&self.path, &io::Error::other(error)))
    }

    /// Closes the handle; the next reading opens the file again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Returns the error that the file does not contain `field`.
    pub(crate) fn unexpected(&self, field: &'static str) -> MissingReason {
        MissingReason::FieldNotFound { field, path: self.path.display().to_string() }
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
            // Such a file is returned whole if the buffer is large enough, so a short read means the end.
            let length = file.read_at(&mut self.text, 0)?;
            if length < self.text.len() {
                return Ok(length);
            }
            if self.text.len() >= READ_BYTES_MAX {
                return Err(io::Error::other(format!("larger than {READ_BYTES_MAX} bytes")));
            }
            self.text.resize(self.text.len() * 2, 0);
        }
    }
}

/// Converts a read error. A process that has ended appears as a missing path (`ENOENT`) or, through an open
/// handle, as a missing process (`ESRCH`).
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> MissingReason {
    let path = path.display().to_string();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ESRCH) => MissingReason::PathNotFound { path },
        _ => MissingReason::Unreadable { path, message: error.to_string() },
    }
}

/// Returns the time in a file of pressure, in microseconds since boot; `kind` is `some` or `full`.
pub(crate) fn pressure_total(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(kind))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_whole_and_again_however_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        let mut file = ProcFile::new(&path);
        let absent = MissingReason::PathNotFound { path: path.display().to_string() };
        assert_eq!(file.read(), Err(absent));
        for text in ["1 2", "", &"9".repeat(READ_BYTES_FIRST), &"9".repeat(3 * READ_BYTES_FIRST)] {
            fs::write(&path, text).unwrap();
            assert_eq!(file.read(), Ok(text));
        }
        fs::write(&path, vec![b'9'; READ_BYTES_MAX]).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains(&format!("cannot read {}: larger than", path.display())), "{error}");
    }

    #[test]
    fn a_name_that_is_not_utf_8_does_not_hide_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        fs::write(&path, b"7 (tr\xc3\xa4\xc3) S").unwrap();
        assert_eq!(ProcFile::new(&path).read(), Ok("7 (tr???) S"));
    }
}
