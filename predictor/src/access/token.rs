//! The text of tokens: `evenstep_ID_SECRET`.

use std::fmt;

use rand::CryptoRng;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Beginning of every token, by which scanners for leaked secrets can find it.
const PREFIX: &str = "evenstep_";
/// Number of hexadecimal digits of the public part.
const ID_DIGITS: usize = 10;
/// Number of hexadecimal digits of the secret part: 256 bits.
const SECRET_DIGITS: usize = 64;

/// The generator of tokens and sessions. It is cryptographic, and seeded by the system.
#[expect(clippy::disallowed_methods, reason = "a secret must not be reproducible")]
pub fn secrets() -> impl CryptoRng {
    rand::rng()
}

/// A token as a client sends it. Its `Debug` output omits the secret part.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

impl Token {
    /// Creates a random token.
    pub fn random(random: &mut impl CryptoRng) -> Self {
        let mut digits = |number: usize| -> String {
            let mut bytes = vec![0; number / 2];
            random.fill_bytes(&mut bytes);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        Self { id: digits(ID_DIGITS), secret: digits(SECRET_DIGITS) }
    }

    /// Reads a token; `None` if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_token = Self::is_id(id) && is_hexadecimal(secret, SECRET_DIGITS);
        is_token.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// Whether a text can be the public part of a token.
    pub fn is_id(text: &str) -> bool {
        is_hexadecimal(text, ID_DIGITS)
    }

    /// The public part, which identifies the token.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text that the client sends.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    /// SHA-256 of the secret part. The secret is random, so a slow hash for passwords is not necessary.
    pub fn secret_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.secret.as_bytes()).into()
    }

    /// Whether it is the token with this hash. Takes the same time for any wrong token.
    pub fn has_sha256(&self, secret_sha256: &[u8]) -> bool {
        self.secret_sha256().ct_eq(secret_sha256).into()
    }
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn tokens_are_read_as_they_are_printed() {
        let mut random = rand_chacha::ChaCha20Rng::seed_from_u64(7);
        let (one, other) = (Token::random(&mut random), Token::random(&mut random));
        let text = one.reveal();
        assert_eq!(Token::parse(&text).as_ref(), Some(&one));
        assert!(one.has_sha256(&one.secret_sha256()) && !one.has_sha256(&other.secret_sha256()));
        assert!(!one.has_sha256(&one.secret_sha256()[..31]));
        assert!(!format!("{one:?}").contains(&one.secret));
        let cut = &text[..text.len() - 1];
        for bad in
            ["", "evenstep_", "Bearer", cut, &format!("{text}0"), &text.to_uppercase(), &format!(" {text}")]
        {
            assert_eq!(Token::parse(bad), None, "{bad:?}");
        }
    }

    /// The digest of the secret, computed by `printf %s 00..00 | sha256sum`.
    #[test]
    fn the_stored_hash_is_sha_256_of_the_secret() {
        let token = Token::parse(&format!("evenstep_0123456789_{}", "0".repeat(64))).unwrap();
        let hex: String = token.secret_sha256().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "60e05bd1b195af2f94112fa7197a5c88289058840ce7c6df9693756bc6250f55");
    }
}
