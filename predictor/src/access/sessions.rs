//! Sessions of the page: a browser that sent a token gets a cookie instead of keeping the token.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rand::CryptoRng;
use sha2::{Digest, Sha256};

/// Duration of a session, in seconds.
pub const SESSION_S: i64 = 12 * 3600;
/// Limit of sessions; the oldest one ends.
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

/// The open sessions, by the SHA-256 of their key, so that the time of a search says nothing about keys.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<[u8; 32], Session>);

#[derive(Debug)]
struct Session {
    token_id: Arc<str>,
    begun_ms: i64,
}

impl Sessions {
    /// Begins a session of a token.
    pub fn begin(&mut self, token_id: Arc<str>, now_ms: i64, random: &mut impl CryptoRng) -> SessionKey {
        self.0.retain(|_, session| session.is_open(now_ms));
        let oldest = self.0.iter().min_by_key(|(_, session)| session.begun_ms).map(|(key, _)| *key);
        if let Some(oldest) = oldest.filter(|_| self.0.len() >= SESSIONS_MAX) {
            self.0.remove(&oldest);
        }
        let key = SessionKey::random(random);
        self.0.insert(hash(key.reveal()), Session { token_id, begun_ms: now_ms });
        key
    }

    /// The token of a session; `None` if the session does not exist or has ended.
    pub fn token_id(&self, key: &str, now_ms: i64) -> Option<Arc<str>> {
        let session = self.0.get(&hash(key)).filter(|session| session.is_open(now_ms))?;
        Some(session.token_id.clone())
    }

    /// Ends a session.
    pub fn end(&mut self, key: &str) {
        self.0.remove(&hash(key));
    }
}

impl Session {
    fn is_open(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.begun_ms) < SESSION_S * 1000
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let mut random = rand_chacha::ChaCha20Rng::seed_from_u64(7);
        let mut sessions = Sessions::default();
        let key = sessions.begin("a".into(), 0, &mut random);
        let ends = SESSION_S * 1000;
        assert_eq!(sessions.token_id(key.reveal(), ends - 1).as_deref(), Some("a"));
        assert_eq!(sessions.token_id(key.reveal(), ends), None);
        assert_eq!(sessions.token_id("", 0), None);
        for number in 1..2 * SESSIONS_MAX as i64 {
            sessions.begin("b".into(), number, &mut random);
            assert!(sessions.0.len() <= SESSIONS_MAX);
        }
        assert_eq!(sessions.token_id(key.reveal(), 1), None, "the oldest one ended");
        let last = sessions.begin("c".into(), 5_000, &mut random);
        sessions.end(last.reveal());
        assert_eq!(sessions.token_id(last.reveal(), 5_000), None);
    }
}
