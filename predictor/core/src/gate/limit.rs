//! How much slower a foreground may become.

/// The largest slow-down that can be asked for.
pub const LIMIT_MAX: f64 = 10.0;

/// `1 + eps`: with background work a foreground takes at most so many times as long as alone.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Limit(f64);

/// A gate that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GateError {
    /// No slow-down limit.
    #[error("a slow-down limit of {0}: it must be 1 to {LIMIT_MAX}")]
    Limit(f64),
}

impl Limit {
    /// A limit of 1 to [`LIMIT_MAX`].
    ///
    /// # Errors
    /// It is outside, or no number.
    pub fn new(ratio: f64) -> Result<Self, GateError> {
        if (1.0..=LIMIT_MAX).contains(&ratio) { Ok(Self(ratio)) } else { Err(GateError::Limit(ratio)) }
    }

    /// Time with background work over time alone, at most.
    pub fn ratio(self) -> f64 {
        self.0
    }
}

impl Default for Limit {
    /// That of the paper: 1.1.
    fn default() -> Self {
        Self(1.1)
    }
}
