//! `import`: copies a store into an empty one, all or nothing.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use anyhow::Context;
use serde_json::Value;

use evenstep_report::output::write_text;

use super::args::ImportArgs;
use super::progress;
use super::text::{address, counted, with_store_context};
use crate::error::StoreError;
use crate::tables::{Cell, Kind, Row, Rows, Snapshot, Table, Target};

/// Copies a store and prints the number of rows per table.
pub(super) async fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let (from, to) = (address(&args.from)?, address(&args.store)?);
    let mut source = with_store_context(&from, Snapshot::open_unserved(&from).await)?;
    let (found, known) = source.schema();
    anyhow::ensure!(
        found == known,
        "store {from}: schema {found} is not {known}, the one that import requires; serve the store once to upgrade it"
    );
    let mut target = with_store_context(&to, Target::open(&to).await)?;
    let tables = source.tables().to_vec();
    let mut moved = Vec::with_capacity(tables.len());
    for table in &tables {
        let bar = progress::bar(with_store_context(&from, source.count(table).await)?, &table.name);
        let mut sum = Sum::default();
        let mut rows = source.rows(table, None);
        loop {
            let page = with_store_context(&from, rows.page().await)?;
            if page.is_empty() {
                break;
            }
            sum.add(table, &page);
            let inserted = with_store_context(&to, target.insert(table, &page).await);
            inserted.with_context(|| table.name.clone())?;
            bar.inc(page.len() as u64);
        }
        bar.finish_and_clear();
        moved.push(sum);
    }
    // Verifies the copy before committing it: reads all rows back.
    for (table, sum) in tables.iter().zip(&moved) {
        let arrived = with_store_context(&to, sum_of(table, target.rows(table)).await)?;
        anyhow::ensure!(
            arrived == *sum,
            "store {to}: {} read back from {} differ from those sent ({}); nothing was moved",
            counted(arrived.rows, "row"),
            table.name,
            counted(sum.rows, "row")
        );
    }
    with_store_context(&to, target.commit().await)?;
    with_store_context(&from, source.close().await)?;
    let said: String = tables
        .iter()
        .zip(&moved)
        .map(|(table, sum)| format!("{}: {}\n", table.name, counted(sum.rows, "row")))
        .collect();
    write_text(&format!("{said}copied {from} to {to} and verified every row\n"))
}

/// Number of rows and an order-independent digest of their content.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    rows: u64,
    digests: u64,
}

impl Sum {
    fn add(&mut self, table: &Table, rows: &[Row]) {
        self.rows += rows.len() as u64;
        self.digests = rows.iter().fold(self.digests, |sum, row| sum.wrapping_add(digest(table, row)));
    }
}

async fn sum_of(table: &Table, mut rows: Rows<'_>) -> Result<Sum, StoreError> {
    let mut sum = Sum::default();
    loop {
        let page = rows.page().await?;
        if page.is_empty() {
            return Ok(sum);
        }
        sum.add(table, &page);
    }
}

fn digest(table: &Table, row: &[Cell]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (column, cell) in table.columns.iter().zip(row) {
        match cell {
            Cell::Null => 0_u8.hash(&mut hasher),
            Cell::Integer(value) => (1_u8, value).hash(&mut hasher),
            // PostgreSQL has one NaN, SQLite none.
            Cell::Real(value) => (2_u8, value.to_bits()).hash(&mut hasher),
            Cell::Text(text) => match (column.kind, serde_json::from_str::<Value>(text)) {
                (Kind::Json, Ok(value)) => hash_json(&value, &mut hasher),
                _ => (3_u8, text).hash(&mut hasher),
            },
            Cell::Bytes(bytes) => (4_u8, bytes).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Hashes the meaning of JSON: key order and formatting do not matter, and 1.0 equals 1.
fn hash_json(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Null => 5_u8.hash(hasher),
        Value::Bool(value) => (6_u8, value).hash(hasher),
        // Adding 0 turns -0 into 0, as PostgreSQL does.
        Value::Number(number) => (7_u8, (number.as_f64().unwrap_or(f64::NAN) + 0.0).to_bits()).hash(hasher),
        Value::String(text) => (8_u8, text).hash(hasher),
        Value::Array(values) => {
            (9_u8, values.len()).hash(hasher);
            values.iter().for_each(|value| hash_json(value, hasher));
        }
        Value::Object(fields) => {
            (10_u8, fields.len()).hash(hasher);
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in fields {
                name.hash(hasher);
                hash_json(value, hasher);
            }
        }
    }
}
