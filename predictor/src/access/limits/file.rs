//! The file of limits.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use evenstep_server::config::parse_toml;
use evenstep_server::read_file;
use evenstep_store::access::TOKENS_MAX;
use serde::Deserialize;

use super::super::known::OPERATOR;
use super::super::token::Token;

/// Limit of the size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Name of the table for tokens whose own table lacks a limit.
const DEFAULT: &str = "default";

/// Something that a token has a limit of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Jobs that the token may use.
    Jobs,
    /// Live workers of these jobs.
    Workers,
    /// Bytes of telemetry per second.
    TelemetryBytes,
    /// Requests per second.
    Requests,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 4] = [Self::Jobs, Self::Workers, Self::TelemetryBytes, Self::Requests];

    /// The key in the file, and the label of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Workers => "workers",
            Self::TelemetryBytes => "telemetry_bytes_per_s",
            Self::Requests => "requests_per_s",
        }
    }

    /// The type of the problem if the limit is reached.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Jobs => "limit-jobs",
            Self::Workers => "limit-workers",
            Self::TelemetryBytes => "limit-telemetry-bytes-per-s",
            Self::Requests => "limit-requests-per-s",
        }
    }

    /// Whether it is a rate.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::TelemetryBytes | Self::Requests)
    }

    /// The values that it can have.
    fn range(self) -> RangeInclusive<f64> {
        match self {
            Self::Jobs => 1.0..=1e4,
            Self::Workers => 1.0..=1e9,
            Self::TelemetryBytes => 1.0..=1e12,
            Self::Requests => 0.001..=1e6,
        }
    }
}

/// The limits of a table in the file. A limit that is absent is that of `[default]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLimits {
    jobs: Option<u64>,
    workers: Option<u64>,
    telemetry_bytes_per_s: Option<u64>,
    requests_per_s: Option<f64>,
}

impl TokenLimits {
    /// The value of a limit; `None` without one.
    pub fn get(&self, limit: Limit) -> Option<f64> {
        let whole = |value: Option<u64>| value.map(|value| value as f64);
        match limit {
            Limit::Jobs => whole(self.jobs),
            Limit::Workers => whole(self.workers),
            Limit::TelemetryBytes => whole(self.telemetry_bytes_per_s),
            Limit::Requests => self.requests_per_s,
        }
    }

    fn or(self, default: Self) -> Self {
        Self {
            jobs: self.jobs.or(default.jobs),
            workers: self.workers.or(default.workers),
            telemetry_bytes_per_s: self.telemetry_bytes_per_s.or(default.telemetry_bytes_per_s),
            requests_per_s: self.requests_per_s.or(default.requests_per_s),
        }
    }

    fn check(&self) -> Result<(), String> {
        for limit in Limit::ALL {
            let range = limit.range();
            if let Some(value) = self.get(limit).filter(|value| !range.contains(value)) {
                let (least, most) = range.into_inner();
                return Err(format!("{}: {value} must be {least} to {most}", limit.name()));
            }
        }
        Ok(())
    }
}

/// The tables of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LimitsFile(BTreeMap<String, TokenLimits>);

impl LimitsFile {
    /// Parses a file.
    ///
    /// # Errors
    /// A message that names the line or the table, the value and the rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = str::from_utf8(bytes).map_err(|error| format!("must be UTF-8: {error}"))?;
        let tables: BTreeMap<String, TokenLimits> = parse_toml(text)?;
        if tables.len() > TOKENS_MAX {
            return Err(format!("{} tables exceed the limit of {TOKENS_MAX}", tables.len()));
        }
        for (name, limits) in &tables {
            if !(name == DEFAULT || name == OPERATOR || Token::is_id(name)) {
                return Err(format!(
                    "table {name:?} must be default, operator, or the ID of a token, as evenstep-predictor token list shows it"
                ));
            }
            limits.check().map_err(|error| format!("table {name:?}: {error}"))?;
        }
        let file = Self(tables);
        // Most often, the file was cut while it was written.
        if !Limit::ALL.into_iter().any(|limit| file.has(limit)) {
            return Err(
                "must have a limit; if no token has one, start the predictor without --limits".to_owned()
            );
        }
        Ok(file)
    }

    /// The limits of a token.
    pub fn of(&self, token_id: &str) -> TokenLimits {
        let table = |name: &str| self.0.get(name).copied().unwrap_or_default();
        table(token_id).or(table(DEFAULT))
    }

    /// The names of the tables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether a token can have this limit.
    pub fn has(&self, limit: Limit) -> bool {
        self.0.values().any(|limits| limits.get(limit).is_some())
    }
}

