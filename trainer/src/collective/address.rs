//! Addresses on the command line.

use serde::{Deserialize, Serialize};

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// Host name or IP address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl std::str::FromStr for HostPort {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let rule = || format!("address {text:?} must be host:port");
        let (host, port) = text.rsplit_once(':').ok_or_else(rule)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(rule());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| rule())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let parse = |text: &str| text.parse::<HostPort>();
        assert_eq!(parse("node-a:29500"), Ok(HostPort { host: "node-a".into(), port: 29500 }));
        assert_eq!(parse("[::1]:1").unwrap().host, "::1");
        for bad in ["node-a", ":1", "node-a:", "node-a:70000"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
