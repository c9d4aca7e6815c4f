use std::net::Ipv4Addr;

use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

use super::*;
use crate::clock::ManualClock;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NOW: i64 = 1_000_000;

fn access(auth: Auth, operator: Option<&str>) -> (Access, Token) {
    let (access, token, _) = access_at(auth, operator);
    (access, token)
}

fn access_at(auth: Auth, operator: Option<&str>) -> (Access, Token, Arc<ManualClock>) {
    let (clock, now) = Clock::manual(NOW);
    let access = Access::new(auth, operator, clock);
    let token = Token::random(&mut ChaCha20Rng::seed_from_u64(7));
    access.replace(vec![stored(&token, "viewer", None)]);
    (access, token, now)
}

fn stored(token: &Token, scope: &str, expires_unix_ms: Option<i64>) -> StoredToken {
    StoredToken {
        token_id: token.id().to_owned(),
        secret_sha256: token.secret_sha256().into(),
        scope: scope.to_owned(),
        jobs: "team-a/*".to_owned(),
        note: String::new(),
        created_unix_ms: 0,
        expires_unix_ms,
        last_used_unix_ms: None,
    }
}

fn bearer(access: &Access, text: &str) -> Result<Caller, Denied> {
    access.identify(Credentials { bearer: Some(text), session: None, address: Some(ADDRESS) })
}

#[test]
fn tokens_identify_their_clients() {
    for auth in [Auth::Optional, Auth::Required] {
        let (access, token) = access(auth, None);
        let caller = bearer(&access, &token.reveal()).unwrap();
        assert_eq!((caller.token_id(), caller.scopes()), (Some(token.id()), vec!["viewer"]));
        assert_eq!(caller.jobs().to_string(), "team-a/*");
        assert_eq!(access.used_since(0), [(token.id().to_owned(), NOW)]);
        let other = Token::random(&mut ChaCha20Rng::seed_from_u64(8));
        assert_eq!(bearer(&access, &other.reveal()).unwrap_err(), Denied::Unknown);
        assert_eq!(bearer(&access, "x").unwrap_err(), Denied::Unknown);
        access.replace(vec![stored(&token, "viewer", Some(NOW))]);
        assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Expired);
        access.replace(vec![stored(&token, "viewer", Some(NOW + 1))]);
        assert!(bearer(&access, &token.reveal()).is_ok());
        access.replace(Vec::new());
        assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Unknown);
    }
}

/// A token with a known ID is not known by its ID alone: the store is read as for an unknown one, so the time of the response
/// does not reveal the IDs that exist.
#[test]
fn a_known_id_with_a_wrong_secret_is_like_an_unknown_one() {
    let (access, token) = access(Auth::Required, None);
    let other = Token::random(&mut ChaCha20Rng::seed_from_u64(8)).reveal();
    let (_, secret) = other.rsplit_once('_').unwrap();
    let wrong = format!("evenstep_{}_{secret}", token.id());
    assert!(access.knows(&token.reveal()) && access.knows("no token of the store"));
    for unknown in [&other, &wrong] {
        assert!(!access.knows(unknown));
        assert_eq!(bearer(&access, unknown).unwrap_err(), Denied::Unknown);
    }
}

/// The wall clock was wrong at the start. Tokens expire by the corrected one; sessions and pauses last as long as before.
#[test]
fn tokens_expire_by_the_wall_clock_as_it_is_now() {
    let (access, token, clock) = access_at(Auth::Required, None);
    let mut random = ChaCha20Rng::seed_from_u64(9);
    access.replace(vec![stored(&token, "viewer", Some(NOW + 60_000))]);
    let (_, key) = access.begin_session(&token.reveal(), Some(ADDRESS), &mut random).unwrap().unwrap();
    let look = || access.identify(Credentials { session: Some(key.reveal()), ..Credentials::default() });
    for _ in 0..11 {
        assert!(bearer(&access, "wrong").is_err());
    }
    clock.correct(30 * 86_400_000);
    assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Expired);
    assert_eq!(look().unwrap_err(), Denied::Expired);
    assert_eq!(bearer(&access, "wrong").unwrap_err(), Denied::Throttled(60));
    clock.correct(-60 * 86_400_000);
    assert!(bearer(&access, &token.reveal()).is_ok() && look().is_ok());
    assert_eq!(bearer(&access, "wrong").unwrap_err(), Denied::Throttled(60));
    clock.advance(60_000);
    assert_eq!(bearer(&access, "wrong").unwrap_err(), Denied::Unknown);
}

#[test]
fn tokens_of_later_versions_are_ignored() {
    let (access, token) = access(Auth::Required, None);
    access.replace(vec![stored(&token, "emperor", None)]);
    assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Unknown);
}

#[test]
fn without_tokens_everything_is_allowed() {
    let (access, token) = access(Auth::None, None);
    for sent in [None, Some("x"), Some(&*token.reveal())] {
        let caller = access.identify(Credentials { bearer: sent, ..Credentials::default() }).unwrap();
        assert_eq!((caller.token_id(), caller.scopes()), (None, WITHOUT_TOKEN.map(Scope::name).to_vec()));
    }
    for _ in 0..100 {
        assert!(bearer(&access, "wrong").is_ok());
    }
}

