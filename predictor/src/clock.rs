//! The clocks of the predictor, which it shares with its store.

pub use evenstep_store::{Clock, ManualClock, Now};
