//! How the programs of evenstep show themselves: [`logs`] on standard error, [`metrics`] for Prometheus ([`serve`] is a listener
//! for it alone), and both spans and metrics to a collector over [`otlp`]. What is measured is the matter of each program;
//! `docs/metrics.md` names it.
//!
//! There is one truth: the families of a [`Gather`] are what `/metrics` says and what goes out over OTLP.

pub mod logs;

pub mod metrics;

pub mod otlp;

pub mod serve;

mod translate;

pub use metrics::Gather;
