"""The list of predictors, and the order of requests to them. No I/O: the client sends the requests."""

import ipaddress
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenstep.errors import EvenstepError, SettingError

SERVERS_MAX = 16
"""Maximum number of servers in a list."""

HOPS_MAX = 3
"""Maximum number of redirects of one request."""

T = TypeVar("T")

_BASE = re.compile(
    r"http://(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._~-]+))(?::(?P<port>[0-9]{1,5}))?(?P<path>/[A-Za-z0-9._~/%@:+=-]*)?"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The parts of a server's base URL.

    Attributes:
        host: A name or an address.
        port: 1 to 65,535.
        path: Prefix of every path; empty, or begins with a slash.
    """

    host: str
    port: int
    path: str


def parse_base(url: str) -> Base | None:
    """Parses a base URL; `None` if it is not valid."""
    match = _BASE.fullmatch(url)
    if match is None:
        return None
    port = int(match["port"] or 80)
    if not 0 < port < 1 << 16:
        return None
    if match["v6"] is not None:
        try:
            ipaddress.IPv6Address(match["v6"])
        except ValueError:
            return None
    return Base(match["v6"] or match["host"], port, (match["path"] or "").rstrip("/"))


def parse_servers(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of base URLs without duplicates; removes trailing slashes.

    Raises:
        SettingError: A URL breaks the rule; the message names it.
    """
    servers: list[str] = []
    for part in text.split(","):
        value = part.strip()
        if value.startswith("https://"):
            raise SettingError(f"server {value!r}: https is not supported; must be a URL such as http://host:port")
        if parse_base(value) is None:
            raise SettingError(f"server {value!r}: must be a URL such as http://host:port; separate several by commas")
        server = value.rstrip("/")
        if server in servers:
            raise SettingError(f"server {value!r}: is listed twice")
        if len(servers) == SERVERS_MAX:
            raise SettingError(f"server {value!r}: at most {SERVERS_MAX} servers are allowed")
        servers.append(server)
    return tuple(servers)


@dataclass(frozen=True, slots=True)
class Turn:
    """One server's turn to get the request.

    Attributes:
        server: Its base URL.
        others: Number of servers left if this one does not respond.
    """

    server: str
    others: int


@dataclass(frozen=True, slots=True)
class Responded(Generic[T]):
    """The server responded, possibly with an error: no other server is tried."""

    answer: T


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The server did not respond, or cannot at the moment: the next server is tried."""

    reason: str


@dataclass(frozen=True, slots=True)
class Redirected:
    """The server redirected to another one with the `Location` of its response."""

    location: str


class NoServerRespondedError(EvenstepError):
    """No server responded; lists the servers tried, in order, with the reasons."""


class Route:
    """The order in which servers are tried.

    The server that responded last is first. If it does not respond, the others follow in order, each once. Redirects
    (status 307) are followed; the server that responds there is first from then on.
    """

    def __init__(self, servers: tuple[str, ...]) -> None:
        """Starts with the first of `servers`, normalized by `parse_servers`."""
        self._servers = servers
        self._latest: str | None = None

    @property
    def first(self) -> str:
        """The server that gets the next request first."""
        return self._latest or self._servers[0]

    def ask(self, path: str, send: Callable[[Turn], Responded[T] | NoResponse | Redirected]) -> T:
        """Sends a request for `path` (with its query, if any): calls `send` with one server after the other.

        It ends with the first response. It tries the server that responded last, the servers of the list, and up to
        `HOPS_MAX` redirects.

        Raises:
            UnansweredError: No server responded.
        """
        waiting = self._order()
        several = len(waiting) > 1
        tried: list[tuple[str, str]] = []
        followed: list[str] = []
        while waiting:
            server = waiting.popleft()
            outcome = send(Turn(server, len(waiting)))
            if isinstance(outcome, Responded):
                self._latest = server
                return outcome.answer
            if isinstance(outcome, NoResponse):
                reason = outcome.reason
            else:
                several = True
                owner, reason = _follow(outcome.location, path, tried, followed)
                if owner is not None:
                    waiting = deque([owner, *(other for other in waiting if other != owner)])
                    followed.append(owner)
                    continue
            self._forget(server)
            tried.append((server, reason))
        raise NoServerRespondedError("; ".join(f"{server}: {why}" if several else why for server, why in tried))

    def _order(self) -> deque[str]:
        """Returns the server that responded last, then the list in its order, starting after that server."""
        order = deque(self._servers)
        if self.first in order:
            order.rotate(-order.index(self.first))
        else:
            order.appendleft(self.first)
        return order

    def _forget(self, server: str) -> None:
        """Forgets a server that is not in the list when it stops responding."""
        if self._latest == server and server not in self._servers:
            self._latest = None


def _follow(location: str, path: str, tried: list[tuple[str, str]], followed: list[str]) -> tuple[str | None, str]:
    """Returns the server that a `Location` points to, or the reason why it is not followed."""
    owner = location.removesuffix(path)
    if not location.endswith(path) or parse_base(owner) is None:
        return None, (
            f"redirected (307) to the Location {location!r}, which must be a URL such as http://host:port{path}"
        )
    owner = owner.rstrip("/")
    if any(server == owner for server, _ in tried):
        return None, f"it points to {owner}, which was already tried"
    if len(followed) == HOPS_MAX:
        way = " to ".join(followed)
        return None, f"307 to {owner} after {HOPS_MAX} others, which is too many: to {way}"
    return owner, ""
