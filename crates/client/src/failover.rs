//! Order of the predictors that receive a request. No I/O: the caller sends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::servers::{LOCAL, Servers, base_url};

/// Maximum number of redirects (status 307) that one request follows.
pub const REDIRECTS_MAX: usize = 3;

/// The order in which servers are tried: first the server that responded last, then the others of the list,
/// each once. A redirect (status 307) to another server is followed. A server that responds is tried first
/// from then on.
///
/// Clones share the list and the server that responded last.
#[derive(Debug, Clone)]
pub struct Failover(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    servers: Servers,
    /// The server that responded last: a server of the list, or one that a server of the list redirected to.
    latest: Option<String>,
}

/// An attempt at one server.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// Base URL of the server.
    pub server: &'a str,
    /// Number of servers that remain to be tried if this one does not respond.
    pub remaining: usize,
}

/// The outcome of an attempt at one server.
#[derive(Debug)]
pub enum Outcome<T, E> {
    /// The server responded, possibly with a rejection. No other server is tried.
    Responded(T),
    /// The server did not respond or cannot serve at the moment. The next server is tried.
    Unreachable(E),
    /// Another server is responsible: the `Location` of the response.
    Redirected(String),
}

/// Failure of all servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllUnreachable<E> {
    /// Base URLs and reasons in the order of the attempts; not empty.
    pub attempts: Vec<(String, E)>,
    /// Whether a server redirected the request to another one.
    pub redirected: bool,
}

impl<E: fmt::Display> fmt::Display for AllUnreachable<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (server, reason)) in self.attempts.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "; " })?;
            if server != LOCAL {
                write!(f, "{server}: ")?;
            }
            write!(f, "{reason}")?;
        }
        Ok(())
    }
}

impl Failover {
    /// Creates a failover that starts with the first server of the list.
    pub fn new(servers: Servers) -> Self {
        Self(Arc::new(Mutex::new(Known { servers, latest: None })))
    }

    /// Replaces the list. A server that is not in the new list is not tried any more.
    pub fn replace(&self, servers: Servers) {
        let mut known = self.known();
        let is_listed = |server: &String| servers.urls().contains(server);
        known.latest = known.latest.take().filter(is_listed);
        known.servers = servers;
    }

    /// Calls `send` with one server after the other until one responds to a request for `path` (with its
    /// query, if any). Tries at most the server that responded last, the servers of the list, and
    /// [`REDIRECTS_MAX`] further ones.
    ///
    /// # Errors
    /// No server responded.
    pub fn request<T, E: From<String>>(
        &self,
        path: &str,
        mut send: impl FnMut(Attempt<'_>) -> Outcome<T, E>,
    ) -> Result<T, AllUnreachable<E>> {
        let mut waiting = self.order();
        let mut attempts: Vec<(String, E)> = Vec::new();
        let mut followed: Vec<String> = Vec::new();
        let mut redirected = false;
        while let Some(server) = waiting.pop_front() {
            let reason = match send(Attempt { server: &server, remaining: waiting.len() }) {
                Outcome::Responded(response) => {
                    self.known().latest = Some(server);
                    return Ok(response);
                }
                Outcome::Unreachable(reason) => reason,
                Outcome::Redirected(location) => {
                    redirected = true;
                    let has_failed = |owner: &str| attempts.iter().any(|(server, _)| server == owner);
                    match redirect_target(&location, path) {
                        None => E::from(format!(
                            "307 with the Location {location:?}, which must be like http://host:port{path}"
                        )),
                        Some(owner) if is_encrypted(&server) && !is_encrypted(&owner) => E::from(format!(
                            "redirects to {owner}, which is not encrypted; set --url of that predictor to https://"
                        )),
                        Some(owner) if has_failed(&owner) => {
                            E::from(format!("redirects to {owner}, which was tried before"))
                        }
                        Some(owner) if followed.len() == REDIRECTS_MAX => {
                            let way = followed.join(" to ");
                            E::from(format!(
                                "307 to {owner} exceeds the limit of {REDIRECTS_MAX} redirects: to {way}"
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
            attempts.push((server, reason));
        }
        Err(AllUnreachable { attempts, redirected })
    }

    /// Returns the server that is tried first.
    pub fn first(&self) -> String {
        let known = self.known();
        known.latest.clone().unwrap_or_else(|| known.servers.urls()[0].clone())
    }

    /// Returns the server that responded last, then the rest of the list in order, starting after that
    /// server.
    fn order(&self) -> VecDeque<String> {
        let known = self.known();
        let mut order: VecDeque<String> = known.servers.urls().iter().cloned().collect();
        if let Some(latest) = &known.latest {
            match order.iter().position(|server| server == latest) {
                Some(at) => order.rotate_left(at),
                None => order.push_front(latest.clone()),
            }
        }
        order
    }

    /// Forgets a server outside the list that does not respond.
    fn forget(&self, server: &str) {
        let mut known = self.known();
        if known.latest.as_deref() == Some(server)
            && !known.servers.urls().iter().any(|listed| listed == server)
        {
            known.latest = None;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change leaves the value valid, so a panic of another thread does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_encrypted(server: &str) -> bool {
    server.starts_with("https://")
}

/// Returns the base URL of the server to which a `Location` redirects a request for `path`.
fn redirect_target(location: &str, path: &str) -> Option<String> {
    base_url(location.strip_suffix(path)?)
}

#[cfg(test)]
mod tests;
