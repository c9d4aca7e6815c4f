//! Files of lines to which several processes append one after another.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Block size of the backward search for the end of the last complete line.
const BLOCK_BYTES: u64 = 4096;

/// Opens a file for appending, and removes the incomplete line that a killed process may have left at its
/// end.
///
/// A file that ends with a complete line is not modified. A second process with the same name, which is
/// rejected later, may open a file to which a running process writes.
///
/// # Errors
/// Fails if the file cannot be created, read or truncated.
pub fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let whole = file.seek(SeekFrom::End(0))?;
    let mut end = whole;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            let kept = start + at as u64 + 1;
            if kept < whole {
                file.set_len(kept)?;
            }
            return Ok(file);
        }
        end = start;
    }
    if whole > 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn whole_lines_are_kept_and_a_half_one_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let long = format!("{}\n", "x".repeat(5000));
        let cases = [
            (String::new(), ""),
            ("a\nb".to_owned(), "a\n"),
            ("a\n".to_owned(), "a\n"),
            ("half".to_owned(), ""),
            (format!("a\n{}", &long[..4999]), "a\n"),
            (long.clone(), &long),
        ];
        for (before, kept) in cases {
            fs::write(&path, &before).unwrap();
            open(&path).unwrap().write_all(b"more\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{kept}more\n"));
        }
    }
}
