//! `evenstep-predictor top`: the jobs of a predictor and what happens in one of them, in a terminal.
//!
//! Threads follow the live streams of the service (`feed`) and send what they hear to the one that has the terminal (`screen`);
//! that puts it into the state (`state`) and draws it (`draw`). State and drawing are pure: they take events, keys and the time,
//! and know neither network nor terminal. Where standard output is no terminal one frame is written as text (`once`).

mod args;

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
/// Where the terminal cannot be used; where one frame is asked for and no predictor answers.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return once::run(args);
    }
    screen::run(args)
}