/// Reads the bytes of a file.
///
/// # Errors
/// The rule that the file breaks.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_file(path, FILE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use evenstep_fuzz::{arbitrary, config, damaged};
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/reference/access.md");

    /// The file in the documentation.
    fn example() -> &'static str {
        EXAMPLE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap()
    }

    #[test]
    fn the_documented_file_is_valid() {
        let file = LimitsFile::parse(example().as_bytes()).unwrap();
        assert!(Limit::ALL.into_iter().all(|limit| file.has(limit)), "{file:?}");
        assert!(file.names().any(|name| name != DEFAULT));
    }

    #[test]
    fn a_token_has_its_own_limits_and_those_of_default() {
        let text = "default = {jobs = 3, requests_per_s = 2.5}\n[0123456789]\njobs = 7\nworkers = 8\n";
        let file = LimitsFile::parse(text.as_bytes()).unwrap();
        let of = |token: &str| Limit::ALL.map(|limit| file.of(token).get(limit));
        assert_eq!(of("0123456789"), [Some(7.0), Some(8.0), None, Some(2.5)]);
        assert_eq!(of("operator"), [Some(3.0), None, None, Some(2.5)]);
    }

    #[test]
    fn errors_name_the_value_and_the_rule_only() {
        for (text, named) in [
            ("# secret\n[default]\njob = 1", "line 3: unknown field `job`, expected one of `jobs`"),
            ("# secret\n[default]\njobs = \"x\"", "line 3: invalid type: string \"x\""),
            ("[default]\n\njobs = ", "line 3: "),
            ("[default]\njobs = 0", "table \"default\": jobs: 0 must be 1 to 10000"),
            ("[default]\njobs = -1", "line 2: invalid value: integer `-1`"),
            ("[operator]\nworkers = 2000000000", "workers: 2000000000 must be 1 to 1000000000"),
            ("[default]\nrequests_per_s = nan", "requests_per_s: NaN must be 0.001 to 1000000"),
            ("[default]\nrequests_per_s = 0", "requests_per_s: 0 must be 0.001 to"),
            ("[default]\ntelemetry_bytes_per_s = 1.5", "line 2: invalid type: floating point `1.5`"),
            ("[alice]\njobs = 1", "table \"alice\" must be default, operator, or the ID of a token"),
            ("jobs = 1", "line 1: invalid type: integer `1`"),
            ("", "must have a limit; if no token has one, start the predictor without --limits"),
            ("# secret\n", "must have a limit"),
            ("[default]\n", "must have a limit"),
            ("[default]\n[operator]\n", "must have a limit"),
            ("[default]\n[default]", "line 2: "),
        ] {
            let error = LimitsFile::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(named), "{named} in {error}");
            assert!(!error.contains("secret") && !error.contains('\n'), "{error}");
        }
        assert!(LimitsFile::parse(b"\xff").unwrap_err().contains("UTF-8"));
    }

    proptest! {
        #![proptest_config(config(256))]

        /// Whatever a file contains: an error in one line, or limits within their rules.
        #[test]
        fn any_file_is_limits_or_an_error(bytes in prop_oneof![arbitrary(), damaged(vec![example().into()])]) {
            match LimitsFile::parse(&bytes) {
                Ok(file) => prop_assert!(file.0.values().all(|limits| limits.check().is_ok())),
                Err(error) => prop_assert!(!error.contains('\n'), "{}", error),
            }
        }
    }
}
