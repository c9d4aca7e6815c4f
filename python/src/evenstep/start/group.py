"""The process group of evenstep: all ranks, for CPU tensors, next to the training's own group."""

import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from evenstep.errors import EvenstepError, SettingError

log = logging.getLogger("evenstep")

#: The variable by which Gloo selects its network interface.
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"

#: Minimum time that a rank waits for the others. Rank 0 needs part of it at the start, to reach the predictor.
PATIENCE_MIN = timedelta(seconds=60)

#: Linux's request for the IPv4 address of an interface, and the bytes of the address in the response.
_SIOCGIFADDR = 0x8915
_ADDRESS = slice(20, 24)

#: An address outside of all local networks. No packet is sent to it.
_OUTSIDE = "198.51.100.1"


def open_group(world_size: int, environ: Mapping[str, str] | None = None) -> dist.ProcessGroup | None:
    """Opens the group. All ranks must call it. Returns None if this process is alone.

    Raises:
        SettingError: the training has no process group, but several processes.
        EvenstepError: another rank did not call it in time, or cannot be reached.
    """
    environ = os.environ if environ is None else environ
    if not (dist.is_available() and dist.is_initialized()):
        if world_size > 1:
            raise SettingError(
                f"WORLD_SIZE={world_size} and no process group: call torch.distributed.init_process_group() before "
                "job.loader"
            )
        return None
    timeout, interface = max(time_limit(), PATIENCE_MIN), _interface(environ)
    advice = (
        f"did not come within {timeout.total_seconds():.0f} s or cannot be reached: all ranks must call job.loader or "
        f"job.steps; if hosts cannot reach each other, set {GLOO_INTERFACE} on each to its network interface "
        f"({_choice(environ, interface)})"
    )
    with awaiting(advice), _selected(interface):
        group = dist.new_group(backend="gloo", timeout=timeout)
    return group if isinstance(group, dist.ProcessGroup) else None


def select_interface(environ: MutableMapping[str, str]) -> None:
    """Selects Gloo's network interface for the rest of the process, if its own choice is a loopback address."""
    if interface := _interface(environ):
        environ[GLOO_INTERFACE] = interface


@contextmanager
def awaiting(what: str) -> Iterator[None]:
    """Context manager for waits for other ranks: the error names this rank and what it waited for.

    Args:
        what: continues a sentence that begins with "another rank".

    Raises:
        EvenstepError: a collective failed.
    """
    try:
        yield
    except RuntimeError as error:
        raise EvenstepError(f"rank {dist.get_rank()}: another rank {what}: {error}") from error


def time_limit() -> timedelta:
    """Returns the time limit of the training's own process group, whose collectives wait for the same ranks."""
    default = dist.group.WORLD
    for device in ("cpu", "cuda"):
        try:
            timeout = default._get_backend(torch.device(device)).options._timeout  # type: ignore[union-attr]  # noqa: SLF001  # There is no public way.
        except (AttributeError, RuntimeError):
            continue
        if isinstance(timeout, timedelta):
            return timeout
    return dist.default_pg_timeout


def _interface(environ: Mapping[str, str]) -> str | None:
    """Returns the network interface for Gloo if its own choice is a loopback address; else None.

    Gloo takes the address of the host's name. Some distributions map that name to 127.0.1.1, where other hosts reach
    only themselves. The training's group may work nonetheless: NCCL selects interfaces in another way.
    """
    one_host = dist.is_initialized() and environ.get("LOCAL_WORLD_SIZE") == str(dist.get_world_size())
    if environ.get(GLOO_INTERFACE) or one_host or not _is_loopback(_own_address()):
        return None
    names = [name for _, name in socket.if_nameindex()]
    # NCCL takes interfaces whose names begin with one of these; "^" excludes them.
    for given in environ.get("NCCL_SOCKET_IFNAME", "").split(","):
        for name in names:
            if given and not given.startswith("^") and name.startswith(given.lstrip("=")):
                return name
    for target in (environ.get("MASTER_ADDR"), _OUTSIDE):
        address = target and _address_towards(target)
        if address and not _is_loopback(address):
            return next((name for name in names if _address_of(name) == address), None)
    return None


def _choice(environ: Mapping[str, str], interface: str | None) -> str:
    if interface := interface or environ.get(GLOO_INTERFACE):
        return f"now {interface}"
    return f"now the address of the host name {socket.gethostname()}, {_own_address() or 'which is unknown'}"


@contextmanager
def _selected(interface: str | None) -> Iterator[None]:
    if interface is None:
        yield
        return
    log.info(
        "the host name %s resolves to a loopback address: evenstep's group uses the interface %s",
        socket.gethostname(),
        interface,
    )
    os.environ[GLOO_INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[GLOO_INTERFACE]


def _own_address() -> str | None:
    """Returns the address of this host's name, as Gloo finds it; None if the name is unknown."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _is_loopback(address: str | None) -> bool:
    """Returns whether an address is a loopback address; Gloo also takes one if the host's name is unknown."""
    return address is None or ipaddress.ip_address(address).is_loopback


def _address_towards(target: str) -> str | None:
    """Returns this host's IPv4 address on the route to a target; None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # It sends nothing.
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str | None:
    """Returns the IPv4 address of an interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[_ADDRESS])
