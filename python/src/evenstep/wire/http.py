"""A persistent HTTP connection to one server: one request and its whole response before a deadline."""

import http.client
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenstep.wire.servers import Base, parse_base

if TYPE_CHECKING:
    from typing_extensions import Buffer

RESPONSE_BYTES_MAX = 8 << 20
"""Maximum size of a response in bytes."""

_TIMED_OUT = "timed out"


class ExchangeError(Exception):
    """The response is missing or incomplete; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a server.

    Attributes:
        status: The HTTP status.
        headers: The headers; names in lower case.
        body: The whole body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """A connection to one server that is opened when needed and kept. Only one thread may use it at a time."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Stores the base URL `server`, normalized by `parse_servers`; `clock` counts seconds."""
        self._kept: _Opened | None = None
        base = parse_base(server)
        if base is None:
            raise ExchangeError(f"{server!r}: must be a URL such as http://host:port")
        self._base: Base = base
        self._clock = clock

    def exchange(self, method: str, path: str, body: bytes | None, limit_s: float) -> Answer:
        """Sends a request and reads its response within `limit_s` seconds.

        The server may have closed a kept connection; then the request is sent again on a new one.

        Raises:
            ExchangeError: No complete response arrived in time.
        """
        deadline = self._clock() + limit_s
        if self._kept is not None:
            try:
                return self._on(self._kept, method, path, body, deadline)
            except TimeoutError:
                raise ExchangeError(_TIMED_OUT) from None
            except (OSError, http.client.HTTPException):
                pass
        try:
            return self._on(self._open(deadline), method, path, body, deadline)
        except TimeoutError:
            raise ExchangeError(_TIMED_OUT) from None
        except http.client.HTTPException as error:
            raise ExchangeError(f"not an HTTP response: {error or type(error).__name__}") from error
        except OSError as error:
            raise ExchangeError(error.strerror or str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def __del__(self) -> None:
        """Closes the socket with its owner."""
        self.close()

    def _open(self, deadline: float) -> "_Opened":
        return _Opened(self._base, _connect(self._base, deadline, self._clock))

    def _on(
        self,
        connection: "_Opened",
        method: str,
        path: str,
        body: bytes | None,
        deadline: float,
    ) -> Answer:
        self._kept = None
        try:
            connection.timed.deadline = deadline
            headers = {"content-type": "application/json"} if body is not None else {}
            connection.request(method, self._base.path + path, body, headers)
            response = connection.getresponse()
            answer = _read(response)
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._kept = connection
        return answer


def _read(response: http.client.HTTPResponse) -> Answer:
    body = response.read(RESPONSE_BYTES_MAX + 1)
    if len(body) > RESPONSE_BYTES_MAX:
        raise http.client.HTTPException(f"the response is longer than {RESPONSE_BYTES_MAX} bytes")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, body)


class _Timed(socket.socket):
    """A socket with one deadline for all waits, even if the response arrives byte by byte.

    Data is sent when the response is read: head and body of a request travel in one packet and wake the server once.
    """

    def __init__(self, family: int, kind: int, protocol: int, clock: Callable[[], float]) -> None:
        super().__init__(family, kind, protocol)
        self._clock = clock
        self.deadline = 0.0
        self._unsent: list[Buffer] = []

    def left_s(self) -> float:
        left_s = self.deadline - self._clock()
        if left_s <= 0:
            raise TimeoutError(_TIMED_OUT)
        return left_s

    def sendall(self, data: "Buffer", _flags: int = 0, /) -> None:
        self._unsent.append(data)

    def recv_into(self, buffer: "Buffer", nbytes: int = 0, flags: int = 0) -> int:
        if self._unsent:
            unsent, self._unsent = b"".join(self._unsent), []
            self.settimeout(self.left_s())
            super().sendall(unsent)
        self.settimeout(self.left_s())
        return super().recv_into(buffer, nbytes, flags)


class _Opened(http.client.HTTPConnection):
    def __init__(self, base: Base, timed: _Timed) -> None:
        super().__init__(base.host, base.port)
        self.sock = self.timed = timed


def _connect(base: Base, deadline: float, clock: Callable[[], float]) -> _Timed:
    """Connects to the first reachable address of the host; each attempt gets a part of the remaining time."""
    found = socket.getaddrinfo(base.host, base.port, type=socket.SOCK_STREAM)
    failed = OSError(f"{base.host} has no address")
    for at, (family, kind, protocol, _, address) in enumerate(found):
        timed = _Timed(family, kind, protocol, clock)
        timed.deadline = deadline
        try:
            timed.settimeout(timed.left_s() / (len(found) - at))
            timed.connect(address)
        except OSError as error:
            timed.close()
            failed = error
        else:
            timed.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return timed
    raise failed
