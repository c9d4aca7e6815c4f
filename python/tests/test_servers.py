"""Lists of servers and the order of requests: the same rules as in the Rust clients."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SettingError
from evenstep.wire.servers import (
    HOPS_MAX,
    NoResponse,
    NoServerRespondedError,
    Redirected,
    Responded,
    Route,
    Turn,
    parse_servers,
)

PATH = "/allocate"
Outcome = Responded[str] | NoResponse | Redirected


def elsewhere(server: str) -> Outcome:
    return Redirected(server + PATH)


def ask(route: Route, does: Callable[[str], Outcome]) -> tuple[list[str], str | None, str]:
    """Sends one request; returns the servers tried in order, the responding one, and the error message if none."""
    asked: list[str] = []

    def send(turn: Turn) -> Outcome:
        asked.append(turn.server)
        return does(turn.server)

    try:
        return asked, route.ask(PATH, send), ""
    except NoServerRespondedError as unanswered:
        return asked, None, str(unanswered)


def silent(_server: str) -> Outcome:
    return NoResponse("silent")


def test_lists_are_read() -> None:
    for written, read in (
        ("http://127.0.0.1:7117", ("http://127.0.0.1:7117",)),
        (
            "http://a:1/, http://b/base/ ,http://[::1]:7117",
            ("http://a:1", "http://b/base", "http://[::1]:7117"),
        ),
        ("http://[::1]", ("http://[::1]",)),
        ("http://a:1\n", ("http://a:1",)),
    ):
        assert parse_servers(written) == read


@pytest.mark.parametrize(
    ("text", "value", "rule"),
    [
        *(
            (text, text, "must be a URL such as http://host:port")
            for text in (
                "",
                "a:1",
                "ftp://a",
                "http://",
                "http://:7117",
                "http://a:",
                "http://a:0",
                "http://a:65536",
                "http://user@a",
                "http://a?b=c",
                "http://a b",
                "http://[::x]:1",
                "http://[::1",
                "http://a:1;http://b:1",
            )
        ),
        ("http://a:1,", "", "must be a URL such as http://host:port"),
        ("http://a:1,http://a:1/", "http://a:1/", "twice"),
        ("https://a:1", "https://a:1", "https is not supported"),
        (",".join(f"http://a:{port}" for port in range(1, 18)), "http://a:17", "at most 16"),
    ],
)
def test_lists_that_break_the_rule_are_refused_by_name(text: str, value: str, rule: str) -> None:
    with pytest.raises(SettingError) as error:
        parse_servers(text)
    assert repr(value) in str(error.value)
    assert rule in str(error.value)


def test_whoever_answered_last_is_asked_first() -> None:
    route = Route(parse_servers("http://a,http://b,http://c"))
    does: dict[str, Outcome] = {"http://b": Responded("http://b")}
    assert ask(route, lambda server: does.get(server, NoResponse("x")))[:2] == (
        ["http://a", "http://b"],
        "http://b",
    )
    assert ask(route, Responded)[0] == ["http://b"]
    asked, _, told = ask(route, silent)
    assert asked == ["http://b", "http://c", "http://a"]
    assert told == "http://b: silent; http://c: silent; http://a: silent"


def test_an_owner_is_followed_and_remembered_as_long_as_it_answers() -> None:
    route = Route(parse_servers("http://a,http://b"))

    def to(owner: str, does: Outcome) -> Callable[[str], Outcome]:
        return lambda server: does if server == owner else elsewhere(owner)

    assert ask(route, to("http://x:1", Responded("x")))[0] == ["http://a", "http://x:1"]
    assert ask(route, to("http://x:1", Responded("x")))[0] == ["http://x:1"]
    assert route.first == "http://x:1"
    # The owner died, and the other servers do not know yet: each server is tried only once.
    asked, _, told = ask(route, to("http://x:1", NoResponse("dead")))
    assert asked == ["http://x:1", "http://a", "http://b"]
    assert "http://b: it points to http://x:1, which was already tried" in told
    # Then one of the other servers takes over.
    assert ask(route, to("http://b", Responded("b")))[0] == ["http://a", "http://b"]
    assert route.first == "http://b"


def test_an_owner_that_is_silent_leaves_the_rest_of_the_list() -> None:
    route = Route(parse_servers("http://a,http://b,http://c"))
    does: dict[str, Outcome] = {"http://a": elsewhere("http://x"), "http://c": Responded("c")}
    asked, answer, _ = ask(route, lambda server: does.get(server, NoResponse("x")))
    assert (asked, answer) == (["http://a", "http://x", "http://b", "http://c"], "c")


def test_a_ring_of_servers_ends_with_the_way_it_went() -> None:
    route = Route(parse_servers("http://a"))
    asked, _, told = ask(route, lambda server: elsewhere("http://b" if server == "http://a" else "http://a"))
    assert asked == ["http://a", "http://b", "http://a", "http://b"]
    assert told == ("http://b: 307 to http://a after 3 others, which is too many: to http://b to http://a to http://b")


@pytest.mark.parametrize(
    "location",
    [
        "",
        "/allocate",
        "http://b/other",
        "//b/allocate",
        "http:///allocate",
        "http://b?/allocate",
        "https://b/allocate",
    ],
)
def test_a_location_must_be_the_same_path_of_a_server(location: str) -> None:
    asked, _, told = ask(Route(parse_servers("http://a")), lambda _: Redirected(location))
    assert asked == ["http://a"]
    assert repr(location) in told
    assert PATH in told


@given(
    listed=st.integers(1, 6),
    worlds=st.lists(st.lists(st.integers(0, 7), min_size=6, max_size=6), min_size=1, max_size=5),
)
def test_asking_is_bounded_and_finds_whoever_answers(listed: int, worlds: list[list[int]]) -> None:
    def name(server: int) -> str:
        return f"http://s{server}"

    servers = [name(server) for server in range(listed)]
    route = Route(parse_servers(",".join(servers)))
    for world in worlds:
        outcomes: dict[str, Outcome] = {
            name(server): Responded(name(server))
            if does == 0
            else NoResponse("x")
            if does == 1
            else elsewhere(name(does - 2))
            for server, does in enumerate(world)
        }
        first = route.first
        asked, answer, told = ask(route, outcomes.__getitem__)
        assert asked[0] == first
        assert len(asked) <= listed + 1 + HOPS_MAX
        for server, times in Counter(asked).items():
            assert times == 1 or isinstance(outcomes[server], Redirected)
        if answer is None:
            assert told
            assert not any(isinstance(outcomes[server], Responded) for server in servers)
        else:
            assert answer == asked[-1] == route.first
