//! Fuzz test: configuration files with any of the options and any values.

use std::fs;

use evenstep_fuzz::{arbitrary, config, damaged};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Config, Flags, VARIABLES};

/// A value that no error may show.
const SECRET: &str = "\"secret-secret\"";
const VALUES: [&str; 24] = [
    "0",
    "-1",
    "1",
    "1.5",
    "inf",
    "nan",
    "9223372036854775807",
    "18446744073709551616",
    "true",
    "[]",
    "{}",
    "1979-05-27",
    "\"\"",
    "\"60s\"",
    "\"1000y\"",
    "\"18446744073709551615s\"",
    "\"1MiB\"",
    "\"1e9GiB\"",
    "\"127.0.0.1:0\"",
    "\"[::]:99999\"",
    "\"http://a\"",
    "\"json\"",
    SECRET,
    "\"\\u0000\"",
];

fn files() -> impl Strategy<Value = Vec<u8>> {
    let keys = VARIABLES.into_iter().chain(["x"]).collect::<Vec<_>>();
    let line = (select(keys), select(VALUES.to_vec())).prop_map(|(key, value)| {
        let key = if value == SECRET { "operator_token" } else { key };
        format!("{key} = {value}\n")
    });
    let text = prop::collection::vec(line, 0..8).prop_map(|lines| lines.concat().into_bytes());
    let whole =
        b"listen = \"127.0.0.1:0\"\nlease_s = 2.5\nkeep_raw = \"1d\"\nmemory_budget = \"1GiB\"\n".to_vec();
    prop_oneof![1 => arbitrary(), 2 => damaged(vec![whole]), 6 => text]
}

proptest! {
    #![proptest_config(config(256))]

    /// Whatever a file contains: an error that names the source, or a configuration within all rules.
    #[test]
    fn any_file_is_a_configuration_or_an_error(bytes in files()) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let flags = Flags { config: Some(file.path().to_owned()), ..Flags::default() };
        match Config::load(&flags) {
            Ok(config) => {
                prop_assert!((1.0..=300.0).contains(&config.lease_s));
                prop_assert!(config.refit_interval_s > 0 && config.refit_threads > 0 && config.linger_s > 0);
                let keep = config.keep();
                prop_assert!(60 <= keep.raw_s && keep.raw_s <= keep.minutes_s && keep.minutes_s <= keep.hours_s);
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.starts_with("configuration: "), "{}", said);
                prop_assert!(!said.contains("secret-secret"), "{}", said);
            }
        }
    }
}
