"""The predictor's HTTP interface: messages, servers and the client."""

from evenstep.wire.client import Client
from evenstep.wire.errors import RequestError, StaleError, UnknownError, UnreachableError, UnusableError

__all__ = ["Client", "RequestError", "StaleError", "UnknownError", "UnreachableError", "UnusableError"]
