//! `vacuum`: room given back, or a backup.

use super::args::VacuumArgs;
use super::words::{address, of_store, size};
use evenstep_report::output::put_text;
use evenstep_store as store;

/// Runs it, and says what it has brought.
pub(super) async fn run(args: &VacuumArgs) -> anyhow::Result<()> {
    let address = address(&args.store.store)?;
    match &args.into {
        None => {
            let (before, after) = of_store(&address, store::vacuum(&address).await)?;
            put_text(&format!("{address}: {} before, {} after\n", size(before), size(after)))
        }
        Some(file) => {
            let (before, after) = of_store(&address, store::back_up(&address, file).await)?;
            put_text(&format!("{address}: {}; {}: {}\n", size(before), file.display(), size(after)))
        }
    }
}
