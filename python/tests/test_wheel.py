"""The wheel that users install: its programs run, and it works wherever its tag allows it.

EVENSTEP_WHEEL names it. `scripts/test --all` makes one of the debug build. `scripts/release` tests the released one.
"""

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

PROGRAMS = ("evenstep-predictor", "evenstep-agent")
# Parts of glibc. Everything else has to be inside the files.
GLIBC = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}
GLIBC_NEWEST = (2, 28)
# Time limit for an installation on a busy machine, in seconds.
COMMAND_S = 300


@pytest.fixture(scope="module")
def path() -> Path:
    named = os.environ.get("EVENSTEP_WHEEL")
    if not named:
        pytest.skip("EVENSTEP_WHEEL names no wheel (scripts/wheel builds one; scripts/test --all tests it)")
    assert Path(named).is_file(), f"EVENSTEP_WHEEL={named}: no such file"
    return Path(named)


@pytest.fixture(scope="module")
def released(path: Path) -> Path:
    """The wheel, if it is for any Linux."""
    if "manylinux" not in path.name:
        pytest.skip(f"{path.name} is for this machine only; scripts/wheel builds one for others")
    return path


@pytest.fixture(scope="module")
def installed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel into a fresh environment; returns its folder of programs."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    # Makes torch available, which would take minutes to install.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    options = ("--no-index", "--no-deps", "--disable-pip-version-check")
    run(folder / "bin" / "python", "-m", "pip", "install", *options, path)
    return folder / "bin"


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command without this process's own Python paths; returns what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EVENSTEP_"))}
    environ = {**kept, **variables}
    done = subprocess.run(command, check=False, text=True, env=environ, capture_output=True, timeout=COMMAND_S)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def binaries(path: Path) -> dict[str, bytes]:
    """Returns the wheel's ELF files by name."""
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    return {Path(name).name: body for name, body in files.items() if body.startswith(b"\x7fELF")}


def test_programs_module_and_package_have_the_version_of_the_wheel(path: Path, installed: Path) -> None:
    version = path.name.split("-")[1]
    code = "import evenstep, evenstep._native as native; print(evenstep.__file__, native.__file__, native.version())"
    package, module, native_version = run(installed / "python", "-c", code).split()
    assert Path(package).is_relative_to(installed.parent)
    assert Path(module).is_relative_to(installed.parent)
    assert native_version == version
    for program in PROGRAMS:
        assert run(installed / program, "--version") == f"{program} {version}\n"


SCRIPT = """
import time, torch, torch.distributed as dist, evenstep
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
class Net(torch.nn.Linear):
    def forward(self, x):
        time.sleep(len(x) * (0.002, 0.001)[dist.get_rank()])
        return super().forward(x)
job = evenstep.init()
loader = job.loader(torch.utils.data.TensorDataset(torch.randn(3200, 4)), global_batch=32)
model = job.wrap(DistributedDataParallel(Net(4, 1)))
for (x,) in loader:
    model(x).mean().backward()
job.close()
if dist.get_rank() == 0:
    print("the last batch of the slow worker:", len(x))
dist.destroy_process_group()
"""


def test_a_script_trains_without_anything_else(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = (installed / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    try:
        told = run(*launcher, script, **environ)
        assert int(told.split("slow worker:")[1]) < 16, told
        assert run(installed / "evenstep", "report", **environ).startswith("train-")
        status = run(installed / "evenstep", "server", "status", **environ)
        assert status.count("http://127.0.0.1:") == 2, status
    finally:
        run(installed / "evenstep", "server", "stop", **environ)


def test_binaries_need_only_glibc_of_the_tag(released: Path, tmp_path: Path) -> None:
    found = binaries(released)
    assert set(found) == {*PROGRAMS, "_native.abi3.so"}
    for name, body in found.items():
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", body)
        assert versions, name
        assert max((int(major), int(minor)) for major, minor in versions) <= GLIBC_NEWEST, name
        (tmp_path / name).write_bytes(body)
        needed = re.findall(r"NEEDED +(\S+)", run("objdump", "--private-headers", tmp_path / name))
        assert set(needed) <= GLIBC, name


def test_binaries_contain_no_path_of_the_machine_that_built_them(released: Path) -> None:
    # Otherwise, a build in another folder would differ.
    for name, body in binaries(released).items():
        for folder in (Path(__file__).parents[2], Path.home()):
            assert not re.findall(re.escape(f"{folder}/".encode()) + rb"[ -~]{0,80}", body), name


def test_record_has_the_hash_of_every_file(path: Path) -> None:
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    rows = {name: hashed for name, hashed, _ in csv.reader(io.StringIO(files[record].decode()))}
    assert rows.pop(record) == ""
    assert rows == {
        name: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        for name, body in files.items()
        if name != record
    }
