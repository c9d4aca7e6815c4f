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
            if let Some(hosts) = several_hosts(address) {
                return Err(StoreError::Hosts(hosts.to_owned()));
            }
            // The error does not repeat the address, which may contain a password.
            let options: PgConnectOptions =
                address.parse().map_err(|error: sqlx::Error| StoreError::Url(error.to_string()))?;
            // From a parameter, or from a variable of libpq.
            if options.get_host().contains(',') {
                return Err(StoreError::Hosts(options.get_host().to_owned()));
            }
            return Ok(Self::Postgres(Box::new(options)));
        }
        Err(StoreError::Address(address.into()))
    }
}

/// The hosts of a URL that names several, as libpq accepts. The part before them may contain a password.
fn several_hosts(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let hosts = authority.rsplit('@').next()?;
    hosts.contains(',').then_some(hosts)
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

    /// The driver would look for one host of this name.
    #[test]
    fn several_hosts_are_an_error() {
        for (address, hosts) in [
            ("postgres://ada:secret@db-1,db-2/evenstep", "db-1,db-2"),
            ("postgresql://ada:sec,ret@db-1:5432,db-2:5433/evenstep?sslmode=disable", "db-1:5432,db-2:5433"),
            ("postgres://db-1,db-2?target_session_attrs=read-write", "db-1,db-2"),
            ("postgres:///evenstep?user=ada&password=secret&host=db-1,db-2", "db-1,db-2"),
        ] {
            let said = address.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains(&format!("{hosts:?}")) && said.contains("one host"), "{said}");
            assert!(!said.contains("sec"), "{said}");
        }
        assert!("postgres://ada:a,b@db/evenstep".parse::<Address>().is_ok(), "a password with a comma");
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        for wrong in ["", "evenstep.db", "sqlite://", "mysql://host/evenstep"] {
            let said = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains(&format!("{wrong:?}")), "{said}");
        }
    }
}
