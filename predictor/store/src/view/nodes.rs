//! Reading nodes and their samples.

use evenstep_protocol::{NodeId, NodeSample, NodeView};

use super::View;
use crate::database::rows;
use crate::encode::{Json, id, integer};
use crate::error::StoreError;

/// Every node with its latest sample.
pub(crate) const NODES: &str = "SELECT node, samples,
    (SELECT CAST(sample AS TEXT) FROM node_sample WHERE node_sample.node = node.node
    ORDER BY at_unix_ms DESC LIMIT 1)
    FROM node ORDER BY node";

/// The latest samples of a node.
pub(crate) const NODE_SAMPLES: &str =
    "SELECT CAST(sample AS TEXT) FROM node_sample WHERE node = $1 ORDER BY at_unix_ms DESC LIMIT $2";

/// The time of each node's latest sample.
pub(crate) const LATEST_SAMPLES: &str =
    "SELECT node, (SELECT max(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) FROM node";

impl View {
    /// Returns every node whose latest sample can be read, with that sample.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn nodes(&mut self) -> Result<Vec<NodeView>, StoreError> {
        let nodes = rows!(self.connection()?, (String, i64, Option<Json>), NODES,)?;
        // Retention never deletes the latest sample of a node.
        let seen = nodes.into_iter().filter_map(|(node, samples, latest)| Some((node, samples, latest?)));
        let view = |(node, samples, latest): (String, i64, Json)| {
            let samples = samples.cast_unsigned();
            Some(NodeView {
                node: id(node).ok()?,
                samples,
                latest: latest.read("node sample").ok()?,
                workers: Vec::new(),
            })
        };
        Ok(seen.filter_map(view).collect())
    }

    /// Returns the latest samples of a node that can be read, oldest first.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn node_samples(&mut self, node: &NodeId, limit: u64) -> Result<Vec<NodeSample>, StoreError> {
        let samples = rows!(self.connection()?, (Json,), NODE_SAMPLES, node.as_str(), integer(limit),)?;
        Ok(samples.iter().rev().filter_map(|(sample,)| sample.read("node sample").ok()).collect())
    }

    /// Returns the time of each node's latest sample, in milliseconds since 1970 by the node's clock.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn latest_sample_times(&mut self) -> Result<Vec<(NodeId, i64)>, StoreError> {
        let heard = rows!(self.connection()?, (String, Option<i64>), LATEST_SAMPLES,)?;
        let heard = heard.into_iter().filter_map(|(node, at)| Some((node, at?)));
        Ok(heard.filter_map(|(node, at)| Some((id(node).ok()?, at))).collect())
    }
}
