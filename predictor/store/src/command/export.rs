//! `export`: one CSV file per table, all from one snapshot.

use std::fs::{self, DirBuilder, File};
use std::io::BufWriter;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;

use evenstep_report::output::write_text;

use super::args::ExportArgs;
use super::progress;
use super::text::{address, counted, with_store_context};
use crate::file::PRIVATE;
use crate::tables::{Cell, Snapshot, Table};

/// Suffix of columns that hold milliseconds since 1970.
const UNIX_MS: &str = "_unix_ms";

/// An output file, written under a temporary name until it is complete.
struct Output {
    table: Table,
    path: PathBuf,
    partial: PathBuf,
}

/// Exports a store and prints the number of rows per file.
pub(super) async fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let address = address(&args.store.store)?;
    let mut snapshot = with_store_context(&address, Snapshot::open(&address).await)?;
    let job_id = args.job.as_ref().map(evenstep_protocol::JobId::as_str);
    let is_wanted = |table: &&Table| job_id.is_none() || table.place("job_id").is_some();
    let outputs: Vec<Output> =
        snapshot.tables().iter().filter(is_wanted).map(|table| Output::new(table, &args.to)).collect();
    if let (Some(job_id), Some(jobs)) = (job_id, snapshot.tables().iter().find(|table| table.name == "job")) {
        let jobs = jobs.clone();
        let found = snapshot.rows(&jobs, Some(job_id)).page().await;
        let found = found.with_context(|| format!("store {address}"))?;
        anyhow::ensure!(!found.is_empty(), "store {address}: no job {job_id}");
    }
    if !args.force
        && let Some(there) = outputs.iter().find(|output| output.path.exists())
    {
        anyhow::bail!("{}: file exists; use --force to overwrite it", there.path.display());
    }
    if !args.to.is_dir() {
        // The files hold all tables: hashes of tokens as well.
        DirBuilder::new().mode(0o700).create(&args.to).with_context(|| args.to.display().to_string())?;
    }
    let mut said = String::new();
    for output in &outputs {
        let written = output.write(&mut snapshot, job_id).await;
        let rows = written
            .inspect_err(|_| Output::remove_all(&outputs))
            .with_context(|| format!("store {address}, {}", output.path.display()))?;
        said.push_str(&format!("{}: {}\n", output.path.display(), counted(rows, "row")));
    }
    with_store_context(&address, snapshot.close().await)?;
    for output in &outputs {
        fs::rename(&output.partial, &output.path).with_context(|| output.path.display().to_string())?;
    }
    write_text(&said)
}

impl Output {
    fn new(table: &Table, folder: &Path) -> Self {
        let path = folder.join(format!("{}.csv", table.name));
        let partial = folder.join(format!(".{}.csv.partial", table.name));
        Self { table: table.clone(), path, partial }
    }

    async fn write(&self, snapshot: &mut Snapshot, job_id: Option<&str>) -> anyhow::Result<u64> {
        let bar = progress::bar(snapshot.count(&self.table).await?, &self.table.name);
        // The leftover of an interrupted export may have other permissions.
        let _ = fs::remove_file(&self.partial);
        let file = File::options().write(true).create_new(true).mode(PRIVATE).open(&self.partial)?;
        let mut writer = csv::Writer::from_writer(BufWriter::new(file));
        writer.write_record(header(&self.table))?;
        let mut count = 0;
        let mut rows = snapshot.rows(&self.table, job_id);
        loop {
            let page = rows.page().await?;
            if page.is_empty() {
                break;
            }
            for row in &page {
                writer.write_record(record(&self.table, row))?;
            }
            count += page.len() as u64;
            bar.inc(page.len() as u64);
        }
        writer.into_inner().map_err(csv::IntoInnerError::into_error)?.into_inner()?.sync_all()?;
        bar.finish_and_clear();
        Ok(count)
    }

    /// Removes all temporary files.
    fn remove_all(outputs: &[Self]) {
        for output in outputs {
            // Files that were not created yet cannot be removed.
            let _ = fs::remove_file(&output.partial);
        }
    }
}

/// Returns the column names. Each column in milliseconds is followed by the same time as RFC 3339, such as
/// `at` after `at_unix_ms`.
fn header(table: &Table) -> Vec<String> {
    let names = |name: &str| {
        let time = name.strip_suffix(UNIX_MS).map(str::to_owned);
        std::iter::once(name.to_owned()).chain(time)
    };
    table.columns.iter().flat_map(|column| names(&column.name)).collect()
}

fn record(table: &Table, row: &[Cell]) -> Vec<String> {
    let values = table.columns.iter().zip(row).flat_map(|(column, cell)| {
        let time = column.name.ends_with(UNIX_MS).then(|| rfc_3339(cell));
        std::iter::once(value(cell)).chain(time)
    });
    values.collect()
}

/// Formats a value: null as the empty string, bytes as two hexadecimal digits each.
fn value(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Bytes(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        other => other.to_string(),
    }
}

/// Formats a time in UTC; the empty string if it is outside the calendar's range.
fn rfc_3339(cell: &Cell) -> String {
    let Cell::Integer(unix_ms) = cell else { return String::new() };
    Timestamp::from_millisecond(*unix_ms).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_reported_in_both_forms() {
        assert_eq!(rfc_3339(&Cell::Integer(1_763_758_403_007)), "2025-11-21T20:53:23.007Z");
        assert_eq!(rfc_3339(&Cell::Integer(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc_3339(&Cell::Integer(-1)), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc_3339(&Cell::Integer(i64::MAX)), "");
        assert_eq!(rfc_3339(&Cell::Null), "");
    }
}
