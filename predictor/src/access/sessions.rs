//! Sessions of the page: a browser that sent a token gets a cookie instead of keeping the token.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rand::CryptoRng;
use sha2::{Digest, Sha256};

use super::caller::Caller;
use super::known::Auth;
use super::shares::{Full, Share, Shares};

/// Duration of a session, in seconds.
pub const SESSION_S: i64 = 12 * 3600;
/// Limit of sessions, which tokens share. If a token has its share, its oldest session ends.
const SESSIONS_MAX: usize = 1000;
/// Number of random bytes in a key.
const KEY_BYTES: usize = 32;

/// The key of a session, the value of the cookie. Its `Debug` output omits it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(String);

impl SessionKey {
    fn random(random: &mut impl CryptoRng) -> Self {
        let mut bytes = [0; KEY_BYTES];
        random.fill_bytes(&mut bytes);
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The text of the cookie.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// SHA-256 of the key of a session, so that the time of a search says nothing about keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionId([u8; 32]);

impl SessionId {
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }
}

/// The open sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    open: HashMap<SessionId, Session>,
    places: Shares,
}

#[derive(Debug)]
struct Session {
    token_id: Arc<str>,
    begun_ms: i64,
    place: Share,
}

impl Sessions {
    pub fn new(auth: Auth) -> Self {
        Self { open: HashMap::new(), places: Shares::new(auth, SESSIONS_MAX, "sessions") }
    }

    /// Begins a session of a client's token. Sessions of tokens that `is_known` does not know have ended.
    ///
    /// # Errors
    /// Other tokens have all sessions.
    pub fn begin(
        &mut self,
        caller: &Caller,
        token_id: Arc<str>,
        is_known: impl Fn(&str) -> bool,
        now_ms: i64,
        random: &mut impl CryptoRng,
    ) -> Result<SessionKey, Full> {
        self.open.retain(|_, session| session.is_open(now_ms) && is_known(&session.token_id));
        let place = match self.places.try_take(caller, 1) {
            Err(full) => {
                let own = self.open.iter().filter(|(_, session)| session.token_id == token_id);
                let oldest = own.min_by_key(|(_, session)| session.begun_ms).map(|(id, _)| id.clone());
                // Its place is used again: the share may have become smaller, so another one may not be free.
                oldest.and_then(|oldest| self.open.remove(&oldest)).ok_or(full)?.place
            }
            Ok(place) => place,
        };
        let key = SessionKey::random(random);
        let session = Session { token_id, begun_ms: now_ms, place };
        self.open.insert(SessionId::of(key.reveal()), session);
        Ok(key)
    }

    /// The token of a session; `None` if the session does not exist or has ended.
    pub fn token_id(&self, id: &SessionId, now_ms: i64) -> Option<Arc<str>> {
        let session = self.open.get(id).filter(|session| session.is_open(now_ms))?;
        Some(session.token_id.clone())
    }

    /// Ends a session.
    pub fn end(&mut self, id: &SessionId) {
        self.open.remove(id);
    }
}

impl Session {
    fn is_open(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.begun_ms) < SESSION_S * 1000
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::access::JobPattern;

    fn caller(token_id: &str) -> Caller {
        Caller::with_token(token_id.into(), &[], JobPattern::all())
    }

    fn begin(sessions: &mut Sessions, token_id: &str, now_ms: i64, seed: u64) -> Result<SessionId, Full> {
        let mut random = rand_chacha::ChaCha20Rng::seed_from_u64(seed);
        let key =
            sessions.begin(&caller(token_id), token_id.into(), |id| id != "revoked", now_ms, &mut random);
        key.map(|key| SessionId::of(key.reveal()))
    }

    #[test]
    fn sessions_end() {
        let mut sessions = Sessions::new(Auth::Required);
        let id = begin(&mut sessions, "a", 0, 0).unwrap();
        let ends = SESSION_S * 1000;
        assert_eq!(sessions.token_id(&id, ends - 1).as_deref(), Some("a"));
        assert_eq!(sessions.token_id(&id, ends), None);
        assert_eq!(sessions.token_id(&SessionId::of(""), 0), None);
        sessions.end(&id);
        assert_eq!(sessions.token_id(&id, 0), None);
    }

    #[test]
    fn a_token_may_sign_in_after_its_share_became_smaller() {
        let mut sessions = Sessions::new(Auth::Required);
        let first = begin(&mut sessions, "a", 0, 0).unwrap();
        for number in 1..SESSIONS_MAX as u64 / 2 {
            begin(&mut sessions, "a", number as i64, number).unwrap();
        }
        for number in 0..SESSIONS_MAX as u64 / 4 {
            begin(&mut sessions, "other", 1_000, 10_000 + number).unwrap();
        }
        let open = sessions.open.len();
        let last = begin(&mut sessions, "a", 2_000, 20_000).unwrap();
        assert_eq!(sessions.token_id(&last, 2_000).as_deref(), Some("a"));
        assert_eq!((sessions.token_id(&first, 2_000), sessions.open.len()), (None, open), "the oldest ended");
        assert_eq!(sessions.places.in_use(), open);
    }

    #[test]
    fn sign_ins_of_a_token_end_only_its_own_sessions() {
        let mut sessions = Sessions::new(Auth::Required);
        let other = begin(&mut sessions, "other", 0, 0).unwrap();
        let first = begin(&mut sessions, "a", 1, 1).unwrap();
        let mut last = first.clone();
        for number in 2..2 * SESSIONS_MAX as u64 {
            last = begin(&mut sessions, "a", number as i64, number).unwrap();
            assert!(sessions.open.len() <= SESSIONS_MAX / 2 + 1);
        }
        assert_eq!(sessions.token_id(&first, 5_000), None, "its oldest one ended");
        assert_eq!(sessions.token_id(&last, 5_000).as_deref(), Some("a"));
        assert_eq!(sessions.token_id(&other, 5_000).as_deref(), Some("other"));
        let revoked = begin(&mut sessions, "revoked", 5_000, 1 << 20).unwrap();
        begin(&mut sessions, "other", 5_000, 1 << 21).unwrap();
        assert_eq!(sessions.token_id(&revoked, 5_000), None, "the session of a revoked token takes no place");
    }
}
