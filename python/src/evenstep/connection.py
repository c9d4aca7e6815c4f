"""Connections of this process: TLS from the environment."""

import os
from collections.abc import Mapping

from evenstep._native import ClientTls, Http


def client_tls(environ: Mapping[str, str] | None = None) -> ClientTls:
    """Reads the files in ``EVENSTEP_CA``, ``EVENSTEP_CLIENT_CERT`` and ``EVENSTEP_CLIENT_KEY``.

    Raises:
        SettingError: a file cannot be used.
    """
    environ = os.environ if environ is None else environ
    names = ("EVENSTEP_CA", "EVENSTEP_CLIENT_CERT", "EVENSTEP_CLIENT_KEY")
    return ClientTls(*(environ.get(name) or None for name in names))


def connect(server: str) -> Http:
    """Returns a connection to the server at a base URL, with the TLS of the environment.

    Raises:
        SettingError: the URL or a file breaks a rule.
    """
    return Http(server, client_tls())
