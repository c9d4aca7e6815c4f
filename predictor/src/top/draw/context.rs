//! The inputs of every part of the frame.

use std::time::Duration;

use super::super::state::State;
use super::theme::Theme;

/// The inputs of every part of the frame.
pub struct DrawContext<'a> {
    pub state: &'a State,
    pub now: Duration,
    pub theme: Theme,
}

impl DrawContext<'_> {
    /// Age of a time, in seconds by the service's clock.
    pub fn age_s(&self, at_unix_ms: i64) -> Option<f64> {
        let service = self.state.service_unix_ms(self.now)?;
        Some(service.saturating_sub(at_unix_ms).max(0) as f64 / 1e3)
    }
}
