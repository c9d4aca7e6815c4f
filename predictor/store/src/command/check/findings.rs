//! Result of a check.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tables::Backend;

/// Result of a check of a whole store.
#[derive(Debug, Serialize)]
pub struct CheckResult {
    pub store: String,
    pub backend: Backend,
    pub schema: Schema,
    pub size_bytes: u64,
    pub tables: Vec<TableResult>,
    /// Total number of faults, including those not listed in `findings`.
    pub faults: u64,
    pub findings: Vec<Finding>,
    pub notes: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
pub struct Schema {
    pub found: i64,
    pub known: i64,
}

#[derive(Debug, Serialize)]
pub struct TableResult {
    pub table: String,
    pub rows: u64,
    pub faults: u64,
}

/// A fault.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The table; empty if unknown.
    pub table: String,
    /// The row's key; empty if unknown.
    pub key: String,
    /// The violated rule.
    pub rule: String,
}
