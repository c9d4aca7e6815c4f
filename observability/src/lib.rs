//! Observability of the evenstep programs:
//!
//! - [`logs`] on standard error
//! - [`metrics`] for Prometheus; [`serve`] is an HTTP listener for metrics only
//! - export of spans and metrics to a collector over [`otlp`]
//!
//! Each program defines its own metrics; `docs/reference/metrics.md` lists them. `/metrics` and the OTLP export read
//! the same families from the same [`Gather`].

pub mod logs;

pub mod metrics;

pub mod otlp;

pub mod serve;

mod translate;

pub use metrics::Gather;
