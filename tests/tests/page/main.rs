//! Tests of the page at `/` in a real browser, with a real predictor. With
//! `EVENSTEP_TESTS_PICTURES=1`, pictures are saved in `target/pictures`.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod scene;

mod opens;

mod restart;
mod trouble;

mod keyboard;
mod many;
mod map;
mod narrow;

mod operator;

mod session;

mod reports;

mod accessible;

mod training;

mod frames;
