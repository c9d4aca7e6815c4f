"""TLS of connections, with certificates that OpenSSL makes."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenstep._native import ClientTls, Http, Plan, report_oom
from evenstep.doctor.command import check_tls
from evenstep.doctor.service import check_servers
from evenstep.errors import EvenstepError, SettingError
from evenstep.exchange.predictor import Predictor
from evenstep.settings.connection import client_tls, connect
from evenstep.settings.settings import Settings
from programs import PATIENCE_S, serving

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
SIGNED = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE")
VARIABLES = {"EVENSTEP_CA": "ca.pem", "EVENSTEP_CLIENT_CERT": "client.pem", "EVENSTEP_CLIENT_KEY": "client.key"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA, and certificates of a server and a client."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("site")

    def certificate(name: str, *more: str) -> None:
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        subprocess.run(
            [openssl, "req", "-x509", *KEY, "-subj", f"/CN={name}", *files, *more],
            cwd=folder,
            check=True,
            capture_output=True,
        )

    certificate("ca")
    certificate("server", *SIGNED, "-addext", "subjectAltName=IP:127.0.0.1")
    certificate("client", *SIGNED)
    return folder


@pytest.fixture(scope="module")
def encrypted(predictor_binary: Path, site: Path) -> Iterator[str]:
    """Base URL of a predictor that requires client certificates."""
    files = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-client-ca": "ca.pem"}
    with serving(predictor_binary, site, *(f"{option}={site / file}" for option, file in files.items())) as url:
        yield url


@pytest.fixture
def environment(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in VARIABLES.items():
        monkeypatch.setenv(name, str(site / file))


@pytest.mark.usefixtures("environment")
def test_requests_use_the_files_of_the_environment(encrypted: str, job_id: str) -> None:
    assert encrypted.startswith("https://")
    assert connect(encrypted).get("/healthz", PATIENCE_S).status == 200
    checks = check_servers(encrypted, own_version=None, timeout_s=PATIENCE_S)
    assert [check.status for check in checks] == ["ok"] * 3, checks
    planner = Predictor(encrypted, job_id, {"global_batch": 16}, [{"worker": "node-a/0"}, {"worker": "node-a/1"}])
    assert [plan.size for _, plan in planner.open([0], Plan.of([16, 0]))] == [16]
    assert report_oom(encrypted, job_id, "node-a/1", 0, 8, PATIENCE_S, client_tls()) == 7
    planner.close(PATIENCE_S)


def test_a_refusal_says_what_to_do(encrypted: str, site: Path) -> None:
    with pytest.raises(EvenstepError, match="signed by none of the public CAs; set --ca or EVENSTEP_CA"):
        Http(encrypted).get("/healthz", PATIENCE_S)
    with pytest.raises(EvenstepError, match="requires a client certificate"):
        Http(encrypted, ClientTls(ca=site / "ca.pem")).get("/healthz", PATIENCE_S)


@pytest.mark.parametrize(
    ("variable", "file", "rule"),
    [
        ("EVENSTEP_CA", "none.pem", "none.pem: cannot be read"),
        ("EVENSTEP_CA", "client.key", "client.key: has no certificate"),
        ("EVENSTEP_CLIENT_CERT", "client.pem", "client.pem: a client certificate requires its private key"),
    ],
)
def test_a_wrong_file_is_named_at_the_start(
    site: Path, monkeypatch: pytest.MonkeyPatch, variable: str, file: str, rule: str
) -> None:
    path = str(site / file)
    with pytest.raises(SettingError, match=rule):
        Settings.read({variable: path}, "node-a")
    monkeypatch.setenv(variable, path)
    assert [(check.status, rule in check.found) for check in check_tls()] == [("failed", True)]
