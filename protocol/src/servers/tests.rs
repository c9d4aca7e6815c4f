use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PATH: &str = "/allocate";

fn servers(list: &str) -> Servers {
    list.parse().unwrap()
}

fn elsewhere(server: &str) -> Outcome<String, String> {
    Outcome::Elsewhere(format!("{server}{PATH}"))
}

fn silent() -> Outcome<String, String> {
    Outcome::Silent("silent".into())
}

/// Asks once; what each server does is said by name. Returns who was asked, in order, and what came of it.
fn ask(
    route: &Route,
    does: impl Fn(&str) -> Outcome<String, String>,
) -> (Vec<String>, Result<String, Unanswered<String>>) {
    let mut asked = Vec::new();
    let outcome = route.ask(PATH, |turn| {
        asked.push(turn.server.to_owned());
        does(turn.server)
    });
    (asked, outcome)
}

/// `http://a` answers by its own name.
fn answers(server: &str) -> Outcome<String, String> {
    Outcome::Answered(server.to_owned())
}

#[test]
fn lists_are_checked_and_written_back() {
    for (written, read) in [
        ("http://127.0.0.1:7117", "http://127.0.0.1:7117"),
        ("http://a:1/, https://b/base/ ,http://[::1]:7117", "http://a:1,https://b/base,http://[::1]:7117"),
        ("http://[::1]", "http://[::1]"),
    ] {
        assert_eq!(servers(written).to_string(), read);
    }
    let seventeen: Vec<String> = (1..=17).map(|port| format!("http://a:{port}")).collect();
    for (list, value, rule) in [
        ("", "", "must be like"),
        ("a:1", "a:1", "must be like"),
        ("ftp://a", "ftp://a", "must be like"),
        ("http://", "http://", "must be like"),
        ("http://:7117", "http://:7117", "must be like"),
        ("http://a:", "http://a:", "must be like"),
        ("http://a:0", "http://a:0", "must be like"),
        ("http://a:65536", "http://a:65536", "must be like"),
        ("http://user@a", "http://user@a", "must be like"),
        ("http://a?b=c", "http://a?b=c", "must be like"),
        ("http://a b", "http://a b", "must be like"),
        ("http://[::x]:1", "http://[::x]:1", "must be like"),
        ("http://a:1,", "", "must be like"),
        ("http://a:1;http://b:1", "http://a:1;http://b:1", "must be like"),
        ("http://a:1,http://a:1/", "http://a:1/", "twice"),
        (&seventeen.join(","), "http://a:17", "at most 16"),
    ] {
        let error = list.parse::<Servers>().unwrap_err();
        assert_eq!(error.value, value, "{list}");
        assert!(error.rule.contains(rule), "{list}: {error}");
    }
}

#[test]
fn whoever_answered_last_is_asked_first() {
    let route = Route::new(servers("http://a,http://b,http://c"));
    let (asked, outcome) =
        ask(&route, |server| if server == "http://b" { answers(server) } else { silent() });
    assert_eq!((asked, outcome), (vec!["http://a".into(), "http://b".into()], Ok("http://b".into())));
    assert_eq!(ask(&route.clone(), answers).0, ["http://b"], "clones know it too");
    let (asked, outcome) = ask(&route, |_| silent());
    assert_eq!(asked, ["http://b", "http://c", "http://a"]);
    let told = outcome.unwrap_err().to_string();
    assert_eq!(told, "http://b: silent; http://c: silent; http://a: silent");
}

#[test]
fn an_owner_is_followed_and_remembered_as_long_as_it_answers() {
    let route = Route::new(servers("http://a,http://b"));
    let to_owner =
        |server: &str| if server == "http://x:1" { answers(server) } else { elsewhere("http://x:1") };
    assert_eq!(ask(&route, to_owner).0, ["http://a", "http://x:1"]);
    assert_eq!(ask(&route, to_owner).0, ["http://x:1"]);
    assert_eq!(route.first(), "http://x:1");
    // The owner died, and the others do not know yet: nobody is asked twice.
    let dead = |server: &str| if server == "http://x:1" { silent() } else { elsewhere("http://x:1") };
    let (asked, outcome) = ask(&route, dead);
    assert_eq!(asked, ["http://x:1", "http://a", "http://b"]);
    assert!(outcome.unwrap_err().to_string().contains("http://b: it points to http://x:1"));
    // Then one of them takes over.
    let taken = |server: &str| if server == "http://b" { answers(server) } else { elsewhere("http://b") };
    assert_eq!(ask(&route, taken).0, ["http://a", "http://b"]);
    assert_eq!(route.first(), "http://b");
}

