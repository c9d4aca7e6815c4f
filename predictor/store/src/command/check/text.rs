//! Text output of `check`.

use super::findings::CheckResult;
use crate::command::text::{counted, size};
use crate::tables::Backend;
use evenstep_report::text::{aligned, line};

pub fn of(checked: &CheckResult) -> String {
    let mut text = String::new();
    let backend = match checked.backend {
        Backend::Sqlite => "SQLite",
        Backend::Postgres => "PostgreSQL",
    };
    let schema = &checked.schema;
    line(&mut text, format_args!("{}: {backend}, {}", checked.store, size(checked.size_bytes)));
    let older = if schema.found < schema.known { "; serving the store upgrades it" } else { "" };
    line(&mut text, format_args!("schema {}, newest supported {}{older}", schema.found, schema.known));
    let mut rows = vec![["table", "rows", "faults"].map(str::to_owned).to_vec()];
    rows.extend(
        checked
            .tables
            .iter()
            .map(|table| vec![table.table.clone(), table.rows.to_string(), table.faults.to_string()]),
    );
    aligned(&mut text, &rows);
    for (note, rows) in &checked.notes {
        line(&mut text, format_args!("note: {}: {note}", counted(*rows, "row")));
    }
    for finding in &checked.findings {
        let place = [finding.table.as_str(), finding.key.as_str()];
        let place: Vec<&str> = place.into_iter().filter(|part| !part.is_empty()).collect();
        let colon = if place.is_empty() { "" } else { ": " };
        line(&mut text, format_args!("fault: {}{colon}{}", place.join(" "), finding.rule));
    }
    let untold = checked.faults.saturating_sub(checked.findings.len() as u64);
    if untold > 0 {
        line(&mut text, format_args!("and {} not listed", counted(untold, "fault")));
    }
    let all = if checked.faults == 0 { "no faults".to_owned() } else { counted(checked.faults, "fault") };
    line(&mut text, format_args!("{all}"));
    text
}
