//! Schema of the database: upgraded when a store is opened, and rejected if it is newer than this binary.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

use sqlx::Connection as _;

use crate::address::Address;
use crate::database::{self, Connection, Either, connect_to_read, on, rows, run, scalar};
use crate::encode::integer;
use crate::error::{Fault, StoreError};
use crate::tables::TABLES;
use crate::timescale;

/// Embeds the files of a folder of `migrations` as pairs of name and content.
macro_rules! migrations {
    ($folder:literal: $($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../migrations/", $folder, "/", $name, ".sql")))),*]
    };
}
static SQLITE: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(&migrations!("sqlite":
        "0001_initial" "0002_models" "0003_allocation_learning" "0004_hedging" "0005_trust" "0006_retention"
        "0007_hysteresis" "0008_access" "0009_loss" "0010_views" "0011_whole_step"
        "0012_model_parts" "0013_attempts"
    ))
});
static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(
        &migrations!("postgres": "0001_schema" "0002_retention" "0003_hysteresis" "0004_access" "0005_loss" "0006_views"
            "0007_whole_step" "0008_model_parts" "0009_attempts"),
    )
});

/// Builds the migrations that sqlx's own macro would build from the files: a version and a description each.
fn migrator(files: &[(&str, &'static str)]) -> Migrator {
    let migrations = files.iter().filter_map(|(name, sql)| {
        let (version, description) = name.split_once('_')?;
        let (version, description) = (version.parse().ok()?, description.replace('_', " "));
        let sql = SqlStr::from_static(sql);
        Some(Migration::new(version, description.into(), MigrationType::Simple, sql, false))
    });
    Migrator::with_migrations(migrations.collect())
}

/// Size of a hash, in bytes.
const SHA256_BYTES: usize = 32;
/// Table of the migration library.
const MIGRATIONS: &str = "_sqlx_migrations";

/// Query for the schema version of an evenstep database.
pub(crate) const NEWEST: &str = "SELECT max(version) FROM _sqlx_migrations";

/// Returns the newest schema version that this binary supports for a database.
pub(crate) fn known(connection: &Connection) -> i64 {
    let migrator = match connection {
        Either::Sqlite(_) => &SQLITE,
        Either::Postgres(_) => &POSTGRES,
    };
    migrator.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Returns the schema version of a database; `None` if it has no evenstep schema.
///
/// # Errors
/// If the database cannot be read.
pub(crate) async fn found(connection: &mut Connection) -> Result<Option<i64>, StoreError> {
    let (table, migrator) = match connection {
        Either::Sqlite(_) => ("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'", &SQLITE),
        Either::Postgres(_) => ("SELECT count(to_regclass('_sqlx_migrations'))", &POSTGRES),
    };
    if scalar!(&mut *connection, i64, table)? != Some(1) {
        return Ok(None);
    }
    // Other programs use sqlx as well. Only a store of evenstep began with its first migration.
    let first = "SELECT checksum FROM _sqlx_migrations ORDER BY version LIMIT 1";
    let first = scalar!(&mut *connection, Vec<u8>, first)?;
    let ours = migrator.iter().next().map(|migration| migration.checksum.as_ref());
    if first.as_deref() != ours {
        return Ok(None);
    }
    Ok(scalar!(&mut *connection, Option<i64>, NEWEST)?.flatten())
}

/// Rejects a schema that is newer than this binary supports.
///
/// # Errors
/// [`StoreError::Newer`], or if the database cannot be read.
pub(crate) async fn check(connection: &mut Connection) -> Result<(), StoreError> {
    let known = known(connection);
    match found(connection).await? {
        Some(found) if found > known => Err(StoreError::Newer { found, known }),
        _ => Ok(()),
    }
}

/// Rejects an SQLite file that another program wrote or that is damaged. Does not change the file.
///
/// # Errors
/// [`StoreError::NotAStore`], [`StoreError::Damaged`], [`StoreError::Newer`], or if the file cannot be read.
pub(crate) async fn inspect(address: &Address) -> Result<(), StoreError> {
    if address.file().is_none() {
        return Ok(());
    }
    let mut connection = connect_to_read(address).await?;
    let inspected = inspect_file(&mut connection).await;
    on!(connection, c => c.close().await)?;
    inspected.map_err(|error| match error.fault() {
        Some(Fault::Damaged) if !matches!(error, StoreError::Damaged(_)) => {
            StoreError::Damaged(error.to_string())
        }
        _ => error,
    })
}

async fn inspect_file(connection: &mut Connection) -> Result<(), StoreError> {
    check(connection).await?;
    database::verify(connection).await?;
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut tables: Vec<String> =
        rows!(&mut *connection, (String,), tables)?.into_iter().map(|(name,)| name).collect();
    if let Some(version) = found(connection).await? {
        // An older schema has fewer tables.
        let is_missing =
            |name: &&&str| version == known(connection) && !tables.iter().any(|table| table == **name);
        return match TABLES.iter().find(is_missing) {
            Some(missing) => Err(StoreError::Damaged(format!("table {missing} is missing"))),
            None => Ok(()),
        };
    }
    // A predictor that was killed at its first start has only this table, without rows.
    if tables.iter().any(|table| table == MIGRATIONS)
        && scalar!(&mut *connection, i64, "SELECT count(*) FROM _sqlx_migrations")? == Some(0)
    {
        tables.retain(|table| table != MIGRATIONS);
    }
    if !tables.is_empty() {
        let tables = tables.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        return Err(StoreError::NotAStore(format!(
            "it contains tables of another program, such as {tables}"
        )));
    }
    let application = scalar!(&mut *connection, i64, "PRAGMA application_id")?.unwrap_or(0);
    if application != 0 {
        return Err(StoreError::NotAStore(format!(
            "it has the application id {application} of another program"
        )));
    }
    Ok(())
}

/// Beginning of the descriptions of migrations that remove something that earlier versions use.
const CONTRACT: &str = "contract";

/// Whether all migrations that this binary does not know only add to the schema.
///
/// Predictors of two versions share one PostgreSQL during a rolling upgrade, and one of the earlier version may have to
/// start again meanwhile. A file is served by one process, so its upgrade is not gradual.
///
/// # Errors
/// If the database cannot be read.
async fn is_expanded(connection: &mut Connection) -> Result<bool, StoreError> {
    if let Either::Sqlite(_) = connection {
        return Ok(false);
    }
    let known = known(connection);
    let unknown = "SELECT description FROM _sqlx_migrations WHERE version > $1";
    let unknown = rows!(&mut *connection, (String,), unknown, known)?;
    Ok(unknown.iter().all(|(description,)| !description.starts_with(CONTRACT)))
}

/// Upgrades the schema to the newest version, for a predictor. Accepts a newer schema of a PostgreSQL that only adds to
/// the known one.
///
/// # Errors
/// The errors of [`update`].
pub(crate) async fn update_shared(connection: &mut Connection) -> Result<(), StoreError> {
    match check(connection).await {
        Err(StoreError::Newer { found, known }) if is_expanded(connection).await? => {
            tracing::warn!(found, known, "a newer version has upgraded the schema; upgrade this program too");
            Ok(())
        }
        _ => update(connection).await,
    }
}

/// Upgrades the schema to the newest version.
///
/// # Errors
/// [`StoreError::Newer`], or if a migration fails; that migration is then rolled back.
pub(crate) async fn update(connection: &mut Connection) -> Result<(), StoreError> {
    check(connection).await?;
    match connection {
        Either::Sqlite(connection) => SQLITE.run(connection).await?,
        Either::Postgres(connection) => {
            POSTGRES.run(&mut *connection).await?;
            timescale::arrange(connection).await?;
        }
    }
    Ok(())
}

/// Makes a write that changes no data but needs everything that a write of this size needs. An SQLite store needs space in
/// the folder of its file, which [`LockedFile::check_room`](crate::file::LockedFile::check_room) tests.
pub(crate) async fn probe(connection: &mut Connection, bytes: usize) -> Result<u64, StoreError> {
    let sql = match connection {
        // This field is otherwise unused; setting it writes a page.
        Either::Sqlite(_) => "PRAGMA user_version = 0",
        // An update is rejected on a read-only database even if it affects no row; a transaction with an id
        // is written to the WAL.
        Either::Postgres(_) => {
            "WITH nothing AS (UPDATE job SET kept_from = kept_from WHERE false RETURNING 1)
             SELECT pg_current_xact_id()"
        }
    };
    let probed = run!(connection, sql)?;
    if let Either::Postgres(connection) = connection {
        // Hashes, because other bytes would be compressed. The files of the table grow at once, although the row goes.
        let hashes = integer((bytes / SHA256_BYTES) as u64);
        let insert = "INSERT INTO device_model SELECT 'probe', 0, 0, string_agg(sha256(i::text::bytea), '')
                      FROM generate_series(0, $1) AS i ON CONFLICT DO NOTHING";
        sqlx::query("SAVEPOINT probe").execute(&mut *connection).await?;
        sqlx::query(insert).bind(hashes).execute(&mut *connection).await?;
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT probe; RELEASE SAVEPOINT probe").execute(connection).await?;
    }
    Ok(probed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sqlx::migrate::Migrator;

    use super::{POSTGRES, SQLITE};

    /// The embedded migrations equal those that sqlx finds in the folder, which created the databases of
    /// earlier versions.
    #[tokio::test]
    async fn every_migration_is_compiled_in_as_its_file_says() {
        let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        for (folder, ours) in [("sqlite", &SQLITE), ("postgres", &POSTGRES)] {
            let files = Migrator::new(migrations.join(folder)).await.unwrap();
            assert!(files.iter().count() > 0);
            assert_eq!(ours.iter().count(), files.iter().count(), "{folder}");
            for (ours, file) in ours.iter().zip(files.iter()) {
                assert_eq!(ours.version, file.version);
                assert_eq!(ours.description, file.description);
                assert_eq!(ours.migration_type, file.migration_type);
                assert_eq!(ours.checksum, file.checksum);
                assert_eq!(ours.no_tx, file.no_tx);
            }
        }
    }
}
