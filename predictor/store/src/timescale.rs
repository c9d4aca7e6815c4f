//! TimescaleDB, where the database has its extension: samples in compressed chunks of a day. Nothing else depends on it.

use sqlx::PgConnection;

use crate::error::StoreError;

/// Safe to run again.
const ARRANGE: &str = include_str!("../../../migrations/timescale/node_sample.sql");

/// Arranges the samples, where the extension was created in this database.
///
/// # Errors
/// Where it is there and says no.
pub(crate) async fn arrange(connection: &mut PgConnection) -> Result<(), StoreError> {
    let is_there: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'timescaledb')")
            .fetch_one(&mut *connection)
            .await?;
    if is_there {
        sqlx::raw_sql(ARRANGE).execute(connection).await?;
        tracing::info!("TimescaleDB is there: samples are kept in compressed chunks");
    }
    Ok(())
}
