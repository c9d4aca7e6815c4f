//! The log of the samples that each worker computed. It proves that every sample is used exactly once per
//! epoch, even if workers are killed.
//!
//! | line | when |
//! |---|---|
//! | `computed ROUND ITERATION EPOCH INDEX..` | before the all-reduce, so that every contribution is logged |
//! | `finished ROUND ITERATION` | after the optimizer step |
//!
//! The last round in which any worker finished an iteration is the round that trained it. All workers of that
//! round had contributed, including a worker that died right after. The samples of the iteration are the
//! indices in all `computed` lines of that round and iteration. Without `--elastic` the only round is 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::append;
use evenstep_trainer::plan::Policy;

/// The sample logs of a rank: one file per policy, `POLICY-RANK.log`.
#[derive(Debug)]
pub struct SampleLog {
    files: BTreeMap<Policy, (PathBuf, File)>,
    /// The current round of the group.
    pub round: u64,
}

impl SampleLog {
    /// Opens the files of a rank for appending.
    ///
    /// # Errors
    /// Fails if the folder or a file cannot be created.
    pub fn open(folder: &Path, policies: &[Policy], rank: usize) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("sample log {}", folder.display()))?;
        let mut files = BTreeMap::new();
        for &policy in policies {
            let path = folder.join(format!("{policy}-{rank}.log"));
            let file = append::open(&path).with_context(|| format!("sample log {}", path.display()))?;
            files.insert(policy, (path, file));
        }
        Ok(Self { files, round: 0 })
    }

    /// Logs the samples that this worker is about to contribute to an iteration.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn computed<'a>(
        &mut self,
        policy: Policy,
        iteration: u64,
        epoch: u64,
        indices: impl IntoIterator<Item = &'a i64>,
    ) -> Result<()> {
        let mut line = format!("computed {} {iteration} {epoch}", self.round);
        for index in indices {
            // Writing to a string cannot fail.
            let _ = write!(line, " {index}");
        }
        self.write(policy, line)
    }

    /// Logs that this worker finished an iteration.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn finished(&mut self, policy: Policy, iteration: u64) -> Result<()> {
        self.write(policy, format!("finished {} {iteration}", self.round))
    }

    fn write(&mut self, policy: Policy, mut line: String) -> Result<()> {
        let Some((path, file)) = self.files.get_mut(&policy) else { return Ok(()) };
        line.push('\n');
        // Unbuffered, so that the line survives if this process is killed.
        file.write_all(line.as_bytes()).with_context(|| format!("sample log {}", path.display()))
    }
}
