"""The predictor's HTTP interface: messages, servers and the client."""

from evenstep.wire.client import Client
from evenstep.wire.errors import AskError, SilentError, StaleError, UnknownError, UnusableError

__all__ = ["AskError", "Client", "SilentError", "StaleError", "UnknownError", "UnusableError"]
