//! Fuzz test: configuration files with any of the options and any values.

use std::fs;

use clap::CommandFactory;
use evenstep_fuzz::{SECRET, config, files_of_options};
use evenstep_server::config::parse;
use proptest::prelude::*;

use super::Config;

fn files() -> impl Strategy<Value = Vec<u8>> {
    let keys = Config::command().get_arguments().map(|arg| arg.get_id().to_string()).collect();
    files_of_options(keys, "operator_token")
}

proptest! {
    #![proptest_config(config(256))]

    /// Whatever a file contains: an error that names the source, or a configuration within all rules.
    #[test]
    fn any_file_is_a_configuration_or_an_error(bytes in files()) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let name = file.path().display().to_string();
        let parsed = parse::<Config>(None, ["serve", "--config", &name]).map_err(|error| error.to_string());
        match parsed.and_then(|config| config.check().map(|()| config)) {
            Ok(config) => {
                prop_assert!((1.0..=300.0).contains(&config.lease_s));
                prop_assert!(config.refit_interval_s > 0 && config.linger_s > 0);
                let keep = config.keep();
                prop_assert!(60 <= keep.raw_s && keep.raw_s <= keep.minutes_s && keep.minutes_s <= keep.hours_s);
            }
            Err(said) => {
                prop_assert!(said.contains(&name) || said.starts_with("configuration: "), "{}", said);
                prop_assert!(!said.contains(SECRET), "{}", said);
            }
        }
    }
}
