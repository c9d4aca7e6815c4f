//! Tests of the training library with real ranks.

mod claims;
mod own_model;
