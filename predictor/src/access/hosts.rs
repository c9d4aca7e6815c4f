//! Host names at which clients without a token may reach the predictor.
//!
//! With DNS rebinding, a web page points its own host name at an address that only the user's browser can reach. The
//! browser then takes the predictor for the server of that page, which may read and change everything. Only the name
//! in the header `Host` shows it. A request with a token needs no check: the page does not have the token, and the
//! browser sends a cookie only to the name that set it. Neither do connections with TLS: the certificate has another
//! name.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::Authority;

/// File with the host name of this machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Domains that the public DNS does not have, so that only the local network can define names in them.
const LOCAL_DOMAINS: [&str; 4] = [".home.arpa", ".internal", ".local", ".svc"];

/// A host name in lower case, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        match of_authority(text.trim()) {
            Some((name, false)) if name.chars().all(is_plain) => Ok(Self(name)),
            _ => Err(format!(
                "{text:?} must be a host name without scheme and port, such as predictor.example"
            )),
        }
    }
}

/// The accepted host names.
#[derive(Debug, Clone)]
pub struct Hosts(Option<Names>);

#[derive(Debug, Clone)]
struct Names {
    listed: Vec<HostName>,
    has_local_network: bool,
}

impl Hosts {
    /// All names, for connections with TLS or if every client needs a token.
    pub fn any() -> Self {
        Self(None)
    }

    /// `localhost`, the name of this machine, the host of `url` and those of `allowed`.
    ///
    /// If other machines can reach the predictor, also all names of the local network: without a dot, or in a domain that
    /// the public DNS does not have. Someone who can define such names can reach the predictor directly, unless `url` is a
    /// loopback address.
    pub fn new(allowed: &[HostName], url: Option<&str>, can_others_connect: bool) -> Self {
        let of_machine = std::fs::read_to_string(HOST_NAME).ok();
        let of_url = url.and_then(|url| url.parse::<Uri>().ok()?.host().map(str::to_owned));
        // A published port of a container, which only this machine can reach.
        let is_published = of_url.as_deref().is_some_and(is_loopback);
        let others = [of_machine, of_url];
        let others = others.into_iter().flatten().filter_map(|name| name.parse().ok());
        let listed = allowed.iter().cloned().chain(others).collect();
        Self(Some(Names { listed, has_local_network: can_others_connect && !is_published }))
    }

    /// Whether the value of a `Host` header is an IP address or an accepted name, with or without a port.
    pub fn accepts(&self, host: &str) -> bool {
        let Some(Names { listed, has_local_network }) = &self.0 else { return true };
        let Some((name, _)) = of_authority(host) else { return false };
        // DNS cannot redirect an address.
        let is_address = || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let is_local =
            || !name.contains('.') || LOCAL_DOMAINS.into_iter().any(|domain| name.ends_with(domain));
        let is_own = || name == "localhost" || name.ends_with(".localhost");
        let is_known = is_own() || is_address() || listed.iter().any(|known| known.0 == name);
        is_known || (*has_local_network && is_local())
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The name in lower case, and whether it has a port; `None` if it is no host.
fn of_authority(text: &str) -> Option<(String, bool)> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
    let name = authority.host();
    let has_port = text.len() > name.len();
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    (!name.is_empty()).then_some((name, has_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: [&str; 5] = [
        "predictor:7117",
        "p",
        "evenstep.default.svc",
        "p.team.svc.cluster.local",
        "host.docker.internal:7117",
    ];

    fn hosts(can_others_connect: bool) -> Hosts {
        let allowed = ["Predictor.Example".parse().unwrap()];
        Hosts::new(&allowed, Some("http://gpu-1.example.org:7117/below"), can_others_connect)
    }

    #[test]
    fn a_port_that_only_this_machine_can_reach_has_no_names_of_the_network() {
        for url in ["http://127.0.0.1:7117", "http://localhost:7117", "http://[::1]:7117"] {
            let hosts = Hosts::new(&["predictor".parse().unwrap()], Some(url), true);
            assert!(hosts.accepts("predictor:7117") && hosts.accepts("127.0.0.1:7117"), "{url}");
            assert!(hosts.accepts("evenstep.localhost") && !hosts.accepts("evil.local"), "{url}");
            assert!(!hosts.accepts("evil") && !hosts.accepts("notlocalhost"), "{url}");
        }
    }

    #[test]
    fn addresses_and_names_of_the_configuration_are_accepted() {
        for hosts in [hosts(false), hosts(true)] {
            for host in [
                "127.0.0.1:7117",
                "192.0.2.7",
                "[::1]:7117",
                "[2001:db8::7]",
                "localhost",
                "LocalHost.:7117",
                "predictor.example:80",
                "gpu-1.example.org",
            ] {
                assert!(hosts.accepts(host), "{host}");
            }
            for host in [
                "evil.test:7117",
                "predictor.example.evil.test",
                "localhost.evil.test",
                "127.0.0.1.evil.test",
                "predictor.example@evil.test",
                "evil.test@localhost",
                "1.2.3",
                "svc.evil.test",
                "",
                ":7117",
                "a b",
                "http://localhost",
            ] {
                assert!(!hosts.accepts(host), "{host}");
            }
        }
        let of_machine = std::fs::read_to_string(HOST_NAME).unwrap();
        assert!(hosts(false).accepts(of_machine.trim()));
        assert!(Hosts::any().accepts("evil.test"));
    }

    #[test]
    fn names_of_the_local_network_are_accepted_only_if_it_can_connect() {
        for host in LOCAL {
            assert!(hosts(true).accepts(host), "{host}");
            assert!(!hosts(false).accepts(host), "{host}");
        }
    }

    #[test]
    fn an_allowed_host_is_a_name() {
        for bad in ["http://predictor", "predictor:7117", "a/b", "", "a@b", "*.example"] {
            let error = bad.parse::<HostName>().map(|_| ()).unwrap_err();
            assert!(error.starts_with(&format!("{bad:?} must be a host name")), "{error}");
        }
    }
}
