//! How far a command is, drawn only where standard error is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over the rows of a table.
pub(super) fn bar(rows: u64, table: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr());
    // A template that cannot be read would be a mistake in this line; the bar looks plainer then.
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} rows of {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(table.to_owned())
}
