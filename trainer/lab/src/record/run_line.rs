//! The settings of a run.

use std::fmt;

use evenstep_protocol::{JobId, LearningRateRule, WorkerId};
use serde::{Deserialize, Serialize};

use evenstep_trainer::plan::Policy;

use crate::load::LoadKind;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// Cause of the differences in worker speed.
    pub scenario: Scenario,
    /// Job id, if the run requested allocations from the predictor.
    pub job_id: Option<JobId>,
    /// Imposed relative speeds in rank order.
    pub paces: Option<Vec<f64>>,
    /// Kind of the competing load: real, or simulated by imposed speeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadKind>,
    /// The workers in rank order.
    pub workers: Vec<WorkerId>,
    /// Samples per iteration. If they depend on the number of workers, the value at the start of the run.
    pub global_batch: u64,
    /// Samples per worker, if the global batch depends on the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_worker_batch: Option<u64>,
    /// Learning-rate rule for changes of the global batch.
    #[serde(default)]
    pub rule: LearningRateRule,
    /// Description of the network.
    pub model: String,
    /// Description of the data set.
    pub data: String,
    /// Number of iterations per policy.
    pub steps: u64,
    /// Seed of the model, the data and the order of the samples.
    pub seed: u64,
    /// Policies in the order of their turns.
    pub policies: Vec<Policy>,
    /// Whether workers may join and leave.
    #[serde(default)]
    pub elastic: bool,
    /// Number of iterations per turn of a policy.
    pub block: u64,
    /// Notes that readers of the results need, in particular about imposed speeds.
    pub notes: Vec<String>,
}

impl RunLine {
    /// Describes the number of samples per iteration.
    pub fn samples(&self) -> String {
        match self.per_worker_batch {
            Some(each) => format!("{each} samples per worker"),
            None => format!("{} samples", self.global_batch),
        }
    }
}

/// Causes of differences in worker speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Imposed speeds.
    Paced,
    /// Imposed speeds that change.
    Swayed,
    /// A real competing load.
    Contended,
    /// No imposed speeds and no imposed load.
    Plain,
}

impl Scenario {
    /// The scenario in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Paced => "imposed speeds",
            Self::Swayed => "imposed speeds that change",
            Self::Contended => "competing load",
            Self::Plain => "undisturbed",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paced => "paced",
            Self::Swayed => "swayed",
            Self::Contended => "contended",
            Self::Plain => "plain",
        })
    }
}
