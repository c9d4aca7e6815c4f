//! Inputs of the fuzz tests: arbitrary bytes, damaged files and damaged JSON.
//!
//! Each fuzz test is a property test next to the code that it tests. It runs with few cases in every test run; the
//! environment variable `PROPTEST_CASES` sets another number.

mod bytes;
mod json;

use std::env;

use proptest::test_runner::Config;

pub use bytes::{arbitrary, damaged};
pub use json::damaged_json;

/// The configuration of a fuzz test: `cases` cases, or the number in `PROPTEST_CASES`.
pub fn config(cases: u32) -> Config {
    match env::var_os("PROPTEST_CASES") {
        Some(_) => Config::default(),
        None => Config::with_cases(cases),
    }
}
