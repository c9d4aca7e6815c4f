//! A training run as a process, and its record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::predictor::without_settings;
use crate::process::Process;
use crate::wait::{until, until_or};

/// Common options of every training under test: small enough to take seconds, CPU only.
const SMALL: [&str; 3] = ["--device=cpu", "--hidden=16", "--micro-batch=16"];

/// `evenstep-trainer launch`, or a single `join`, in a folder.
#[derive(Debug)]
pub struct Training {
    /// The launcher, or the worker itself.
    pub process: Process,
    folder: PathBuf,
}

impl Training {
    /// Starts a run that writes its record and its sample log into `folder`.
    pub fn start(binary: &Path, folder: &Path, arguments: &[&str]) -> Self {
        Self::run(binary, "launch", folder, arguments)
    }

    /// Starts one worker by hand. All workers of a run share the folder.
    pub fn join(binary: &Path, folder: &Path, arguments: &[&str]) -> Self {
        Self::run(binary, "join", folder, arguments)
    }

    fn run(binary: &Path, how: &str, folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command.arg(how).args(SMALL).args(arguments);
        command.arg("--record").arg(folder.join("record.jsonl"));
        command.arg("--sample-log").arg(folder.join("samples"));
        let process = Process::start(without_settings(&mut command));
        Self { process, folder: folder.to_owned() }
    }

