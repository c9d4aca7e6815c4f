//! Tests of the training library with real ranks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod claims;
mod own_model;
