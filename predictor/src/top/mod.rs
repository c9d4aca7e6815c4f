//! `evenstep-predictor top`: shows the jobs of a predictor and the iterations of one job in a terminal.
//!
//! - `feed`: threads that follow the live streams of the service and send their events to the main thread.
//! - `screen`: the main thread, which owns the terminal.
//! - `event`: these events, and the state of a connection.
//! - `state`: the state, changed by events and keys.
//! - `draw`: draws the state.
//! - `once`: writes one frame as text, if standard output is not a terminal.
//!
//! State and drawing are pure: their inputs are events, keys and the time, and they use neither network nor
//! terminal.

mod args;

mod event;

mod state;

mod draw;

mod sse;

mod feed;

mod screen;

mod once;

pub use args::Args;

use std::io::IsTerminal;

/// Runs the command.
///
/// # Errors
/// An error if the terminal cannot be used, or if one frame is requested and no predictor responds.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return once::run(args);
    }
    screen::run(args)
}
