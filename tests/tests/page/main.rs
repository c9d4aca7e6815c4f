//! The page at `/`, in a real browser, over a real predictor. Pictures of it are kept under `target/pictures`.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod scene;

mod opens;

mod restart;

mod keyboard;
mod narrow;

mod operator;

mod reports;

mod accessible;

mod training;

mod frames;