    /// Waits for an event during the training.
    ///
    /// # Panics
    /// The training ends without the event, or the time limit passes. The message has the output of the training.
    pub fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        until_or(
            what,
            || self.process.output(),
            || {
                assert!(self.process.lives(), "training ended before: {what}\n{}", self.process.output());
                happened().then_some(())
            },
        );
    }

    /// Waits until this number of further samples have been trained under a policy.
    pub fn goes_on(&self, policy: &str, samples: u64) {
        let begun = self.samples_done(policy);
        self.until("training continues", || self.samples_done(policy) >= begun + samples);
    }

    /// Waits until the training has reconnected to the predictor for the `times`-th time.
    pub fn wait_for_reconnect(&self, times: usize) {
        self.until("the training reconnects to the predictor", || {
            self.process.output().matches("connected to the predictor").count() >= times
        });
    }

    /// Waits for a successful end and returns the output.
    pub fn succeed(&mut self) -> String {
        let status = self.process.wait();
        let said = self.process.output();
        assert!(status.success(), "{status}:\n{said}");
        said
    }

    /// Returns the process ids of the workers by rank.
    pub fn workers(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children =
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("a living process");
        children.split_whitespace().map(|pid| pid.parse().expect("a process id")).collect()
    }

    /// Returns the process id of the live worker in a slot.
    ///
    /// # Panics
    /// The slot has no live worker for too long.
    pub fn worker(&self, slot: usize) -> u32 {
        let (variable, rank) = ("EVENSTEP_TRAINER_WORKER=", format!("{{\"rank\":{slot},"));
        until("the worker lives", || {
            self.workers().into_iter().find(|pid| {
                // The process may have ended, or may not run the worker program yet.
                let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let variables = String::from_utf8_lossy(&variables).into_owned();
                let told = variables.split('\0').find_map(|one| one.strip_prefix(variable));
                told.is_some_and(|told| told.starts_with(&rank))
            })
        })
    }

    /// Returns the size of the record so far, in bytes. It grows with every iteration, in an elastic run
    /// without delay.
    pub fn record_bytes(&self) -> u64 {
        fs::metadata(self.folder.join("record.jsonl")).map_or(0, |file| file.len())
    }

    /// Returns the regroupings of an elastic run, in order.
    pub fn regroups(&self) -> Vec<Value> {
        self.record("regroup")
    }

    /// Returns the iterations of a policy, in order.
    pub fn iterations(&self, policy: &str) -> Vec<Value> {
        let mut lines = self.record("iteration");
        lines.retain(|line| line["policy"] == policy);
        lines
    }

    /// Returns the recorded iterations of a policy so far.
    pub fn iterations_so_far(&self, policy: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("record.jsonl")).unwrap_or_default();
        // The last line may be incomplete during the training.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        lines(whole, "iteration").filter(|line| line["policy"] == policy).collect()
    }

    /// Returns the end line of a policy.
    pub fn end(&self, policy: &str) -> Value {
        let mut ends = self.record("end").into_iter().filter(|line| line["policy"] == policy);
        ends.next_back().expect("a closing line")
    }

    fn record(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("record.jsonl")).expect("a record");
        lines(&text, kind).collect()
    }

    /// Returns the number of samples computed under a policy so far, over all workers.
    pub fn samples_done(&self, policy: &str) -> u64 {
        self.sample_counts(policy).values().sum()
    }

    /// Returns how often each (epoch, sample) was trained under a policy, over all workers; empty before the
    /// first one. An iteration was trained in the last round in which any worker finished it.
    pub fn sample_counts(&self, policy: &str) -> BTreeMap<(u64, u64), u64> {
        let (mut computed, mut trained_in) = (Vec::new(), BTreeMap::new());
        for file in fs::read_dir(self.folder.join("samples")).into_iter().flatten() {
            let path = file.expect("a file").path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{policy}-")))
            {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            // The last line may be incomplete during the training.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                let (kind, rest) = line.split_once(' ').expect("a kind of line");
                let numbers: Vec<u64> =
                    rest.split(' ').map(|number| number.parse().expect("a number")).collect();
                match (kind, &numbers[..]) {
                    ("finished", &[round, iteration]) => {
                        let last = trained_in.entry(iteration).or_insert(round);
                        *last = round.max(*last);
                    }
                    ("computed", [round, iteration, epoch, indices @ ..]) => {
                        computed.push((*round, *iteration, *epoch, indices.to_vec()));
                    }
                    _ => panic!("not a line of a sample log: {line}"),
                }
            }
        }
        let mut counts = BTreeMap::new();
        // Samples computed for an all-reduce that failed on all ranks were not trained; another worker
        // computed them again.
        for (round, iteration, epoch, indices) in computed {
            if trained_in.get(&iteration) == Some(&round) {
                for index in indices {
                    *counts.entry((epoch, index)).or_insert(0) += 1;
                }
            }
        }
        counts
    }

    /// Asserts that every sample was computed exactly once in each epoch.
    ///
    /// # Panics
    /// A sample was not. The message names the first such samples.
    pub fn assert_each_sample_once(&self, policy: &str, epochs: u64, samples: u64) {
        let counts = self.sample_counts(policy);
        let wrong: Vec<_> = (0..epochs)
            .flat_map(|epoch| (0..samples).map(move |index| (epoch, index)))
            .filter(|key| counts.get(key) != Some(&1))
            .take(5)
            .collect();
        assert!(wrong.is_empty(), "not exactly once (epoch, sample): {wrong:?} ..");
        assert_eq!(counts.len() as u64, epochs * samples, "samples that do not exist");
    }

    /// Asserts for a run that was stopped at any point: all epochs before the last are complete, and no
    /// sample was trained twice.
    ///
    /// # Panics
    /// The assertion fails. The message names the samples or the epoch.
    pub fn assert_no_sample_repeated_or_missing(&self, policy: &str, samples: u64) {
        let counts = self.sample_counts(policy);
        let twice: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).take(5).collect();
        assert!(twice.is_empty(), "more than once (epoch, sample): {twice:?} ..");
        let last = counts.keys().map(|(epoch, _)| *epoch).max().expect("samples");
        let of_last = counts.range((last, 0)..).count() as u64;
        assert_eq!(counts.len() as u64 - of_last, last * samples, "samples missing before epoch {last}");
        assert!(counts.keys().all(|(_, index)| *index < samples), "samples that do not exist");
    }
}

fn lines(record: &str, kind: &str) -> impl Iterator<Item = Value> {
    let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of a record"));
    lines.filter(move |line| line["kind"] == kind)
}

/// Returns the local batches of an iteration by rank.
pub fn batches(iteration: &Value) -> Vec<u64> {
    let workers = iteration["workers"].as_array().expect("workers");
    workers.iter().map(|worker| worker["local_batch"].as_u64().expect("a batch")).collect()
}

/// Returns what the allocation of an iteration gave each rank: its local batch without the samples that it claimed from the tail.
pub fn given_batches(iteration: &Value) -> Vec<u64> {
    let workers = iteration["workers"].as_array().expect("workers");
    let claimed = workers.iter().map(|worker| worker["tail"]["samples"].as_u64().unwrap_or(0));
    batches(iteration).iter().zip(claimed).map(|(all, claimed)| all - claimed).collect()
}
