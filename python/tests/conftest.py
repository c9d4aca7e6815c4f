"""Real programs for tests: a predictor and an agent; tests are skipped with a message if they are not built."""

import itertools
import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

from programs import ROOT, sampling, serving


def _take(variable: str) -> str | None:
    """Moves a variable out of the package's sight. The processes of pytest-xdist find it under the other name."""
    if (said := os.environ.pop(variable, None)) is not None:
        os.environ[f"TESTS_{variable}"] = said
    return os.environ.get(f"TESTS_{variable}")


# In the package, EVENSTEP_AGENT is an address; in tests and elsewhere in this project, it is a program.
_BINARIES = {name: _take(name.upper().replace("-", "_")) for name in ("evenstep-predictor", "evenstep-agent")}

_numbers = itertools.count()

# Hypothesis limits the duration of an example, which depends on the machine.
hypothesis.settings.register_profile("evenstep", deadline=None)
hypothesis.settings.load_profile("evenstep")


def pytest_report_header() -> str:
    return f"PyTorch {version('torch')}"


def binary(name: str) -> Path:
    """Returns the path of a program of the project; skips the test if the program is missing."""
    variable = name.upper().replace("-", "_")
    said = _BINARIES[name]
    if said == "":
        pytest.skip(f"{variable} is empty: tests with {name} are skipped")
    if said is not None:
        assert Path(said).is_file(), f"{variable}={said}: no such file"
        return Path(said)
    for build in ("debug", "release"):
        path = ROOT / "target" / build / name
        if path.is_file():
            return path
    pytest.skip(f"{name} is not built (cargo build) and {variable} is not set")


@pytest.fixture(scope="session")
def predictor_binary() -> Path:
    return binary("evenstep-predictor")


@pytest.fixture(scope="session")
def agent_binary() -> Path:
    return binary("evenstep-agent")


@pytest.fixture(scope="session")
def predictor(predictor_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real predictor that all tests share; each test uses a separate job."""
    with serving(predictor_binary, tmp_path_factory.mktemp("predictor")) as url:
        yield url


@pytest.fixture(scope="module")
def agent(agent_binary: Path, predictor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real agent that the tests of a module share; it takes a tenth of a core."""
    with sampling(agent_binary, tmp_path_factory.mktemp("agent"), predictor) as url:
        yield url


@pytest.fixture
def job_id() -> str:
    """A job id that no other test uses."""
    return f"job-{next(_numbers)}"


@pytest.fixture
def home(predictor_binary: Path, agent_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of local programs; all that run there end with the test."""
    assert predictor_binary.parent == agent_binary.parent
    monkeypatch.delenv("EVENSTEP_SERVER", raising=False)
    monkeypatch.setenv("EVENSTEP_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{predictor_binary.parent}{os.pathsep}{os.environ['PATH']}")
    # Not at the top: tests that need no package run without it.
    from evenstep.start.local import AGENT, PREDICTOR, open_folder, running  # noqa: PLC0415

    folder = open_folder()
    yield folder
    for program in (PREDICTOR, AGENT):
        known = running(folder, program)
        if known:
            os.kill(known.pid, signal.SIGKILL)
