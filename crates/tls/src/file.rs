//! Bounded reads of files that may be replaced at any time.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads a regular file of at most `bytes_max` bytes. Does not wait for another process, as a read from a pipe would. Only a file
/// system that does not respond delays it.
///
/// # Errors
/// The rule that the file breaks, without its path and its contents.
pub fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    // Without the flag, opening a FIFO waits for its writer.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let open = || {
        let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
        let kind = file.metadata()?.file_type();
        Ok((file, kind))
    };
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let (file, kind) = open().map_err(cannot)?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "a directory" } else { "a pipe or a device" };
        return Err(format!("is {what}; must be a regular file"));
    }
    let mut contents = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut contents).map_err(cannot)?;
    if contents.len() as u64 > bytes_max {
        return Err(format!("exceeds the limit of {bytes_max} bytes"));
    }
    Ok(contents)
}
