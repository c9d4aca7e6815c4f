//! `vacuum`: releases space, or makes a backup.

use evenstep_report::output::write_text;

use super::args::VacuumArgs;
use super::text::{address, size, with_store_context};
use crate::vacuum::{back_up, vacuum};

/// Runs the command and prints the sizes before and after.
pub(super) async fn run(args: &VacuumArgs) -> anyhow::Result<()> {
    let address = address(&args.store.store)?;
    match &args.into {
        None => {
            let (before, after) = with_store_context(&address, vacuum(&address).await)?;
            write_text(&format!("{address}: {} before, {} after\n", size(before), size(after)))
        }
        Some(file) => {
            let (before, after) = with_store_context(&address, back_up(&address, file).await)?;
            write_text(&format!("{address}: {}; {}: {}\n", size(before), file.display(), size(after)))
        }
    }
}
