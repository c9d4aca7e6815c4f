//! Which samples a worker truly computed: the proof that every sample comes exactly once an epoch, whoever is killed.
//!
//! | line | when |
//! |---|---|
//! | `computed ROUND ITERATION EPOCH INDEX..` | before the all-reduce: a rank that contributes has said what |
//! | `finished ROUND ITERATION` | after the optimizer step |
//!
//! An iteration was trained in the last round in which some worker finished it: then everybody of that round had
//! contributed, also who died right after. The indices of all workers' `computed` lines of that round and iteration are
//! its samples. Without `--elastic` there is only round 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::append;
use evenstep_trainer::plan::Policy;

/// One file for each policy, `POLICY-RANK.log`.
#[derive(Debug)]
pub struct SampleLog {
    files: BTreeMap<Policy, (PathBuf, File)>,
    /// The round that the group came from.
    pub round: u64,
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
            let file = append::open(&path).with_context(|| format!("sample log {}", path.display()))?;
            files.insert(policy, (path, file));
        }
        Ok(Self { files, round: 0 })
    }

    /// Says what this worker is about to contribute to an iteration.
    ///
    /// # Errors
    /// Writing failed.
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

    /// Says that an iteration is done.
    ///
    /// # Errors
    /// Writing failed.
    pub fn finished(&mut self, policy: Policy, iteration: u64) -> Result<()> {
        self.write(policy, format!("finished {} {iteration}", self.round))
    }

    fn write(&mut self, policy: Policy, mut line: String) -> Result<()> {
        let Some((path, file)) = self.files.get_mut(&policy) else { return Ok(()) };
        line.push('\n');
        // Unbuffered: the system has it whatever becomes of this process.
        file.write_all(line.as_bytes()).with_context(|| format!("sample log {}", path.display()))
    }
}
