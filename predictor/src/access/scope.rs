//! Scopes of tokens.

use std::fmt;
use std::str::FromStr;

/// The kind of requests that a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Send telemetry of nodes.
    Agent,
    /// Create jobs, join workers, request allocations, and read these jobs.
    Trainer,
    /// Read jobs, nodes and reports.
    Viewer,
    /// Read, override workers, and delete workers and jobs.
    Operator,
    /// Read the metrics.
    Metrics,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 6] =
        [Self::Agent, Self::Trainer, Self::Viewer, Self::Operator, Self::Metrics, Self::Admin];

    /// The name of the scope.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Trainer => "trainer",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
        }
    }

    /// Whether the scope can be restricted to some jobs. Nodes do not belong to a job.
    pub fn has_jobs(self) -> bool {
        !matches!(self, Self::Agent | Self::Admin)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or_else(|| {
            format!("{text:?} is not a scope; scopes are agent, trainer, viewer, operator, metrics and admin")
        })
    }
}
