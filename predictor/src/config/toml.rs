//! TOML files, with errors that do not show their contents.

use figment::providers::{Format, Toml};
use serde::de::DeserializeOwned;

/// Parses a file.
///
/// # Errors
/// The line and the rule. The error itself would show the whole line, which may have a secret.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    Toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", error.message().trim().replace('\n', ", "))
    })
}
