//! State shared by the endpoints.

use std::path::Path;
use std::sync::Arc;

use evenstep_observability::Gather;
use tokio::sync::watch;

use super::live::Streams;
use super::meter::Meter;
use super::pools::Pools;
use crate::access::{Access, Hosts, Limits, Refresher};
use crate::jobs::Jobs;
use crate::retention::RetentionStats;

/// State shared by the endpoints.
#[derive(Clone)]
pub struct Api {
    /// The job registry.
    pub jobs: Arc<Jobs>,
    /// Statistics of retention.
    pub retention: RetentionStats,
    /// True once the service shuts down: it is no longer ready, and streams end.
    pub draining: watch::Receiver<bool>,
    /// Request counters.
    pub meter: Meter,
    /// Collects all metrics.
    pub gather: Gather,
    /// The known tokens.
    pub access: Arc<Access>,
    /// Reads tokens that are not known yet.
    pub refresher: Arc<Refresher>,
    /// The limits of tokens.
    pub limits: Arc<Limits>,
    /// Names at which clients without a token may reach the predictor.
    pub hosts: Arc<Hosts>,
    /// Whether clients connect with TLS.
    pub is_secure: bool,
    /// Summary that streams share, and conditions of their end.
    pub streams: Streams,
    /// The pools that tokens share.
    pub pools: Pools,
    /// Folder of the reports.
    pub reports: Option<Arc<Path>>,
}
