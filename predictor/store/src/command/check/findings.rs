//! What a check found.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tables::Backend;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Checked {
    pub store: String,
    pub backend: Backend,
    pub schema: Schema,
    pub size_bytes: u64,
    pub tables: Vec<CheckedTable>,
    /// Faults, all of them.
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
pub struct CheckedTable {
    pub table: String,
    pub rows: u64,
    pub faults: u64,
}

/// Something wrong.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// In which table; empty where that is not known.
    pub table: String,
    /// In which row; empty where that is not known.
    pub key: String,
    /// The rule that is broken.
    pub rule: String,
}
