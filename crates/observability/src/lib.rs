//! Observability of the evenstep programs:
//!
//! - [`logs`] on standard error
//! - [`metrics`] for Prometheus; [`serve`] is an HTTP listener for metrics only
//!
//! Each program defines its own metrics; `docs/reference/metrics.md` lists them.

pub mod logs;

pub mod metrics;

pub mod serve;

pub use metrics::Gather;
