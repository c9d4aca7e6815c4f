//! Batches that the predictor rejected for their content, kept for inspection within a size limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::batch::Batch;
use super::segment::file_number;

/// Maximum number of files; the oldest are deleted first.
const FILES_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Rejected {
    directory: PathBuf,
    bytes_max: u64,
    next: u64,
}

#[derive(Serialize)]
struct RejectedFile<'a> {
    reason: &'a str,
    batch: &'a Batch,
}

impl Rejected {
    pub(super) fn open(directory: &Path, bytes_max: u64) -> io::Result<Self> {
        let mut rejected = Self { directory: directory.to_owned(), bytes_max, next: 0 };
        rejected.create()?;
        rejected.next = rejected.list()?.last().map_or(0, |(number, ..)| number + 1);
        Ok(rejected)
    }

    /// Creates the directory if it does not exist.
    pub(super) fn create(&self) -> io::Result<()> {
        super::create_directory(&self.directory)
    }

    pub(super) fn keep(&mut self, batch: &Batch, reason: &str) -> io::Result<()> {
        let text = serde_json::to_vec(&RejectedFile { reason, batch })?;
        self.create()?;
        self.make_room(text.len() as u64)?;
        if text.len() as u64 > self.bytes_max {
            tracing::warn!(bytes = text.len(), "a rejected batch is too large to keep; dropping it");
            return Ok(());
        }
        let path = self.directory.join(format!("{:012}.json", self.next));
        self.next += 1;
        tracing::warn!(path = %path.display(), "saved a rejected batch");
        super::write(&path, &text)
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let kept = self.list()?;
        let mut total: u64 = kept.iter().map(|(.., bytes)| bytes).sum();
        let mut count = kept.len();
        for (_, path, size) in kept {
            if total + bytes <= self.bytes_max && count < FILES_MAX {
                break;
            }
            fs::remove_file(path)?;
            total -= size;
            count -= 1;
        }
        Ok(())
    }

    /// Returns number, path and size of each file, oldest first.
    fn list(&self) -> io::Result<Vec<(u64, PathBuf, u64)>> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let path = entry.path();
            if let Some(number) = path.file_stem().and_then(|stem| file_number(stem.to_str()?)) {
                kept.push((number, path, entry.metadata()?.len()));
            }
        }
        kept.sort_unstable();
        Ok(kept)
    }
}
