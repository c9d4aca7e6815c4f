use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PATH: &str = "/allocate";

fn servers(list: &str) -> Servers {
    list.parse().unwrap()
}

fn redirects(server: &str) -> Outcome<String, String> {
    Outcome::Redirected(format!("{server}{PATH}"))
}

fn fails() -> Outcome<String, String> {
    Outcome::Unreachable("refused".into())
}

/// Makes one request; `does` defines the behavior of each server. Returns the servers tried, in order, and
/// the outcome.
fn request(
    failover: &Failover,
    does: impl Fn(&str) -> Outcome<String, String>,
) -> (Vec<String>, Result<String, AllUnreachable<String>>) {
    let mut tried = Vec::new();
    let outcome = failover.request(PATH, |attempt| {
        tried.push(attempt.server.to_owned());
        does(attempt.server)
    });
    (tried, outcome)
}

/// The server responds with its own URL.
fn responds(server: &str) -> Outcome<String, String> {
    Outcome::Responded(server.to_owned())
}

#[test]
fn the_server_that_responded_last_is_tried_first() {
    let failover = Failover::new(servers("http://a,http://b,http://c"));
    let (tried, outcome) =
        request(&failover, |server| if server == "http://b" { responds(server) } else { fails() });
    assert_eq!((tried, outcome), (vec!["http://a".into(), "http://b".into()], Ok("http://b".into())));
    assert_eq!(request(&failover.clone(), responds).0, ["http://b"], "clones share the latest server");
    let (tried, outcome) = request(&failover, |_| fails());
    assert_eq!(tried, ["http://b", "http://c", "http://a"]);
    let told = outcome.unwrap_err().to_string();
    assert_eq!(told, "http://b: refused; http://c: refused; http://a: refused");
}

#[test]
fn a_redirect_does_not_leave_tls() {
    let failover = Failover::new(servers("https://a,http://b"));
    let (tried, outcome) =
        request(&failover, |server| if server == "http://x:1" { fails() } else { redirects("http://x:1") });
    assert_eq!(tried, ["https://a", "http://b", "http://x:1"], "only from a server without TLS");
    let said = outcome.unwrap_err().to_string();
    assert!(said.starts_with("https://a: redirects to http://x:1, which is not encrypted; "), "{said}");
    let to_owner =
        |server: &str| if server == "https://x:1" { responds(server) } else { redirects("https://x:1") };
    assert_eq!(request(&failover, to_owner).1, Ok("https://x:1".into()));
}

#[test]
fn an_owner_is_followed_and_remembered_as_long_as_it_responds() {
    let failover = Failover::new(servers("http://a,http://b"));
    let to_owner =
        |server: &str| if server == "http://x:1" { responds(server) } else { redirects("http://x:1") };
    assert_eq!(request(&failover, to_owner).0, ["http://a", "http://x:1"]);
    assert_eq!(request(&failover, to_owner).0, ["http://x:1"]);
    assert_eq!(failover.first(), "http://x:1");
    // The owner died, but the others still redirect to it: no server is tried twice.
    let dead = |server: &str| if server == "http://x:1" { fails() } else { redirects("http://x:1") };
    let (tried, outcome) = request(&failover, dead);
    assert_eq!(tried, ["http://x:1", "http://a", "http://b"]);
    assert!(outcome.unwrap_err().to_string().contains("http://b: redirects to http://x:1"));
    // Then another server takes over.
    let taken = |server: &str| if server == "http://b" { responds(server) } else { redirects("http://b") };
    assert_eq!(request(&failover, taken).0, ["http://a", "http://b"]);
    assert_eq!(failover.first(), "http://b");
}

#[test]
fn an_unreachable_owner_does_not_block_other_servers() {
    let failover = Failover::new(servers("http://a,http://b,http://c"));
    let does = |server: &str| match server {
        "http://a" => redirects("http://x"),
        "http://c" => responds(server),
        _ => fails(),
    };
    let (tried, outcome) = request(&failover, does);
    assert_eq!(tried, ["http://a", "http://x", "http://b", "http://c"]);
    assert_eq!(outcome, Ok("http://c".into()));
}

