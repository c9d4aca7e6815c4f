//! The token of a client.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use evenstep_tls::{InvalidFile, read_file};

/// Variable with a token.
const VARIABLE: &str = "EVENSTEP_TOKEN";
/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// The place of a client's token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Text(String),
    /// A file with the token. It is read again when the predictor rejects the token.
    File(PathBuf),
}

impl TokenSource {
    /// Returns the source that `EVENSTEP_TOKEN` or `EVENSTEP_TOKEN_FILE` names, if any. `variable` returns the value of
    /// an environment variable.
    ///
    /// # Errors
    /// Both variables are set, or the token is not Unicode.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, InvalidFile> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let invalid = |rule: &str| InvalidFile { path: VARIABLE.into(), rule: rule.to_owned() };
        match (variable(VARIABLE), variable("EVENSTEP_TOKEN_FILE")) {
            (None, None) => Ok(None),
            (None, Some(file)) => Ok(Some(Self::File(file.into()))),
            (Some(text), None) => {
                let text = text.into_string().map_err(|_| invalid("must be printable ASCII"))?;
                Ok(Some(Self::Text(text)))
            }
            (Some(_), Some(_)) => {
                Err(invalid("cannot be combined with EVENSTEP_TOKEN_FILE; set only one of them"))
            }
        }
    }

    /// Returns the token.
    ///
    /// # Errors
    /// The file cannot be read, or has no token.
    pub(crate) fn read(&self) -> Result<String, InvalidFile> {
        match self {
            Self::Text(text) => checked(VARIABLE.into(), text),
            Self::File(file) => {
                let contents = read_file(file, 2 * TOKEN_BYTES_MAX as u64);
                let contents = contents.map_err(|rule| InvalidFile { path: file.clone(), rule })?;
                checked(file.clone(), &String::from_utf8_lossy(&contents))
            }
        }
    }
}

/// The error does not repeat the value, which is a secret.
fn checked(path: PathBuf, text: &str) -> Result<String, InvalidFile> {
    let token = text.trim();
    let is_token =
        (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token {
        return Ok(token.to_owned());
    }
    Err(InvalidFile {
        path,
        rule: format!("must be 1 to {TOKEN_BYTES_MAX} printable ASCII characters without spaces"),
    })
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<TokenSource>, InvalidFile> {
        let pairs: Vec<(String, OsString)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
        TokenSource::of_environment(|name| {
            pairs.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn a_token_is_in_a_variable_or_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of-file\n").unwrap();
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("EVENSTEP_TOKEN", "")]), Ok(None));
        assert_eq!(of(&[("EVENSTEP_TOKEN", "of-variable")]).unwrap().unwrap().read().unwrap(), "of-variable");
        let source = of(&[("EVENSTEP_TOKEN_FILE", file.to_str().unwrap())]).unwrap().unwrap();
        assert_eq!(source.read().unwrap(), "of-file");
        let both =
            of(&[("EVENSTEP_TOKEN", "secret"), ("EVENSTEP_TOKEN_FILE", "file")]).unwrap_err().to_string();
        assert!(both.contains("EVENSTEP_TOKEN_FILE") && !both.contains("secret"), "{both}");
    }

    #[test]
    fn errors_and_debug_output_do_not_show_the_token() {
        let bad = TokenSource::Text("two words".to_owned());
        let error = bad.read().unwrap_err().to_string();
        assert!(error.contains("printable ASCII") && !error.contains("two words"), "{error}");
        assert!(!format!("{bad:?}").contains("two words"));
        let missing = TokenSource::File("/nonexistent/token".into()).read().unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/token: "), "{missing}");
    }
}
