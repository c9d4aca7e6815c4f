//! Where clients find the predictor: one address or several, and which of them is asked next. No I/O: the client sends.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most servers in a list.
pub const SERVERS_MAX: usize = 16;

/// How often one request is sent elsewhere, at most.
pub const HOPS_MAX: usize = 3;

/// Base URLs of predictors over one store, in order: none twice, each without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers(Vec<String>);

/// A list of servers that breaks its rule; the message names the value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?}: {rule}")]
pub struct InvalidServers {
    /// The part of the list that is wrong.
    pub value: String,
    /// What it must be.
    pub rule: String,
}

impl FromStr for Servers {
    type Err = InvalidServers;

    fn from_str(text: &str) -> Result<Self, InvalidServers> {
        let wrong = |value: &str, rule: String| InvalidServers { value: value.to_owned(), rule };
        let mut servers: Vec<String> = Vec::new();
        for value in text.split(',').map(str::trim) {
            let rule = || "must be like http://host:port; several are separated by commas".to_owned();
            let server = base(value).ok_or_else(|| wrong(value, rule()))?;
            if servers.contains(&server) {
                return Err(wrong(value, "stands there twice".to_owned()));
            }
            if servers.len() == SERVERS_MAX {
                return Err(wrong(value, format!("at most {SERVERS_MAX} servers")));
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

/// The base URL in a text, where it is one: scheme, host and perhaps port and path.
fn base(text: &str) -> Option<String> {
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

/// Which of several servers is asked: the one that answered last, and where it does not answer the others in order, each
/// once. One that sends us elsewhere (status 307) is followed, and whoever answers there is asked first from then on.
///
/// Clones share what they have learned.
#[derive(Debug, Clone)]
pub struct Route {
    servers: Servers,
    /// Who answered last: one of the list, or one that a server of the list pointed to.
    latest: Arc<Mutex<Option<String>>>,
}

/// One server's turn to be asked.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Its base URL.
    pub server: &'a str,
    /// Servers that will have their turn where this one does not answer.
    pub others: usize,
}

/// What came of one server's turn.
#[derive(Debug)]
pub enum Outcome<T, E> {
    /// It answered, if only with a refusal: nobody else is asked.
    Answered(T),
    /// It did not, or cannot at the moment: the next one is asked.
    Silent(E),
    /// Another one answers for it: the `Location` of its answer.
    Elsewhere(String),
}

/// Nobody answered: who was asked, and what came of it, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered<E> {
    /// Base URLs and reasons; not empty.
    pub tried: Vec<(String, E)>,
    /// Whether more than one server could be asked, so that reasons need names.
    several: bool,
}

impl<E: fmt::Display> fmt::Display for Unanswered<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (server, reason)) in self.tried.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "; " })?;
            if self.several {
                write!(f, "{server}: ")?;
            }
            write!(f, "{reason}")?;
        }
        Ok(())
    }
}

impl Route {
    /// A route to these servers, the first of them first.
    pub fn new(servers: Servers) -> Self {
        Self { servers, latest: Arc::default() }
    }

    /// Has `path` (with its query, if any) asked for: calls `send` with one server after the other until one answers.
    /// No more are asked than the one that answered last, those of the list, and [`HOPS_MAX`].
    ///
    /// # Errors
    /// Nobody answered.
    pub fn ask<T, E: From<String>>(
        &self,
        path: &str,
        mut send: impl FnMut(Turn<'_>) -> Outcome<T, E>,
    ) -> Result<T, Unanswered<E>> {
        let mut waiting = self.order();
        let mut tried: Vec<(String, E)> = Vec::new();
        let mut followed: Vec<String> = Vec::new();
        let mut several = waiting.len() > 1;
        while let Some(server) = waiting.pop_front() {
            let silent = match send(Turn { server: &server, others: waiting.len() }) {
                Outcome::Answered(answer) => {
                    *self.latest() = Some(server);
                    return Ok(answer);
                }
                Outcome::Silent(reason) => reason,
                Outcome::Elsewhere(location) => {
                    several = true;
                    let is_silent = |owner: &str| tried.iter().any(|(server, _)| server == owner);
                    match pointed_to(&location, path) {
                        None => E::from(format!(
                            "307 with the Location {location:?}, which must be like http://host:port{path}"
                        )),
                        Some(owner) if is_silent(&owner) => {
                            E::from(format!("it points to {owner}, which was asked already"))
                        }
                        Some(owner) if followed.len() == HOPS_MAX => {
                            let way = followed.join(" to ");
                            E::from(format!(
                                "307 to {owner} after {HOPS_MAX} others, which is too many: to {way}"
                            ))
                        }
                        Some(owner) => {
                            waiting.retain(|other| *other != owner);
                            waiting.push_front(owner.clone());
                            followed.push(owner);
                            continue;
                        }
                    }
                }
            };
            self.forget(&server);
            tried.push((server, silent));
        }
        Err(Unanswered { tried, several })
    }

    /// Who is asked first now.
    pub fn first(&self) -> String {
        self.latest().clone().unwrap_or_else(|| self.servers.0[0].clone())
    }

    /// Who answered last, then the list in its order, beginning behind that one.
    fn order(&self) -> VecDeque<String> {
        let mut order: VecDeque<String> = self.servers.0.iter().cloned().collect();
        if let Some(latest) = self.latest().clone() {
            match order.iter().position(|server| *server == latest) {
                Some(at) => order.rotate_left(at),
                None => order.push_front(latest),
            }
        }
        order
    }

    /// One that is not of the list is asked only as long as it answers.
    fn forget(&self, server: &str) {
        let mut latest = self.latest();
        if latest.as_deref() == Some(server) && !self.servers.0.iter().any(|listed| listed == server) {
            *latest = None;
        }
    }

    fn latest(&self) -> MutexGuard<'_, Option<String>> {
        // One value, replaced whole: a panic elsewhere leaves nothing half done.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The base URL of the server that a `Location` points to for `path`.
fn pointed_to(location: &str, path: &str) -> Option<String> {
    base(location.strip_suffix(path)?)
}

#[cfg(test)]
mod tests;
