//! The known tokens, and the identification of clients.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use evenstep_observability::metrics::prometheus::IntCounterVec;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::{collect, counters};
use evenstep_store::access::StoredToken;
use rand::CryptoRng;
use subtle::ConstantTimeEq;

use super::caller::Caller;
use super::pattern::JobPattern;
use super::scope::Scope;
use super::sessions::{SessionId, SessionKey, Sessions};
use super::shares::Full;
use super::throttle::{FAILURES_MAX, Throttle};
use super::token::Token;
use crate::clock::Clock;

/// Scopes of clients without a token, if they need none.
const WITHOUT_TOKEN: [Scope; 5] =
    [Scope::Agent, Scope::Trainer, Scope::Viewer, Scope::Operator, Scope::Metrics];
/// The same, if the configuration has an operator token.
const WITHOUT_OPERATOR_TOKEN: [Scope; 4] = [Scope::Agent, Scope::Trainer, Scope::Viewer, Scope::Metrics];
/// Name of the token in the configuration.
pub(super) const OPERATOR: &str = "operator";

/// Whether clients need tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Auth {
    /// Tokens are ignored.
    None,
    /// A token that is sent must be valid. Clients without one may do everything.
    Optional,
    /// Every client needs a token.
    Required,
}

/// The known tokens.
#[derive(Debug)]
pub struct Access {
    auth: Auth,
    operator: Option<Arc<str>>,
    clock: Clock,
    tokens: RwLock<HashMap<String, Arc<Known>>>,
    throttle: Mutex<Throttle>,
    sessions: Mutex<Sessions>,
    rejected: IntCounterVec,
}

/// A token of the store.
#[derive(Debug)]
struct Known {
    token_id: Arc<str>,
    secret_sha256: Vec<u8>,
    scope: Scope,
    jobs: JobPattern,
    expires_unix_ms: Option<i64>,
    /// Time of the latest use; 0 before the first.
    used_unix_ms: AtomicI64,
}

/// The reason why a client was not identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The client sent no token.
    Missing,
    /// The token does not exist, or was revoked.
    Unknown,
    /// The token has expired.
    Expired,
    /// The session of the page has ended.
    SessionEnded,
    /// The address sent too many wrong tokens, and may retry after this time in seconds.
    Throttled(u64),
}

impl Denied {
    const LABELS: [&str; 5] = ["missing", "unknown", "expired", "session_ended", "throttled"];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::SessionEnded => "session_ended",
            Self::Throttled(_) => "throttled",
        }
    }
}

/// Means by which a client identifies itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The token after `Bearer`.
    pub bearer: Option<&'a str>,
    /// The value of the page's cookie.
    pub session: Option<&'a str>,
    /// The IP address.
    pub address: Option<IpAddr>,
}

impl Access {
    /// Access without known tokens. `operator` is the operator token of the configuration.
    pub fn new(auth: Auth, operator: Option<&str>, clock: Clock) -> Self {
        let rejected = counters(
            "evenstep_auth_rejected_total",
            "Requests rejected because of a missing or invalid token.",
            &["reason"],
        );
        for label in Denied::LABELS {
            rejected.with_label_values(&[label]);
        }
        Self {
            auth,
            operator: operator.map(Arc::from),
            clock,
            tokens: RwLock::default(),
            throttle: Mutex::default(),
            sessions: Mutex::new(Sessions::new(auth)),
            rejected,
        }
    }

