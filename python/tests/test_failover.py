"""Failover between several predictors, with real connections to scripted servers."""

from collections.abc import Sequence

import pytest

from evenstep.errors import RejectedError
from evenstep.wire.client import HANDOVER_RETRIES_MAX, Client
from evenstep.wire.errors import RequestError, StaleError, UnknownError, UnreachableError, UnusableError
from evenstep.wire.http import RESPONSE_BYTES_MAX
from evenstep.wire.messages import JobSpec, JoinRequest
from scripted import HANGS, SLEEPS, Answers, Does, Scripted, Sends, points_to, refuses, unused_address

PATIENCE_S = 60.0


def client(servers: Sequence[str], timeout_s: float = PATIENCE_S) -> Client:
    # Retries for a job that changes its owner follow at once: their pause does not matter here.
    return Client(",".join(servers), "job", timeout_s, pause=lambda _: None)


def put(client: Client) -> None:
    client.put_job(JobSpec(8))


def test_nobody_there_is_silence() -> None:
    with pytest.raises(UnreachableError, match="unreachable: Connection refused"):
        put(client([unused_address()]))


@pytest.mark.parametrize(
    "first",
    [
        HANGS,
        refuses(503, "draining"),
        refuses(503, "store-failed"),
        Answers(502, "", b"<html>"),
        Sends(b"no HTTP\r\n\r\n"),
    ],
    ids=["hangs", "draining", "store-failed", "proxy", "no-http"],
)
def test_the_next_server_is_asked_at_once_and_from_then_on(first: Does) -> None:
    a, b = Scripted([first]), Scripted()
    both = client([a.url, b.url])
    put(both)
    said = ['PUT /v1/jobs/job {"global_batch":8}']
    assert (a.heard(), b.heard()) == (said, said)
    put(both)
    assert (a.heard(), b.heard()) == ([], said)


def test_where_nobody_listens_the_next_is_asked() -> None:
    b = Scripted()
    put(client([unused_address(), b.url]))
    assert len(b.heard()) == 1


def test_a_server_that_sleeps_leaves_time_for_the_next() -> None:
    a, b = Scripted([SLEEPS]), Scripted()
    put(client([a.url, b.url], timeout_s=2.0))
    assert (len(a.heard()), len(b.heard())) == (1, 1)


def test_an_answer_that_drips_has_no_more_time_than_others() -> None:
    a = Scripted([Sends(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", close=False)])
    with pytest.raises(UnreachableError, match="timed out"):
        put(client([a.url], timeout_s=0.2))


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (refuses(422, "invalid"), RejectedError),
        (refuses(409, "conflict"), RejectedError),
        (refuses(404, "unknown-job"), UnknownError),
        (Answers(404, "", b"not found"), RejectedError),
        (refuses(409, "stale-generation", current_generation=7), StaleError),
        (refuses(429, "busy"), UnreachableError),
        (refuses(503, "paused"), UnreachableError),
        (refuses(503, "cooling-down"), UnreachableError),
        (refuses(500, "internal"), UnreachableError),
    ],
)
def test_what_a_server_says_of_the_job_every_other_one_would_say_too(
    does: Does, error: type[RequestError | RejectedError]
) -> None:
    a, b = Scripted([does]), Scripted()
    with pytest.raises(error) as told:
        put(client([a.url, b.url]))
    assert (len(a.heard()), len(b.heard())) == (1, 0)
    if isinstance(told.value, StaleError):
        assert told.value.current_generation == 7


def test_the_owner_of_the_job_is_followed_remembered_and_left_when_it_dies() -> None:
    # The kept connection breaks, so its last request comes twice.
    owner = Scripted([Answers(), Answers(), HANGS])
    a = Scripted([points_to(owner.url), points_to(owner.url), Answers()])
    one = client([a.url])
    put(one)
    assert a.heard() == owner.heard() == ['PUT /v1/jobs/job {"global_batch":8}']
    put(one)
    assert (len(a.heard()), len(owner.heard())) == (0, 1)
    # The owner dies; the list still points to it at first, and then takes the job over.
    put(one)
    assert (len(a.heard()), len(owner.heard())) == (2, 2)
    put(one)
    assert (len(a.heard()), len(owner.heard())) == (1, 0)


def test_a_ring_of_owners_ends_with_an_error() -> None:
    a, b = Scripted([]), Scripted([])
    a.script.append(points_to(b.url))
    b.script.append(points_to(a.url))
    with pytest.raises(UnreachableError, match="which is too many"):
        put(client([a.url]))
    asked = 2 * (HANDOVER_RETRIES_MAX + 1)
    assert (len(a.heard()), len(b.heard())) == (asked, asked)


def test_one_connection_is_kept() -> None:
    a = Scripted()
    one = client([a.url])
    for _ in range(3):
        put(one)
    assert (a.connections, len(a.heard())) == (1, 3)


def test_a_kept_connection_that_was_closed_meanwhile_is_opened_anew_once() -> None:
    closing = Sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    a = Scripted([closing, Answers(), HANGS, Answers()])
    one = client([a.url])
    put(one)
    put(one)
    assert len(a.heard()) in (2, 3), "whether the dead connection still accepted the request depends on the system"
    fresh = Scripted([HANGS])
    with pytest.raises(UnreachableError):
        put(client([fresh.url]))
    assert len(fresh.heard()) == 1, "a new connection is not retried"


def test_a_server_that_closes_after_each_answer_is_understood() -> None:
    a = Scripted([Sends(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")])
    one = client([a.url])
    put(one)
    put(one)
    assert (a.connections, len(a.heard())) == (2, 2)


def test_bodies_are_bounded_and_whole() -> None:
    longest = b'"' + b"x" * (RESPONSE_BYTES_MAX - 2) + b'"'
    put(client([Scripted([Answers(body=longest)]).url]))
    with pytest.raises(UnreachableError, match="longer than 8388608 bytes"):
        put(client([Scripted([Answers(body=longest + b" ")]).url]))
    with pytest.raises(UnreachableError, match="not an HTTP response"):
        put(client([Scripted([Sends(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}")]).url]))


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b'"\xff"', b"[]", b'{"job_id":1}'])
def test_answers_that_make_no_sense_are_unusable(body: bytes) -> None:
    with pytest.raises(UnusableError, match="unusable response"):
        client([Scripted([Answers(body=body)]).url]).join(JoinRequest("node-a/0"))
