//! Tokens of a store that a predictor may be serving, for commands.

use sqlx::Connection as _;

use super::{AccessChange, StoredAuditEntry, StoredToken, TOKENS_MAX};
use crate::address::Address;
use crate::database::{self, Connection, on, rows, run};
use crate::error::StoreError;
use crate::file::{LockedFile, lock};
use crate::read::TOKENS;
use crate::schema;
use crate::write::access::apply;

/// The tokens of a store. A predictor may serve the store at the same time: it reads its tokens again every few
/// seconds.
#[derive(Debug)]
pub struct AccessStore {
    // Closed before the lock ends.
    connection: Connection,
    _lock: Option<LockedFile>,
}

impl AccessStore {
    /// Opens the store, and creates it if it does not exist. Upgrades its schema, unless a predictor serves it.
    ///
    /// # Errors
    /// If the store cannot be used, or if the predictor that serves it has another version.
    pub async fn open(address: &Address) -> Result<Self, StoreError> {
        let locked = match address.file().map(lock).transpose() {
            Err(StoreError::InUse(_)) => return Self::beside_predictor(address).await,
            locked => locked?,
        };
        schema::inspect(address).await?;
        let mut connection = database::connect(address).await?;
        schema::update(&mut connection).await?;
        Ok(Self { connection, _lock: locked })
    }

    async fn beside_predictor(address: &Address) -> Result<Self, StoreError> {
        let mut connection = database::connect(address).await?;
        schema::check(&mut connection).await?;
        let (found, known) = (schema::found(&mut connection).await?, schema::known(&connection));
        match found {
            Some(found) if found < known => Err(StoreError::Older { found, known }),
            Some(_) => Ok(Self { connection, _lock: None }),
            None => Err(StoreError::Foreign),
        }
    }

    /// Returns all tokens, the oldest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn tokens(&mut self) -> Result<Vec<StoredToken>, StoreError> {
        Ok(rows!(&mut self.connection, StoredToken, TOKENS, TOKENS_MAX as i64)?)
    }

    /// Returns the newest entries of the audit log, the newest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn audit(&mut self, limit: u32) -> Result<Vec<StoredAuditEntry>, StoreError> {
        let sql = "SELECT at_unix_ms, actor, address, action, subject FROM audit ORDER BY id DESC LIMIT $1";
        Ok(rows!(&mut self.connection, StoredAuditEntry, sql, i64::from(limit))?)
    }

    /// Makes changes, all or none. Returns the number of affected rows of each.
    ///
    /// # Errors
    /// If the database cannot be written. Nothing was changed then.
    pub async fn write(&mut self, changes: &[AccessChange], at_unix_ms: i64) -> Result<Vec<u64>, StoreError> {
        let connection = &mut self.connection;
        // Takes SQLite's lock for writing at once, so that a busy predictor is waited for.
        let begin = match connection {
            database::Either::Sqlite(_) => "BEGIN IMMEDIATE",
            database::Either::Postgres(_) => "BEGIN",
        };
        run!(connection, begin)?;
        let mut affected = Vec::with_capacity(changes.len());
        for change in changes {
            match apply(connection, change, at_unix_ms).await {
                Ok(rows) => affected.push(rows),
                Err(error) => {
                    // The connection may be lost, which also ends the transaction.
                    let _ =
                        on!(&mut *connection, c => sqlx::query("ROLLBACK").execute(&mut *c).await.map(drop));
                    return Err(error);
                }
            }
        }
        run!(connection, "COMMIT")?;
        Ok(affected)
    }

    /// Closes the store.
    pub async fn close(self) {
        // Without a checkpoint: a predictor may be serving the store.
        if let Err(error) = on!(self.connection, c => c.close().await) {
            tracing::warn!(%error, "failed to close the database connection");
        }
    }
}
