"""The command `evenstep`: it runs the installed programs, and shows and ends the local ones."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evenstep.completion import SCRIPTS
from programs import PATIENCE_S, ROOT, clean_environment


@dataclass(frozen=True)
class Evenstep:
    """Runs the command with these environment variables."""

    environ: dict[str, str]

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "evenstep", *arguments]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )


@pytest.fixture
def evenstep(predictor_binary: Path, agent_binary: Path, tmp_path: Path) -> Iterator[Evenstep]:
    """The command, with the programs of the project and a folder of the test."""
    assert predictor_binary.parent == agent_binary.parent
    environ = {
        **clean_environment(),
        "PATH": f"{predictor_binary.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python" / "src"),
        "EVENSTEP_HOME": str(tmp_path),
    }

    run = Evenstep(environ)
    yield run
    run("server", "stop")


def test_commands_of_programs_are_handed_over(evenstep: Evenstep) -> None:
    for command, text in [
        (["server", "--help"], "--memory-budget"),
        (["agent", "--help"], "--watch-pid"),
        (["plan", "--help"], "--profile"),
        (["simulate", "--help"], "--policies"),
    ]:
        told = evenstep(*command)
        assert told.returncode == 0
        assert text in told.stdout, told
    told = evenstep("backtest", "--no-such-flag")
    assert told.returncode == 2
    assert "--no-such-flag" in told.stderr


def test_the_local_predictor_is_shown_asked_and_stopped(evenstep: Evenstep) -> None:
    assert "predictor: not running" in evenstep("server", "status").stdout
    assert evenstep("report").stdout == "no jobs\n", "no predictor was started for the question"
    status = evenstep("server", "status").stdout
    assert "predictor: http://127.0.0.1:" in status
    assert "agent: not running" in status
    unknown = evenstep("report", "no-such-job")
    assert unknown.returncode == 1
    assert "unknown job no-such-job; run report without a job to list all jobs" in unknown.stderr
    unreachable = evenstep("report", "--server", "http://127.0.0.1:9")
    assert unreachable.returncode == 1
    assert "no predictor responds: http://127.0.0.1:9: " in unreachable.stderr
    assert "predictor.log" in evenstep("server", "logs").stdout
    assert "predictor: stopped" in evenstep("server", "stop").stdout
    assert "predictor: not running" in evenstep("server", "stop").stdout
    for words, rule in [(["stop", "now"], "must have no argument"), (["statsu"], "must be status, logs, stop, or")]:
        wrong = evenstep("server", *words)
        assert wrong.returncode == 1
        assert rule in wrong.stderr


def test_the_local_store_is_read(evenstep: Evenstep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing = evenstep("store", "check")
    assert missing.returncode == 1
    assert "evenstep.db: No such file" in missing.stderr
    assert evenstep("report").returncode == 0, "starts a predictor, which has a store"
    assert evenstep("store", "check").stdout.endswith("no faults\n")
    assert "no job a" in evenstep("store", "export", "--to", "x", "--job", "a").stderr
    assert "no reports of job a" in evenstep("backtest", "--job", "a").stderr
    (tmp_path / "evenstep.db").touch()
    both = evenstep("store", "check")
    assert both.returncode == 1
    assert "exist: choose one by --store" in both.stderr


def test_without_a_command_the_commands_are_shown(evenstep: Evenstep) -> None:
    told = evenstep()
    assert told.returncode == 0
    assert "health-server" in told.stdout
    for words, rule in [(["--pace", "1"], "must be at least two"), (["--steps", "0"], "must be a whole number from 1")]:
        assert rule in evenstep("demo", *words).stderr


def test_versions_of_everything_agree(evenstep: Evenstep) -> None:
    lines = evenstep("--version").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["evenstep", "evenstep-predictor", "evenstep-agent"]
    assert len({line.split()[1] for line in lines}) == 1, lines


def test_a_command_of_a_program_does_not_wait_for_torch() -> None:
    script = "import sys; import evenstep.cli, evenstep.start.local.command; print('torch' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")}
    told = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_bash_completes_commands_and_options(evenstep: Evenstep, tmp_path: Path) -> None:
    assert set(SCRIPTS) == {"bash", "fish", "zsh"}
    script = tmp_path / "completion"
    script.write_text(evenstep("completion", "bash").stdout)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(evenstep {' '.join(words)}); COMP_CWORD={len(words)}; _evenstep; echo ${{COMPREPLY[@]}}"
        command = f"evenstep() {{ {sys.executable} -m evenstep $@; }}; . {script}; {line}"
        told = subprocess.run(["bash", "-c", command], env=evenstep.environ, capture_output=True, text=True, check=True)
        return told.stdout.split()

    assert completed("se") == ["server"]
    assert completed("server", "--memory-b") == ["--memory-budget"]


def test_help_lists_every_command(evenstep: Evenstep) -> None:
    told = evenstep("--help").stdout
    own = ("demo", "doctor", "verify", "health-server")
    for command in (*own, "server", "agent", "top", "report", "backtest", "simulate", "plan"):
        assert re.search(rf"^ {{4}}{command}\s", told, re.MULTILINE), told
    assert evenstep("no-such-command").returncode == 2
