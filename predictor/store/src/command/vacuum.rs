//! `vacuum`: releases space, or makes a backup.

use evenstep_report::output::put_text;

use super::args::VacuumArgs;
use super::text::{address, of_store, size};
use crate::vacuum::{back_up, vacuum};

/// Runs the command and prints the sizes before and after.
pub(super) async fn run(args: &VacuumArgs) -> anyhow::Result<()> {
    let address = address(&args.store.store)?;
    match &args.into {
        None => {
            let (before, after) = of_store(&address, vacuum(&address).await)?;
            put_text(&format!("{address}: {} before, {} after\n", size(before), size(after)))
        }
        Some(file) => {
            let (before, after) = of_store(&address, back_up(&address, file).await)?;
            put_text(&format!("{address}: {}; {}: {}\n", size(before), file.display(), size(after)))
        }
    }
}
