//! Limit of burst-parallel plans in progress.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::ErrorResponse;

/// Limit of plans in progress. A plan takes seconds of processor time at most, and `/allocate` needs
/// processors too.
const PLANS_MAX: usize = 2;

/// Limit of plans in progress.
#[derive(Debug, Clone)]
pub struct Plans(Arc<Semaphore>);

impl Default for Plans {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PLANS_MAX)))
    }
}

impl Plans {
    /// Begins a plan, or rejects it if the limit is reached. Waiting would keep the body in memory and block
    /// other requests.
    pub fn begin(&self) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        self.0.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("{PLANS_MAX} plans are in progress, the limit; retry later");
            ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Too many requests", detail)
                .retry_after(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn no_more_plans_than_there_is_room_for() {
        let plans = Plans::default();
        let mut under_way: Vec<_> = (0..PLANS_MAX).map(|_| plans.begin().unwrap()).collect();
        let refused = plans.begin().unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        under_way.pop();
        drop(plans.begin().unwrap());
    }
}