#[test]
fn an_owner_that_is_silent_leaves_the_rest_of_the_list() {
    let route = Route::new(servers("http://a,http://b,http://c"));
    let does = |server: &str| match server {
        "http://a" => elsewhere("http://x"),
        "http://c" => answers(server),
        _ => silent(),
    };
    let (asked, outcome) = ask(&route, does);
    assert_eq!(asked, ["http://a", "http://x", "http://b", "http://c"]);
    assert_eq!(outcome, Ok("http://c".into()));
}

#[test]
fn a_ring_of_servers_that_point_on_ends_with_the_way_it_went() {
    let route = Route::new(servers("http://a"));
    let ring = |server: &str| elsewhere(if server == "http://a" { "http://b" } else { "http://a" });
    let (asked, outcome) = ask(&route, ring);
    assert_eq!(asked, ["http://a", "http://b", "http://a", "http://b"]);
    let told = outcome.unwrap_err().to_string();
    assert_eq!(
        told,
        "http://b: 307 to http://a after 3 others, which is too many: to http://b to http://a to http://b"
    );
}

#[test]
fn a_location_must_be_the_same_path_of_a_server() {
    for location in
        ["", "/allocate", "http://b/other", "//b/allocate", "http:///allocate", "http://b?/allocate"]
    {
        let route = Route::new(servers("http://a"));
        let (asked, outcome) = ask(&route, |_| Outcome::Elsewhere(location.to_owned()));
        assert_eq!(asked, ["http://a"]);
        let told = outcome.unwrap_err().to_string();
        assert!(told.contains(&format!("{location:?}")) && told.contains(PATH), "{told}");
    }
    let route = Route::new(servers("http://a"));
    let base = |server: &str| if server == "http://a" { elsewhere("http://b/base") } else { answers(server) };
    assert_eq!(ask(&route, base).1, Ok("http://b/base".into()));
}

/// What each of six servers does: answer (0), be silent (1), or point to another (2 and on).
fn world() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..8, 6)
}

proptest! {
    #[test]
    fn asking_is_bounded_and_finds_whoever_answers(listed in 1_usize..=6, worlds in prop::collection::vec(world(), 1..6)) {
        let name = |server: usize| format!("http://s{server}");
        let list: Vec<String> = (0..listed).map(name).collect();
        let route = Route::new(servers(&list.join(",")));
        for world in worlds {
            let first = route.first();
            let does = |server: &str| match world[usize::from(server.as_bytes()[8] - b'0')] {
                0 => answers(server),
                1 => silent(),
                other => elsewhere(&name(usize::from(other - 2))),
            };
            let (asked, outcome) = ask(&route, does);
            prop_assert_eq!(&asked[0], &first);
            prop_assert!(asked.len() <= listed + 1 + HOPS_MAX, "{:?}", asked);
            let mut times: BTreeMap<&str, usize> = BTreeMap::new();
            asked.iter().for_each(|server| *times.entry(server).or_default() += 1);
            for (server, times) in times {
                prop_assert!(times == 1 || matches!(does(server), Outcome::Elsewhere(_)), "{server}: {times} times");
            }
            // A server of the list that answers is found, whatever the others say.
            let somebody = list.iter().find(|server| matches!(does(server), Outcome::Answered(_)));
            match (outcome, somebody) {
                (Ok(server), _) => {
                    prop_assert_eq!(Some(&server), asked.last());
                    prop_assert_eq!(route.first(), server);
                }
                (Err(unanswered), somebody) => {
                    prop_assert_eq!(somebody, None);
                    prop_assert!(!unanswered.tried.is_empty());
                }
            }
        }
    }
}
