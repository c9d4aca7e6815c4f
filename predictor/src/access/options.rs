//! Options of a new token.

use evenstep_store::access::{AuditEntry, StoredToken};
use rand::CryptoRng;

use super::pattern::JobPattern;
use super::scope::Scope;
use super::token::Token;

/// Limit of a note, in bytes.
const NOTE_BYTES_MAX: usize = 256;

/// Options of a new token.
#[derive(Debug, Clone)]
pub struct TokenOptions {
    scope: Scope,
    jobs: JobPattern,
    expires_s: Option<u64>,
    note: String,
}

impl TokenOptions {
    /// Checks options.
    ///
    /// # Errors
    /// A message that names the value and the rule.
    pub fn new(scope: Scope, jobs: JobPattern, expires_s: Option<u64>, note: String) -> Result<Self, String> {
        if !scope.has_jobs() && !jobs.is_all() {
            return Err(format!(
                "jobs: {jobs} cannot be combined with the scope {scope}, which is not about jobs; use *"
            ));
        }
        if note.len() > NOTE_BYTES_MAX || note.chars().any(char::is_control) {
            return Err(format!(
                "note: {note:?} must be at most {NOTE_BYTES_MAX} bytes without control characters"
            ));
        }
        Ok(Self { scope, jobs, expires_s, note })
    }

    /// Creates a random token with these options.
    pub fn create(&self, now_unix_ms: i64, random: &mut impl CryptoRng) -> (Token, StoredToken) {
        let token = Token::random(random);
        let expires_ms = self.expires_s.map(|seconds| i64::try_from(seconds * 1000).unwrap_or(i64::MAX));
        let stored = StoredToken {
            token_id: token.id().to_owned(),
            secret_sha256: token.secret_sha256().into(),
            scope: self.scope.to_string(),
            jobs: self.jobs.to_string(),
            note: self.note.clone(),
            created_unix_ms: now_unix_ms,
            expires_unix_ms: expires_ms.map(|after| now_unix_ms.saturating_add(after)),
            last_used_unix_ms: None,
        };
        (token, stored)
    }

    /// The subject of the audit entry of its creation.
    pub fn subject(&self, token_id: &str) -> String {
        format!("{token_id} (scope {}, jobs {})", self.scope, self.jobs)
    }
}

/// Writes an entry of the audit log, which is durable in the store, to the program's log.
pub fn log_audit(entry: &AuditEntry) {
    let AuditEntry { actor, address, action, subject } = entry;
    tracing::info!(target: "evenstep_predictor::audit", actor, address, action, subject, "audit");
}
