"""Connections of this process: TLS and token from the environment."""

import http
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from evenstep._native import ClientTls, Http


def client_tls(environ: Mapping[str, str] | None = None) -> ClientTls:
    """Reads the files in ``EVENSTEP_CA``, ``EVENSTEP_CLIENT_CERT`` and ``EVENSTEP_CLIENT_KEY``, and the token.

    The token is in ``EVENSTEP_TOKEN`` or in the file ``EVENSTEP_TOKEN_FILE``.

    Raises:
        SettingError: a file cannot be used.
    """
    environ = os.environ if environ is None else environ
    certificates = [environ.get(f"EVENSTEP_{name}") or None for name in ("CA", "CLIENT_CERT", "CLIENT_KEY")]
    token = {name: environ[name] for name in ("EVENSTEP_TOKEN", "EVENSTEP_TOKEN_FILE") if name in environ}
    return ClientTls(certificates[0], certificates[1], certificates[2], token)


def connect(server: str) -> Http:
    """Returns a connection to the server at a base URL, with TLS and token of the environment.

    Raises:
        SettingError: the URL or a file breaks a rule.
    """
    return Http(server, client_tls())


def job_view(servers: str, job: str, path: str, timeout_s: float) -> Any:
    """Returns a view of a job from the first server of a list; ``path`` continues the path of the job.

    Raises:
        EvenstepError: no response.
        ValueError: another response than a view.
    """
    server = servers.partition(",")[0].strip().rstrip("/")
    answer = connect(server).get(f"/v1/jobs/{quote(job, safe='')}{path}", timeout_s)
    if answer.status != http.HTTPStatus.OK:
        raise ValueError(answer.status)
    return json.loads(answer.body)
