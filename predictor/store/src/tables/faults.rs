//! Faults that SQL can find: damaged pages, dangling references, and rows that contradict each other.

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::snapshot::Snapshot;
use crate::database::{Either, rows};
use crate::error::StoreError;

/// A fault found by the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFault {
    /// The table; empty if unknown.
    pub table: String,
    /// The row's key; empty if unknown.
    pub key: String,
    /// The violated rule.
    pub rule: String,
}

/// Rules between rows: table, message, and a query for the keys of violating rows.
const BETWEEN_ROWS: [(&str, &str, &str); 4] = [
    (
        "allocation",
        "its generation exceeds the job's generation",
        "SELECT 'job_id=' || allocation.job_id || ' iteration=' || iteration || ' generation=' || allocation.generation
         FROM allocation JOIN job ON job.job_id = allocation.job_id
         WHERE allocation.generation > job.generation LIMIT $1",
    ),
    (
        "worker",
        "another live worker has the same seat",
        "SELECT 'job_id=' || job_id || ' seat=' || seat FROM worker WHERE state = 'live'
         GROUP BY job_id, seat HAVING count(*) > 1 LIMIT $1",
    ),
    (
        "node_sample",
        "its node is missing from table node",
        "SELECT 'node=' || node FROM (SELECT DISTINCT node FROM node_sample) AS sampled
         WHERE NOT EXISTS (SELECT 1 FROM node WHERE node.node = sampled.node) LIMIT $1",
    ),
    (
        "node",
        "it has more stored samples than it has ever sent",
        "SELECT 'node=' || node.node FROM node
         JOIN (SELECT node, count(*) AS samples FROM node_sample GROUP BY node) AS stored ON stored.node = node.node
         WHERE stored.samples > node.samples LIMIT $1",
    ),
];

impl Snapshot {
    /// Returns the faults that the database finds, at most `most` of each kind: damaged pages and indexes of
    /// SQLite, rows that refer to missing rows, and rows that contradict each other.
    ///
    /// # Errors
    /// If the database cannot be queried.
    pub async fn faults(&mut self, most: u32) -> Result<Vec<TableFault>, StoreError> {
        let mut faults = Vec::new();
        if let Either::Sqlite(connection) = &mut self.connection {
            faults.extend(pages(connection, most).await?);
            faults.extend(references(connection, most).await?);
        }
        for (table, rule, sql) in BETWEEN_ROWS {
            // Stores with an older schema may lack the table.
            if !self.tables().iter().any(|known| known.name == table) {
                continue;
            }
            let keys = rows!(&mut self.connection, (String,), AssertSqlSafe(sql), i64::from(most));
            let fault = |key: String| TableFault { table: table.into(), key, rule: rule.into() };
            match keys {
                Ok(keys) => faults.extend(keys.into_iter().map(|(key,)| fault(key))),
                // Unreadable rows are reported when the table itself is read.
                Err(sqlx::Error::Database(_)) => self.restart_snapshot().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(faults)
    }
}

/// Runs `PRAGMA integrity_check` and returns SQLite's messages.
async fn pages(connection: &mut SqliteConnection, most: u32) -> Result<Vec<TableFault>, StoreError> {
    let sql = AssertSqlSafe(format!("PRAGMA integrity_check({most})"));
    let said: Vec<String> = match sqlx::query_scalar(sql).fetch_all(connection).await {
        Ok(said) => said,
        // The file is too damaged for the check to run.
        Err(sqlx::Error::Database(error)) => vec![error.to_string()],
        Err(error) => return Err(error.into()),
    };
    let fault = |rule: String| TableFault { table: String::new(), key: String::new(), rule };
    Ok(said.into_iter().filter(|rule| rule != "ok").map(fault).collect())
}

/// Runs `PRAGMA foreign_key_check` and returns rows that refer to missing rows.
async fn references(connection: &mut SqliteConnection, most: u32) -> Result<Vec<TableFault>, StoreError> {
    let sql = "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY \"table\", parent LIMIT $1";
    let found: Vec<(String, String, i64)> = match sqlx::query_as(sql).bind(most).fetch_all(connection).await {
        Ok(found) => found,
        // The check of the pages has reported the cause.
        Err(sqlx::Error::Database(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let fault = |(table, parent, count): (String, String, i64)| TableFault {
        table,
        key: format!("{count} rows"),
        rule: format!("they refer to a {parent} that does not exist"),
    };
    Ok(found.into_iter().map(fault).collect())
}
