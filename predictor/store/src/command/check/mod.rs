//! `check`: reads a whole store and reports its faults, without changing anything.
//!
//! `rules` validates the rows of each table. The database runs its own integrity checks. `text` formats the
//! result.

mod findings;

mod text;

mod rules;

use std::collections::BTreeMap;

use evenstep_report::output::{write_json, write_text};
use indicatif::ProgressBar;

use super::args::CheckArgs;
use super::progress;
use super::text::{address, counted, with_store_context};
use crate::address::Address;
use crate::error::StoreError;
use crate::tables::{Snapshot, Table};
use findings::{CheckResult, Finding, Schema, TableResult};
use rules::{Remark, judge};

pub use rules::ModelReaders;

/// Maximum number of findings listed per table; the rest are only counted.
const FINDINGS_MAX: u32 = 20;

/// Checks a store and prints the findings.
pub(super) async fn run(args: &CheckArgs, models: &ModelReaders) -> anyhow::Result<()> {
    let address = address(&args.store.store)?;
    let checked = check(&address, models).await?;
    if args.json {
        write_json(&checked)?;
    } else {
        write_text(&text::of(&checked))?;
    }
    anyhow::ensure!(checked.faults == 0, "store {address}: {}", counted(checked.faults, "fault"));
    Ok(())
}

async fn check(address: &Address, models: &ModelReaders) -> anyhow::Result<CheckResult> {
    let mut snapshot = with_store_context(address, Snapshot::open(address).await)?;
    let (found, known) = snapshot.schema();
    let mut checked = CheckResult {
        store: address.to_string(),
        backend: snapshot.backend(),
        schema: Schema { found, known },
        size_bytes: with_store_context(address, snapshot.bytes().await)?,
        tables: Vec::new(),
        faults: 0,
        findings: Vec::new(),
        notes: BTreeMap::new(),
    };
    for fault in with_store_context(address, snapshot.faults(FINDINGS_MAX).await)? {
        checked.faults += 1;
        checked.findings.push(Finding { table: fault.table, key: fault.key, rule: fault.rule });
    }
    for table in snapshot.tables().to_vec() {
        with_store_context(address, checked.read(&mut snapshot, &table, models).await)?;
    }
    with_store_context(address, snapshot.close().await)?;
    Ok(checked)
}

impl CheckResult {
    /// Reads a table to its end, or up to the first page that cannot be read.
    async fn read(
        &mut self,
        snapshot: &mut Snapshot,
        table: &Table,
        models: &ModelReaders,
    ) -> Result<(), StoreError> {
        let bar = progress::bar(snapshot.count(table).await.unwrap_or(0), &table.name);
        let mut read = Read { rows: 0, faults: 0, last: None };
        if let Err(error) = self.judge(snapshot, table, models, &mut read, &bar).await {
            // Fails, and ends the check, if the connection is lost.
            snapshot.restart_snapshot().await?;
            let key = read.last.take().map_or_else(|| "the first row".into(), |key| format!("after {key}"));
            self.add_finding(&mut read, table, key, format!("cannot be read: {error}"));
        }
        bar.finish_and_clear();
        self.faults += read.faults;
        self.tables.push(TableResult { table: table.name.clone(), rows: read.rows, faults: read.faults });
        Ok(())
    }

    async fn judge(
        &mut self,
        snapshot: &mut Snapshot,
        table: &Table,
        models: &ModelReaders,
        read: &mut Read,
        bar: &ProgressBar,
    ) -> Result<(), StoreError> {
        let mut rows = snapshot.rows(table, None);
        loop {
            let page = rows.page().await?;
            let Some(last) = page.last() else { return Ok(()) };
            for row in &page {
                match judge(table, row, models) {
                    Ok(()) => {}
                    Err(Remark::Note(note)) => *self.notes.entry(note).or_default() += 1,
                    Err(Remark::Fault(rule)) => self.add_finding(read, table, table.key_of(row), rule),
                }
            }
            read.rows += page.len() as u64;
            read.last = Some(table.key_of(last));
            bar.inc(page.len() as u64);
        }
    }

    fn add_finding(&mut self, read: &mut Read, table: &Table, key: String, rule: String) {
        read.faults += 1;
        if read.faults <= u64::from(FINDINGS_MAX) {
            self.findings.push(Finding { table: table.name.clone(), key, rule });
        }
    }
}

/// Progress through a table.
struct Read {
    rows: u64,
    faults: u64,
    /// Key of the last row of the last page.
    last: Option<String>,
}
