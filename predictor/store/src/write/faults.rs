//! Faults of commits, injected by simulations.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The commit proceeds.
    Proceeds,
    /// The commit writes no change, and the database does not respond.
    Fails,
    /// The changes are written, but the confirmation is lost.
    LosesItsConfirmation,
}

/// Decides on each commit. A service does not have one, and all its commits proceed.
pub trait Faults: Debug + Send + Sync {
    /// Returns the fate of the next commit; the commit waits for it.
    fn begin(&self) -> Pin<Box<dyn Future<Output = Fate> + Send + '_>>;
    /// Called at the end of each commit.
    fn end(&self);
}

/// The faults of a writer.
pub(crate) type Injected = Option<Arc<dyn Faults>>;