    /// The current time, in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> i64 {
        self.clock.now_unix_ms()
    }

    /// Whether clients need tokens.
    pub fn auth(&self) -> Auth {
        self.auth
    }

    /// Whether the configuration has an operator token.
    pub fn has_operator_token(&self) -> bool {
        self.operator.is_some()
    }

    /// Replaces the known tokens. A token with a scope or pattern that this version does not know is ignored.
    pub fn replace(&self, stored: Vec<StoredToken>) {
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let known = stored.into_iter().filter_map(|token| {
            let used =
                tokens.get(&token.token_id).map_or(0, |known| known.used_unix_ms.load(Ordering::Relaxed));
            let (Ok(scope), Ok(jobs)) = (token.scope.parse(), token.jobs.parse()) else {
                tracing::warn!(
                    token = token.token_id,
                    scope = token.scope,
                    jobs = token.jobs,
                    "ignoring a token of another version"
                );
                return None;
            };
            let known = Known {
                token_id: token.token_id.as_str().into(),
                secret_sha256: token.secret_sha256,
                scope,
                jobs,
                expires_unix_ms: token.expires_unix_ms,
                used_unix_ms: AtomicI64::new(token.last_used_unix_ms.unwrap_or(0).max(used)),
            };
            Some((token.token_id, Arc::new(known)))
        });
        let known = known.collect();
        *tokens = known;
    }

    /// Whether a text is a known token, or cannot be a token of the store. A token with a known ID and a wrong secret is not
    /// known: both responses must take the same time.
    pub fn knows(&self, bearer: &str) -> bool {
        Token::parse(bearer).is_none_or(|token| self.verified(&token).is_some())
    }

    /// Whether a token with this ID exists.
    pub fn has(&self, token_id: &str) -> bool {
        (token_id == OPERATOR && self.operator.is_some()) || self.known(token_id).is_some()
    }

    /// Times of the latest use since `since_unix_ms`, in milliseconds since 1970, by token.
    pub fn used_since(&self, since_unix_ms: i64) -> Vec<(String, i64)> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let used = tokens.iter().map(|(id, known)| (id.clone(), known.used_unix_ms.load(Ordering::Relaxed)));
        used.filter(|(_, at)| *at > since_unix_ms).collect()
    }

    /// Identifies the client of a request.
    ///
    /// # Errors
    /// The reason why the client was not identified.
    pub fn identify(&self, sent: Credentials<'_>) -> Result<Caller, Denied> {
        let caller = match (sent.bearer, sent.session) {
            (Some(text), _) => self.with_bearer(text, sent.address),
            (None, Some(key)) if self.auth != Auth::None => self.with_session(SessionId::of(key)),
            (None, _) => self.without_token(),
        };
        self.counted(caller, sent.address)
    }

    /// Whether a client that was identified before may still do the same: its token is valid, and its session is open.
    pub fn holds(&self, caller: &Caller) -> bool {
        let now = match (caller.session(), caller.token_id()) {
            (Some(session), _) => self.with_session(session.clone()),
            (None, None) => self.without_token(),
            (None, Some(token_id)) => self.with_id(token_id).unwrap_or(Err(Denied::Unknown)),
        };
        now.is_ok_and(|now| now.may_do_as(caller))
    }

    /// Begins a session of the page for a token. The inner error: other tokens have all sessions.
    ///
    /// # Errors
    /// The reason why the token is not accepted.
    pub fn begin_session(
        &self,
        token: &str,
        address: Option<IpAddr>,
        random: &mut impl CryptoRng,
    ) -> Result<Result<(Caller, SessionKey), Full>, Denied> {
        let caller = match self.with_bearer(token, address) {
            // Each failed sign-in is recorded, so an expired token counts as a wrong one.
            Err(Denied::Expired) => match self.wait_s(address) {
                Some(wait_s) => Err(Denied::Throttled(wait_s)),
                None => {
                    self.failed(address);
                    Err(Denied::Expired)
                }
            },
            caller => caller,
        };
        let caller = self.counted(caller, address)?;
        let token_id = caller.token_id().ok_or(Denied::Unknown)?;
        let (is_known, now_ms) = (|token_id: &str| self.has(token_id), self.clock.steady_ms());
        let key = self.sessions().begin(&caller, token_id.into(), is_known, now_ms, random);
        Ok(key.map(|key| (caller, key)))
    }

    /// Ends a session of the page.
    pub fn end_session(&self, key: &str) {
        self.sessions().end(&SessionId::of(key));
    }

    /// The metric families.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        collect(&mut families, &self.rejected, []);
        families
    }

    fn with_bearer(&self, text: &str, address: Option<IpAddr>) -> Result<Caller, Denied> {
        let wait_s = self.wait_s(address);
        let is_operator = |operator: &Arc<str>| operator.as_bytes().ct_eq(text.as_bytes()).into();
        // A person chose it and it could be guessed, so it is not compared while the address must wait.
        if wait_s.is_none() && self.operator.as_ref().is_some_and(is_operator) {
            return Ok(self.operator());
        }
        match Token::parse(text) {
            Some(token) if self.auth != Auth::None => match self.with_token(&token) {
                Err(Denied::Unknown) => {}
                identified => return identified,
            },
            // Clients may send the token of another predictor.
            Some(_) => return self.without_token(),
            None if self.auth == Auth::None && self.operator.is_none() => return self.without_token(),
            None => {}
        }
        if let Some(wait_s) = wait_s {
            return Err(Denied::Throttled(wait_s));
        }
        self.failed(address);
        if self.auth == Auth::None { self.without_token() } else { Err(Denied::Unknown) }
    }

    /// Adds the address to a client, or counts the rejection.
    fn counted(&self, caller: Result<Caller, Denied>, address: Option<IpAddr>) -> Result<Caller, Denied> {
        caller
            .map(|caller| caller.at(address))
            .inspect_err(|denied| self.rejected.with_label_values(&[denied.label()]).inc())
    }

    /// The seconds that an address must wait; `None` if it need not wait.
    fn wait_s(&self, address: Option<IpAddr>) -> Option<u64> {
        address.and_then(|address| self.throttle().wait_s(address, self.clock.steady_ms()))
    }

    /// Counts a wrong token of an address.
    fn failed(&self, address: Option<IpAddr>) {
        if let Some(address) = address
            && self.throttle().failed(address, self.clock.steady_ms())
        {
            tracing::warn!(%address, "an address sent {FAILURES_MAX} wrong tokens in a minute; it has to wait");
        }
    }

    fn with_token(&self, token: &Token) -> Result<Caller, Denied> {
        let known = self.verified(token).ok_or(Denied::Unknown)?;
        self.used(&known)
    }

    /// The known token with this ID and secret. Takes the same time for an unknown ID and for a wrong secret.
    fn verified(&self, token: &Token) -> Option<Arc<Known>> {
        let known = self.known(token.id());
        let expected = known.as_ref().map_or(&[0; 32][..], |known| &known.secret_sha256);
        if token.has_sha256(expected) { known } else { None }
    }

    fn with_session(&self, session: SessionId) -> Result<Caller, Denied> {
        let token_id = self.sessions().token_id(&session, self.clock.steady_ms());
        let caller = token_id.and_then(|token_id| self.with_id(&token_id)).ok_or(Denied::SessionEnded)?;
        caller.map(|caller| caller.in_session(session))
    }

    /// The client with a token of this ID; `None` if there is no such token.
    fn with_id(&self, token_id: &str) -> Option<Result<Caller, Denied>> {
        if token_id == OPERATOR && self.operator.is_some() {
            return Some(Ok(self.operator()));
        }
        self.known(token_id).map(|known| self.used(&known))
    }

    fn without_token(&self) -> Result<Caller, Denied> {
        match (self.auth, &self.operator) {
            (Auth::Required, _) => Err(Denied::Missing),
            (_, Some(_)) => Ok(Caller::anonymous(&WITHOUT_OPERATOR_TOKEN)),
            (_, None) => Ok(Caller::anonymous(&WITHOUT_TOKEN)),
        }
    }

    /// The client with the operator token of the configuration. Without other tokens, it may also do what everyone may.
    fn operator(&self) -> Caller {
        let scopes: &[Scope] = if self.auth == Auth::None { &WITHOUT_TOKEN } else { &[Scope::Operator] };
        Caller::with_token(OPERATOR.into(), scopes, JobPattern::all())
    }

    fn known(&self, token_id: &str) -> Option<Arc<Known>> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).get(token_id).cloned()
    }

    fn used(&self, known: &Known) -> Result<Caller, Denied> {
        let now_unix_ms = self.clock.now_unix_ms();
        if known.expires_unix_ms.is_some_and(|expires| expires <= now_unix_ms) {
            return Err(Denied::Expired);
        }
        known.used_unix_ms.fetch_max(now_unix_ms, Ordering::Relaxed);
        Ok(Caller::with_token(known.token_id.clone(), &[known.scope], known.jobs.clone()))
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
