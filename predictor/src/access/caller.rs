//! The client of a request, as far as the predictor knows it.

use std::net::IpAddr;
use std::sync::Arc;

use evenstep_protocol::JobId;
use evenstep_store::access::AuditEntry;

use super::known::Denied;
use super::pattern::JobPattern;
use super::scope::Scope;
use super::sessions::SessionId;
use super::token::Token;

/// The client of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its token; `None` without one.
    token_id: Option<Arc<str>>,
    /// The session of the page by which it was identified, if any.
    session: Option<SessionId>,
    scopes: Scopes,
    jobs: JobPattern,
    address: Option<IpAddr>,
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scopes(u8);

impl Scopes {
    fn of(scopes: &[Scope]) -> Self {
        Self(scopes.iter().fold(0, |all, scope| all | 1 << *scope as u8))
    }

    fn overlap(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl Caller {
    /// The client with this token.
    pub(super) fn with_token(token_id: Arc<str>, scopes: &[Scope], jobs: JobPattern) -> Self {
        Self { token_id: Some(token_id), session: None, scopes: Scopes::of(scopes), jobs, address: None }
    }

    /// A client without a token that has these scopes.
    pub fn anonymous(scopes: &[Scope]) -> Self {
        Self {
            token_id: None,
            session: None,
            scopes: Scopes::of(scopes),
            jobs: JobPattern::all(),
            address: None,
        }
    }

    /// Sets the IP address of the client.
    #[must_use]
    pub(super) fn at(self, address: Option<IpAddr>) -> Self {
        Self { address, ..self }
    }

    /// Sets the session of the page.
    #[must_use]
    pub(super) fn in_session(self, session: SessionId) -> Self {
        Self { session: Some(session), ..self }
    }

    /// The session of the page.
    pub(super) fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The ID of its token, to share.
    pub(super) fn token(&self) -> &Option<Arc<str>> {
        &self.token_id
    }

    /// Whether another client may do the same.
    pub(super) fn may_do_as(&self, other: &Self) -> bool {
        self.scopes == other.scopes && self.jobs == other.jobs
    }

    /// Whether the client has one of these scopes. An admin has all of them.
    pub fn has(&self, scopes: &[Scope]) -> bool {
        self.scopes.overlap(Scopes::of(&[Scope::Admin])) || self.scopes.overlap(Scopes::of(scopes))
    }

    /// The ID of its token, if it sent one.
    pub fn token_id(&self) -> Option<&str> {
        self.token_id.as_deref()
    }

    /// The names of its scopes.
    pub fn scopes(&self) -> Vec<&'static str> {
        let has = |scope: &Scope| self.scopes.overlap(Scopes::of(&[*scope]));
        Scope::ALL.into_iter().filter(has).map(Scope::name).collect()
    }

    /// The jobs that the client may use.
    pub fn jobs(&self) -> &JobPattern {
        &self.jobs
    }

    /// Whether the client may use this job.
    pub fn may_use(&self, job_id: &JobId) -> bool {
        self.jobs.includes(job_id)
    }

    /// The entry of the audit log for a sign-in with a token that is not valid. A text that is not a token is not repeated: it may
    /// be a password.
    pub fn audit_failed_sign_in(text: &str, address: Option<IpAddr>, denied: Denied) -> AuditEntry {
        let token =
            Token::parse(text).map_or_else(|| "no token".to_owned(), |token| format!("token {}", token.id()));
        let subject = format!("{token}: {}", denied.label());
        Self::anonymous(&[]).at(address).audit("session.failed", subject)
    }

    /// The entry of the audit log for a change that this client makes. `action` is the kind of the subject and a verb,
    /// such as `job.delete`.
    pub fn audit(&self, action: &str, subject: impl Into<String>) -> AuditEntry {
        let actor =
            self.token_id.as_deref().map_or_else(|| "anonymous".to_owned(), |id| format!("token {id}"));
        let address = self.address.map(|address| address.to_string());
        AuditEntry { actor, address, action: action.to_owned(), subject: subject.into() }
    }
}