#[test]
fn a_client_without_a_token_is_denied_if_tokens_are_required() {
    let (access, _) = access(Auth::Required, None);
    assert_eq!(access.identify(Credentials::default()).unwrap_err(), Denied::Missing);
    let (access, _) = self::access(Auth::Optional, None);
    assert!(access.identify(Credentials::default()).unwrap().has(&[Scope::Operator]));
}

#[test]
fn the_operator_token_of_the_configuration_is_an_operator() {
    for auth in [Auth::None, Auth::Optional, Auth::Required] {
        let (access, _) = access(auth, Some("open sesame"));
        assert!(bearer(&access, "open sesame").unwrap().has(&[Scope::Operator]));
        if let Ok(anonymous) = access.identify(Credentials::default()) {
            assert!(!anonymous.has(&[Scope::Operator]) && anonymous.has(&[Scope::Trainer]));
        }
        let wrong = bearer(&access, "open");
        assert!(wrong.is_err() || !wrong.unwrap().has(&[Scope::Operator]));
    }
}

#[test]
fn wrong_tokens_are_throttled_and_right_ones_are_not() {
    let (access, token) = access(Auth::Required, Some("open sesame"));
    for _ in 0..10 {
        assert_eq!(bearer(&access, "wrong").unwrap_err(), Denied::Unknown);
    }
    assert_eq!(bearer(&access, "wrong").unwrap_err(), Denied::Throttled(60));
    assert!(bearer(&access, &token.reveal()).is_ok(), "others at this address are not locked out");
    assert_eq!(bearer(&access, "open sesame").unwrap_err(), Denied::Throttled(60), "it could be guessed");
}

#[test]
fn sign_ins_with_an_expired_token_are_throttled_and_requests_are_not() {
    let (access, token) = access(Auth::Required, None);
    let mut random = ChaCha20Rng::seed_from_u64(9);
    access.replace(vec![stored(&token, "viewer", Some(NOW))]);
    for _ in 0..20 {
        assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Expired);
    }
    let mut sign_in = || access.begin_session(&token.reveal(), Some(ADDRESS), &mut random).unwrap_err();
    for _ in 0..10 {
        assert_eq!(sign_in(), Denied::Expired);
    }
    assert_eq!(sign_in(), Denied::Throttled(60));
    assert_eq!(bearer(&access, &token.reveal()).unwrap_err(), Denied::Expired);
}

#[test]
fn sessions_end_with_their_token() {
    let (access, token) = access(Auth::Required, None);
    let mut random = ChaCha20Rng::seed_from_u64(9);
    let (_, key) = access.begin_session(&token.reveal(), Some(ADDRESS), &mut random).unwrap().unwrap();
    let look = || access.identify(Credentials { session: Some(key.reveal()), ..Credentials::default() });
    assert_eq!(look().unwrap().token_id(), Some(token.id()));
    access.replace(Vec::new());
    assert_eq!(look().unwrap_err(), Denied::SessionEnded);
    access.replace(vec![stored(&token, "viewer", None)]);
    access.end_session(key.reveal());
    assert_eq!(look().unwrap_err(), Denied::SessionEnded);
    assert!(access.begin_session("wrong", Some(ADDRESS), &mut random).is_err());
}

#[test]
fn a_client_may_go_on_for_as_long_as_it_would_be_identified() {
    let (access, token) = access(Auth::Required, Some("open sesame"));
    let mut random = ChaCha20Rng::seed_from_u64(9);
    let (_, key) = access.begin_session(&token.reveal(), Some(ADDRESS), &mut random).unwrap().unwrap();
    let with_session = access.identify(Credentials { session: Some(key.reveal()), ..Credentials::default() });
    let (with_token, with_session) = (bearer(&access, &token.reveal()).unwrap(), with_session.unwrap());
    let operator = bearer(&access, "open sesame").unwrap();
    let hold = || [&with_token, &with_session].map(|caller| access.holds(caller));
    assert_eq!(hold(), [true, true]);
    access.replace(vec![stored(&token, "viewer", Some(NOW))]);
    assert_eq!(hold(), [false, false], "it has expired");
    access.replace(vec![stored(&token, "trainer", None)]);
    assert_eq!(hold(), [false, false], "its scope is another one");
    access.replace(Vec::new());
    assert_eq!(hold(), [false, false], "it was revoked");
    access.replace(vec![stored(&token, "viewer", None)]);
    access.end_session(key.reveal());
    assert_eq!(hold(), [true, false], "the session has ended");
    assert!(access.holds(&operator) && !access.holds(&Caller::anonymous(&[])));
    let (open, _) = self::access(Auth::None, None);
    let anonymous = open.identify(Credentials::default()).unwrap();
    assert!(open.holds(&anonymous));
}
