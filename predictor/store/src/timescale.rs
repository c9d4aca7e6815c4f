//! TimescaleDB, if the database has its extension: samples in compressed chunks of one day. The extension is
//! optional.

use sqlx::PgConnection;

use crate::error::StoreError;

/// Idempotent.
const ARRANGE: &str = include_str!("../../../migrations/timescale/node_sample.sql");

/// Arranges the samples in chunks if the extension exists in this database.
///
/// # Errors
/// If the extension exists and a statement fails.
pub(crate) async fn arrange(connection: &mut PgConnection) -> Result<(), StoreError> {
    let is_there: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'timescaledb')")
            .fetch_one(&mut *connection)
            .await?;
    if is_there {
        sqlx::raw_sql(ARRANGE).execute(connection).await?;
        tracing::info!("TimescaleDB is installed: storing samples in compressed chunks");
    }
    Ok(())
}
