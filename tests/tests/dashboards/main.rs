//! The dashboards, rules and alerts in `dashboards/`, tested with the real programs that read them.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod shipped;

mod links;
mod lint;
mod promql;

mod rules;
mod schema;

mod agree;
mod grafana;
mod live;
mod world;
