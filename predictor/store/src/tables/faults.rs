//! What is wrong between rows and below them, as the database itself can tell.

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::snapshot::Snapshot;
use crate::database::{Either, rows};
use crate::error::StoreError;

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFault {
    /// In which table; empty where that is not known.
    pub table: String,
    /// Which row; empty where that is not known.
    pub key: String,
    /// The rule that it breaks.
    pub rule: String,
}

/// Rules between rows: table, rule, and the keys of the rows that break it.
const BETWEEN_ROWS: [(&str, &str, &str); 4] = [
    (
        "allocation",
        "its generation is one that the job has not reached",
        "SELECT 'job_id=' || allocation.job_id || ' iteration=' || iteration || ' generation=' || allocation.generation
         FROM allocation JOIN job ON job.job_id = allocation.job_id
         WHERE allocation.generation > job.generation LIMIT $1",
    ),
    (
        "worker",
        "another live worker has its seat",
        "SELECT 'job_id=' || job_id || ' seat=' || seat FROM worker WHERE state = 'live'
         GROUP BY job_id, seat HAVING count(*) > 1 LIMIT $1",
    ),
    (
        "node_sample",
        "its node is not among the nodes",
        "SELECT 'node=' || node FROM (SELECT DISTINCT node FROM node_sample) AS sampled
         WHERE NOT EXISTS (SELECT 1 FROM node WHERE node.node = sampled.node) LIMIT $1",
    ),
    (
        "node",
        "more samples are stored of it than it ever sent",
        "SELECT 'node=' || node.node FROM node
         JOIN (SELECT node, count(*) AS samples FROM node_sample GROUP BY node) AS stored ON stored.node = node.node
         WHERE stored.samples > node.samples LIMIT $1",
    ),
];

impl Snapshot {
    /// What the database finds wrong with itself, `most` of each kind: pages and indexes of SQLite, rows that refer to what
    /// is not there, and rows that contradict each other.
    ///
    /// # Errors
    /// Where it cannot be asked.
    pub async fn faults(&mut self, most: u32) -> Result<Vec<TableFault>, StoreError> {
        let mut faults = Vec::new();
        if let Either::Sqlite(connection) = &mut self.connection {
            faults.extend(pages(connection, most).await?);
            faults.extend(references(connection, most).await?);
        }
        for (table, rule, sql) in BETWEEN_ROWS {
            // A store of an earlier schema may not have the table.
            if !self.tables().iter().any(|known| known.name == table) {
                continue;
            }
            let keys = rows!(&mut self.connection, (String,), AssertSqlSafe(sql), i64::from(most));
            let fault = |key: String| TableFault { table: table.into(), key, rule: rule.into() };
            match keys {
                Ok(keys) => faults.extend(keys.into_iter().map(|(key,)| fault(key))),
                // Where rows cannot be read that is told where they are read.
                Err(sqlx::Error::Database(_)) => self.begin_again().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(faults)
    }
}

/// `PRAGMA integrity_check`: what is wrong with the file, in SQLite's words.
async fn pages(connection: &mut SqliteConnection, most: u32) -> Result<Vec<TableFault>, StoreError> {
    let sql = AssertSqlSafe(format!("PRAGMA integrity_check({most})"));
    let said: Vec<String> = match sqlx::query_scalar(sql).fetch_all(connection).await {
        Ok(said) => said,
        // So damaged that it cannot even be checked.
        Err(sqlx::Error::Database(error)) => vec![error.to_string()],
        Err(error) => return Err(error.into()),
    };
    let fault = |rule: String| TableFault { table: String::new(), key: String::new(), rule };
    Ok(said.into_iter().filter(|rule| rule != "ok").map(fault).collect())
}

/// `PRAGMA foreign_key_check`: rows that refer to rows that are not there.
async fn references(connection: &mut SqliteConnection, most: u32) -> Result<Vec<TableFault>, StoreError> {
    let sql = "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY \"table\", parent LIMIT $1";
    let found: Vec<(String, String, i64)> = match sqlx::query_as(sql).bind(most).fetch_all(connection).await {
        Ok(found) => found,
        // The check of the pages has said why.
        Err(sqlx::Error::Database(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let fault = |(table, parent, count): (String, String, i64)| TableFault {
        table,
        key: format!("{count} rows"),
        rule: format!("they refer to a {parent} that is not there"),
    };
    Ok(found.into_iter().map(fault).collect())
}
