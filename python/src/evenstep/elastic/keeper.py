"""The store of an elastic job, in a separate process, so that it outlives any worker of its host.

The first worker on the host of the store binds its port and gives the socket to that process. Each worker keeps a
connection to it. Its end marks the worker as dead: the kernel closes the connection when a process ends.
"""

import os
import selectors
import socket
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import EvenstepError, SettingError

#: Key of the port of the connections by which workers are seen to live.
_LIFE = "life"

#: Time to reach the store, which is started within it, in seconds.
_START_S = 60.0

#: Maximum length of a worker's name in bytes.
_NAME_MAX = 256

#: Seconds of silence, between probes, and number of probes after which the host of a worker is dead.
_PROBES = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))


#: The connections of :func:`live` in this process.
_LIVES: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _close_lives() -> None:
    """Closes copies in a forked child, such as a worker of a DataLoader, which may outlive its parent."""
    for connection in list(_LIVES):
        connection.close()


os.register_at_fork(after_in_child=_close_lives)


def dead(name: str) -> str:
    """Returns the key that tells that a worker has ended."""
    return f"dead/{name}"


def reach(host: str, port: int) -> TCPStore:
    """Returns the store of the job. The first process on its host starts it.

    Raises:
        EvenstepError: it cannot be reached.
    """
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((host, port), 1.0).close()
            return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_START_S))
        except (OSError, RuntimeError) as error:
            if time.monotonic() > deadline:
                raise EvenstepError(
                    f"the store of the elastic job does not respond at {host}:{port}: set MASTER_ADDR to the host of "
                    f"one worker, and MASTER_PORT to a free port of it, the same for all workers: {error}"
                ) from error
        if not _start(host, port):
            time.sleep(0.1)


def live(store: Store, host: str, name: str) -> socket.socket:
    """Returns the connection that shows that this worker lives, until it is closed.

    Raises:
        EvenstepError: the process of the store has ended.
    """
    if len(name) > _NAME_MAX:
        raise SettingError(f"worker name {name!r}: must have at most {_NAME_MAX} bytes")
    try:
        connection = socket.create_connection((host, int(store.get(_LIFE))), _START_S)
        connection.sendall(name.encode() + b"\n")
    except OSError as error:
        raise EvenstepError(f"the store of the elastic job at {host} has ended: {error}") from error
    _LIVES.add(connection)
    return connection


def check(store: Store, where: str, error: RuntimeError) -> None:
    """Fails if an error came from the end of the store.

    Raises:
        EvenstepError: it has ended.
    """
    try:
        store.check(["any"])
    except RuntimeError:
        raise EvenstepError(
            f"the store of the elastic job at {where} has ended: its host is lost, or all other workers have ended: "
            f"{error}"
        ) from error


def _start(host: str, port: int) -> bool:
    """Starts the process of the store if this is its host and no other process has done so."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
    except OSError:
        return False
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            # The port belongs to another process, or the address to another host.
            return False
        arguments = [sys.executable, "-m", "evenstep.elastic.keeper", host, str(port), str(listener.fileno())]
        quiet = subprocess.DEVNULL
        # Signals for the worker's group, such as Ctrl-C, do not end it.
        subprocess.Popen(  # noqa: S603
            arguments,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    return True


def _keep(host: str, port: int, listener: int) -> None:
    """Runs the store until the last worker has ended, or none has come in time."""
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener, timeout=timedelta(seconds=10)
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with selectors.DefaultSelector() as selector, socket.socket(family, socket.SOCK_STREAM) as lives:
        lives.bind(("", 0))
        lives.listen(1024)
        store.set(_LIFE, str(lives.getsockname()[1]))
        selector.register(lives, selectors.EVENT_READ)
        names: dict[socket.socket, bytes] = {}
        has_begun = False
        while names or not has_begun:
            ready = selector.select(None if names else _START_S)
            if not ready:
                return
            for key, _ in ready:
                if key.fileobj is lives:
                    connection, _ = lives.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for option, value in _PROBES:
                        connection.setsockopt(socket.IPPROTO_TCP, option, value)
                    selector.register(connection, selectors.EVENT_READ)
                    names[connection], has_begun = b"", True
                    continue
                connection = key.fileobj  # type: ignore[assignment]  # All others are sockets.
                received = b""
                with suppress(OSError):
                    received = connection.recv(_NAME_MAX + 1)
                names[connection] += received
                if not received or len(names[connection]) > _NAME_MAX + 1:
                    selector.unregister(connection)
                    connection.close()
                    store.set(dead(names.pop(connection).decode(errors="replace").strip()), "1")


if __name__ == "__main__":
    _keep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
