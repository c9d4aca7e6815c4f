"""A scripted server with real sockets, for tests with misbehaving servers."""

import json
import socket
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answers:
    """Responds with a status, headers and a body."""

    status: int = 200
    headers: str = ""
    body: bytes = b"{}"


@dataclass(frozen=True)
class Sends:
    """Sends these bytes unchanged, and optionally closes the connection."""

    raw: bytes
    close: bool = True


HANGS = Sends(b"")
"""Reads the request and closes the connection."""

SLEEPS = Sends(b"", close=False)
"""Reads the request and never responds."""

Does = Answers | Sends


def refuses(status: int, slug: str, **more: object) -> Answers:
    problem = {"type": f"urn:evenstep:problem:{slug}", "title": slug, "status": status, "detail": "d", **more}
    return Answers(status, "retry-after: 1\r\n", json.dumps(problem).encode())


def points_to(url: str) -> Answers:
    return Answers(307, f"location: {url}/v1/jobs/job\r\n", b"")


def unused_address() -> str:
    """Returns an address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


class Scripted:
    """A server that takes one action after the other, and then repeats the last one."""

    def __init__(self, script: Iterable[Does] = (Answers(),)) -> None:
        self.script = deque(script)
        self.connections = 0
        self._heard: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        # Ends with the test's process.
        threading.Thread(target=self._accept, daemon=True).start()

    def heard(self) -> list[str]:
        """Returns the requests since the last call: method, path and body."""
        heard, self._heard = self._heard, []
        return heard

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        while first := reader.readline():
            length = 0
            while (line := reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = reader.read(length)
            self._heard.append(f"{first.decode().removesuffix(' HTTP/1.1' + chr(13) + chr(10))} {body.decode()}")
            does = self.script.popleft() if len(self.script) > 1 else self.script[0]
            if isinstance(does, Answers):
                head = f"HTTP/1.1 {does.status} X\r\n{does.headers}content-length: {len(does.body)}\r\n\r\n"
                connection.sendall(head.encode() + does.body)
            else:
                connection.sendall(does.raw)
                if does.close:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