#[test]
fn a_redirect_loop_is_an_error_that_lists_its_servers() {
    let failover = Failover::new(servers("http://a"));
    let ring = |server: &str| redirects(if server == "http://a" { "http://b" } else { "http://a" });
    let (tried, outcome) = request(&failover, ring);
    assert_eq!(tried, ["http://a", "http://b", "http://a", "http://b"]);
    let told = outcome.unwrap_err().to_string();
    assert_eq!(
        told,
        "http://b: 307 to http://a exceeds the limit of 3 redirects: to http://b to http://a to http://b"
    );
}

#[test]
fn a_location_must_be_the_same_path_of_a_server() {
    for location in
        ["", "/allocate", "http://b/other", "//b/allocate", "http:///allocate", "http://b?/allocate"]
    {
        let failover = Failover::new(servers("http://a"));
        let (tried, outcome) = request(&failover, |_| Outcome::Redirected(location.to_owned()));
        assert_eq!(tried, ["http://a"]);
        let told = outcome.unwrap_err().to_string();
        assert!(
            told.starts_with("http://a: ") && told.contains(&format!("{location:?}")) && told.contains(PATH),
            "{told}"
        );
    }
    let failover = Failover::new(servers("http://a"));
    let base =
        |server: &str| if server == "http://a" { redirects("http://b/base") } else { responds(server) };
    assert_eq!(request(&failover, base).1, Ok("http://b/base".into()));
}

/// Behavior of each of six servers: respond (0), do not respond (1), or redirect to another (2 and on).
fn world() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..8, 6)
}

proptest! {
    #[test]
    fn requests_are_bounded_and_find_a_server_that_responds(listed in 1_usize..=6, worlds in prop::collection::vec(world(), 1..6)) {
        let name = |server: usize| format!("http://s{server}");
        let list: Vec<String> = (0..listed).map(name).collect();
        let failover = Failover::new(servers(&list.join(",")));
        for world in worlds {
            let first = failover.first();
            let does = |server: &str| match world[usize::from(server.as_bytes()[8] - b'0')] {
                0 => responds(server),
                1 => fails(),
                other => redirects(&name(usize::from(other - 2))),
            };
            let (tried, outcome) = request(&failover, does);
            prop_assert_eq!(&tried[0], &first);
            prop_assert!(tried.len() <= listed + 1 + REDIRECTS_MAX, "{:?}", tried);
            let mut times: BTreeMap<&str, usize> = BTreeMap::new();
            tried.iter().for_each(|server| *times.entry(server).or_default() += 1);
            for (server, times) in times {
                prop_assert!(times == 1 || matches!(does(server), Outcome::Redirected(_)), "{server}: {times} times");
            }
            // A responding server of the list is found, whatever the others do.
            let somebody = list.iter().find(|server| matches!(does(server), Outcome::Responded(_)));
            match (outcome, somebody) {
                (Ok(server), _) => {
                    prop_assert_eq!(Some(&server), tried.last());
                    prop_assert_eq!(failover.first(), server);
                }
                (Err(unreachable), somebody) => {
                    prop_assert_eq!(somebody, None);
                    prop_assert!(!unreachable.attempts.is_empty());
                }
            }
        }
    }
}

#[test]
fn a_new_list_replaces_the_servers_and_keeps_only_a_listed_one_first() {
    let failover = Failover::new(servers("http://a,http://b"));
    assert_eq!(
        request(&failover, |server| if server == "http://b" { responds(server) } else { fails() }).0.len(),
        2
    );
    let clone = failover.clone();
    clone.replace(servers("http://c,http://b"));
    assert_eq!(failover.first(), "http://b");
    clone.replace(servers("http://c"));
    assert_eq!(request(&failover, |_| fails()).0, ["http://c"]);
}
