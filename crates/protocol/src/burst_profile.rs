//! Profiles for burst-parallel plans: the costs of the layers of a model. Profilers write them, the planner
//! reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The measured costs of the layers of a model. Unknown keys are ignored: other programs write profiles too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BurstProfile {
    /// Description of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Description of the device that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The network between the GPUs. Required if transfers or gradient sums are computed from sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<BurstNetwork>,
    /// The layers in the order in which they run.
    pub layers: Vec<BurstLayer>,
}

/// One layer of a profile. It has either `compute_us` (measured) or `cost_us` (an explicit table).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BurstLayer {
    /// Name of the layer, used in errors and in `inputs` of other layers.
    pub name: String,
    /// Names of the layers whose outputs it reads; all of them precede it. An empty list means the samples.
    /// Default: the previous layer; for the first layer, the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Vec<String>>,
    /// Forward and backward time on one GPU in microseconds, by local batch; without the gradient sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub compute_us: Option<BTreeMap<u64, f64>>,
    /// The forward part of `compute_us`, at the same local batches; for charts only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub forward_us: Option<BTreeMap<u64, f64>>,
    /// Compute and gradient sum together in microseconds, by GPU count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub cost_us: Option<BTreeMap<u64, f64>>,
    /// Transfer time from the one layer that it reads in microseconds, by change of the GPU count: `"1->2"`.
    /// Default: computed from the outputs of the layers that it reads and the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub edge_us: Option<BTreeMap<CountChange, f64>>,
    /// Number of parameters, each of four bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Number of output values per sample, each of four bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<u64>,
    /// Number of bytes kept for the backward pass, by local batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, u64>>))]
    pub activation_bytes: Option<BTreeMap<u64, u64>>,
}

/// A change of the GPU count between two layers, written `from->to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CountChange {
    /// GPU count of the layer that is read.
    pub from: u64,
    /// GPU count of the layer that reads it.
    pub to: u64,
}

/// A text that is not `from->to`; the message contains the value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must be two GPU counts, as in \"1->2\"")]
pub struct InvalidChange(String);

impl FromStr for CountChange {
    type Err = InvalidChange;

    fn from_str(text: &str) -> Result<Self, InvalidChange> {
        let counts =
            text.split_once("->").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let Some((from, to)) = counts else {
            return Err(InvalidChange(text.chars().take(40).collect()));
        };
        Ok(Self { from, to })
    }
}

impl fmt::Display for CountChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.from, self.to)
    }
}

impl TryFrom<String> for CountChange {
    type Error = InvalidChange;

    fn try_from(text: String) -> Result<Self, InvalidChange> {
        text.parse()
    }
}

impl From<CountChange> for String {
    fn from(change: CountChange) -> Self {
        change.to_string()
    }
}

/// The network between the GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BurstNetwork {
    /// Bandwidth of one GPU in each direction; positive. Required, unless a request changes the network of a
    /// profile that has a bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Latency of one message in microseconds. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// All-reduce algorithm for gradients. Default `ring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<BurstAllReduce>,
}

/// All-reduce algorithms for gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BurstAllReduce {
    /// Ring all-reduce, in parts.
    #[default]
    Ring,
    /// Two trees, each for half of the bytes; up and down.
    Tree,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_both_kinds_are_read_and_other_keys_are_ignored() {
        let text = r#"{"source": "elsewhere", "layers": [
            {"name": "linear", "compute_us": {"8": 310.2, "1": 120}, "parameters": 6, "activation_bytes": {"1": 4}},
            {"id": 1, "name": "ReLU2d", "plans": [], "cost_us": {"1": 7357.0}, "edge_us": {"1->2": 54.8}}]}"#;
        let profile: BurstProfile = serde_json::from_str(text).unwrap();
        let compute_us = profile.layers[0].compute_us.clone().unwrap();
        assert_eq!(compute_us, [(1, 120.0), (8, 310.2)].into());
        let edge_us = profile.layers[1].edge_us.clone().unwrap();
        assert_eq!(edge_us, [(CountChange { from: 1, to: 2 }, 54.8)].into());
        let again = serde_json::to_string(&profile).unwrap();
        assert_eq!(serde_json::from_str::<BurstProfile>(&again).unwrap(), profile);
        assert!(again.contains(r#""1->2":54.8"#), "{again}");
    }

    #[test]
    fn a_change_names_two_counts() {
        for wrong in ["", "1", "1-2", "1->", "->2", "1->2->4", "-1->2", "a->b"] {
            let error = wrong.parse::<CountChange>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
