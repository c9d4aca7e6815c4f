//! Which samples a worker truly computed: the proof that every sample comes exactly once an epoch.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cli::Policy;

/// One file for each policy, `POLICY-RANK.log`, with a line `epoch index` for each sample.
#[derive(Debug)]
pub struct SampleLog {
    files: BTreeMap<Policy, (PathBuf, BufWriter<File>)>,
}

impl SampleLog {
    /// Opens the files of a rank, to be added to.
    ///
    /// # Errors
    /// The folder or a file cannot be created.
    pub fn open(folder: &Path, policies: &[Policy], rank: usize) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("sample log {}", folder.display()))?;
        let mut files = BTreeMap::new();
        for &policy in policies {
            let path = folder.join(format!("{policy}-{rank}.log"));
            let file = OpenOptions::new().create(true).append(true).open(&path);
            let file = file.with_context(|| format!("sample log {}", path.display()))?;
            files.insert(policy, (path, BufWriter::new(file)));
        }
        Ok(Self { files })
    }

    /// Adds the samples of an iteration.
    ///
    /// # Errors
    /// Writing failed.
    pub fn write(&mut self, policy: Policy, epoch: u64, indices: &[i64]) -> Result<()> {
        let Some((path, file)) = self.files.get_mut(&policy) else { return Ok(()) };
        let written = indices.iter().try_for_each(|index| writeln!(file, "{epoch} {index}"));
        // Whole iterations only, so that a killed worker leaves no half line behind.
        written.and_then(|()| file.flush()).with_context(|| format!("sample log {}", path.display()))
    }
}
