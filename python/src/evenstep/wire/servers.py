"""Where clients find the predictor, and which of several is asked next. No I/O: the client sends."""

import ipaddress
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenstep.errors import EvenstepError, SettingError

SERVERS_MAX = 16
"""The most servers in a list."""

HOPS_MAX = 3
"""How often one request is sent elsewhere, at most."""

T = TypeVar("T")

_BASE = re.compile(
    r"http://(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._~-]+))(?::(?P<port>[0-9]{1,5}))?(?P<path>/[A-Za-z0-9._~/%@:+=-]*)?"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The base URL of a server, taken apart.

    Attributes:
        host: A name or an address.
        port: 1 to 65,535.
        path: Stands before every path; empty, or begins with a slash.
    """

    host: str
    port: int
    path: str


def parse_base(url: str) -> Base | None:
    """Takes a base URL apart; `None` where it is none."""
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
    """Reads a list of base URLs, separated by commas: none twice, each without a slash at its end.

    Raises:
        SettingError: One of them breaks the rule; the message names it.
    """
    servers: list[str] = []
    for part in text.split(","):
        value = part.strip()
        if value.startswith("https://"):
            raise SettingError(f"server {value!r}: https is not spoken here; must be like http://host:port")
        if parse_base(value) is None:
            raise SettingError(f"server {value!r}: must be like http://host:port; several are separated by commas")
        server = value.rstrip("/")
        if server in servers:
            raise SettingError(f"server {value!r}: stands there twice")
        if len(servers) == SERVERS_MAX:
            raise SettingError(f"server {value!r}: at most {SERVERS_MAX} servers")
        servers.append(server)
    return tuple(servers)


@dataclass(frozen=True, slots=True)
class Turn:
    """One server's turn to be asked.

    Attributes:
        server: Its base URL.
        others: Servers that will have their turn where this one does not answer.
    """

    server: str
    others: int


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """It answered, if only with a refusal: nobody else is asked."""

    answer: T


@dataclass(frozen=True, slots=True)
class Silent:
    """It did not answer, or cannot at the moment: the next one is asked."""

    reason: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another one answers for it: the `Location` of its answer."""

    location: str


class UnansweredError(EvenstepError):
    """Nobody answered: who was asked, and what came of it, in order."""


class Route:
    """Which of several servers is asked.

    The one that answered last is first, and where it does not answer, the others follow in order, each once.
    One that sends us elsewhere (status 307) is followed; whoever answers there is asked first from then on.
    """

    def __init__(self, servers: tuple[str, ...]) -> None:
        """Begins with the first of `servers`, as `parse_servers` makes them."""
        self._servers = servers
        self._latest: str | None = None

    @property
    def first(self) -> str:
        """Who is asked first now."""
        return self._latest or self._servers[0]

    def ask(self, path: str, send: Callable[[Turn], Answered[T] | Silent | Elsewhere]) -> T:
        """Has `path` (with its query, if any) asked for: calls `send` with one server after the other.

        It ends with the first that answers. No more are asked than the one that answered last, those of the
        list, and `HOPS_MAX`.

        Raises:
            UnansweredError: Nobody answered.
        """
        waiting = self._order()
        several = len(waiting) > 1
        tried: list[tuple[str, str]] = []
        followed: list[str] = []
        while waiting:
            server = waiting.popleft()
            outcome = send(Turn(server, len(waiting)))
            if isinstance(outcome, Answered):
                self._latest = server
                return outcome.answer
            if isinstance(outcome, Silent):
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
        raise UnansweredError("; ".join(f"{server}: {why}" if several else why for server, why in tried))

    def _order(self) -> deque[str]:
        """Who answered last, then the list in its order, beginning behind that one."""
        order = deque(self._servers)
        if self.first in order:
            order.rotate(-order.index(self.first))
        else:
            order.appendleft(self.first)
        return order

    def _forget(self, server: str) -> None:
        """One that is not of the list is asked only as long as it answers."""
        if self._latest == server and server not in self._servers:
            self._latest = None


def _follow(location: str, path: str, tried: list[tuple[str, str]], followed: list[str]) -> tuple[str | None, str]:
    """The server that a `Location` points to, or why it is not followed."""
    owner = location.removesuffix(path)
    if not location.endswith(path) or parse_base(owner) is None:
        return None, f"307 with the Location {location!r}, which must be like http://host:port{path}"
    owner = owner.rstrip("/")
    if any(server == owner for server, _ in tried):
        return None, f"it points to {owner}, which was asked already"
    if len(followed) == HOPS_MAX:
        way = " to ".join(followed)
        return None, f"307 to {owner} after {HOPS_MAX} others, which is too many: to {way}"
    return owner, ""
