//! Profiles for burst-parallel plans: what the layers of a model cost. Profilers write them, the planner reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the layers of a model cost, as profilers measure it. Keys that are not known are let be: a profile is a file that others
/// write too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BurstProfile {
    /// Which model, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it was measured on, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What connects the GPUs; needed where transfers or gradient sums come from sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<BurstNetwork>,
    /// In the order in which they run.
    pub layers: Vec<BurstLayer>,
}

/// One layer of a profile. It has either `compute_us` (measured) or `cost_us` (an explicit table).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BurstLayer {
    /// For people, in errors, and in `inputs` of other layers.
    pub name: String,
    /// Names of the layers that it reads, all of them before it; none: the samples. Left out: the layer before, of the first layer
    /// the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Vec<String>>,
    /// Forward and backward on one GPU in microseconds, by local batch; without the gradient sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub compute_us: Option<BTreeMap<u64, f64>>,
    /// What of `compute_us` is forward, at the same local batches; for pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub forward_us: Option<BTreeMap<u64, f64>>,
    /// Compute and gradient sum together in microseconds, by GPU count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub cost_us: Option<BTreeMap<u64, f64>>,
    /// Transfers from the one layer that it reads in microseconds, by change of the GPU count: `"1->2"`. Left out: made from the
    /// outputs of the layers that it reads, and the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, f64>>))]
    pub edge_us: Option<BTreeMap<CountChange, f64>>,
    /// How many parameters it has, of four bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// How many values of four bytes it hands on for each sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<u64>,
    /// Bytes that it keeps for its backward pass, by local batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, u64>>))]
    pub activation_bytes: Option<BTreeMap<u64, u64>>,
}

/// A change of the GPU count between two layers; written `from->to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CountChange {
    /// GPUs of the layer that is read.
    pub from: u64,
    /// GPUs of the layer that reads it.
    pub to: u64,
}

/// What is not `from->to`; the message names the value and the rule.
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

/// What connects the GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BurstNetwork {
    /// Of one GPU, in each direction; positive. Needed, unless it is that of the profile that a request changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Of one message, in microseconds. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// How gradients are summed. Default `ring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<BurstAllReduce>,
}

/// How gradients are summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BurstAllReduce {
    /// Around a ring, in parts.
    #[default]
    Ring,
    /// Up and down two trees, each for half of the bytes.
    Tree,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_both_kinds_are_read_and_other_keys_let_be() {
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
