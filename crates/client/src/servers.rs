//! The list of predictors that a client may use.

use std::fmt;
use std::str::FromStr;

/// Maximum number of servers in a list.
pub const SERVERS_MAX: usize = 16;

/// The base URL of connections to a Unix socket, which do not depend on it. Nothing can listen there, so it is never the address of a
/// server. Messages do not name it.
pub(crate) const LOCAL: &str = "http://127.0.0.1:0";

/// Base URLs of predictors that share one store, in order of preference. No URL occurs twice, and none ends with a slash.
///
/// # Examples
/// ```
/// use evenstep_client::Servers;
///
/// let servers: Servers = "http://a:7117, http://b:7117/".parse()?;
/// assert_eq!(servers.urls(), ["http://a:7117", "http://b:7117"]);
/// assert!("a:7117".parse::<Servers>().is_err());
/// # Ok::<(), evenstep_client::servers::InvalidServers>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers(Vec<String>);

/// Invalid list of servers. The message names the value and the broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?}: {rule}")]
pub struct InvalidServers {
    /// The invalid entry of the list.
    pub value: String,
    /// The rule.
    pub rule: String,
}

impl Servers {
    /// The list of [`LOCAL`] alone.
    pub(crate) fn local() -> Self {
        Self(vec![LOCAL.to_owned()])
    }

    /// Returns the base URLs in order; at least one.
    pub fn urls(&self) -> &[String] {
        &self.0
    }
}

impl FromStr for Servers {
    type Err = InvalidServers;

    fn from_str(text: &str) -> Result<Self, InvalidServers> {
        let invalid = |value: &str, rule: String| InvalidServers { value: value.to_owned(), rule };
        let mut servers: Vec<String> = Vec::new();
        for value in text.split(',').map(str::trim) {
            let rule = || "must be like http://host:port; separate several with commas".to_owned();
            let server = base_url(value).ok_or_else(|| invalid(value, rule()))?;
            if servers.contains(&server) {
                return Err(invalid(value, "occurs twice in the list".to_owned()));
            }
            if servers.len() == SERVERS_MAX {
                return Err(invalid(value, format!("exceeds the limit of at most {SERVERS_MAX} servers")));
            }
            servers.push(server);
        }
        Ok(Self(servers))
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Returns the base URL in a text, if it is one: scheme and host, optionally with a port and a path.
pub(crate) fn base_url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.strip_prefix('[') {
        Some(address) => {
            let (address, port) = address.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (address, port.strip_prefix(':').or(port.is_empty().then_some("80"))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "80")),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._~:".contains(c);
    let is_path = |c: char| c.is_ascii_alphanumeric() || "-._~/%@:+=".contains(c);
    let port: u16 = port.parse().ok()?;
    let is_base = !host.is_empty() && host.chars().all(is_name) && port > 0 && path.chars().all(is_path);
    is_base.then(|| text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_and_written_back() {
        for (written, read) in [
            ("http://127.0.0.1:7117", "http://127.0.0.1:7117"),
            (
                "http://a:1/, https://b/base/ ,http://[::1]:7117",
                "http://a:1,https://b/base,http://[::1]:7117",
            ),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(written.parse::<Servers>().unwrap().to_string(), read);
        }
        let seventeen: Vec<String> = (1..=17).map(|port| format!("http://a:{port}")).collect();
        for (list, value, rule) in [
            ("", "", "must be like"),
            ("a:1", "a:1", "must be like"),
            ("ftp://a", "ftp://a", "must be like"),
            ("http://", "http://", "must be like"),
            ("http://:7117", "http://:7117", "must be like"),
            ("http://a:", "http://a:", "must be like"),
            ("http://a:0", "http://a:0", "must be like"),
            ("http://a:65536", "http://a:65536", "must be like"),
            ("http://user@a", "http://user@a", "must be like"),
            ("http://a?b=c", "http://a?b=c", "must be like"),
            ("http://a b", "http://a b", "must be like"),
            ("http://[::x]:1", "http://[::x]:1", "must be like"),
            ("http://a:1,", "", "must be like"),
            ("http://a:1;http://b:1", "http://a:1;http://b:1", "must be like"),
            ("http://a:1,http://a:1/", "http://a:1/", "twice"),
            (&seventeen.join(","), "http://a:17", "at most 16"),
        ] {
            let error = list.parse::<Servers>().unwrap_err();
            assert_eq!(error.value, value, "{list}");
            assert!(error.rule.contains(rule), "{list}: {error}");
        }
    }
}
