//! Progress bar, shown only if standard error is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a progress bar over the rows of a table.
pub(super) fn bar(rows: u64, table: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr());
    // The template is constant and valid; the default style is a harmless fallback.
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} rows of {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(table.to_owned())
}
