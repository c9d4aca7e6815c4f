//! Inputs of the fuzz tests: arbitrary bytes, damaged files, damaged JSON and files of options.
//!
//! Each fuzz test is a property test next to the code that it tests. It runs with few cases in every test run; the
//! environment variable `PROPTEST_CASES` sets another number.

mod bytes;
mod json;
mod options;

use std::env;

use proptest::test_runner::{Config, RngSeed};

pub use bytes::{arbitrary, damaged};
pub use json::damaged_json;
pub use options::{SECRET, files_of_options};

/// Seed of the cases in every test run, so that a change is not blamed for an older defect.
const SEED: u64 = 7;

/// The configuration of a fuzz test: `cases` cases, always the same, or the number in `PROPTEST_CASES`, at random.
pub fn config(cases: u32) -> Config {
    match env::var_os("PROPTEST_CASES") {
        // The default limit of rejected values is for few cases.
        Some(_) => Config { max_local_rejects: u32::MAX, ..Config::default() },
        None => Config { rng_seed: RngSeed::Fixed(SEED), ..Config::with_cases(cases) },
    }
}
