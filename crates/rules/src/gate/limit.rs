//! Slow-down limit of a foreground job.

/// Largest allowed slow-down limit.
pub const LIMIT_MAX: f64 = 10.0;

/// `1 + eps`: maximum ratio of the foreground's time with background work to its time alone.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Limit(f64);

/// An invalid gate option.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GateError {
    /// The slow-down limit is not between 1 and [`LIMIT_MAX`].
    #[error("slow-down limit {0} is not between 1 and {LIMIT_MAX}")]
    Limit(f64),
}

impl Limit {
    /// Returns a limit of 1 to [`LIMIT_MAX`].
    ///
    /// # Errors
    /// [`GateError::Limit`] if `ratio` is outside this range or not a number.
    pub fn new(ratio: f64) -> Result<Self, GateError> {
        if (1.0..=LIMIT_MAX).contains(&ratio) { Ok(Self(ratio)) } else { Err(GateError::Limit(ratio)) }
    }

    /// Returns the maximum ratio of the time with background work to the time alone.
    pub fn ratio(self) -> f64 {
        self.0
    }
}

impl Default for Limit {
    /// Returns 1.1, the limit of the paper (DeepPool, arXiv 2112.10065).
    fn default() -> Self {
        Self(1.1)
    }
}
