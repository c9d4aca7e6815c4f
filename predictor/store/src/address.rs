//! Address of a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

use crate::error::StoreError;

/// A store address, the value of `--store`. Its `Display` omits the password.
#[derive(Debug, Clone)]
pub enum Address {
    /// `sqlite://FILE`
    Sqlite(PathBuf),
    /// `postgres://USER@HOST/DATABASE`, with the options of libpq (`sslmode`, `sslrootcert`, ..).
    Postgres(Box<PgConnectOptions>),
}

impl Address {
    /// Returns the file of an SQLite store.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(file) => Some(file),
            Self::Postgres(_) => None,
        }
    }
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(address: &str) -> Result<Self, StoreError> {
        if let Some(file) = address.strip_prefix("sqlite://").filter(|file| !file.is_empty()) {
            return Ok(Self::Sqlite(file.into()));
        }
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            // The error does not repeat the address, which may contain a password.
            let options = address.parse().map_err(|error: sqlx::Error| StoreError::Url(error.to_string()))?;
            return Ok(Self::Postgres(Box::new(options)));
        }
        Err(StoreError::Address(address.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(file) => write!(f, "sqlite://{}", file.display()),
            Self::Postgres(options) => {
                let (user, host, port) = (options.get_username(), options.get_host(), options.get_port());
                write!(f, "postgres://{user}@{host}:{port}/{}", options.get_database().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let address: Address =
            "postgres://ada:secret@db.example:5433/evenstep?sslmode=disable".parse().unwrap();
        assert_eq!(address.to_string(), "postgres://ada@db.example:5433/evenstep");
        let wrong = "postgres://ada:secret@db.example:port/evenstep".parse::<Address>().unwrap_err();
        assert!(!wrong.to_string().contains("secret"), "{wrong}");
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        for wrong in ["", "evenstep.db", "sqlite://", "mysql://host/evenstep"] {
            let said = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains(&format!("{wrong:?}")), "{said}");
        }
    }
}
